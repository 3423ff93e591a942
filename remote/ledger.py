"""What earlier starts took, in one SQLite file beside the runs: `runs/ledger.sqlite`.

Several tasks may write at once; SQLite's own locking orders them. The schema's version stands in
the file (``user_version``): an older file is brought up to date, a newer one is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from remote.core.phases import Phase
from remote.errors import ToolError

#: Statements that lead from each version of the schema to the next.
_STEPS: tuple[str, ...] = (
    """
    CREATE TABLE phase_durations (
        host TEXT NOT NULL,
        profile TEXT NOT NULL,
        run TEXT NOT NULL,
        phase TEXT NOT NULL,
        seconds REAL NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (run, phase)
    );
    CREATE INDEX phase_durations_by_profile ON phase_durations (host, profile, at);
    """,
)
#: Starts that are looked back on.
_RECENT = 10
_BUSY_S = 5.0


class Ledger:
    """The file; made when something is first written."""

    def __init__(self, runs: Path) -> None:
        self._path = runs / "ledger.sqlite"

    def note_phases(
        self, host: str, profile: str, run: str, seconds: Mapping[Phase, float], at: float
    ) -> None:
        """Keep what the phases of a start took.

        Args:
            at: when it ended, in seconds since the epoch.
        """
        rows = [(host, profile, run, phase.value, spent, at) for phase, spent in seconds.items()]
        with self._open() as base:
            base.executemany("INSERT OR REPLACE INTO phase_durations VALUES (?,?,?,?,?,?)", rows)

    def phases(self, host: str, profile: str) -> dict[Phase, list[float]]:
        """Seconds by phase of this host's and profile's last starts, newest last."""
        if not self._path.exists():
            return {}
        with self._open() as base:
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

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, the schema up to date.

        Raises:
            ToolError: the file is none, or a newer version of this tool wrote it.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as base:
                base.isolation_level = None
                base.execute("BEGIN IMMEDIATE")
                self._migrate(base)
                yield base
                base.execute("COMMIT")
        except sqlite3.Error as error:
            raise ToolError(
                f"{self._path} can't be used: {error}",
                hint="move it away: it holds what earlier starts took, nothing else",
            ) from error

    def _migrate(self, base: sqlite3.Connection) -> None:
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version > len(_STEPS):
            raise ToolError(
                f"{self._path} was written by a newer version of this tool",
                hint="update the tool, or move the file away",
            )
        for step in _STEPS[version:]:
            for statement in step.split(";"):
                if statement.strip():
                    base.execute(statement)
        base.execute(f"PRAGMA user_version = {len(_STEPS)}")
