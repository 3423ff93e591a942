"""Hung or slow: what a watcher makes of log growth, processes, memory, CPU and compilers."""

from __future__ import annotations

from typing import Any

import pytest

from remote.core.budgets import PRIORS_S, Budgets
from remote.core.heartbeat import AlarmKind, Beat, Heartbeat
from remote.core.log_events import Progress
from remote.core.phases import Phase

WEIGHTS = Budgets({Phase.WEIGHTS: [100.0, 120.0, 80.0]})  # so 360 s are allowed


def beat(cpu_s: float = 0.0, **more: Any) -> Beat:
    return Beat(processes=3, cpu_s=cpu_s, **more)


def ranks(**states: str) -> dict[str, tuple[int, str]]:
    return {
        "server": (1, "S"),
        **{name: (100 + n, state) for n, (name, state) in enumerate(states.items())},
    }


def loading(budgets: Budgets = WEIGHTS) -> Heartbeat:
    """A start that has just begun to load weights, at second 0."""
    heart = Heartbeat(budgets, 0.0)
    heart.log(0.0, Phase.WEIGHTS)
    return heart


def first_alarm(heart: Heartbeat, beats: Any, until_s: int) -> float | None:
    """The second at which there is an alarm, with a beat a second from ``beats(second)``."""
    for second in range(1, until_s):
        heart.beat(float(second), beats(second))
        if heart.alarm(float(second)) is not None:
            return float(second)
    return None


def test_silence_within_the_budget_is_nothing() -> None:
    assert first_alarm(loading(), lambda second: beat(), 360) is None


def test_past_the_budget_without_a_sign_it_hangs() -> None:
    heart = loading()
    assert first_alarm(heart, lambda second: beat(), 1000) == 360.0
    alarm = heart.alarm(360.0)
    assert alarm is not None and alarm.kind is AlarmKind.SILENT
    assert "loading weights" in alarm.reason and "360 s" in alarm.reason


@pytest.mark.parametrize(
    "working",
    [
        lambda second: beat(builders=("cicc",)),
        lambda second: beat(memory_bytes=second * 20 * 2**20),
        lambda second: beat(gpus=((0, second * 100),)),
    ],
)
def test_work_is_slow_and_not_hung(working: Any) -> None:
    assert first_alarm(loading(), working, 5000) is None


def test_log_growth_is_work() -> None:
    heart = loading()
    for second in range(1, 2000):
        heart.beat(float(second), beat())
        if second % 25 == 0:
            heart.log(float(second), Phase.WEIGHTS)
        assert heart.alarm(float(second)) is None


@pytest.mark.parametrize(
    "spinning",
    [lambda second: beat(cpu_s=float(second)), lambda second: beat(gpus=((100, 5000),))],
)
def test_a_spinning_wait_only_buys_time(spinning: Any) -> None:
    """NCCL waits for a lost rank with the CPU and the GPU at full load."""
    heart = loading()
    found = first_alarm(heart, spinning, 5000)
    assert found is not None and 3 * 360.0 <= found <= 3 * 360.0 + 1
    alarm = heart.alarm(found)
    assert alarm is not None and "spin" in alarm.reason


def test_a_stopped_rank_is_named_long_before_the_budget() -> None:
    heart = loading()
    found = first_alarm(heart, lambda second: beat(ranks=ranks(TP0="S", TP1="T")), 100)
    assert found is not None and found < 10
    alarm = heart.alarm(found)
    assert alarm is not None
    assert (alarm.kind, alarm.ranks) == (AlarmKind.STOPPED, ("TP1",))


def test_a_rank_that_a_profiler_stops_for_a_moment_goes_on() -> None:
    states = "STTSSTTS"
    heart = loading()
    for second, state in enumerate(states, 1):
        heart.beat(float(second), beat(ranks=ranks(TP0=state)))
        assert heart.alarm(float(second)) is None


def test_a_stopped_process_without_a_name_is_told_by_its_pid_and_may_go_on() -> None:
    heart = loading()
    stopped = beat(ranks={"server": (1, "S"), "pid 7": (7, "T")})
    heart.beat(1.0, stopped)
    assert first_alarm(heart, lambda second: beat(ranks={"server": (1, "S")}), 50) is None
    found = first_alarm(loading(), lambda second: stopped, 50)
    assert found is not None and found < 10


def test_a_rank_that_is_gone_while_the_server_goes_on_is_named() -> None:
    heart = loading()
    heart.beat(1.0, beat(ranks=ranks(TP0="S", TP1="S")))
    found = first_alarm(heart, lambda second: beat(ranks=ranks(TP0="S")), 100)
    assert found is not None and found < 5
    alarm = heart.alarm(found)
    assert alarm is not None
    assert (alarm.kind, alarm.ranks) == (AlarmKind.MISSING, ("TP1",))
    assert heart.roster["TP1"] == 101


def test_a_rank_that_died_before_it_was_seen_is_told_by_its_title() -> None:
    late = beat(ranks=ranks(TP0="S"), dead={102: "sglang::schedul"})
    heart = loading()
    found = first_alarm(heart, lambda second: late, 100)
    assert found is not None and found < 5
    alarm = heart.alarm(found)
    assert alarm is not None and alarm.kind is AlarmKind.MISSING
    assert "sglang::schedul (pid 102)" in alarm.reason


def test_a_process_that_learns_its_rank_is_not_missing() -> None:
    heart = loading()
    heart.beat(1.0, beat(ranks={"server": (1, "S"), "scheduler": (7, "S")}))
    renamed = beat(ranks={"server": (1, "S"), "TP0": (7, "S")})
    assert first_alarm(heart, lambda second: renamed, 100) is None
    assert heart.roster == {"server": 1, "TP0": 7}


def test_a_whole_server_that_goes_is_no_missing_rank() -> None:
    heart = loading()
    heart.beat(1.0, beat(ranks=ranks(TP0="S")))
    assert first_alarm(heart, lambda second: beat(ranks={}), 100) is None


def test_a_server_that_is_being_stopped_loses_its_ranks_and_that_is_well() -> None:
    heart = loading()
    heart.beat(1.0, beat(ranks=ranks(TP0="S", TP1="S")))
    ending = beat(ranks=ranks(TP0="S"), stopping=True)
    assert first_alarm(heart, lambda second: ending, 100) is None


def test_time_without_a_connection_is_no_silence() -> None:
    heart = loading()
    heart.beat(1.0, beat())
    heart.resume(5000.0)
    assert heart.alarm(5000.0) is None
    heart.beat(5031.0, beat())
    assert heart.alarm(5031.0) is not None


def test_phases_are_timed_and_a_phase_entered_again_adds_up() -> None:
    heart = Heartbeat(Budgets(), 10.0)
    heart.log(12.0, Phase.WEIGHTS)
    heart.log(20.0, Phase.JIT_BUILD)
    heart.log(25.0, Phase.WEIGHTS)
    heart.log(26.0, Phase.SERVING)
    assert heart.durations == {Phase.ARGUMENTS: 2.0, Phase.WEIGHTS: 9.0, Phase.JIT_BUILD: 5.0}


def test_a_serving_server_may_be_idle_for_ever() -> None:
    heart = Heartbeat(Budgets(), 0.0)
    heart.log(0.0, Phase.SERVING)
    assert first_alarm(heart, lambda second: beat(), 5000) is None


def test_budgets_are_learnt_and_never_tight() -> None:
    assert Budgets().allowed_s(Phase.JIT_BUILD) == PRIORS_S[Phase.JIT_BUILD]
    assert Budgets().expected_s(Phase.WEIGHTS) is None
    assert WEIGHTS.allowed_s(Phase.WEIGHTS) == 360.0
    assert WEIGHTS.expected_s(Phase.WEIGHTS) == 100.0
    assert Budgets({Phase.HTTP: [0.1]}).allowed_s(Phase.HTTP) == 30.0


def test_what_is_left_is_told_by_the_bar_before_the_past() -> None:
    bar = Progress(1, Phase.WEIGHTS, 5, 20, "shards", "")
    assert WEIGHTS.left_s(Phase.WEIGHTS, 50.0, bar) == 150.0
    assert WEIGHTS.left_s(Phase.WEIGHTS, 60.0) == 40.0
    assert WEIGHTS.left_s(Phase.WEIGHTS, 160.0) is None
    assert Budgets().left_s(Phase.WEIGHTS, 1.0) is None


def test_every_phase_has_a_prior() -> None:
    assert PRIORS_S.keys() == set(Phase)
