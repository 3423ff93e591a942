"""What the host says of a run (`payload/evidence.py`), as a diagnosis takes it into account."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from remote.core.verdict import ONLY_RANK, ProcessEvidence

#: The main process's name among the ranks.
SERVER = "server"

_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process|oom-kill:")
_KILLED = re.compile(r"Killed process \d+ \((?P<name>[^)]*)\)")
#: Messages that explain a server's death or stillness.
_TELLING = re.compile(
    r"out of memory|oom[-_]kill|Killed process|\bXid\b|NVRM:.*(?:fail|error|fallen)|segfault"
    r"|general protection|I/O error|blocked for more than|EXT4-fs error|Remounting",
    re.IGNORECASE,
)
_MAX_LINES = 20


def process_evidence(
    found: Mapping[str, Any],
    logged: Iterable[str] = (),
    *,
    hung: bool = False,
    lost: Mapping[str, int | None] | None = None,
) -> ProcessEvidence:
    """What the host knows beside the log.

    Args:
        found: the answer of `evidence.look`.
        logged: the ranks that the log names; those that should live and don't are dead.
        hung: a wait saw no sign of work for longer than the phase may take.
        lost: ranks that a follower saw end first, with their exit status.
    """
    status = found["exit_status"]
    lines = tuple(line for line in found["kernel"]["lines"] if _TELLING.search(line))
    return ProcessEvidence(
        alive=bool(found["alive"]),
        exit_status=128 - status if status is not None and status > 128 else status,
        stop_requested=bool(found["stop_requested"]),
        hung=hung,
        # The process table, where it still shows: a follower knows only ranks that had a name.
        dead_ranks=_dead_ranks(found, logged) or dict(lost or {}),
        stopped_ranks=tuple(
            name for name, process in found["ranks"].items() if process["state"] == "T"
        ),
        kernel_oom=_oom(found["kernel"]),
        kernel_lines=lines[-_MAX_LINES:],
        gpus=found["gpus"],
        full_disks=tuple(disk["mount"] for disk in found["disks"] if disk["full"]),
    )


def _dead_ranks(found: Mapping[str, Any], logged: Iterable[str]) -> dict[str, int | None]:
    """Ranks that ended while the server went on, with their exit status where it is known.

    Once the main process is gone the others follow it: that they are gone too says nothing.
    """
    known = {each["rank"]: each["exit"] for each in found["dead"] if each["rank"] is not None}
    if not found["alive"]:
        return {name: status for name, status in known.items() if status is not None}
    nameless = [each["exit"] for each in found["dead"] if each["rank"] is None]
    named = found["ranks"].keys() - {SERVER}
    expected = {name or ONLY_RANK for name in logged}
    strangers = {name for name in named - expected if name == ONLY_RANK or name[0].isupper()}
    # Where titles and log call the ranks by different names, or none has a title, absence is none.
    if strangers or not (named or known or nameless):
        return known
    missing = sorted(expected - named - known.keys())
    statuses = nameless if len(nameless) == len(missing) else [None] * len(missing)
    return {**known, **dict(zip(missing, statuses, strict=True))}


def _oom(kernel: Mapping[str, Any]) -> bool | None:
    """Whether the kernel killed one of the server's processes for memory; None: it doesn't say."""
    if "reason" not in kernel:
        killed = [_KILLED.search(line) for line in kernel["lines"] if _OOM.search(line)]
        return any(
            each is not None and each["name"].startswith(("sglang", "python", "ray"))
            for each in killed
        )
    now, before = kernel["oom_kills"], kernel["oom_kills_before"]
    grown = {
        where: now[where] - before[where]
        for where in ("host", "group")
        if now.get(where) is not None and before.get(where) is not None
    }
    if grown.get("group"):
        return True
    return False if grown.get("host") == 0 else None
