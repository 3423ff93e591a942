"""Sends a signal to one rank of a run: ``python - RUN RANK SIGNAL`` on the host.

RANK is the end of the process's title (``TP1``), or ``scheduler`` where there is one. Prints pid
and moment as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def found(run: str, rank: str) -> int | None:
    mark = f"SGLANG_REMOTE_RUN={run}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            ours = mark in (folder / "environ").read_bytes().split(b"\0")
            if ours and title.startswith("sglang::scheduler") and title.endswith(rank):
                return int(folder.name)
    return None


def main() -> None:
    run, rank, name = sys.argv[1:4]
    pid = found(run, rank)
    if pid is None:
        raise SystemExit(f"no {rank} of run {run}")
    at = time.time()
    os.kill(pid, getattr(signal, name))
    print(json.dumps({"pid": pid, "at": at}))


main()
