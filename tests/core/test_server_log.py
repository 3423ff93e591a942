"""The reader, on logs of real servers and on what may come between."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.core.log_events import (
    Event,
    FatalLine,
    FatalReason,
    PhaseEnded,
    PhaseStarted,
    Progress,
    Ready,
    ServerArgsSeen,
    ServingStep,
    StopRequested,
    TracebackSeen,
)
from remote.core.log_lines import LogLine
from remote.core.phases import Phase
from remote.core.server_log import LogReader

CASES = Path(__file__).parents[1] / "cases" / "server_log"
LABELS = list(csv.DictReader((CASES / "labels.tsv").open(), delimiter="\t"))


def case(name: str) -> bytes:
    return (CASES / f"{name}.log").read_bytes()


def read(data: bytes) -> tuple[LogReader, list[Event]]:
    reader = LogReader()
    return reader, reader.feed(data) + reader.finish()


def phases(events: list[Event], rank: str = "") -> list[str]:
    """``+weights`` where it began, ``-weights`` where it ended."""
    return [
        ("+" if isinstance(event, PhaseStarted) else "-") + event.phase.value
        for event in events
        if isinstance(event, (PhaseStarted, PhaseEnded)) and event.rank == rank
    ]


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label["log"])
def test_outcome_of_a_real_log(label: dict[str, str]) -> None:
    state = read(case(label["log"]))[0].state
    assert (state.ready is not None) == (label["outcome"] in ("ready", "died_after_ready"))
    if label["outcome"] in ("ready", "died_after_ready"):
        assert (state.fatal is not None) == (label["outcome"] == "died_after_ready")
    if label["phase"] != "import":
        assert state.phase.value == label["phase"]


def test_phases_of_a_start_with_piecewise_graphs() -> None:
    reader, events = read(case("real/piecewise"))
    assert phases(events) == [
        "+arguments",
        "-arguments",
        "+distributed",
        "-distributed",
        "+weights",
        "-weights",
        "+kv_pool",
        "-kv_pool",
        "+decode_capture",
        "-decode_capture",
        "+piecewise",
        "-piecewise",
        "+http",
        "-http",
        "+warm_up",
        "-warm_up",
        "+ready",
        "-ready",
        "+serving",
    ]
    ended = {e.phase: e for e in events if isinstance(e, PhaseEnded)}
    assert ended[Phase.DECODE_CAPTURE].figures == {
        "elapsed_s": 58.38,
        "used_gb": 0.08,
        "available_gb": 96.66,
    }
    assert ended[Phase.PREFILL_CAPTURE].stamp == "2026-11-29 18:43:55"
    state = reader.state
    assert (state.graphs.decode, state.graphs.prefill) == (True, True)
    assert state.graphs.prefill_backend == "piecewise"
    assert state.figures["max_total_num_tokens"] == 1463453
    assert state.server_args is not None
    assert state.server_args.startswith("server_args=ServerArgs(model_path='/models/qwen2-1b'")
    assert state.ready == Ready(60, "2026-11-29 18:44:14")
    assert state.lines == 434


def test_progress_of_captures_is_k_of_n() -> None:
    bars = [event for event in read(case("real/piecewise"))[1] if isinstance(event, Progress)]
    decode = [bar for bar in bars if bar.phase is Phase.DECODE_CAPTURE]
    prefill = [bar for bar in bars if bar.phase is Phase.PREFILL_CAPTURE]
    assert (decode[0].done, decode[-1].done, decode[-1].total) == (0, 12, 12)
    assert decode[-1].detail == "Capturing batches (bs=1 avail_mem=96.66 GB)"
    assert {bar.detail.split()[0] for bar in prefill} == {"Compiling", "Capturing"}
    assert {bar.total for bar in prefill} == {58}


def test_weight_shards_move_before_their_line_ends() -> None:
    reader = LogReader()
    reader.feed(b"[2026-11-29 18:43:11 TP0] Load weight begin. avail mem=79.0 GB\n")
    reader.feed(
        b"\rLoading safetensors checkpoint shards:  33% Completed | 1/3 [00:01<00:02, 1.0it/s]\r"
    )
    progress = reader.state.progress
    assert progress is not None
    assert (progress.done, progress.total, progress.phase) == (1, 3, Phase.WEIGHTS)


def test_a_traceback_on_the_line_of_a_bar_is_seen() -> None:
    data = (
        b"\rCapturing batches (bs=8 avail_mem=9.06 GB):   0%|          | 0/4 [00:00<?, ?it/s]"
        b"[2026-11-29 19:00:14 TP1] Scheduler hit an exception: "
        b"Traceback (most recent call last):\n"
    )
    events = read(data)[1]
    assert [type(e) for e in events if not isinstance(e, PhaseStarted)] == [
        Progress,
        TracebackSeen,
        FatalLine,
    ]
    assert events[-1] == FatalLine(
        1,
        "Scheduler hit an exception: Traceback (most recent call last):",
        FatalReason.SCHEDULER_EXCEPTION,
        "TP1",
        "2026-11-29 19:00:14",
    )


def test_ranks_are_followed_apart_and_the_slowest_is_named() -> None:
    def state_after(*lines: str) -> tuple[str | None, Phase]:
        reader, _ = read("".join(f"[2026-11-29 19:00:14 {line}\n" for line in lines).encode())
        return reader.state.slowest_rank, reader.state.phase

    begin = ("TP0] Init torch distributed begin.", "TP1] Init torch distributed begin.")
    assert state_after(*begin) == ("TP1", Phase.DISTRIBUTED)
    assert state_after(*begin, "TP1] Init torch distributed ends.", "TP1] Load weight begin.") == (
        "TP0",
        Phase.DISTRIBUTED,
    )
    # Later versions report captures on the first rank only: no reason to call the others slow.
    both = (*begin, "TP1] Load weight begin.", "TP0] Load weight begin.")
    assert state_after(
        *both, "TP0] Capture target decode CUDA graph begin. backend=full, bs=[1]"
    ) == ("TP0", Phase.DECODE_CAPTURE)


def test_lines_of_later_versions() -> None:
    reader, events = read(
        b"[2026-07-21 08:21:55] Init parallel begin.\n"
        b"[2026-07-21 08:21:56] Init parallel ends. elapsed=0.04 s\n"
        b"[2026-07-21 08:21:57] Capture target prefill CUDA graph begin. backend=breakable,"
        b" num_tokens=[4, 8192], avail mem=71.00 GB\n"
        b"\rCapturing prefill shape (num_tokens=4):  50%|##  | 1/2 [00:00<00:00,  8it/s]\r"
        b"[2026-07-21 08:21:58] Capture target prefill CUDA graph end. elapsed=18.60 s,"
        b" mem usage=1.56 GB, avail mem=53.07 GB.\n"
        b"[2026-07-21 08:21:59] Capture target verify CUDA graph begin. backend=full, bs=[1]\n"
        b"[2026-07-21 08:22:00] Capture target verify CUDA graph end. elapsed=2.27 s\n"
        b"[2026-07-21 08:22:01] Capture draft extend CUDA graph begin. backend=full, bs=[1]\n"
    )
    assert phases(events)[2:] == [
        "+distributed",
        "-distributed",
        "+piecewise",
        "-piecewise",
        "+decode_capture",
        "-decode_capture",
        "+decode_capture",
    ]
    graphs = reader.state.graphs
    assert (graphs.prefill_backend, graphs.decode_backend) == ("breakable", "full")
    assert reader.state.figures["elapsed_s"] == 2.27


def test_a_jit_build_nests_in_its_phase() -> None:
    reader = LogReader()
    reader.feed(b"[2026-07-21 08:21:57 TP0] Capture cuda graph begin. avail mem=71.00 GB\n")
    reader.feed(b"[2026-07-21 08:21:58 TP0] flashinfer.jit: Loading JIT ops: batch_decode\n")
    building = reader.state
    reader.feed(b"[2026-07-21 08:22:58 TP0] flashinfer.jit: Finished loading JIT ops: x\n")
    assert (building.phase, reader.state.phase) == (Phase.JIT_BUILD, Phase.DECODE_CAPTURE)
    ended = reader.feed(b"[2026-07-21 08:22:59 TP0] Capture cuda graph end.\n")
    assert phases(ended, "TP0") == ["-decode_capture"]


def test_a_taken_port_is_fatal_on_its_line() -> None:
    fatal = read(case("real/port-in-use"))[0].state.fatal
    assert fatal is not None
    assert (fatal.line, fatal.reason) == (47, FatalReason.PORT_IN_USE)
    assert "address already in use" in fatal.text


def test_a_killed_scheduler_is_fatal_and_its_exit_code_known() -> None:
    fatal = read(case("cpu/scheduler-killed-0.5.23"))[0].state.fatal
    assert fatal is not None
    assert (fatal.line, fatal.reason, fatal.exit_code) == (94, FatalReason.PROCESS_DIED, -9)


def test_deaths_after_a_requested_stop_are_not_fatal() -> None:
    reader, events = read(case("real/fp4-opaque-fi063"))
    assert any(isinstance(event, StopRequested) for event in events)
    assert reader.state.fatal is None


def test_a_warning_about_one_address_family_is_not_fatal() -> None:
    warned = (
        b"[W1129 12:46:57.498 socket.cpp:752] [c10d] The server socket has failed to bind to"
        b" [::]:29500 (errno: 98 - Address already in use).\n"
    )
    assert read(warned)[0].state.fatal is None


def test_what_users_wrote_in_requests_is_not_the_servers_word() -> None:
    dumped = (
        b"[2026-11-29 19:00:14] Receive: obj=GenerateReqInput(text='Scheduler hit an exception:"
        b" Traceback (most recent call last): [Errno 98]')\n"
    )
    assert [type(event) for event in read(dumped)[1]] == []


def test_serving_steps_carry_their_figures() -> None:
    events = read(case("real/piecewise"))[1]
    steps = [event for event in events if isinstance(event, ServingStep)]
    busiest = max(steps, key=lambda step: step.tokens_per_s * step.decode)
    assert (busiest.line, busiest.running, busiest.queued, busiest.token_usage) == (
        263,
        64,
        0,
        0.02,
    )
    assert busiest.tokens_per_s == 28245.12
    assert (busiest.stamp, busiest.rank) == ("2026-11-29 18:44:56", "")
    ranked = ServingStep(1, b"[2026-11-29 19:00:14 DP1 TP2] Decode batch, #running-req: 3, x")
    assert (ranked.rank, ranked.running, ranked.tokens_per_s) == ("DP1 TP2", 3, 0.0)


def test_a_second_start_in_the_same_log_begins_anew() -> None:
    reader, events = read(case("real/kv-too-small") + case("real/piecewise"))
    assert reader.state.fatal is None
    assert reader.state.ready is not None
    assert sum(isinstance(event, ServerArgsSeen) for event in events) == 2


def test_the_listener_gets_every_line_but_routine() -> None:
    lines: list[LogLine] = []
    reader = LogReader(lines.append)
    reader.feed(case("real/rank-killed"))
    texts = [line.text for line in lines]
    assert "The server is fired up and ready to roll!" in texts
    assert not any("Prefill batch" in text or "HTTP/1.1" in text for text in texts)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([label["log"] for label in LABELS]), st.data())
def test_events_do_not_depend_on_chunks(name: str, data: st.DataObject) -> None:
    log = case(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=30)))
    reader = LogReader()
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        events += reader.feed(log[begin:end])
    events += reader.finish()
    whole, expected = read(log)
    assert events == expected
    assert reader.state == whole.state


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    read(data)
    read(b"[2026-11-29 19:00:14 TP0] Capture cuda graph end. elapsed=" + data)
