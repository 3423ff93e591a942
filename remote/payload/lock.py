"""One task at a time on a host: a lock that names its holder and ends with its process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any

from .files import expand, private_dir
from .refusal import Refused


class HostLock:
    """The host's lock, held from `take` to `release`.

    The kernel gives it back when this process ends, however it ends, so a dead holder never needs
    to be judged.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def take(self, state: str, who: dict[str, Any]) -> dict[str, Any]:
        """Hold it; holding it twice is once.

        Raises:
            Refused: Locked; another task holds it, with its user, client, task and since when.
        """
        if self._fd is not None:
            return {}
        path = os.path.join(private_dir(expand(state)), "lock")
        # O_CLOEXEC: a server started under the lock must not keep it.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who_holds = holder(fd)
            os.close(fd)
            raise Refused(
                "Locked",
                "another task holds this host",
                evidence=[who_holds],
                hint="wait for it to end, then run this again",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({**who, "pid": os.getpid(), "since": time.time()}).encode(), 0)
        self._fd = fd
        return {}

    def release(self) -> dict[str, Any]:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
        return {}


def holder(fd: int) -> str:
    """Who wrote into a lock that is held, as a person reads it."""
    try:
        note = json.loads(os.pread(fd, 65536, 0))
    except ValueError:
        return "it has not said yet who it is"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note.get("since", 0)))
    return (
        f"{note.get('task', '?')} by {note.get('user', '?')} on {note.get('client', '?')},"
        f" since {since} (pid {note.get('pid', '?')} on the host)"
    )
