"""What is kept here of every run: `runs/<id>/` beside tasks.py."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from remote.errors import ConfigError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}\Z")


def new_run_id(profile: str, now_s: float) -> str:
    """An id that sorts by time: ``20261129-201530-piecewise-3f2a`` (UTC)."""
    moment = datetime.fromtimestamp(now_s, timezone.utc).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", profile)[:40]
    return f"{moment}-{name}-{secrets.token_hex(2)}"


def check_run_id(run: str) -> str:
    """The id itself.

    Raises:
        ConfigError: it can't be one; it would be used as a file name.
    """
    if not _RUN_ID.match(run):
        raise ConfigError(f"{run!r} is not the id of a run", hint="inv status lists the runs")
    return run


class LocalRun:
    """The folder of one run here; private, for a log may hold prompts."""

    def __init__(self, runs: Path, run: str) -> None:
        self.folder = runs / check_run_id(run)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, name: str, content: bytes) -> Path:
        """Put a file there in one step."""
        path = self.folder / name
        temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        temporary.replace(path)
        return path

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        return self.write(name, json.dumps(value, indent=1, default=str).encode() + b"\n")

    def log(self) -> BinaryIO:
        """The copy of the server's log, begun anew: a follow reads from the first byte."""
        fd = os.open(self.folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return os.fdopen(fd, "wb")
