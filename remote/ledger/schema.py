"""The ledger's file: its schema, brought up to date step by step, and a transaction on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from remote.errors import ToolError

#: Statements that lead from each version of the schema to the next. What stands here has been
#: written to files out there: it is added to, never changed.
STEPS: tuple[str, ...] = (
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
    # A row a start; lists and mappings as JSON.
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        at REAL NOT NULL,
        host TEXT NOT NULL,
        profile TEXT NOT NULL,
        user TEXT NOT NULL,
        client TEXT NOT NULL,
        sets TEXT NOT NULL,
        choice TEXT NOT NULL,
        argv TEXT NOT NULL,
        script_identity TEXT NOT NULL,
        identity TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        outcome TEXT NOT NULL,
        kind TEXT NOT NULL,
        cause TEXT NOT NULL,
        first_rank TEXT NOT NULL,
        phase TEXT NOT NULL,
        seconds REAL,
        ready_seconds REAL,
        minutes_lost REAL,
        points_lost INTEGER NOT NULL,
        note TEXT NOT NULL,
        folder TEXT NOT NULL
    );
    CREATE INDEX runs_by_time ON runs (at);
    CREATE INDEX runs_by_identity ON runs (identity);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        user TEXT NOT NULL,
        client TEXT NOT NULL,
        host TEXT NOT NULL,
        run TEXT,
        what TEXT NOT NULL,
        details TEXT NOT NULL
    );
    CREATE INDEX events_by_run ON events (run);
    CREATE TABLE points (
        bench TEXT NOT NULL,
        level INTEGER NOT NULL,
        repeat INTEGER NOT NULL,
        run TEXT NOT NULL,
        valid INTEGER NOT NULL,
        output_throughput REAL,
        started_at REAL,
        ended_at REAL,
        point TEXT NOT NULL,
        PRIMARY KEY (bench, level, repeat)
    );
    CREATE INDEX points_by_run ON points (run);
    CREATE TABLE baselines (
        host TEXT NOT NULL,
        name TEXT NOT NULL,
        run TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (host, name)
    );
    """,
)
_BUSY_S = 10.0


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in one transaction that no other writer comes between; all of it or nothing.

    Makes the file where there is none, and brings an older one up to date.

    Raises:
        ToolError: the file is none of SQLite's, can't be written, or a newer version of this tool
            wrote it.
    """
    with _told(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as base:
            base.isolation_level = None
            base.row_factory = sqlite3.Row
            base.execute("BEGIN IMMEDIATE")
            _migrate(base, path)
            yield base
            base.execute("COMMIT")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to read with, in one transaction; waits for no writer.

    The file must be there. Works where it may only be read.

    Raises:
        ToolError: as `writing`.
    """
    with _told(path), closing(sqlite3.connect(path, timeout=_BUSY_S)) as base:
        base.isolation_level = None
        base.row_factory = sqlite3.Row
        base.execute("BEGIN")
        if _version(base) == len(STEPS):
            yield base
            return
    with writing(path) as base:
        yield base


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise ToolError(
            f"{path} can't be used: {error}",
            hint="if it is damaged, move it away: the folders beside it still hold every run",
        ) from error


def _migrate(base: sqlite3.Connection, path: Path) -> None:
    version = _version(base)
    if version > len(STEPS):
        raise ToolError(
            f"{path} was written by a newer version of this tool",
            hint="update the tool, or move the file away",
        )
    for step in STEPS[version:]:
        for statement in step.split(";"):
            if statement.strip():
                base.execute(statement)
    if version < len(STEPS):
        base.execute(f"PRAGMA user_version = {len(STEPS)}")


def _version(base: sqlite3.Connection) -> int:
    return int(base.execute("PRAGMA user_version").fetchone()[0])
