"""What the bench client wrote, and the gate between a figure and a figure that counts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from bench_samples import bench_plan_with

from remote.core.bench_plan import Job
from remote.core.bench_result import Point, judge, metrics_of, possible_concurrency, read_result
from remote.core.gpu_samples import GPUReading

NO_GPU = GPUReading(None, "no GPU figures")
JOB = Job(level=4, repeat=1, seed=1, prompts=8, warm_ups=4)
PLAN = bench_plan_with()
TOLD = {"started_at": 100.0, "ended_at": 160.0, "troubles": []}


def content(**changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "request_rate": float("inf"),
        "server_info": {"version": "0.5.9", "filler": "x" * 24000},
        "duration": 20.0,
        "completed": 8,
        "request_throughput": 0.4,
        "input_throughput": 6.4,
        "output_throughput": 3.2,
        "total_throughput": 9.6,
        "concurrency": 3.8,
        "accept_length": None,
        **{
            f"{kind}_{name}_ms": 9500.0
            for kind in ("mean", "median", "p99")
            for name in ("e2e_latency", "ttft", "tpot", "itl")
        },
        "output_lens": [8] * 8,
        "ttfts": [0.1] * 8,
        "errors": [""] * 8,
    }
    made.update(changed)
    return made


def line(**changed: Any) -> bytes:
    return json.dumps(content(**changed)).encode() + b"\n"


def judged(raw: bytes, steps: bytes = b"", gpu: GPUReading = NO_GPU, **told: Any) -> Point:
    return judge(PLAN, JOB, "r1", {**TOLD, **told}, read_result(raw), gpu, steps)


def test_a_good_point_is_valid_and_says_where_it_comes_from() -> None:
    point = judged(line())
    assert point.valid, point.reasons
    assert point.metrics["output_throughput"] == 3.2
    assert point.metrics["duration_s"] == 20.0
    assert point.metrics["ttft_p50_ms"] == 9500.0
    assert point.metrics["e2e_p99_ms"] == 9500.0
    assert len(point.metrics) == 18
    assert (point.completed, point.failed) == (8, 0)
    assert point.source["file"] == "bench/20261129-120000-abcd/raw/c4-r1.jsonl"
    assert point.gpu is None and point.gpu_note
    assert Point.from_dict(json.loads(json.dumps(point.as_dict()))) == point


def test_infinity_becomes_null_and_the_server_info_is_taken_out() -> None:
    found = read_result(line())
    kept = json.loads(found.line, parse_constant=pytest.fail)
    assert kept["request_rate"] is None
    assert "server_info" not in kept
    assert found.server_info is not None and found.server_info["version"] == "0.5.9"
    assert len(found.line) < 3000


def test_numbers_that_are_none_are_left_out() -> None:
    found = metrics_of({"output_throughput": "Infinity", "duration": True, "concurrency": 1e3})
    assert found == {"concurrency": 1000.0}
    assert "ttft_mean_ms" not in metrics_of(read_result(b'{"mean_ttft_ms": NaN}').content)
    assert read_result(b'{"duration": 1e999}').content == {"duration": None}


def test_of_several_lines_the_last_is_the_result() -> None:
    point = judged(line(output_throughput=1.0) + b"\n" + line(output_throughput=2.0))
    assert point.valid and point.metrics["output_throughput"] == 2.0


@pytest.mark.parametrize("cut", [1, 200, 20000])
def test_a_line_that_was_cut_off_is_no_result(cut: int) -> None:
    point = judged(line()[:-1][:-cut])
    assert not point.valid
    assert "no JSON" in point.reasons[0]
    assert point.metrics == {}


@pytest.mark.parametrize("raw", [b"\0\0\0\0", b"[1, 2]\n", b'{"a": ' * 100000, b"\xff\xfe{}"])
def test_whatever_else_stands_there_is_no_result_either(raw: bytes) -> None:
    assert not judged(raw).valid


def test_a_truncated_last_line_does_not_make_an_older_one_count() -> None:
    assert not judged(line() + line()[:500]).valid


def test_no_result_at_all() -> None:
    assert judged(b"").reasons == ("bench_serving wrote no result",)
    told = judged(b"", troubles=["bench_serving ended with exit status 2: bad flag"])
    assert told.reasons == ("bench_serving ended with exit status 2: bad flag",)


def test_missing_figures_are_named() -> None:
    found = content()
    del found["p99_ttft_ms"], found["concurrency"]
    (reason,) = judged(json.dumps(found).encode()).reasons
    assert "concurrency" in reason and "p99_ttft_ms" in reason


def test_failed_requests_make_it_invalid_and_are_quoted() -> None:
    trace = "Traceback (most recent call last):\n  …\nConnectionRefusedError: [Errno 111]"
    point = judged(line(completed=6, errors=["", trace, trace, "", "", "", "", ""]))
    assert (point.completed, point.failed) == (6, 2)
    assert "2 of 8 requests failed: 2 x ConnectionRefusedError: [Errno 111]" in point.reasons


def test_short_outputs_make_it_invalid() -> None:
    (reason,) = judged(line(output_lens=[8, 3, 8, 5, 8, 8, 8, 8])).reasons
    assert reason == "2 of 8 outputs are short: 3 tokens instead of 8"


def test_outputs_without_any_text_are_empty_whatever_the_client_counts() -> None:
    (reason,) = judged(line(ttfts=[0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])).reasons
    assert reason == "2 of 8 outputs are empty"


def test_without_details_nobody_could_tell() -> None:
    assert "output_lens" in judged(line(output_lens=None)).reasons[0]


def test_what_the_host_and_the_gpu_say_goes_in() -> None:
    gpu = GPUReading({"samples": 3}, "", ("the GPU was throttled: hot",))
    point = judged(line(), gpu=gpu, troubles=["port 30000 is held by another process"])
    assert point.reasons == ("port 30000 is held by another process", "the GPU was throttled: hot")
    assert point.gpu == {"samples": 3}


def prefill(new: int, cached: int) -> bytes:
    return (
        b"[2026-11-29 12:00:00] Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: %d,"
        b" token usage: 0.00, #running-req: 0, #queue-req: 0, \n" % (new, cached)
    )


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        (prefill(128, 0), 0.0),
        # Warm-ups repeat one prompt; then the cache is emptied.
        (prefill(16, 112) + b"[x] Cache flushed successfully!\n" + prefill(128, 0), 0.0),
        (b"[x] Cache not flushed because a request was left\n" + prefill(96, 32), 0.25),
        (b"[x] Cache flushed successfully!\n" + prefill(64, 64), 0.5),
    ],
)
def test_what_came_from_the_cache_is_a_figure(steps: bytes, share: float) -> None:
    point = judged(line(), steps=steps)
    assert point.valid
    assert point.server is not None and point.server["cached_share"] == share


def test_the_servers_own_steps() -> None:
    steps = b"".join(
        b"[2026-11-29 12:00:0%d] Decode batch, #running-req: %d, #token: 90, token usage: 0.25,"
        b" gen throughput (token/s): %d.5, #queue-req: 2, \n" % (n, n, 100 * n)
        for n in (2, 4)
    )
    server = judged(line(), steps=b"[2026-11-29 12:00:01] Prefill batch, x\n" + steps).server
    assert server is not None
    assert (server["running_mean"], server["running_max"]) == (3.0, 4.0)
    assert (server["queued_mean"], server["tokens_per_s_max"]) == (2.0, 400.5)
    assert judged(line()).server is None


def test_somebody_elses_requests_beside_the_points_make_it_invalid() -> None:
    step = (
        b"[2026-11-29 12:00:0%d] Decode batch, #running-req: %d, #token: 90, token usage: 0.25,"
        b" gen throughput (token/s): 100.5, #queue-req: 0, \n"
    )
    level = judged(line()).level
    alone = b"".join(step % (n, level) for n in range(9))
    assert judged(line(), steps=alone).valid
    point = judged(line(), steps=alone + step % (9, 9 * level))
    assert not point.valid and "somebody else used it" in point.reasons[0]


def closed_loop(level: int, latencies: list[float], stall: float = 0.0) -> dict[str, float]:
    """The client's figures for a loop that keeps ``level`` requests in flight.

    ``stall`` is the seconds that a slot stays empty between two requests.
    """
    free = [0.0] * level
    for latency in latencies:
        at = min(range(level), key=lambda slot: free[slot])
        free[at] += latency + stall
    whole = max(free)
    ordered = sorted(latencies)
    return {
        "concurrency": sum(latencies) / whole,
        "e2e_mean_ms": 1000 * sum(latencies) / len(latencies),
        "e2e_p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
    }


@pytest.mark.parametrize("level", [1, 10, 64, 256])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.4])
def test_the_thinning_end_of_a_clean_run_is_no_false_alarm(level: int, spread: float) -> None:
    chance = random.Random(level)
    for _ in range(10):
        count = max(64, 5 * level)
        latencies = [5.0 * max(0.2, chance.gauss(1, spread)) for _ in range(count)]
        figures = closed_loop(level, latencies)
        job = Job(level, 1, 1, count, 1)
        assert figures["concurrency"] >= 0.8 * possible_concurrency(job, figures)


def test_few_prompts_are_no_false_alarm_either() -> None:
    figures = closed_loop(8, [5.0] * 9)
    assert figures["concurrency"] >= 0.8 * possible_concurrency(Job(8, 1, 1, 9, 1), figures)


def test_a_client_that_stalls_is_found() -> None:
    figures = closed_loop(10, [5.0] * 64, stall=5.0)
    point = judged(line(concurrency=1.9))
    assert figures["concurrency"] < 0.8 * possible_concurrency(Job(10, 1, 1, 64, 1), figures)
    assert "achieved concurrency 1.9 is far from 4" in point.reasons[0]


@pytest.mark.parametrize("known", [{}, {"bench": 1}, {**judged(line()).as_dict(), "metrics": 3}])
def test_a_damaged_row_is_no_point(known: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Point.from_dict(known)
