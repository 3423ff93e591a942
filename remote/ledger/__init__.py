"""Every start, what became of it, and what was measured: one SQLite file beside the runs.

`runs/ledger.sqlite` has a row a start, a row an event, a row a bench point, and what the phases of
each start took. Several tasks may write at once; SQLite's own locking orders them. Nothing here
knows what is secret: rows come scrubbed (`remote/recording.py`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from remote.core.phases import Phase
from remote.core.run_record import Ending, RunRow, minutes_lost, settled
from remote.ledger.schema import reading, writing

#: Starts that are looked back on.
_RECENT = 10

_COLUMNS = tuple(each.name for each in fields(RunRow))
_AS_JSON = ("sets", "choice", "argv", "fingerprint")


class PointLike(Protocol):
    """A bench point, `core/bench_result.Point`."""

    def as_dict(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class EventRow:
    """Something that happened on a host: ``what`` is a word, ``details`` more of it."""

    at: float
    user: str
    client: str
    host: str
    run: str | None
    what: str
    details: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        return asdict(self)


class Ledger:
    """The file; made when something is first written.

    Args:
        runs: the folder that it lies in.
    """

    def __init__(self, runs: Path) -> None:
        self.path = runs / "ledger.sqlite"

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def note_start(self, row: RunRow) -> bool:
        """Keep a start, unless it is there already; whether it was new."""
        values = {**row.as_dict(), "points_lost": 0}
        values |= {name: json.dumps(values[name]) for name in _AS_JSON}
        with writing(self.path) as base:
            done = base.execute(
                f"INSERT OR IGNORE INTO runs ({', '.join(_COLUMNS)})"
                f" VALUES ({', '.join(f':{name}' for name in _COLUMNS)})",
                values,
            )
            return done.rowcount > 0

    def note_launched(self, run: str, at: float) -> None:
        """From now on the start itself is timed."""
        with writing(self.path) as base:
            base.execute("UPDATE runs SET at = ? WHERE id = ?", (at, run))

    def note_ending(self, run: str, learnt: Ending) -> tuple[RunRow, RunRow] | None:
        """Keep what was learnt of a start's end.

        Returns:
            The row before and after; None where it stays as it is, or there is none.
        """
        with writing(self.path) as base:
            before = _run(base, run)
            if before is None:
                return None
            after = settled(before, learnt)
            if after == before:
                return None
            _write_ending(base, after)
            return before, _account(base, after)

    def note_event(self, event: EventRow) -> None:
        values = {**event.as_dict(), "details": json.dumps(event.details, default=str)}
        with writing(self.path) as base:
            base.execute(
                "INSERT INTO events (at, user, client, host, run, what, details)"
                " VALUES (:at, :user, :client, :host, :run, :what, :details)",
                values,
            )

    def note_point(self, point: PointLike | Mapping[str, Any]) -> None:
        """Keep a bench point; the same point again replaces the earlier one."""
        row = dict(point if isinstance(point, Mapping) else point.as_dict())
        with writing(self.path) as base:
            base.execute(
                "INSERT OR REPLACE INTO points (bench, level, repeat, run, valid,"
                " output_throughput, started_at, ended_at, point) VALUES (?,?,?,?,?,?,?,?,?)",
                (
                    *(row["bench"], row["level"], row["repeat"], row["run"], bool(row["valid"])),
                    row.get("metrics", {}).get("output_throughput"),
                    *(row.get("started_at"), row.get("ended_at"), json.dumps(row)),
                ),
            )
            measured = _run(base, str(row["run"]))
            if measured is not None:
                _account(base, measured)

    def run(self, run: str) -> RunRow | None:
        """One start, by its id."""
        if not self.exists:
            return None
        with reading(self.path) as base:
            return _run(base, run)

    def runs(self, *, host: str | None = None, since: float | None = None) -> list[RunRow]:
        """The starts, newest first.

        Args:
            since: in seconds since the epoch.
        """
        if not self.exists:
            return []
        with reading(self.path) as base:
            found = base.execute(
                "SELECT * FROM runs WHERE (:host IS NULL OR host = :host)"
                " AND (:since IS NULL OR at >= :since) ORDER BY at DESC, id DESC",
                {"host": host, "since": since},
            )
            return [_row(each) for each in found]

    def same_starts(self, identity: str) -> list[RunRow]:
        """Starts of exactly that identity, newest first."""
        if not self.exists or not identity:
            return []
        with reading(self.path) as base:
            found = base.execute(
                "SELECT * FROM runs WHERE identity = ? ORDER BY at DESC", (identity,)
            )
            return [_row(each) for each in found]

    def events(self, run: str | None = None) -> list[EventRow]:
        """What happened, oldest first; to one run, or all of it."""
        if not self.exists:
            return []
        with reading(self.path) as base:
            found = base.execute(
                "SELECT * FROM events WHERE (:run IS NULL OR run = :run) ORDER BY at, id",
                {"run": run},
            )
            names = [each.name for each in fields(EventRow)]
            return [
                EventRow(**{**{n: each[n] for n in names}, "details": json.loads(each["details"])})
                for each in found
            ]

    def points(self, runs: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Bench points as they were given, by bench, level and repeat; of some runs, or all."""
        if not self.exists:
            return []
        wanted = None if runs is None else set(runs)
        with reading(self.path) as base:
            found = base.execute("SELECT run, point FROM points ORDER BY bench, level, repeat")
            return [json.loads(p) for run, p in found if wanted is None or run in wanted]

    def set_baseline(self, host: str, name: str, run: str, at: float) -> None:
        """Name a run that others of this host are held against; the last one named counts."""
        with writing(self.path) as base:
            base.execute("INSERT OR REPLACE INTO baselines VALUES (?,?,?,?)", (host, name, run, at))

    def baselines(self, host: str) -> dict[str, str]:
        """The host's baselines, by name, the one named last first."""
        if not self.exists:
            return {}
        with reading(self.path) as base:
            found = base.execute(
                "SELECT name, run FROM baselines WHERE host = ? ORDER BY at DESC, name", (host,)
            )
            return {str(name): str(run) for name, run in found}

    def note_phases(
        self, host: str, profile: str, run: str, seconds: Mapping[Phase, float], at: float
    ) -> None:
        """Keep what the phases of a start took.

        Args:
            at: when it ended, in seconds since the epoch.
        """
        rows = [(host, profile, run, phase.value, spent, at) for phase, spent in seconds.items()]
        with writing(self.path) as base:
            base.executemany("INSERT OR REPLACE INTO phase_durations VALUES (?,?,?,?,?,?)", rows)

    def phases(self, host: str, profile: str) -> dict[Phase, list[float]]:
        """Seconds by phase of this host's and profile's last starts, newest last."""
        if not self.exists:
            return {}
        with reading(self.path) as base:
            rows = base.execute(
                "SELECT phase, seconds FROM phase_durations WHERE host = ? AND profile = ?"
                " ORDER BY at DESC, rowid DESC",
                (host, profile),
            ).fetchall()
        known = {phase.value: phase for phase in Phase}
        found: dict[Phase, list[float]] = {}
        for name, spent in rows:
            earlier = found.setdefault(known[name], []) if name in known else []
            if len(earlier) < _RECENT:
                earlier.insert(0, float(spent))
        return found

    def phases_of(self, run: str) -> dict[Phase, float]:
        """Seconds by phase of one start, in the order of a start."""
        if not self.exists:
            return {}
        with reading(self.path) as base:
            rows: Sequence[Any] = base.execute(
                "SELECT phase, seconds FROM phase_durations WHERE run = ?", (run,)
            ).fetchall()
        spent = {str(name): float(seconds) for name, seconds in rows}
        return {phase: spent[phase.value] for phase in Phase if phase.value in spent}


def _run(base: sqlite3.Connection, run: str) -> RunRow | None:
    found = base.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
    return None if found is None else _row(found)


def _row(found: sqlite3.Row) -> RunRow:
    values = {name: found[name] for name in _COLUMNS}
    values |= {name: json.loads(values[name]) for name in _AS_JSON}
    return RunRow(**{**values, "sets": tuple(values["sets"]), "argv": tuple(values["argv"])})


def _write_ending(base: sqlite3.Connection, row: RunRow) -> None:
    base.execute(
        "UPDATE runs SET outcome = :outcome, kind = :kind, cause = :cause,"
        " first_rank = :first_rank, phase = :phase, seconds = :seconds,"
        " ready_seconds = :ready_seconds WHERE id = :id",
        {name: getattr(row, name) for name in _COLUMNS if name not in _AS_JSON},
    )


def _account(base: sqlite3.Connection, row: RunRow) -> RunRow:
    """Reckon what the run has cost, from its end and the points that it died in."""
    lost, lost_s = 0, 0.0
    if row.failed:
        lost, lost_s = base.execute(
            "SELECT count(*), coalesce(sum(max(ended_at - started_at, 0)), 0.0) FROM points"
            " WHERE run = ? AND NOT valid",
            (row.id,),
        ).fetchone()
    row = replace(row, points_lost=int(lost), minutes_lost=minutes_lost(row, float(lost_s)))
    base.execute(
        "UPDATE runs SET points_lost = :lost, minutes_lost = :minutes WHERE id = :id",
        {"lost": row.points_lost, "minutes": row.minutes_lost, "id": row.id},
    )
    return row
