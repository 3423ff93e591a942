"""The load of a serving process from its step lines."""

from __future__ import annotations

import pytest

from remote.core.log_events import ServingStep
from remote.core.serving import ServingMeter


def decode(rank: str, rate: float, running: int = 2, queued: int = 0) -> ServingStep:
    tag = f" {rank}" if rank else ""
    text = (
        f"[2026-11-29 12:00:00{tag}] Decode batch, #running-req: {running}, #token: 40,"
        f" token usage: 0.25, cuda graph: True, gen throughput (token/s): {rate},"
        f" #queue-req: {queued},"
    )
    return ServingStep(1, text.encode())


def prefill(queued: int) -> ServingStep:
    text = (
        "[2026-11-29 12:00:00] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0,"
        f" token usage: 0.10, #running-req: 1, #queue-req: {queued}, input throughput (token/s): 9,"
    )
    return ServingStep(1, text.encode())


def test_ranks_that_log_for_themselves_add_up() -> None:
    meter = ServingMeter(0.0)
    meter.step(1.0, decode("DP0 TP0", 100.0, running=2, queued=1))
    meter.step(1.0, decode("DP1 TP1", 50.0, running=3))
    load = meter.load(2.0)
    assert (load.tokens_per_s, load.running, load.queued) == (150.0, 5, 1)
    assert load.token_usage == pytest.approx(0.25)


def test_only_the_last_step_of_a_rank_counts() -> None:
    meter = ServingMeter(0.0)
    meter.step(1.0, decode("", 100.0))
    meter.step(2.0, decode("", 30.0))
    assert meter.load(3.0).tokens_per_s == 30.0


def test_a_prefill_tells_of_the_queue_and_is_no_generation() -> None:
    meter = ServingMeter(0.0)
    meter.step(1.0, prefill(queued=7))
    load = meter.load(2.0)
    assert (load.tokens_per_s, load.running, load.queued) == (0.0, 1, 7)


def test_a_server_without_steps_is_idle() -> None:
    meter = ServingMeter(0.0)
    meter.step(1.0, decode("", 100.0))
    load = meter.load(61.0)
    assert (load.tokens_per_s, load.running, load.token_usage) == (0.0, 0, 0.0)
    assert load.idle_s == 60.0
    assert ServingMeter(5.0).load(8.0).idle_s == 3.0
