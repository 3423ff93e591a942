"""Verdicts over every log of the collection, and what must never be invented."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.core.diagnosis import diagnose
from remote.core.phases import Phase
from remote.core.reading import LogReading, Reading, read_log
from remote.core.rules import BY_KIND, RULES, Confidence
from remote.core.verdict import Diagnosis, Outcome, ProcessEvidence, Quote, Role

CASES = Path(__file__).parents[1] / "cases"
REAL = list(csv.DictReader((CASES / "server_log/labels.tsv").open(), delimiter="\t"))
CRASHES = list(csv.DictReader((CASES / "diagnosis/labels.tsv").open(), delimiter="\t"))
#: The message that would tell is missing from this log.
OUT_OF_REACH = {"sgl-p12978.txt"}
#: What a log that was cut may be read as, besides what it is.
NO_CAUSE = {None, "insufficient_evidence", "unclassified"}


def real(name: str) -> bytes:
    return (CASES / "server_log" / f"{name}.log").read_bytes()


def recon(name: str) -> bytes:
    return (CASES / "diagnosis/recon" / name).read_bytes()


def read(log: bytes) -> Reading:
    return read_log([log])


def verdict(log: bytes | str, process: ProcessEvidence | None = None) -> Diagnosis:
    return diagnose(read(log.encode() if isinstance(log, str) else log), process)


def expected_kind(row: dict[str, str]) -> str:
    return "insufficient_evidence" if row["kind"] == "secondary_only" else row["kind"]


@pytest.mark.parametrize("row", REAL, ids=lambda row: row["log"])
def test_real_logs_read_as_labelled(row: dict[str, str]) -> None:
    found = verdict(real(row["log"]))
    assert (found.outcome.value, found.kind or "", found.first_rank) == (
        row["outcome"],
        row["kind"],
        row["first_rank"],
    )
    assert found.phase is not None
    assert found.phase.value == row["phase"]


@pytest.mark.parametrize(
    "row", [row for row in CRASHES if row["file"] not in OUT_OF_REACH], ids=lambda row: row["file"]
)
def test_crashes_get_their_kind(row: dict[str, str]) -> None:
    found = verdict(recon(row["file"]))
    assert found.kind == expected_kind(row)
    assert found.outcome is not Outcome.READY
    assert found.cause and "{what}" not in found.cause
    assert found.advice


def test_the_fp4_trap_is_named_with_its_patch() -> None:
    found = verdict(real("real/fp4-trap-fi063"))
    assert found.raised_in == "flashinfer/jit/cpp_ext.py:get_cuda_version"
    assert found.spread == "2 of 2 ranks, first TP1 at 19:00:14"
    assert found.ranks == {"TP0": Role.FAILED, "TP1": Role.FAILED}
    assert found.confidence is Confidence.HIGH
    assert "inv deploy piecewise --patch fp4-opaque" in found.advice[0]
    assert found.evidence[0] == Quote(69, "Attempted to call function marked as skipped")
    assert {other.kind for other in found.alternatives} >= {"jit_build_failed"}


def test_evidence_is_quoted_as_it_stands_in_the_log() -> None:
    for row in REAL:
        log = real(row["log"]).decode("utf-8", "replace").split("\n")
        for quote in verdict(real(row["log"])).evidence:
            quoted = quote.text.removesuffix("…").partition("\n")[0]
            assert quoted.partition(": ")[2][:60] in log[quote.line - 1]


def test_json_keys_are_stable() -> None:
    found = verdict(real("real/kv-too-small")).as_dict()
    assert list(found) == [
        "outcome",
        "kind",
        "confidence",
        "cause",
        "phase",
        "raised_in",
        "first_rank",
        "ranks",
        "evidence",
        "advice",
        "alternatives",
    ]
    assert found["ranks"] == {"TP0": "failed", "TP1": "failed"}


def test_the_nearest_flag_is_named() -> None:
    assert "--enable-piecewise-cuda-graph" in verdict(real("real/bad-flag")).advice[0].split()[-1]


def test_a_killed_rank_is_named_by_the_process_table() -> None:
    alone = verdict(real("real/rank-killed"))
    assert (alone.kind, alone.ranks) == (
        "insufficient_evidence",
        {"TP0": Role.COLLATERAL, "TP1": Role.SUSPECTED},
    )
    process = ProcessEvidence(alive=False, dead_ranks={"TP1": -9})
    told = verdict(real("real/rank-killed"), process)
    assert (told.outcome, told.kind, told.first_rank) == (
        Outcome.DIED_AFTER_READY,
        "process_killed",
        "TP1",
    )
    kernel = ProcessEvidence(dead_ranks={"TP1": -9}, kernel_oom=True, kernel_lines=("oom-kill: x",))
    assert verdict(real("real/rank-killed"), kernel).kind == "host_oom_kill"
    assert Quote(0, "oom-kill: x") in verdict(real("real/rank-killed"), kernel).evidence


def test_a_log_that_looks_healthy_while_the_scheduler_is_dead() -> None:
    log = real("cpu/scheduler-killed-0.5.9").partition(b"SIGTERM received")[0]
    assert verdict(log).outcome is Outcome.READY
    process = ProcessEvidence(alive=True, dead_ranks={"TP0": -9})
    assert verdict(log, process).kind == "process_killed"


def test_a_stopped_rank_is_told_by_the_process_table() -> None:
    log = real("cpu/healthy-tp2-0.5.9").partition(b"SIGTERM received")[0]
    found = verdict(log, ProcessEvidence(alive=True, stopped_ranks=("TP1",)))
    assert (found.outcome, found.kind, found.ranks["TP1"]) == (
        Outcome.HUNG,
        "rank_stopped",
        Role.STOPPED,
    )


def test_a_requested_stop_is_no_crash() -> None:
    log = real("real/piecewise").partition(b"SIGTERM received")[0]
    ended = (
        log + b"[2026-11-29 18:45:00] Subprocess scheduler_0 (pid=7) crashed with exit code -15.\n"
    )
    assert verdict(ended).kind is None
    told = ProcessEvidence(alive=False, exit_status=-15, stop_requested=True)
    assert verdict(log, told) == Diagnosis(Outcome.READY, phase=Phase.SERVING)


def test_the_kernels_word_decides_about_memory() -> None:
    log = recon("sgl-15235.txt")
    assert verdict(log).confidence is Confidence.MEDIUM
    assert verdict(log, ProcessEvidence(kernel_oom=True)).confidence is Confidence.HIGH
    assert verdict(log, ProcessEvidence(kernel_oom=False)).kind == "process_killed"


def test_a_start_that_fell_silent_is_hung_when_the_watcher_says_so() -> None:
    log = real("cpu/healthy-tp2-0.5.9").partition(b"Load weight begin")[0]
    log = log[: log.rindex(b"[2026")]
    assert verdict(log).kind is None
    assert verdict(log).outcome is Outcome.NOT_READY
    begun = log[: log.index(b"Init torch distributed ends")]
    begun = begun[: begun.rindex(b"[2026")]
    found = verdict(begun, ProcessEvidence(alive=True, hung=True))
    assert (found.outcome, found.kind) == (Outcome.HUNG, "distributed_hang")
    assert "TP0 connecting ranks" in found.advice[0]


def test_the_odd_rank_out_is_the_first_not_the_majority() -> None:
    found = verdict(recon("sgl-p29547.txt"))
    assert found.first_rank == "TP3"
    assert found.ranks == {
        "TP3": Role.FAILED,
        "TP0": Role.COLLATERAL,
        "TP1": Role.COLLATERAL,
        "TP2": Role.COLLATERAL,
    }


def test_a_log_delivered_newest_first_is_turned_around() -> None:
    found = verdict(recon("sgl-5096.txt"))
    assert found.kind == "nccl_init_error"
    quoted = found.evidence[0]
    assert "Error while creating shared memory segment" in quoted.text
    lines = recon("sgl-5096.txt").decode().splitlines()
    assert quoted.text in lines[quoted.line - 1]


def test_a_swallowed_import_counts_only_for_the_served_architecture() -> None:
    log = recon("sgl-4253.txt").decode()
    assert "gcc" in verdict(log).evidence[0].text
    other = log.replace("sglang.srt.models.deepseek_v2", "sglang.srt.models.glm4v_moe")
    assert verdict(other).kind == "model_arch_unsupported"


def test_an_unknown_error_is_quoted_and_not_forced_into_a_kind() -> None:
    found = verdict(
        "[2026-11-29 19:00:14 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/v/site-packages/sglang/srt/managers/scheduler.py", line 1, in event_loop_normal\n'
        "ZeroDivisionError: division by zero\n"
    )
    assert (found.kind, found.confidence) == ("unclassified", Confidence.LOW)
    assert "division by zero" in found.cause


def test_a_harmless_traceback_before_ready_is_none() -> None:
    log = real("cpu/healthy-tp2-0.5.9")
    end = log.index(b"No module named 'openai_harmony'") + 40
    assert verdict(log[:end]).kind is None


def test_more_ranks_than_gpus() -> None:
    line = "RuntimeError: CUDA error: invalid device ordinal\n"
    head = (
        "[2026-11-29 19:00:14 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    )
    assert verdict(head + line).kind == "more_ranks_than_gpus"


def test_request_texts_decide_nothing() -> None:
    log = real("real/piecewise").partition(b"SIGTERM received")[0].decode()
    asked = (
        "[2026-11-29 18:45:00] Receive: obj=GenerateReqInput(text='CUDA error: an illegal memory"
        " access was encountered; Watchdog timeout')\n"
    )
    assert verdict(log + "\n" + asked).kind is None


def test_every_rule_can_be_told() -> None:
    kinds = set(BY_KIND)
    for rule in BY_KIND.values():
        assert rule.cause and rule.advice
        assert set(rule.taken_for) <= kinds
    for rule in RULES:
        for sign in rule.signs:
            for pattern in (sign.pattern, sign.unless, sign.frames, sign.not_frames):
                re.compile(pattern or "")


# --- whatever happens to a log on its way ---------------------------------------------------------

_ROWS = [(real(row["log"]), row["kind"] or None) for row in REAL] + [
    (recon(row["file"]), expected_kind(row)) for row in CRASHES if row["file"] not in OUT_OF_REACH
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(_ROWS), st.floats(0, 1))
def test_a_truncated_log_gives_its_kind_or_none(
    case: tuple[bytes, str | None], part: float
) -> None:
    log, kind = case
    log = log[: int(part * len(log))]
    assert verdict(log.rpartition(b"\n")[0] + b"x").kind in {kind, *NO_CAUSE}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(_ROWS), st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_chunks_change_nothing(case: tuple[bytes, str | None], sizes: list[int]) -> None:
    log, _ = case
    reading = LogReading()
    at = 0
    for size in sizes:
        reading.feed(log[at : at + size])
        at += size
    reading.feed(log[at:])
    whole = LogReading()
    whole.feed(log)
    assert diagnose(reading.finish()) == diagnose(whole.finish())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [row for row in _ROWS if b"  | " not in row[0] and not row[0].startswith(b">")]
    ),
    st.sampled_from(
        [b"sglang-1  | ", b"(Engine pid=7, ip=10.0.0.1) ", b"2026-11-29T19:00:14.1Z stdout F "]
    ),
)
def test_prefixes_change_nothing(case: tuple[bytes, str | None], prefix: bytes) -> None:
    log, _ = case
    prefixed = b"".join(prefix + line + b"\n" for line in log.rstrip(b"\n").split(b"\n"))
    expected = verdict(log)
    found = verdict(prefixed)
    assert (found.kind, found.outcome, found.first_rank) == (
        expected.kind,
        expected.outcome,
        expected.first_rank,
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(_ROWS))
def test_windows_line_ends_change_nothing(case: tuple[bytes, str | None]) -> None:
    log, _ = case
    assert verdict(log.replace(b"\n", b"\r\n")).kind == verdict(log).kind


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([row for row in _ROWS if row[1] is None]), st.randoms())
def test_healthy_logs_stay_healthy_between_other_lines(
    case: tuple[bytes, str | None], rng: Random
) -> None:
    log, _ = case
    noise = [
        b"Connection reset by peer",
        b"[2026-11-29 19:00:14] Ignore import error when loading sglang.srt.models.x: No module",
        b"/v/x.py:1: UserWarning: address of a dead end",
        b"\xff\xfe\x00",
        b"",
    ]
    lines = log.split(b"\n")
    for extra in noise:
        lines.insert(rng.randrange(len(lines)), extra)
    assert verdict(b"\n".join(lines)).kind is None


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_raise_and_none_are_a_cause(data: bytes) -> None:
    assert verdict(data).kind is None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [row for row in _ROWS if b" TP0] Scheduler hit an exception: T" in row[0] and row[1]]
    ),
    st.integers(1, 40),
)
def test_interleaved_ranks_give_the_same_kind(case: tuple[bytes, str | None], block: int) -> None:
    log, kind = case
    lines = log.split(b"\n")
    other = [line.replace(b" TP0]", b" TP9]") for line in lines]
    tangled = [
        line
        for at in range(0, len(lines), block)
        for line in (*lines[at : at + block], *other[at : at + block])
    ]
    assert verdict(b"\n".join(tangled)).kind == kind


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        (ProcessEvidence(alive=False, exit_status=137), "process_killed"),
        (ProcessEvidence(alive=False, exit_status=-9, kernel_oom=True), "host_oom_kill"),
        (ProcessEvidence(alive=False, full_disks=("/",)), "disk_or_permission"),
        # SGLang ends its ranks by SIGKILL once it can't write.
        (
            ProcessEvidence(alive=False, full_disks=("/",), dead_ranks={"scheduler": -9}),
            "disk_or_permission",
        ),
        (
            ProcessEvidence(
                alive=False, full_disks=("/",), dead_ranks={"TP0": -9}, kernel_oom=True
            ),
            "host_oom_kill",
        ),
        (ProcessEvidence(alive=False, exit_status=1, gpus=1), "more_ranks_than_gpus"),
        (ProcessEvidence(alive=False, exit_status=1), "insufficient_evidence"),
        (ProcessEvidence(alive=True), None),
    ],
)
def test_a_start_that_died_without_a_word(process: ProcessEvidence, kind: str | None) -> None:
    begun = real("real/kv-too-small").partition(b"Scheduler hit an exception")[0]
    found = verdict(begun[: begun.rindex(b"\n") + 1], process)
    assert found.kind == kind
    assert found.outcome is (Outcome.CRASHED if kind else Outcome.NOT_READY)
    assert found.advice


def test_a_start_that_stands_still_is_told_with_its_last_line() -> None:
    found = verdict("loading libraries\n", ProcessEvidence(alive=True, hung=True))
    assert (found.outcome, found.kind) == (Outcome.HUNG, "insufficient_evidence")
    assert "stands still" in found.cause and "loading libraries" in found.cause
    silent = verdict("", ProcessEvidence(alive=True, hung=True))
    assert (silent.outcome, silent.evidence) == (Outcome.HUNG, ())


def test_a_server_that_answers_nothing_hangs_although_its_log_is_healthy() -> None:
    log = real("cpu/healthy-0.5.8").partition(b"[2026-11-29 18:59:28] SIGTERM")[0]
    found = verdict(log, ProcessEvidence(alive=True, hung=True))
    assert (found.outcome, found.kind) == (Outcome.HUNG, "watchdog_or_health")


def test_a_full_disk_explains_a_start_that_stands_still() -> None:
    process = ProcessEvidence(alive=True, hung=True, full_disks=("/data",))
    found = verdict("loading libraries\n", process)
    assert found.kind == "disk_or_permission" and "/data" in found.cause


def test_a_kill_that_the_kernel_does_not_own_is_somebodys() -> None:
    log = recon("sgl-15235.txt")
    asked = verdict(log, ProcessEvidence(alive=False, kernel_oom=None))
    assert (asked.kind, asked.confidence) == ("process_killed", Confidence.MEDIUM)


NUMA = """\
[2026-11-29 12:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/v/site-packages/sglang/srt/model_executor/model_runner.py", line 2, in init_threads_binding
    assert self.tp_size <= n_numa_node, (
AssertionError: {said}

[2026-11-29 12:00:00] Received sigquit from a child process. It usually means the child failed.
"""


def test_a_rank_that_fails_is_not_outshouted_by_the_kill_that_follows() -> None:
    killed = ProcessEvidence(alive=False, exit_status=-9, kernel_oom=False)
    said = "tp_size 2 should be smaller than or equal to number of numa node on the machine 1."
    found = verdict(NUMA.format(said=said), killed)
    assert (found.kind, found.first_rank) == ("more_ranks_than_gpus", "TP1")
    found = verdict(NUMA.format(said="something never seen"), killed)
    assert (found.kind, found.first_rank) == ("unclassified", "TP1")
    only_the_end = NUMA[NUMA.index("[2026-11-29 12:00:00] Received") :]
    assert verdict(only_the_end, killed).kind == "insufficient_evidence"


def test_a_kill_while_ranks_connect_is_a_hang_only_where_nobody_asked_the_host() -> None:
    log = (
        "[2026-11-29 12:00:00] Init torch distributed begin.\n"
        "[2026-11-29 12:00:01] Rank 0 scheduler is dead. Please check the logs.\n"
        "[2026-11-29 12:00:01] Exit code: -9\n"
    )
    assert verdict(log).kind == "distributed_hang"
    asked = ProcessEvidence(alive=True, kernel_oom=False)
    found = verdict(log, asked)
    assert (found.kind, found.first_rank) == ("process_killed", "scheduler")
    assert verdict(log, ProcessEvidence(alive=True, kernel_oom=True)).kind == "host_oom_kill"


PROSE = """# Notes
When the port is taken the log says [Errno 98] address already in use, and nothing serves.
I saw "CUDA out of memory" and "Scheduler hit an exception" on Tuesday.
"""


@pytest.mark.parametrize("text", ["", "hello world\n", PROSE, "\x00\x01\x7fELF" * 99])
def test_what_no_server_printed_has_no_cause(text: str) -> None:
    found = diagnose(read_log([text.encode()]))
    assert (found.outcome, found.kind, found.phase) == (Outcome.UNKNOWN, None, None)
    assert found.cause and "inv pull" in found.advice[0]


def test_users_words_in_a_serving_log_are_no_cause() -> None:
    healthy = real("real/piecewise")
    words = b"they ask: what is a CUDA error: device-side assert triggered?\n"
    assert diagnose(read_log([healthy, words])).kind is None


def test_an_exception_without_its_traceback_is_quoted() -> None:
    found = diagnose(read_log([b"server_args=ServerArgs(tp_size=1)\nException: foo\n"]))
    assert (found.outcome, found.kind) == (Outcome.CRASHED, "unclassified")
    assert found.evidence[0].line == 2 and "foo" in found.cause


SERVING = (
    "server_args=ServerArgs(model_path='m', tp_size=8)\n"
    "[2026-11-29 19:00:00 TP0] Load weight begin. avail mem=90 GB\n"
    "[2026-11-29 19:01:00] INFO:     Started server process [1]\n"
    "[2026-11-29 19:01:05] The server is fired up and ready to roll!\n"
)
STEP = (
    "[2026-11-29 {at} TP0] Decode batch, #running-req: 3, #token: 12, token usage: 0.00, "
    "gen throughput (token/s): 120.3, #queue-req: 0\n"
)


def hit(rank: str, at: str, *frames: str, error: str = "") -> str:
    lines = [
        f"[2026-11-29 {at} {rank}] Scheduler hit an exception: Traceback (most recent call last):"
    ]
    for where in frames:
        path, _, function = where.partition(":")
        lines += [f'  File "/x/site-packages/{path}", line 1, in {function}', "    x()"]
    return "\n".join([*lines, *([error] if error else [])]) + "\n"


LOOP = "sglang/srt/managers/scheduler.py:event_loop_overlap"
REPLAY = "sglang/srt/model_executor/cuda_graph_runner.py:replay"


def test_a_log_cut_within_a_traceback_accuses_nobody_else() -> None:
    ranks = "".join(f"[2026-11-29 19:01:10 TP{n}] KV Cache is allocated.\n" for n in range(8))
    found = verdict(SERVING + ranks + hit("TP5", "19:02:00", LOOP))
    assert (found.kind, found.first_rank) == ("insufficient_evidence", "TP5")
    assert found.ranks["TP5"] is Role.FAILED
    assert {role for rank, role in found.ranks.items() if rank != "TP5"} == {Role.SILENT}
    assert "before the exception is named" in found.cause


def test_a_replayed_graph_is_serving_and_captures_nothing() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = verdict(SERVING + hit("TP4", "19:42:00", LOOP, REPLAY, error=error))
    assert (found.outcome.value, found.kind, found.phase) == (
        "died_after_ready",
        "serving_oom",
        Phase.SERVING,
    )


def test_a_gpu_that_fell_off_the_bus_explains_the_kernels_that_fail() -> None:
    stamp = "[2026-11-29 19:41:59] kernel: NVRM: "
    xid = f"{stamp}Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"
    error = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    crash = hit("TP4", "19:42:00", LOOP, REPLAY, error=error)
    assert verdict(SERVING + xid + crash).kind == "gpu_hardware"
    other = xid.replace("79, GPU has fallen off the bus", "31, pid=1, MMU Fault")
    assert verdict(SERVING + other + crash).kind == "illegal_memory_access"


def test_of_a_collective_that_timed_out_the_silent_rank_is_named() -> None:
    ranks = "".join(f"[2026-11-29 19:01:10 TP{n}] KV Cache is allocated.\n" for n in range(8))
    reports = "".join(
        f"[rank{n}]:[E1129 19:52:00 ProcessGroupNCCL.cpp:632] [Rank {n}] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600000 milliseconds\n"
        for n in range(8)
        if n != 3
    )
    dead = "[2026-11-29 19:52:10] Received sigquit from a child process. It usually means\n"
    found = verdict(SERVING + ranks + reports + dead)
    assert found.kind == "collective_timeout" and "TP3 did not report it" in found.cause
    assert {rank for rank, role in found.ranks.items() if role is Role.SUSPECTED} == {"TP3"}
    assert set(found.ranks) == {f"TP{n}" for n in range(8)}


def test_a_server_that_goes_on_for_long_printed_somebodys_words() -> None:
    said = hit("TP0", "19:42:00", LOOP, error="RuntimeError: CUDA error: an illegal memory access")
    after = STEP.format(at="19:50:00")
    assert verdict(SERVING + said + after).kind is None
    assert verdict(SERVING + after.replace("19:50", "19:41") + said).kind == "illegal_memory_access"


@pytest.mark.parametrize(
    "line", ["Killed", "/x/launch.sh: line 9: 4711 Killed    python -m sglang"]
)
def test_a_shells_killed_ends_the_server_and_names_no_cause(line: str) -> None:
    start = SERVING.partition("[2026-11-29 19:01:00]")[0]
    found = verdict(f"{start}{line}\n")
    assert (found.outcome.value, found.kind) == ("crashed", "insufficient_evidence")
    assert "doesn't tell by whom" in found.cause
    assert verdict(f"{SERVING}{line}\n").outcome is Outcome.DIED_AFTER_READY


def test_a_crash_in_native_code_while_serving_is_not_nccls() -> None:
    line = "[2026-11-29 19:42:00] Subprocess scheduler_3 (pid=9) crashed with exit code -11.\n"
    found = verdict(SERVING + line)
    assert (found.kind, found.first_rank) == ("native_crash", "TP3")


def dumped(rank: str, *frames: str) -> str:
    """What SGLang's watchdog prints of one rank, with py-spy's dump."""
    stack = "".join(f"    {frame}\n" for frame in frames)
    return (
        f"[2026-11-29 19:00:14 {rank}] Pyspy dump for PID 7 (py-spy dump --native --pid 7):\n"
        f"Process 7: sglang::scheduler_{rank.replace(' ', '_')}\nPython v3.12.3\n\n"
        f'Thread 7 (active): "MainThread"\n{stack}'
        'Thread 8 (idle): "Thread-1 (_watchdog_thread)"\n    poll (libc.so.6)\n'
        "    run (subprocess.py:550)\n\n"
        f"[2026-11-29 19:00:15 {rank}] Scheduler watchdog timeout (self.watchdog_timeout=300)\n"
    )


OUTER = ("Scheduler.run_batch (scheduler.py:3039)", "Scheduler.event_loop_overlap (scheduler.py:9)")
IN_GPU = (
    "0x7f1903614957 (libcuda.so.580.159.04)",
    "at::cuda::blas::gemm_and_bias<c10::BFloat16, c10::BFloat16> (libtorch_cuda.so)",
    "at::native::(anonymous namespace)::addmm_out_cuda_impl (libtorch_cuda.so)",
    "UnquantizedLinearMethod.apply (quantization/unquant.py:160)",
)
FOR_OTHERS = ("0x7f19 (libc.so.6)", "wait (threading.py:3)", "broadcast_pyobj (utils/common.py:7)")
ELSEWHERE = (
    "syscall (libc.so.6)",
    "Condition.wait (threading.py:355)",
    "Future.result (concurrent/futures/_base.py:451)",
    "HiCacheController.write (managers/cache_controller.py:12)",
)


def test_of_ranks_that_hang_the_one_that_the_others_wait_for_is_named() -> None:
    ranks = {f"DP0 TP{n}": IN_GPU if n % 2 else FOR_OTHERS for n in range(8)}
    ranks["DP0 TP5"] = ELSEWHERE
    found = verdict("".join(dumped(rank, *frames, *OUTER) for rank, frames in ranks.items()))
    assert (found.kind, found.first_rank) == ("watchdog_or_health", "DP0 TP5")
    assert found.raised_in == "managers/cache_controller.py:HiCacheController.write"
    assert "DP0 TP5 stood in managers/cache_controller.py" in found.cause
    assert {rank for rank, role in found.ranks.items() if role is Role.SUSPECTED} == {"DP0 TP5"}
    assert list(found.ranks.values()).count(Role.COLLATERAL) == 7


@pytest.mark.parametrize("frames", [IN_GPU, ELSEWHERE])
def test_where_all_ranks_stand_alike_none_is_suspected(frames: tuple[str, ...]) -> None:
    found = verdict("".join(dumped(f"TP{n}", *frames, *OUTER) for n in range(4)))
    assert (found.kind, found.first_rank) == ("watchdog_or_health", "TP0")
    assert "look there" not in found.cause
    assert Role.SUSPECTED not in found.ranks.values()


def test_a_real_hang_names_the_rank_and_its_place() -> None:
    found = verdict(real("h200/watchdog-compile"))
    place = "torch/_inductor/async_compile.py:AsyncCompile.triton.<locals>.get_result"
    assert found.raised_in == place
    assert f"TP0 stood in {place}" in found.cause
    assert found.ranks == {"TP0": Role.SUSPECTED, "TP1": Role.COLLATERAL}
