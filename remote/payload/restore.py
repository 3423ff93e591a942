"""The tool's traces on a host: what there is of them, taken away, and proven to be gone."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from . import bench_folder, files, patches, procs, runs
from .integrity import OURS
from .refusal import Refused

#: What the tool keeps in its folder, and what a write that was killed left beside it.
_KNOWN = frozenset({"runs", "patches", "cache", "lock", files.MADE})
_UNFINISHED = re.compile(r"\..+\.[0-9]+\.tmp\Z")
#: A probe's temporary folder may belong to one that is at work just now.
_STALE_S = 3600.0


def look(state: str) -> dict[str, Any]:
    """What stands in the tool's folder; changes nothing.

    Returns:
        ``there``; ``strange``: names in it that this tool did not make; ``runs`` and ``benches``
        by id, whether or not they ever started; ``bytes`` of all files.
    """
    path = files.expand(state)
    if not os.path.lexists(path):
        return {"there": False, "strange": [], "runs": [], "benches": [], "bytes": 0}
    _refuse_foreign(path)
    names = os.listdir(path)
    return {
        "there": True,
        "strange": sorted(n for n in names if n not in _KNOWN and not _UNFINISHED.match(n)),
        "runs": _names(os.path.join(path, "runs")),
        "benches": sorted(
            os.path.basename(found)
            for found in glob.glob(os.path.join(glob.escape(path), "runs", "*", "bench", "*"))
            if os.path.isdir(found)
        ),
        "bytes": _size(path),
    }


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _size(path: str) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


def _refuse_foreign(path: str) -> None:
    """Refuse what is no folder of this user's own.

    Raises:
        Refused: ToolError; nothing there is removed.
    """
    found = os.lstat(path)
    real = os.path.realpath(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Refused("ToolError", f"{path} is not a folder of this user's", hint="look at it")
    if real in ("/", os.path.realpath(os.path.expanduser("~"))):
        raise Refused("ToolError", f"{path} is a home folder: it is not removed")


def living(known_runs: list[str], benches: list[str]) -> list[procs.Process]:
    """The processes that carry the mark of one of these."""
    found = []
    for pid in procs.pids():
        of_run = procs.run_of(pid) in known_runs
        if of_run or procs.mark_of(pid, bench_folder.BENCH_VARIABLE) in benches:
            process = procs.find(pid)
            if process is not None and process.alive:
                found.append(process)
    return found


def end(known_runs: list[str], benches: list[str], grace_s: float) -> Iterator[dict[str, Any]]:
    """End what lives of these, TERM first; tells how it goes."""
    yield from runs.end(lambda: living(known_runs, benches), grace_s)


def remove(state: str) -> dict[str, Any]:
    """Take the tool's folder away, and temporary folders that a killed probe left.

    The lock's own file goes last, so that whoever waits for it finds the folder whole or gone.

    Raises:
        Refused: ToolError; something in it is not this tool's.
        OSError: a file can't be removed.
    """
    found = look(state)
    if found["strange"]:
        raise Refused("ToolError", "the state folder holds other files", evidence=found["strange"])
    path = files.expand(state)
    above = files.made_above(path) if found["there"] else []
    for name in sorted(_names(path), key=lambda each: each == "lock"):
        entry = os.path.join(path, name)
        if os.path.isdir(entry) and not os.path.islink(entry):
            shutil.rmtree(entry)
        else:
            os.unlink(entry)
    if found["there"]:
        os.rmdir(path)
        files.sync_dir(os.path.dirname(path))
        with contextlib.suppress(OSError):  # somebody else uses one by now
            for folder in above:
                os.rmdir(folder)
    for stale in _stale_folders():
        shutil.rmtree(stale, ignore_errors=True)
    return {}


def _stale_folders() -> list[str]:
    found = []
    for path in glob.glob(os.path.join(tempfile.gettempdir(), "sglang-remote-*")):
        info = os.lstat(path)
        ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
        if ours and time.time() - info.st_mtime > _STALE_S:
            found.append(path)
    return found


def prove(
    state: str,
    known_runs: list[str],
    benches: list[str],
    expected: dict[str, str | None],
    site: str | None,
) -> dict[str, Any]:
    """What is left, read anew.

    Args:
        expected: by path, the hash that each file that was patched must have (None: no file).
        site: the venv's site-packages.

    Returns:
        ``files``: a row for each expected one, with what RECORD says; ``processes`` still alive;
        ``leftovers``: paths that should not be there.
    """
    recorded = patches.recorded(site, list(expected)) if site and expected else {}
    rows = []
    leftovers = []
    for path, wanted in expected.items():
        now = files.read(path)
        sha256 = now.sha256 if now else None
        rows.append(
            {"path": path, "expected": wanted, "sha256": sha256, "recorded": recorded.get(path)}
        )
        folder, name = os.path.split(glob.escape(path))
        leftovers += glob.glob(os.path.join(folder, f".{name}.*.tmp"))
    if os.path.lexists(files.expand(state)):
        leftovers.append(files.expand(state))
    if site:
        for pattern in (f"{OURS}*", f"__pycache__/{OURS}*"):
            leftovers += glob.glob(os.path.join(glob.escape(site), pattern))
    return {
        "files": rows,
        "processes": [procs.describe(process.pid) for process in living(known_runs, benches)],
        "leftovers": sorted({*leftovers, *_stale_folders()}),
    }
