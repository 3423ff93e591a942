"""Runs the host's agent and stops it before a given one of its steps on the file system.

Called as ``interrupted_agent.py CONTROL CODE``. CONTROL is a folder: ``orders`` in it (``AT WHAT``)
goes to the first agent that starts. The agent then kills itself as SIGKILL does, or waits for
``go``; ``steps`` is how many it has taken.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The calls by which the payload changes a file system. An open counts where it is for writing.
CALLS = ("open", "fsync", "fchmod", "fchown", "ftruncate", "pwrite", "replace", "unlink")


def main() -> None:
    control, code = Path(sys.argv[1]), sys.argv[2]
    mine = control / f"taken-{os.getpid()}"
    try:
        (control / "orders").rename(mine)
    except FileNotFoundError:
        pass
    else:
        at, what = mine.read_text().split()
        _stop_before(int(at), what, control)
    exec(code, {"__name__": "__main__"})  # noqa: S102


def _stop_before(at: int, what: str, control: Path) -> None:
    steps = 0
    real_open = os.open

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal steps
            only_looks = real is real_open and not args[1] & (os.O_WRONLY | os.O_RDWR)
            if not only_looks:
                steps += 1
                if steps == at:
                    _stop(what, control)
                _note(steps)
            return real(*args, **more)

        return call

    def _note(count: int) -> None:
        fd = real_open(control / "steps", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, str(count).encode())
        os.close(fd)

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def _stop(what: str, control: Path) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    (control / "go").read_bytes()  # a pipe: until its other end was opened and closed


main()
