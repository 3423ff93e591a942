"""Follow a run: new bytes of its log by offset, its death, and a readiness check beside it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from . import gpus, procs, ranks, readiness, runs
from .family import Family, Titles
from .growth import Growth

_CHUNK_BYTES = 256 * 1024
#: Between two looks where the kernel does not tell of growth.
_LOOK_S = 0.05
#: What is written within so long of another is sent with it: a flood of lines is not one of
#: messages.
_GATHER_S = 0.005
_TICK_S = 1.0
#: The same once nothing has happened for `_QUIET_S`, and at most where processes are so many that
#: looking at them would take more than a `_TICK_SHARE` th of a core.
_QUIET_TICK_S = 4.0
_QUIET_S = 10.0
_TICK_SHARE = 1000
#: With it a rank tells what it has met, the end of another one included.
_FAILURE = b"Traceback"
_PID_S = 15.0  # bash needs milliseconds to write it; a host that swaps may need seconds


class Pause(Protocol):
    """Waits so many seconds, or until one of the descriptors can be read; True when the client
    wants this to stop.
    """

    def __call__(self, seconds: float, also: Sequence[int] = ()) -> bool: ...


def follow(
    state: str,
    run: str,
    offset: int,
    probe: dict[str, Any] | None,
    pause: Pause,
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield log bytes from ``offset``, ticks, the probe's result, and at last the end.

    The log's growth, an end of a process, the client's word and the probe's wake it; by itself it
    does nothing but tick.

    Args:
        probe: address, port and timeout_s of a readiness check to make meanwhile, or None; with
            ``after``, a text, once the log has it.

    Messages: ``{"log": offset, "inode": …}`` with bytes, and ``{"probing": True}`` where the check
    begins with them; ``{"restarted": reason}`` when the file was cut or replaced (the offset is 0
    again); ``{"tick": …}`` each second, less often while nothing happens or where processes are
    many; ``{"probe": …}``;
    ``{"lost": [{"rank", "pid", "exit"}]}`` once, for the ranks that ended first while the server
    went on; ``{"gone": exit status or None}`` last, after the log's last byte.
    """
    path = os.path.join(runs.folder(state, run), "server.log")
    log = _Log(path, offset)
    server = _await_server(state, run, pause)
    bell = _Bell()
    results: list[dict[str, Any]] = []
    asked = dict(probe or {})
    awaited = asked.pop("after", "").encode()

    def check() -> None:
        results.append(readiness.check(run, **asked))
        bell.ring()

    def begin() -> None:
        threading.Thread(target=check, daemon=True).start()

    if asked and server is not None and not awaited:
        begin()
    pidfd = _pidfd(server)
    growth = Growth(path)
    sampler = gpus.Sampler()
    watched = _Ranks(bell)
    signs = _Signs(state, run, server)
    # A rank may go before the first tick.
    watched.learn(signs.look()["ranks"])
    seen: Any = None
    happened_at = time.monotonic()
    tick_at = happened_at + _TICK_S
    events = [fd for fd in (pidfd, growth.fd, bell.fd) if fd is not None]
    try:
        while True:
            # Looked at before reading, so that what was written before the death is read after it.
            gone = pidfd is None or _readable(pidfd)
            told = growth.told()
            bell.silence()
            # First who went, then what the others printed of it.
            lost = watched.lost()
            if lost:
                yield {"lost": lost}, b""
            grown = False
            for message, data in log.news():
                grown = True
                if _FAILURE in data and (lost := watched.leaving()):
                    yield {"lost": lost}, b""
                if "restarted" in message:
                    growth.watch()
                # A text that two pieces share is left to who reads lines.
                if awaited and server is not None and awaited in data:
                    awaited = b""
                    message["probing"] = True
                    begin()
                yield message, data
            if grown and not told:
                growth.missed()
            if results:
                yield {"probe": results.pop()}, b""
            if gone:
                status = _await_status(state, run)
                yield from log.news()
                stopping = runs.stop_requested(state, run)
                who = runs.stopped_by(state, run)
                yield {"gone": status, "stop_requested": stopping, "stopped_by": who}, b""
                return
            now = time.monotonic()
            if lost or grown:
                happened_at = now
                tick_at = min(tick_at, now + _TICK_S)
            if now >= tick_at:
                used_s = time.thread_time()
                quiet = now - happened_at >= _QUIET_S
                tick = signs.look(everybody=not quiet)
                watched.learn(tick["ranks"])
                if (tick["ranks"], tick["dead"]) != seen:
                    seen, happened_at, quiet = (tick["ranks"], tick["dead"]), now, False
                used_s = time.thread_time() - used_s
                usual_s = _QUIET_TICK_S if quiet else _TICK_S
                tick_at = now + max(usual_s, min(used_s * _TICK_SHARE, _QUIET_TICK_S))
                yield {"tick": {**tick, "gpus": sampler.latest}}, b""
            if grown and pause(_GATHER_S):
                return
            wait_s = max(0.0, tick_at - time.monotonic())
            if pause(min(wait_s, _LOOK_S) if growth.blind else wait_s, events):
                return
    finally:
        sampler.stop()
        watched.close()
        growth.close()
        bell.close()
        log.close()
        if pidfd is not None:
            os.close(pidfd)


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class _Signs:
    """A run's signs of life, looked at again and again."""

    def __init__(self, state: str, run: str, server: procs.Process | None) -> None:
        self._state, self._run = state, run
        self._server_pid = server.pid if server else None
        self._family = Family(run)
        self._titles = Titles()

    def look(self, *, everybody: bool = True) -> dict[str, Any]:
        """Processes, CPU seconds, memory, each rank's pid and state, compilers.

        ``everybody``: of those that have come since the last look, too.
        ``dead`` are ranks that ended while their parent goes on and has not asked about them.
        """
        alive = self._family.look(everybody=everybody)
        self._titles.forget(but=alive)
        roster = ranks.roster(alive, self._server_pid, self._titles.of)
        cpu_s = sum(process.cpu_ticks for process in alive) / os.sysconf("SC_CLK_TCK")
        pages = sum(process.memory_pages for process in alive)
        return {
            "processes": len(alive),
            "cpu_s": round(cpu_s, 2),
            "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "ranks": {name: [process.pid, process.state] for name, process in roster.items()},
            "builders": ranks.builders(alive, self._titles.of),
            "stopping": runs.stop_requested(self._state, self._run),
            "dead": [
                [process.pid, process.name]
                for process in self._family.dead
                if process.name.startswith("sglang::")
            ],
        }


class _Bell:
    """What one thread rings and others wait for; once it is closed nobody hears it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._lock = threading.Lock()  # the descriptor may be somebody else's by the next moment

    def ring(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self.fd)


class _Ranks:
    """The server's ranks by their pidfds: which one ended first.

    A server that loses a rank ends the others, and itself, within milliseconds: whoever looks now
    and then finds them all gone. So a thread waits for the first, and rings. A rank that holds a
    GPU's memory takes longer to end than the others to fail for want of it: when one of them prints
    a traceback, `leaving` finds who has begun to.
    """

    def __init__(self, bell: _Bell) -> None:
        self._bell = bell
        self._changed = _Bell()
        self._fds: dict[int, tuple[str, int]] = {}
        self._known: set[int] = set()
        self._first: list[dict[str, Any]] = []
        self._settled = threading.Lock()  # taken by who has found the first, and kept
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def learn(self, roster: dict[str, list[Any]]) -> None:
        """Watch those that are not watched yet."""
        fresh = {name: pid for name, (pid, _) in roster.items() if pid not in self._known}
        for name, pid in fresh.items():
            self._known.add(pid)
            with contextlib.suppress(ProcessLookupError):
                self._fds[os.pidfd_open(pid)] = (name, pid)
        if fresh:
            self._changed.ring()

    def lost(self) -> list[dict[str, Any]]:
        """Those that ended first, once; none where the main process went no later than they."""
        first, self._first = self._first, []
        return first

    def leaving(self) -> list[dict[str, Any]]:
        """Those that have begun to end before any was seen to have ended, once; none where all
        have, or the main process.
        """
        left = {name: pid for name, pid in self._fds.values() if procs.ending(pid)}
        all_of_several = len(left) > 1 and len(left) >= len(self._fds) - 1
        if not left or ranks.SERVER in left or all_of_several:
            return []
        return _ended(left) if self._settled.acquire(blocking=False) else []

    def _wait(self) -> None:
        while True:
            # First what rings, then what it rang for: the other way round a ring gets lost.
            self._changed.silence()
            if self._over.is_set():
                return
            poll = select.poll()  # a server of many ranks has descriptors beyond select's reach
            for fd in [self._changed.fd, *self._fds]:
                poll.register(fd, select.POLLIN)
            ended = [self._fds[fd] for fd, _ in poll.poll() if fd in self._fds]
            if ended:
                if self._settled.acquire(blocking=False) and ranks.SERVER not in dict(ended):
                    self._first = _ended(dict(ended))
                    self._bell.ring()
                return

    def close(self) -> None:
        self._over.set()
        self._changed.ring()
        self._thread.join()
        self._changed.close()
        for fd in self._fds:
            os.close(fd)


def _ended(pids: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"rank": name, "pid": pid, "exit": procs.exit_status(pid)} for name, pid in pids.items()
    ]


class _Log:
    """A growing file, read by offset; notices that it was cut or replaced."""

    def __init__(self, path: str, offset: int) -> None:
        self._path = path
        self._offset = offset
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)

    def news(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while chunk := os.pread(self._fd, _CHUNK_BYTES, self._offset):
            yield {"log": self._offset, "inode": os.fstat(self._fd).st_ino}, chunk
            self._offset += len(chunk)
        reason = self._changed()
        if reason:
            self._offset = 0
            yield {"restarted": reason}, b""
            yield from self.news()

    def _changed(self) -> str | None:
        mine = os.fstat(self._fd)
        if mine.st_size < self._offset:
            return "the log was cut"
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return None
        if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
            return None
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        return "the log was replaced"

    def close(self) -> None:
        os.close(self._fd)


def _await_server(state: str, run: str, pause: Pause) -> procs.Process | None:
    """The server's process; it may take a moment until the script has written its pid."""
    until = time.monotonic() + _PID_S
    missed = 0
    while True:
        # The server last: it may write its pid, or take the script's place, between two looks.
        over = runs.exit_status(state, run) is not None
        nobody = not procs.members(run) or _has_ended(runs.written_pid(state, run))
        process = runs.server_process(state, run)
        # A process in the middle of an exec shows no environment: once is no proof.
        missed = missed + 1 if nobody else 0
        over = over or missed > 1 or time.monotonic() > until
        if process is not None or over or pause(_LOOK_S):
            return process


def _has_ended(pid: int | None) -> bool:
    if pid is None:
        return False
    process = procs.find(pid)
    return process is None or not process.alive


def _pidfd(process: procs.Process | None) -> int | None:
    if process is None:
        return None
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if procs.same(process.pid, process.start):
        return fd
    os.close(fd)
    return None


def _await_status(state: str, run: str) -> int | None:
    """The exit status; the supervisor writes it a moment after the death."""
    until = time.monotonic() + 1.0
    while (status := runs.exit_status(state, run)) is None and time.monotonic() < until:
        time.sleep(0.002)
    return status
