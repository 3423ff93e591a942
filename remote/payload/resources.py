"""What the host has room and leave for: kernel caches, limits, shared memory, the tool's folder."""

from __future__ import annotations

import os
import pwd
import resource
import stat
from typing import Any

from .files import expand

#: Where kernels that are built at run time are kept: the variable that moves it, and the usual
#: place under the home folder.
_CACHES = (
    ("FlashInfer", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", "~"),
    ("Triton", "TRITON_CACHE_DIR", "", "~/.triton/cache"),
    ("torch.compile", "TORCHINDUCTOR_CACHE_DIR", "", "/tmp"),
)


def caches(variables: dict[str, str]) -> list[dict[str, Any]]:
    """Each kernel cache: where, whether it can be written to and run from, and free bytes there.

    Args:
        variables: the server's own; they may move a cache.
    """
    rows = []
    for name, variable, below, usual in _CACHES:
        path = os.path.join(expand(variables.get(variable) or usual), below).rstrip("/")
        there = _nearest(path)
        info = os.statvfs(there)
        rows.append(
            {
                "name": name,
                "path": path,
                "writable": os.access(there, os.W_OK | os.X_OK),
                "noexec": bool(info.f_flag & os.ST_NOEXEC),
                "free_bytes": info.f_bavail * info.f_frsize,
            }
        )
    return rows


def _nearest(path: str) -> str:
    """The path, or the folder above it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    return path


def limits() -> dict[str, list[int]]:
    """Soft and hard limit of open files and of locked memory (bytes); -1 is none."""
    return {
        "nofile": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
    }


def state_folder(state: str) -> dict[str, Any]:
    """The tool's folder as it is: kind, owner, mode."""
    path = expand(state)
    try:
        found = os.lstat(path)
    except OSError:
        there = _nearest(path)
        return {"path": path, "kind": "missing", "writable": os.access(there, os.W_OK | os.X_OK)}
    kinds = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "folder"))
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = str(found.st_uid)
    return {
        "path": path,
        "kind": next((name for is_kind, name in kinds if is_kind(found.st_mode)), "other"),
        "owner": owner,
        "ours": found.st_uid == os.geteuid(),
        "mode": stat.S_IMODE(found.st_mode),
        "writable": os.access(path, os.W_OK | os.X_OK),
    }


def shared_memory() -> dict[str, int] | None:
    """Size and free bytes of /dev/shm; None where there is none."""
    try:
        info = os.statvfs("/dev/shm")
    except OSError:
        return None
    return {"bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize}
