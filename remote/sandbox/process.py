"""Processes of this machine, told apart for certain: a pid alone may be anybody's by now.

Linux: everything is read from ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """One process for good: its pid, when it started (clock ticks since boot), and which boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None where there is none, or a zombie."""
        try:
            # The name in parentheses may itself hold spaces and parentheses (proc(5)).
            fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            return None
        state, *rest = fields.split()
        if state in "ZX":
            return None
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return cls(pid, int(rest[18]), boot_id)

    @property
    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def stop(self, grace_s: float) -> bool:
        """Ask it to end, and kill it where it hasn't after ``grace_s``; return when it is gone.

        The signal goes through a pidfd taken before the second look at who it is.

        Returns:
            Whether it was there to be stopped.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGTERM)
                if not select.select([handle], [], [], grace_s)[0]:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    select.select([handle], [], [])
        finally:
            os.close(handle)
        return True


def started_in(home: Path, venv: Path) -> tuple[int, ...]:
    """Pids of this user's processes that belong to a home, lowest first.

    Those with that ``HOME`` in their environment, and those that have files of the venv mapped:
    a program that sets its title (SGLang's schedulers do) may have overwritten its environment.
    """
    entry = b"HOME=" + os.fsencode(home)
    mapped = os.fsencode(venv) + b"/"
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                if (
                    entry in (folder / "environ").read_bytes().split(b"\0")
                    or mapped in (folder / "maps").read_bytes()
                ):
                    found.append(int(folder.name))
    return tuple(sorted(found))
