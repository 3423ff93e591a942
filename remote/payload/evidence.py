"""What a host knows of a run beside its log: the process table, the kernel, the disks."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

from . import kernel, procs, ranks, runs
from .files import expand

#: Less than this free, and a write fails.
_FULL_BYTES = 1024 * 1024
#: Seconds within which the disks have to say how full they are.
_DISKS_S = 0.3
#: Variables of the server that name folders it writes to.
_FOLDERS = ("TMPDIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "HF_HOME")


def look(state: str, run: str, known: dict[str, int]) -> dict[str, Any]:
    """The run's processes now, the kernel's words since its start, and disks without room.

    Asks nothing that may take long: a verdict waits for it.

    Args:
        known: ranks seen before, with their pids, beside those that the last wait wrote down;
            those that are gone are told as dead.
    """
    started = runs.record(state, run)
    noted = runs.outcome(state, run) or {}
    known = {**(noted.get("ranks") or {}), **known}
    alive = procs.members(run)
    server = runs.server_process(state, run)
    roster = ranks.roster(alive, server.pid if server else None)
    return {
        "alive": server is not None,
        "exit_status": runs.exit_status(state, run),
        "stop_requested": runs.stop_requested(state, run),
        "ranks": {name: {"pid": p.pid, "state": p.state} for name, p in roster.items()},
        "dead": _dead(alive, known),
        "builders": ranks.builders(alive),
        "kernel": {
            **kernel.messages(float(started["started_at"])),
            "oom_kills": kernel.oom_kills(),
            "oom_kills_before": started.get("oom_kills", {}),
        },
        "disks": disks(writes_to(state, run, server.pid if server else None)),
        "gpus": _gpus(state, run),
    }


def _dead(alive: list[procs.Process], known: dict[str, int]) -> list[dict[str, Any]]:
    """Ranks that were seen and have ended, and children that have; ``exit`` where it is shown."""
    children = {child["pid"]: child for child in ranks.dead_children(alive)}
    living = {process.pid for process in alive}
    found = []
    for name, pid in known.items():
        if name != ranks.SERVER and pid not in living:
            child = children.pop(pid, None)
            found.append({"rank": name, "pid": pid, "exit": child["exit"] if child else None})
    return found + [
        {"rank": None, **child}
        for child in children.values()
        if child["name"].startswith("sglang::")
    ]


def writes_to(state: str, run: str, pid: int | None) -> list[str]:
    """Folders that the server writes to: its log's, and what its environment names."""
    variables = procs.environment(pid) if pid is not None else {}
    home = os.path.expanduser("~")
    named = [variables[name] for name in _FOLDERS if variables.get(name, "").startswith("/")]
    return [runs.folder(state, run), expand(state), home, "/tmp", "/dev/shm", *named]


def disks(paths: list[str]) -> list[dict[str, Any]]:
    """The file systems of those paths, each once: mount point, size and room in bytes.

    A network disk that doesn't answer is left out, with those behind it.
    """
    found: dict[str, dict[str, Any]] = {}
    asking = threading.Thread(target=_ask_disks, args=(paths, found), daemon=True)
    asking.start()
    asking.join(_DISKS_S)
    return list(found.values())


def _ask_disks(paths: list[str], found: dict[str, dict[str, Any]]) -> None:
    for path in paths:
        try:
            info = os.statvfs(path)
        except OSError:
            continue
        mount = os.path.realpath(path)
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        free = info.f_bavail * info.f_frsize
        no_inode = info.f_files > 0 and info.f_favail == 0
        found[mount] = {
            "mount": mount,
            "size_bytes": info.f_blocks * info.f_frsize,
            "free_bytes": free,
            "full": info.f_blocks > 0 and (free < _FULL_BYTES or no_inode),
        }


def _gpus(state: str, run: str) -> int | None:
    """How many GPUs the server may use, without asking them; None where there is no driver."""
    try:
        there = len(os.listdir(_GPU_FOLDER))
    except OSError:
        return None
    set_to = _VISIBLE.findall(runs.script(state, run)["script"])
    named = [name for name in set_to[-1].strip("'\"").split(",") if name] if set_to else None
    return there if named is None else min(there, len(named))


_GPU_FOLDER = "/proc/driver/nvidia/gpus"
#: The start script's own word on which GPUs the server sees.
_VISIBLE = re.compile(r"^export CUDA_VISIBLE_DEVICES=(\S*)", re.MULTILINE)
