"""Tracebacks out of whole logs, cut logs and interleaved ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.core import tracebacks
from remote.core.log_lines import LogLine
from remote.core.server_log import LogReader
from remote.core.stacks import Stack, StackCollector, StackKind
from remote.core.tracebacks import FoldedTraceback, Frame, Link, TracebackCollector

CASES = Path(__file__).parents[1] / "cases" / "server_log"


def collect(log: bytes) -> tuple[FoldedTraceback, ...]:
    collector = TracebackCollector()
    reader = LogReader(collector.take)
    reader.feed(log)
    reader.finish()
    return collector.finish()


def stacks(text: str) -> list[Stack]:
    collector = StackCollector()
    for number, line in enumerate(text.splitlines(), 1):
        collector.take(LogLine(number, line))
    return collector.stacks


BODY = """\
  File "/v/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 10, in run
    scheduler = Scheduler(
                ^^^^^^^^^^
  File "/v/lib/python3.12/site-packages/sglang/srt/models/qwen2.py", line 20, in forward
    x = self.mlp(x)
"""
HEAD = (
    "[2026-11-29 19:00:14 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
)


def test_the_trap_on_two_ranks_is_folded_and_structured() -> None:
    report, raised = collect((CASES / "real/fp4-trap-fi063.log").read_bytes())
    assert report.traceback.header == "Piecewise CUDA Graph failed with error:"
    assert raised.summary(2) == "2 of 2 ranks, first TP1 at 19:00:14"
    assert raised.ranks == ("TP1", "TP0")
    error = raised.traceback.root
    assert error.headline == (
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped"
    )
    assert (error.line, len(error.frames)) == (160, 18)
    assert error.dynamo is not None
    assert error.dynamo.explanation.startswith("Dynamo does not know how to trace the builtin")
    assert len(error.dynamo.hints) == 2
    assert error.dynamo.context.startswith("module: _thread, qualname: allocate_lock")
    assert len(error.dynamo.user_frames) == 14
    assert error.raised_in == Frame(
        "/usr/lib/python3.12/subprocess.py",
        828,
        "__init__",
        "self._waitpid_lock = threading.Lock()",
    )
    assert error.dynamo.user_frames[-4].where == "flashinfer/jit/cpp_ext.py:get_cuda_version"
    assert report.traceback.root.dynamo is not None
    assert report.traceback.root.dynamo.user_frames == error.dynamo.user_frames


def test_chained_exceptions_stay_in_order() -> None:
    (folded,) = collect((CASES / "real/no-model.log").read_bytes())
    first, second = folded.traceback.chain
    assert (first.type, first.link) == ("huggingface_hub.errors.HFValidationError", Link.FIRST)
    assert (second.type, second.link) == ("OSError", Link.CAUSED_BY)
    assert (first.line, second.line) == (13, 67)
    assert folded.summary() == "once"


def test_messages_keep_all_their_lines() -> None:
    (folded,) = collect(
        (HEAD.format(rank="TP0") + BODY).encode()
        + b"RuntimeError: Ninja build failed. Ninja output:\n"
        b"/usr/bin/ld: cannot find -lcuda: No such file or directory\n"
        b"ninja: build stopped: subcommand failed.\n"
        b"[2026-11-29 19:00:15] Received sigquit from a child process.\n"
    )
    assert folded.traceback.root.message.splitlines() == [
        "Ninja build failed. Ninja output:",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory",
        "ninja: build stopped: subcommand failed.",
    ]
    assert folded.traceback.root.message_lines == (7, 8, 9)


@pytest.mark.parametrize("step", [1, 2, 4, 6])
def test_interleaved_ranks_are_untangled(step: int) -> None:
    body = [*BODY.splitlines(), "ValueError: no"]
    log = [HEAD.format(rank="TP0").rstrip(), HEAD.format(rank="TP1").rstrip()]
    for at in range(0, len(body), step):
        log += body[at : at + step] * 2
    (folded,) = collect("\n".join(log).encode())
    assert (folded.ranks, folded.times) == (("TP0", "TP1"), 2)
    error = folded.traceback.root
    assert error.headline == "ValueError: no"
    assert [frame.function for frame in error.frames] == ["run", "forward"]
    assert [frame.source for frame in error.frames] == ["scheduler = Scheduler(", "x = self.mlp(x)"]


def test_different_failures_of_interleaved_ranks_stay_apart() -> None:
    other = BODY.replace("qwen2", "llama") + "KeyError: 'b'\n"
    first, second = collect(
        (
            HEAD.format(rank="TP0") + BODY + HEAD.format(rank="TP1") + other + "ValueError: late\n"
        ).encode()
    )
    assert first.traceback.rank == "TP0"
    assert (first.traceback.root.headline, second.traceback.root.headline) == (
        "ValueError: late",
        "KeyError: 'b'",
    )


def test_each_writer_with_a_prefix_of_its_own() -> None:
    lines = ["Traceback (most recent call last):", *BODY.splitlines(), "OSError: x"]
    tangled = "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in (0, 1))
    (folded,) = collect(tangled.encode())
    assert folded.ranks == ("rank0", "rank1")
    assert len(folded.traceback.root.frames) == 2


def test_a_cut_head_and_a_cut_tail_are_marked() -> None:
    (folded,) = collect((BODY + "ValueError: x\n").encode())
    assert (folded.traceback.head_cut, folded.traceback.tail_cut) == (True, False)
    (folded,) = collect((HEAD.format(rank="TP0") + BODY).encode())
    assert (folded.traceback.head_cut, folded.traceback.tail_cut) == (False, True)
    assert folded.traceback.root.type == ""


def test_python_3_13_elisions_and_launchers_are_no_part_of_it() -> None:
    (folded,) = collect(
        b"Traceback (most recent call last):\n"
        b'  File "/v/a.py", line 3, in f\n'
        b"    g(\n    ~^\n    ...<6 lines>...\n    )\n"
        b"ModuleNotFoundError: No module named 'zmq'\n"
        b"srun: error: node2: task 0: Exited with exit code 1\n"
    )
    assert folded.traceback.root.message == "No module named 'zmq'"
    assert folded.traceback.root.frames == (Frame("/v/a.py", 3, "f", "g("),)


def test_native_frames_in_a_message() -> None:
    (folded,) = collect(
        (HEAD.format(rank="TP0") + BODY).encode()
        + b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
        b"Exception raised from c10_cuda_check at c10/cuda/CUDAException.cpp:43:\n"
        b"frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in libc10.so)\n"
        b"frame #1: clone + 0x44 (0x7f in libc.so.6)\n"
    )
    assert len(folded.traceback.root.native) == 2


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "MAX_DISTINCT", 10)
    collector = TracebackCollector()
    for number in range(0, 4000, 4):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        collector.take(LogLine(number, "Traceback (most recent call last):"))
        collector.take(LogLine(number + 1, f'  File "/v/{name}.py", line 3, in f'))
        collector.take(LogLine(number + 2, "ValueError: x"))
        collector.take(LogLine(number + 3, "[other]", headed=True))
    kept = [folded.traceback.first_line for folded in collector.finish()]
    assert len(kept) == 10
    assert (kept[0], kept[-1]) == (0, 3996)


def test_stacks_that_are_no_exceptions() -> None:
    spied, fault, native = stacks(
        "Process 309: sglang::scheduler_TP6\n"
        "Python v3.12.12 (/usr/bin/python3.12)\n\n"
        'Thread 309 (active): "MainThread"\n'
        "    capture (cuda_graph_runner.py:867)\n"
        "    initialize (model_runner.py:783)\n"
        "Fatal Python error: Aborted\n\n"
        "Thread 0x00007ee43dfff640 (most recent call first):\n"
        '  File "/v/scheduler.py", line 1419 in watchdog_thread\n'
        "==== backtrace (tid:    319) ====\n"
        " 0 0x0000000000042520 __sigaction()  ???:0\n"
        " 1 0x0000000000049b8a addProxyOpIfNeeded()  enqueue.cc:180\n"
    )
    assert (spied.kind, spied.process, spied.thread) == (
        StackKind.PY_SPY,
        "sglang::scheduler_TP6",
        "MainThread",
    )
    assert [frame.function for frame in spied.frames] == ["capture", "initialize"]
    assert fault.frames == (Frame("/v/scheduler.py", 1419, "watchdog_thread"),)
    assert [frame.function for frame in native.frames] == ["__sigaction()", "addProxyOpIfNeeded()"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 45_000), st.integers(0, 45_000))
def test_any_excerpt_is_read_without_raising(begin: int, end: int) -> None:
    log = (CASES / "real/fp4-trap-fi063.log").read_bytes()
    for folded in collect(log[begin:end]):
        assert folded.traceback.chain
        assert folded.traceback.first_line <= folded.traceback.last_line


def test_indentation_lost_on_the_way() -> None:
    flat = "".join(line.strip() + "\n" for line in BODY.splitlines() if "^" not in line)
    (folded,) = collect((HEAD.format(rank="TP0") + flat + "RuntimeError: NCCL error: x\n").encode())
    error = folded.traceback.root
    assert error.headline == "RuntimeError: NCCL error: x"
    assert [frame.source for frame in error.frames] == ["scheduler = Scheduler(", "x = self.mlp(x)"]


def test_a_chain_whose_first_exception_has_no_traceback() -> None:
    cause = "torch._dynamo.exc.Unsupported: torch.* op returned non-Tensor"
    rest = (
        "\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n" + BODY + "RuntimeError: x\n"
    )
    for begin in ("", "[2026-11-29 19:00:14 TP0] Scheduler hit an exception: "):
        (folded,) = collect((begin + cause + rest).encode())
        first, second = folded.traceback.chain
        assert first.headline == cause
        assert (second.headline, second.link) == ("RuntimeError: x", Link.CAUSED_BY)
