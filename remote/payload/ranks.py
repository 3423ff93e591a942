"""A server's ranks as the process table shows them: SGLang names its processes by their rank."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from . import procs

#: The name under which the main process stands beside the ranks.
SERVER = "server"

#: Programs that build kernels: while one runs, the server is slow and not hung.
_BUILDERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cc1plus", "fatbinary", "cudafe++"})

_TITLE = re.compile(
    r"sglang::(?P<what>[a-z_:]+?)(?P<tags>(?:_(?:[A-Z]+_)?[A-Z]{2}\d+)*)(?::\d+)?\Z"
)
_TAG = re.compile(r"_((?:[A-Z]+_)?[A-Z]{2}\d+)")


def name_of(title: str) -> str | None:
    """The rank that a process title names, as the log writes it; None for another program.

    ``sglang::scheduler_DP0_TP1`` is ``DP0 TP1``; without a tag the process's own word stands.
    """
    found = _TITLE.match(title)
    if found is None:
        return None
    return " ".join(_TAG.findall(found["tags"])) or found["what"]


def roster(
    processes: Iterable[procs.Process],
    server_pid: int | None,
    title: Callable[[procs.Process], str] = procs.title,
) -> dict[str, procs.Process]:
    """The living processes that have a part of their own, by name.

    A stopped one without a name yet (a rank that still imports) is told by its pid.
    """
    found: dict[str, procs.Process] = {}
    for process in processes:
        name = SERVER if process.pid == server_pid else name_of(title(process))
        if name is not None:
            found[name] = process
        elif process.state == "T":
            found[f"pid {process.pid}"] = process
    return found


def builders(
    processes: Iterable[procs.Process], title: Callable[[procs.Process], str] = procs.title
) -> list[str]:
    """The compilers among the processes, each once."""
    names = {os.path.basename(title(each)) for each in processes}
    return sorted(names & _BUILDERS)


def dead_children(processes: Iterable[procs.Process]) -> list[dict[str, Any]]:
    """Children that ended and that their parent has not asked about: pid, name, exit status."""
    parents = {process.pid for process in processes}
    found = []
    for pid in procs.pids():
        process = procs.find(pid)
        if process is not None and not process.alive and process.parent in parents:
            found.append({"pid": pid, "name": procs.name(pid), "exit": procs.exit_status(pid)})
    return found
