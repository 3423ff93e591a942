"""Follow a run: new bytes of its log by offset, its death, and a readiness check beside it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import gpus, procs, ranks, readiness, runs

_CHUNK_BYTES = 256 * 1024
_LOOK_S = 0.05
_TICK_S = 1.0
#: Ranks that were learnt of meanwhile are waited for from then on.
_RANKS_MS = 200
_PID_S = 15.0  # bash needs milliseconds to write it; a host that swaps may need seconds


def follow(
    state: str,
    run: str,
    offset: int,
    probe: dict[str, Any] | None,
    pause: Callable[[float], bool],
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield log bytes from ``offset``, ticks, the probe's result, and at last the end.

    Args:
        probe: address, port and timeout_s of a readiness check to make meanwhile, or None.
        pause: waits that many seconds; True when the client wants this to stop.

    Messages: ``{"log": offset, "inode": …}`` with bytes; ``{"restarted": reason}`` when the file
    was cut or replaced (the offset is 0 again); ``{"tick": …}`` each second; ``{"probe": …}``;
    ``{"lost": [{"rank", "pid", "exit"}]}`` once, for the ranks that ended first while the server
    went on; ``{"gone": exit status or None}`` last, after the log's last byte.
    """
    log = _Log(os.path.join(runs.folder(state, run), "server.log"), offset)
    server = _await_server(state, run, pause)
    results: list[dict[str, Any]] = []
    if probe is not None and server is not None:
        threading.Thread(
            target=lambda: results.append(readiness.check(run, **probe)), daemon=True
        ).start()
    pidfd = _pidfd(server)
    last_tick = time.monotonic()
    sampler = gpus.Sampler()
    watched = _Ranks()
    # A rank may go before the first tick.
    watched.learn(_roster(procs.members(run), server))
    try:
        while True:
            # Looked at before reading, so that what was written before the death is read after it.
            gone = pidfd is None or bool(select.select([pidfd], [], [], 0)[0])
            # First who went, then what the others printed of it.
            lost = watched.lost()
            if lost:
                yield {"lost": lost}, b""
            yield from log.news()
            if results:
                yield {"probe": results.pop()}, b""
            if gone:
                status = _await_status(state, run)
                yield from log.news()
                yield {"gone": status, "stop_requested": runs.stop_requested(state, run)}, b""
                return
            now = time.monotonic()
            if now - last_tick >= _TICK_S:
                last_tick = now
                tick = _tick(state, run, server)
                watched.learn(tick["ranks"])
                yield {"tick": {**tick, "gpus": sampler.latest}}, b""
            if pause(_LOOK_S):
                return
    finally:
        sampler.stop()
        watched.close()
        log.close()
        if pidfd is not None:
            os.close(pidfd)


def _roster(alive: list[procs.Process], server: procs.Process | None) -> dict[str, list[Any]]:
    """Each rank's pid and state."""
    found = ranks.roster(alive, server.pid if server else None)
    return {name: [process.pid, process.state] for name, process in found.items()}


def _tick(state: str, run: str, server: procs.Process | None) -> dict[str, Any]:
    """Signs of life: processes, CPU seconds, memory, each rank's pid and state, compilers.

    ``dead`` are ranks that ended while their parent goes on and has not asked about them.
    """
    alive = procs.members(run)
    cpu_s = sum(process.cpu_ticks for process in alive) / os.sysconf("SC_CLK_TCK")
    return {
        "processes": len(alive),
        "cpu_s": round(cpu_s, 2),
        "memory_bytes": sum(procs.memory_bytes(process.pid) for process in alive),
        "ranks": _roster(alive, server),
        "builders": ranks.builders(alive),
        "stopping": runs.stop_requested(state, run),
        "dead": [
            [child["pid"], child["name"]]
            for child in ranks.dead_children(alive)
            if child["name"].startswith("sglang::")
        ],
    }


class _Ranks:
    """The server's ranks by their pidfds: which one ended first.

    A server that loses a rank ends the others, and itself, within milliseconds: whoever looks now
    and then finds them all gone. So a thread waits for the first.
    """

    def __init__(self) -> None:
        self._fds: dict[int, tuple[str, int]] = {}
        self._known: set[int] = set()
        self._first: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def learn(self, roster: dict[str, list[Any]]) -> None:
        """Watch those that are not watched yet."""
        for name, (pid, _) in roster.items():
            if pid not in self._known:
                self._known.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    self._fds[os.pidfd_open(pid)] = (name, pid)

    def lost(self) -> list[dict[str, Any]]:
        """Those that ended first, once; none where the main process went no later than they."""
        first, self._first = self._first, []
        return first

    def _wait(self) -> None:
        while not self._over.is_set():
            poll = select.poll()  # a server of many ranks has descriptors beyond select's reach
            for fd in list(self._fds):
                poll.register(fd, select.POLLIN)
            ended = [self._fds[fd] for fd, _ in poll.poll(_RANKS_MS)]
            if ended:
                if all(name != ranks.SERVER for name, _ in ended):
                    self._first = [
                        {"rank": name, "pid": pid, "exit": procs.exit_status(pid)}
                        for name, pid in ended
                    ]
                return

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for fd in self._fds:
            os.close(fd)


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


def _await_server(state: str, run: str, pause: Callable[[float], bool]) -> procs.Process | None:
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
        time.sleep(0.02)
    return status
