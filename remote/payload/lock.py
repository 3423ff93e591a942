"""One task at a time on a host: a lock that names its holder and ends with its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from typing import Any

from . import procs, runs
from .files import expand, state_dir
from .refusal import Refused

#: A holder that is ended gets so long to leave by itself.
_GRACE_S = 2.0
#: Another task may take the lock each time just as we look at it.
_TRIES = 20


class HostLock:
    """The host's lock, held from `take` to `release`.

    The kernel gives it back when this process ends, however it ends. What the holder wrote into
    the file (who, since when, and its process by boot, pid and start time) tells others whom they
    wait for, and whether somebody was torn away in the middle.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def take(self, state: str, who: dict[str, Any]) -> dict[str, Any]:
        """Hold it; holding it twice is once.

        Returns:
            ``abandoned``: who held it before and is provably gone without having given it back, in
            words; None where it was free.

        Raises:
            Refused: Locked; another task holds it, with its user, client, task and since when.
        """
        if self._fd is not None:
            return {"abandoned": None}
        path = _path(state)
        for _ in range(_TRIES):
            fd = _open(path)
            before = _note(fd)
            if not _locked(fd):
                try:
                    if before is None or not gone(before):
                        raise _held(before)
                    # Something that the dead holder left behind keeps this file: take another.
                    if _same_file(fd, path):
                        os.unlink(path)
                finally:
                    os.close(fd)
            elif _same_file(fd, path):
                before = _note(fd)
                _write(fd, _own(who))
                self._fd = fd
                return {"abandoned": None if before is None else described(before)}
            else:
                os.close(fd)  # replaced between the two calls
        raise Refused("Locked", "the lock of this host changes hands too fast", hint="try again")

    def release(self) -> dict[str, Any]:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
        return {}


def look(state: str) -> dict[str, Any]:
    """Who holds it: ``note`` to show to `break_it`, and ``holder`` in words; None: nobody."""
    try:
        fd = os.open(_where(state), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"note": None, "holder": None}
    try:
        note = _note(fd)
        if _locked(fd):
            return {"note": None, "holder": None}
        return {"note": note or {}, "holder": described(note)}
    finally:
        os.close(fd)


def break_it(state: str, note: dict[str, Any]) -> dict[str, Any]:
    """End the process that holds the lock, so that it can't go on with what it was doing.

    Only processes of this user that have the lock's own file open are ended: they are this tool's.
    A holder on another machine that shares the folder can't be; its file is replaced.

    Args:
        note: of the holder that was shown, from `look`.

    Raises:
        Refused: Locked; somebody else holds it by now, or it doesn't end.
    """
    found = look(state)
    if found["holder"] is None:
        return {}
    if found["note"] != note:
        raise _held(found["note"])
    path = _where(state)
    holders = _having_open(path)
    for _ in runs.end(lambda: [p for p in holders if procs.same(p.pid, p.start)], _GRACE_S):
        pass
    fd = _open(path)
    try:
        if _locked(fd):
            os.ftruncate(fd, 0)  # nobody was torn away unknown to the next
        elif _same_file(fd, path) and _note(fd) == note:
            os.unlink(path)
    finally:
        os.close(fd)
    return {}


def gone(note: dict[str, Any]) -> bool:
    """Whether the process that wrote the note provably runs no more on this host."""
    if note.get("host") != socket.gethostname():
        return False
    if note.get("boot_id") != procs.boot_id():
        return True
    pid, start = note.get("pid"), note.get("start")
    return isinstance(pid, int) and isinstance(start, int) and not procs.same(pid, start)


def holder(fd: int) -> str:
    """Who wrote into a lock that is held, as a person reads it."""
    return described(_note(fd))


def described(note: dict[str, Any] | None) -> str:
    """Who wrote into a lock, as a person reads it."""
    if not note:
        return "a task that has not said yet who it is"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note.get("since", 0)))
    message = f": {note['message']}" if note.get("message") else ""
    where = note.get("host", "the host")
    return (
        f"{note.get('task', '?')} by {note.get('user', '?')} on {note.get('client', '?')},"
        f" since {since} (pid {note.get('pid', '?')} on {where}){message}"
    )


def _held(note: dict[str, Any] | None) -> Refused:
    return Refused(
        "Locked",
        "another task holds this host",
        evidence=[described(note)],
        hint="wait for it to end, then run this again; --break-lock ends it and takes the host",
    )


def _own(who: dict[str, Any]) -> dict[str, Any]:
    process = procs.find(os.getpid())
    return {
        **who,
        "host": socket.gethostname(),
        "boot_id": procs.boot_id(),
        "pid": os.getpid(),
        "start": process.start if process else None,
        "since": time.time(),
    }


def _where(state: str) -> str:
    return os.path.join(expand(state), "lock")


def _path(state: str) -> str:
    state_dir(state)
    return _where(state)


def _open(path: str) -> int:
    # O_CLOEXEC: a server started under the lock must not keep it.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _locked(fd: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _note(fd: int) -> dict[str, Any] | None:
    try:
        note = json.loads(os.pread(fd, 65536, 0))
    except ValueError:
        return None
    return note if isinstance(note, dict) and note else None


def _write(fd: int, note: dict[str, Any]) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(note).encode(), 0)


def _having_open(path: str) -> list[procs.Process]:
    """The processes of this user, but for this one, that have the file open."""
    found = []
    for pid in procs.pids():
        if pid == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
        process = procs.find(pid)
        if os.path.realpath(path) in opened and process is not None:
            found.append(process)
    return found
