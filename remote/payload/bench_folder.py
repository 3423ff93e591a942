"""The folder of one bench on the host: ``<state>/runs/<run>/bench/<bench>/``, and what is in it.

::

    plan.json             the matrix, as the client made it
    order.json            what the runner is to do: server, points, limits
    program.zip           the runner
    runner.json           its process, and who started it
    runner.log            what it printed, if it fell
    points/<point>.json   a point's state: running, or done and how
    raw/<point>.jsonl     what the bench client wrote
    raw/<point>.log       what it printed
    gpu/<point>.csv       nvidia-smi's samples; ….processes.csv: who was on the GPUs
    stop_requested        somebody asked to stop it
    end.json              how the runner ended
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from typing import Any

from . import runs
from .files import private_dir
from .lock import holder
from .refusal import Refused

#: Every process of a bench carries it, and none of them the run's own: ending a bench must not
#: touch the server, nor the other way round.
BENCH_VARIABLE = "SGLANG_REMOTE_BENCH"

_BENCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,60}\Z")
_POINT = re.compile(r"c[0-9]+-r[0-9]+\Z")


def home(state: str, run: str) -> str:
    """Where a run's benches lie."""
    return os.path.join(runs.folder(state, run), "bench")


def folder(state: str, run: str, bench: str) -> str:
    """Where one bench's files lie.

    Raises:
        Refused: ConfigError; that is no id of a bench.
    """
    if not _BENCH_ID.match(bench):
        raise Refused("ConfigError", f"{bench!r} is not the id of a bench")
    return os.path.join(home(state, run), bench)


def make(state: str, run: str, bench: str) -> str:
    """The folder, with those in it, made where they are missing."""
    private_dir(home(state, run))
    made = private_dir(folder(state, run, bench))
    for name in ("points", "raw", "gpu"):
        private_dir(os.path.join(made, name))
    return made


def ids(state: str, run: str) -> list[str]:
    """A run's benches, oldest first (an id begins with its time)."""
    try:
        names = os.listdir(home(state, run))
    except FileNotFoundError:
        return []
    at = home(state, run)
    return sorted(
        name
        for name in names
        if _BENCH_ID.match(name) and os.path.exists(os.path.join(at, name, "plan.json"))
    )


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a file; None where there is none, or nothing that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def points(at: str) -> list[dict[str, Any]]:
    """The states of the points that were begun, in the order of their beginning."""
    found = []
    for name in os.listdir(os.path.join(at, "points")):
        point = read_json(os.path.join(at, "points", name))
        if name.endswith(".json") and point is not None and _POINT.match(str(point.get("name"))):
            found.append(point)
    return sorted(found, key=lambda point: float(point.get("started_at", 0)))


def read_bytes(path: str, most: int) -> bytes | None:
    """A file's bytes, at most so many of its end; None where there is none."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError:
        return None


def lock_path(state: str, run: str) -> str:
    """What whoever measures the run holds locked."""
    return os.path.join(home(state, run), "lock")


def measured_by(state: str, run: str) -> str | None:
    """Who measures that run now, in words; None: nobody."""
    if not ids(state, run):
        return None
    try:
        fd = os.open(lock_path(state, run), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder(fd)
    finally:
        os.close(fd)
    return None
