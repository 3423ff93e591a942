"""Of all starts, those that are asked for, in the order that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from remote.core.bench_result import METRICS
from remote.core.nearest import did_you_mean
from remote.core.run_record import OUTCOMES, RunRow, headline
from remote.errors import ConfigError

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: What a list may be ordered by beside the metrics of a bench: the key, and whether large is first.
_KEYS: Mapping[str, tuple[Callable[[RunRow], Any], bool]] = {
    "at": (lambda row: row.at, True),
    "host": (lambda row: row.host, False),
    "profile": (lambda row: row.profile, False),
    "outcome": (lambda row: row.outcome, False),
    "kind": (lambda row: row.kind or None, False),
    "seconds": (lambda row: row.seconds, True),
    "minutes_lost": (lambda row: row.minutes_lost, True),
}
SORTS = (*_KEYS, *METRICS)


@dataclass(frozen=True)
class Asked:
    """Which starts are wanted; empty and None ask for nothing in particular.

    Attributes:
        since: in seconds since the epoch.
        failed: those alone that did not get ready, or died.
        limit: so many at most, 0 for all.
        sort: one of `SORTS`.
    """

    host: str = ""
    profile: str = ""
    outcome: str = ""
    since: float | None = None
    failed: bool = False
    limit: int = 0
    sort: str = "at"

    def __post_init__(self) -> None:
        for option, value, known in (
            ("outcome", self.outcome or OUTCOMES[0], OUTCOMES),
            ("sort", self.sort, SORTS),
        ):
            if value not in known:
                raise ConfigError(
                    f"--{option} {value}: there is no such{did_you_mean(value, known)}",
                    hint=f"one of {', '.join(known)}",
                )
        if self.limit < 0:
            raise ConfigError(f"--limit wants a number of runs, found {self.limit}")


def since_s(text: str, now_s: float) -> float | None:
    """The moment that a user means, in seconds since the epoch; None for no text.

    Args:
        text: ``90s``, ``10m``, ``2h``, ``3d``, or ``2026-11-29[ 20:15[:30]]`` in this machine's
            time.

    Raises:
        ConfigError: it is none of these.
    """
    if not text:
        return None
    if found := _AGO.match(text):
        return now_s - float(found[1]) * _UNIT_S[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--since {text!r} is neither a duration nor a time",
            hint="try 10m, 2h, 3d, or '2026-11-29 20:15'",
        ) from None


def fitting(rows: Sequence[RunRow], asked: Asked) -> list[RunRow]:
    """The starts that are wanted, all of them and in no new order."""
    return [
        row
        for row in rows
        if (not asked.host or row.host == asked.host)
        and (not asked.profile or row.profile == asked.profile)
        and (not asked.outcome or row.outcome == asked.outcome)
        and (asked.since is None or row.at >= asked.since)
        and (not asked.failed or row.failed)
    ]


def ordered(
    rows: Sequence[RunRow], points: Mapping[str, Sequence[Mapping[str, Any]]], sort: str
) -> list[RunRow]:
    """In order: the newest, the longest, the fastest first, words by the alphabet.

    What lacks a value comes last; equals stay as they were.

    Args:
        points: the bench points, by run.
    """
    if sort in _KEYS:
        key, large_first = _KEYS[sort]
        known = [(key(row), row) for row in rows]
    else:
        large_first = not sort.endswith(("_ms", "duration_s"))
        figures = [headline(points.get(row.id, ()), sort) for row in rows]
        known = [(f[0] if f else None, row) for f, row in zip(figures, rows, strict=True)]
    there = [(value, row) for value, row in known if value is not None]
    there.sort(key=lambda pair: pair[0], reverse=large_first)
    return [row for _, row in there] + [row for value, row in known if value is None]
