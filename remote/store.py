"""What is kept here of every run: `runs/<id>/` beside tasks.py."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from remote.core.ids import dated_id
from remote.core.scrubbing import ScrubbedStream, Scrubber
from remote.errors import ConfigError
from remote.private_file import write_whole

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}\Z")


def new_run_id(profile: str, now_s: float) -> str:
    """An id that sorts by time: ``20261129-201530-piecewise-3f2a`` (UTC)."""
    return dated_id(now_s, re.sub(r"[^A-Za-z0-9._-]+", "-", profile)[:40])


def check_run_id(run: str) -> str:
    """The id itself.

    Raises:
        ConfigError: it can't be one; it would be used as a file name.
    """
    if not _RUN_ID.match(run):
        raise ConfigError(f"{run!r} is not the id of a run", hint="inv status lists the runs")
    return run


class LocalRun:
    """The folder of one run here; private, for even a scrubbed log may hold what users sent.

    Args:
        scrubber: takes secrets out of the log before it is written.
    """

    def __init__(self, runs: Path, run: str, scrubber: Scrubber | None = None) -> None:
        self.folder = runs / check_run_id(run)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.scrubber = scrubber or Scrubber()

    def write(self, name: str, content: bytes) -> Path:
        """Put a file there in one step; ``name`` may name one folder."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, content)
        return path

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        return self.write(name, json.dumps(value, indent=1, default=str).encode() + b"\n")

    @property
    def log_path(self) -> Path:
        """The copy of the server's log."""
        return self.folder / "server.log"

    @property
    def _position_path(self) -> Path:
        return self.folder / "server.log.position"

    def log_position(self) -> tuple[int, int]:
        """The inode of the log on the host and how far the copy reaches; zeros: begin anew."""
        try:
            inode, offset = self._position_path.read_text().split()
            return (int(inode), int(offset)) if self.log_path.exists() else (0, 0)
        except (OSError, ValueError):
            return 0, 0

    def log(self, go_on: bool = False) -> KeptLog:
        """The copy of the log to write to: begun anew, or with ``go_on`` continued."""
        return KeptLog(self.log_path, self._position_path, self.scrubber, go_on)


class KeptLog:
    """The copy of a server's log, scrubbed line by line."""

    def __init__(self, path: Path, position: Path, scrubber: Scrubber, go_on: bool) -> None:
        self._position = position
        self._reached: tuple[int, int] | None = None
        self._stream = ScrubbedStream(scrubber)
        # Where a copy reaches is unknown while it is written: a kill must not make bytes double.
        position.unlink(missing_ok=True)
        how = os.O_APPEND if go_on else os.O_TRUNC
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "ab")

    def write(self, data: bytes) -> None:
        self._file.write(self._stream.feed(data))

    def reached(self, inode: int, offset: int) -> None:
        """All up to there has been written."""
        self._reached = (inode, offset)

    def __enter__(self) -> KeptLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            self._file.write(self._stream.finish())
        if self._reached is not None:
            inode, offset = self._reached
            self._position.write_text(f"{inode} {offset}\n")
