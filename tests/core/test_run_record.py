"""What becomes of a start, in whatever order it is learnt; and what it cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.core.host_facts import RunState
from remote.core.run_record import (
    OUTCOMES,
    Ending,
    RunRow,
    headline,
    learnt_from,
    minutes_lost,
    settled,
)

START = RunRow(id="r", at=0.0, host="gpu", profile="p")


def after(*learnt: Ending) -> RunRow:
    row = START
    for each in learnt:
        row = settled(row, each)
    return row


@pytest.mark.parametrize(
    ("learnt", "outcome"),
    [
        (("ready",), "ready"),
        (("ready", "crashed"), "died_after_ready"),
        (("ready", "stopped"), "ready"),
        (("ready", "hung"), "hung"),
        (("ready", "hung", "stopped"), "hung"),
        (("hung", "ready"), "ready"),
        (("hung", "crashed"), "crashed"),
        (("not_ready", "ready"), "ready"),
        (("not_ready", "stopped"), "stopped"),
        (("crashed", "stopped"), "crashed"),
        (("crashed", "ready"), "crashed"),
        (("crashed", "died_after_ready"), "died_after_ready"),
        (("died_after_ready", "crashed"), "died_after_ready"),
        (("stopped", "crashed"), "stopped"),
        (("ready", "refused"), "ready"),
        (("crashed", "started"), "crashed"),
        (("not_started",), "not_started"),
    ],
)
def test_what_is_learnt_last_does_not_always_count(learnt: tuple[str, ...], outcome: str) -> None:
    assert after(*map(Ending, learnt)).outcome == outcome


def test_a_diagnosis_that_comes_later_is_added_to_the_crash() -> None:
    row = after(
        Ending("crashed", cause="exit status 1", seconds=60.0),
        Ending("crashed", "kv_pool_too_small", "no memory", "TP1", "kv_pool", 900.0),
        Ending("crashed", "another", "other", "TP0", "weights", 1.0),
    )
    assert (row.kind, row.cause, row.first_rank, row.phase) == (
        "kv_pool_too_small",
        "no memory",
        "TP1",
        "kv_pool",
    )
    assert row.seconds == 60.0
    assert row.ending == "crashed (kv_pool_too_small: no memory)"


def test_the_way_to_readiness_is_kept_through_the_death() -> None:
    row = after(Ending("ready", seconds=100.0), Ending("crashed", seconds=4000.0))
    assert (row.ready_seconds, row.seconds) == (100.0, 4000.0)


@given(st.lists(st.sampled_from(OUTCOMES), max_size=6))
def test_learning_the_same_again_changes_nothing(learnt: list[str]) -> None:
    row = after(*map(Ending, learnt))
    assert settled(row, Ending(row.outcome)) == row


@pytest.mark.parametrize(
    ("learnt", "points_s", "minutes"),
    [
        ((), 0, None),
        ((Ending("ready", seconds=90.0),), 0, 0.0),
        ((Ending("crashed", seconds=90.0),), 0, 1.5),
        ((Ending("hung", seconds=600.0),), 0, 10.0),
        ((Ending("not_ready", seconds=600.0),), 0, 10.0),
        ((Ending("not_ready", seconds=600.0), Ending("ready", seconds=700.0)), 0, 0.0),
        ((Ending("stopped", seconds=30.0),), 0, 0.5),
        ((Ending("crashed"),), 0, None),
        ((Ending("ready", seconds=120.0), Ending("crashed", seconds=9e3)), 60, 3.0),
        ((Ending("ready", seconds=120.0), Ending("hung", seconds=9e3)), 0, 2.0),
        ((Ending("died_after_ready", seconds=9e3),), 0, None),
        ((Ending("died_after_ready", seconds=9e3),), 60, 1.0),
    ],
)
def test_minutes_lost(learnt: tuple[Ending, ...], points_s: float, minutes: float | None) -> None:
    assert minutes_lost(after(*learnt), points_s) == minutes


def test_a_record_of_an_older_tool_is_a_row_too() -> None:
    row = RunRow.from_record("r", "gpu", 5.0, {"profile": "baseline", "user": "ann"})
    assert (row.profile, row.who, row.outcome, row.fingerprint) == (
        "baseline",
        "ann",
        "started",
        {},
    )


def point(level: int, value: float, valid: bool = True) -> dict[str, Any]:
    return {"level": level, "valid": valid, "metrics": {"output_throughput": value}}


def test_the_headline_is_the_mean_at_the_highest_level_that_has_a_valid_point() -> None:
    points = [point(1, 10), point(4, 30), point(4, 50), point(4, 900, False), point(256, 1, False)]
    assert headline(points, "output_throughput") == (40.0, 4)
    assert headline(points, "ttft_p99_ms") is None


def found(**told: Any) -> RunState:
    values: dict[str, Any] = {
        "run": "r",
        "record": {"started_at": 100.0},
        "rebooted": False,
        "server_pid": None,
        "pids": (),
        "exit_status": None,
        "stop_requested": False,
        "outcome": None,
        "log_bytes": 0,
        "now": 999.0,
        **told,
    }
    return RunState(**values)


CAUSE = {"kind": "kv_pool_too_small", "cause": "no memory", "reason": "it died"}


@pytest.mark.parametrize(
    ("state", "learnt"),
    [
        (found(server_pid=1, pids=(1,)), ()),
        (found(pids=(1,)), ()),
        (
            found(server_pid=1, pids=(1,), outcome={"outcome": "ready", "at": 160.0}),
            Ending("ready", seconds=60.0),
        ),
        (
            found(server_pid=1, pids=(1,), outcome={"outcome": "not_ready", "reason": "slow"}),
            Ending("not_ready", cause="slow"),
        ),
        (found(exit_status=1, ended_at=130.0), Ending("crashed", seconds=30.0)),
        (
            found(exit_status=137, ended_at=500.0, outcome={"outcome": "ready", "at": 160.0}),
            (Ending("ready", seconds=60.0), Ending("died_after_ready", seconds=400.0)),
        ),
        (
            found(
                exit_status=1, ended_at=130.0, outcome={"outcome": "crashed", "at": 800, **CAUSE}
            ),
            Ending("crashed", "kv_pool_too_small", "no memory", seconds=30.0),
        ),
        (found(stop_requested=True, exit_status=143, ended_at=101.0), Ending("stopped")),
        (
            found(
                stop_requested=True,
                ended_at=101.0,
                outcome={"outcome": "stopped", "at": 102.0, "reason": "on request"},
            ),
            Ending("stopped", cause="on request", seconds=1.0),
        ),
        (
            found(stop_requested=True, ended_at=900.0, outcome={"outcome": "ready", "at": 160.0}),
            Ending("ready", seconds=60.0),
        ),
        (found(rebooted=True), Ending("rebooted")),
        (found(rebooted=True, outcome={"outcome": "ready"}), Ending("ready")),
        (found(record={}, exit_status=0, ended_at=9.0), Ending("ended")),
    ],
)
def test_what_a_host_knows_of_a_run(state: RunState, learnt: Ending | tuple[Ending, ...]) -> None:
    assert learnt_from(state) == (learnt if isinstance(learnt, tuple) else (learnt,))
