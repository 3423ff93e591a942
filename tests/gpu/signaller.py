"""Sends a signal to one rank of a run: ``python - RUN RANK SIGNAL`` on the host.

RANK is the end of the process's title (``TP1``), or ``scheduler`` where there is one. Prints pid
and moment as JSON, and after how many seconds each rank began to end and had ended, where they did.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

WATCHED_S = 3.0
EXITING = 0x4  # of the flags in /proc/PID/stat


def schedulers(run: str) -> dict[str, int]:
    mark = f"SGLANG_REMOTE_RUN={run}".encode()
    pids = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            ours = mark in (folder / "environ").read_bytes().split(b"\0")
            if ours and title.startswith("sglang::scheduler"):
                pids[title] = int(folder.name)
    return pids


def ends(pids: dict[str, int], at: float) -> dict[str, dict[str, float]]:
    """When each began to end, and when its pidfd said that it had."""
    fds = {title: os.pidfd_open(pid) for title, pid in pids.items()}
    seen: dict[str, dict[str, float]] = {title: {} for title in pids}
    while time.time() < at + WATCHED_S and not all(len(each) == 2 for each in seen.values()):
        for title, pid in pids.items():
            fields = []
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            passed = round(time.time() - at, 4)
            if not fields or fields[0] in "ZX" or int(fields[6]) & EXITING:
                seen[title].setdefault("begins", passed)
            if select.select([fds[title]], [], [], 0)[0]:
                seen[title].setdefault("ended", passed)
        time.sleep(0.0005)
    return {title: each for title, each in seen.items() if each}


def main() -> None:
    run, rank, name = sys.argv[1:4]
    pids = schedulers(run)
    pid = next((pid for title, pid in pids.items() if title.endswith(rank)), None)
    if pid is None:
        raise SystemExit(f"no {rank} of run {run}")
    at = time.time()
    os.kill(pid, getattr(signal, name))
    left = ends(pids, at) if name == "SIGKILL" else {}
    print(json.dumps({"pid": pid, "at": at, "left": left}))


main()
