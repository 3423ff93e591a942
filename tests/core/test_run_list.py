"""Which starts a list holds, and in what order."""

from __future__ import annotations

from typing import Any

import pytest

from remote.core.run_list import SORTS, Asked, fitting, ordered, since_s
from remote.core.run_record import RunRow
from remote.errors import ConfigError


def row(run: str, at: float, **more: Any) -> RunRow:
    return RunRow(
        id=run, at=at, **{"host": "gpu", "profile": "baseline", "outcome": "ready", **more}
    )


ROWS = [
    row("d", 40, host="cpu"),
    row("c", 30, outcome="crashed", profile="piecewise", minutes_lost=3.0),
    row("b", 20, outcome="hung", minutes_lost=9.0),
    row("a", 10, outcome="stopped"),
]


def ids(rows: list[RunRow]) -> str:
    return "".join(each.id for each in rows)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "dcba"),
        ({"host": "gpu"}, "cba"),
        ({"profile": "piecewise"}, "c"),
        ({"outcome": "stopped"}, "a"),
        ({"since": 20.0}, "dcb"),
        ({"failed": True}, "cb"),
        ({"failed": True, "host": "cpu"}, ""),
    ],
)
def test_filters(asked: dict[str, Any], found: str) -> None:
    assert ids(fitting(ROWS, Asked(**asked))) == found


def points(*values: tuple[int, float]) -> list[dict[str, Any]]:
    return [
        {"level": n, "valid": True, "metrics": {"output_throughput": v, "ttft_p99_ms": v}}
        for n, v in values
    ]


@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ("at", "dcba"),
        ("profile", "dbac"),
        ("minutes_lost", "bcda"),
        ("outcome", "cbda"),
        ("output_throughput", "badc"),
        ("ttft_p99_ms", "abdc"),
    ],
)
def test_orders(sort: str, found: str) -> None:
    measured = {"a": points((1, 900.0), (4, 5.0)), "b": points((4, 7.0))}
    assert ids(ordered(ROWS, measured, sort)) == found


def test_every_order_that_is_offered_can_be_asked_for() -> None:
    for sort in SORTS:
        assert len(ordered(ROWS, {}, Asked(sort=sort).sort)) == len(ROWS)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"sort": "output_troughput"}, "did you mean output_throughput"),
        ({"outcome": "crash"}, "did you mean crashed"),
        ({"limit": -1}, "--limit"),
    ],
)
def test_what_there_is_not_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Asked(**asked)


def test_since() -> None:
    assert since_s("", 1000.0) is None
    assert since_s("10m", 1000.0) == 400.0
    assert since_s("1.5d", 200_000.0) == 70_400.0
    day, evening = since_s("2026-11-29", 0.0), since_s("2026-11-29 20:15", 0.0)
    assert day is not None and evening is not None and evening - day == 20.25 * 3600
    for wrong in ("yesterday", "10", "2026-13-01", "m"):
        with pytest.raises(ConfigError, match="--since"):
            since_s(wrong, 0.0)
