"""Runs on the host: a folder each, the process it started, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from . import gpus, kernel, procs
from .files import expand, private_dir, read, state_dir, write
from .refusal import Refused

#: Outcomes that a wait writes down and a later stop doesn't change.
_FAILED = ("crashed", "died_after_ready", "hung")

#: Files beside the start script that only its user may read; they go into no bundle.
SECRETS = ("secrets.env", "secrets.yaml")

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}\Z")

# The supervisor outlives the server by one write: its exit status. TERM is trapped, not ignored,
# for an ignored signal would be inherited by the server.
_SUPERVISE = (
    'trap : TERM INT HUP; bash "$1/launch.sh" >>"$1/server.log" 2>&1 </dev/null; status=$?;'
    # The umask is the server's own, but this file is not.
    ' umask 077; printf "%s\\n" "$status" >"$1/exit_status.part";'
    ' mv "$1/exit_status.part" "$1/exit_status"'
)


def folder(state: str, run: str) -> str:
    """Where a run's files lie.

    Raises:
        Refused: ConfigError; that is no run id.
    """
    if not _RUN_ID.match(run):
        raise Refused("ConfigError", f"{run!r} is not the id of a run")
    return os.path.join(expand(state), "runs", run)


def record(state: str, run: str) -> dict[str, Any]:
    """What was written down when the run was started.

    Raises:
        Refused: ConfigError; the host has no such run.
    """
    path = os.path.join(folder(state, run), "run.json")
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        raise Refused(
            "ConfigError", f"the host has no run {run}", hint="inv status lists the runs it has"
        ) from None
    return found


def ids(state: str) -> list[str]:
    """The host's runs, oldest first by its own clock: the clocks of clients may differ.

    A folder without a record is none: the connection died, and nothing was started.
    """
    home = os.path.join(expand(state), "runs")
    try:
        names = os.listdir(home)
    except FileNotFoundError:
        return []
    begun = []
    for name in filter(_RUN_ID.match, names):
        with contextlib.suppress(OSError):
            begun.append((os.stat(os.path.join(home, name, "run.json")).st_mtime_ns, name))
    return [name for _, name in sorted(begun)]


def script(state: str, run: str) -> dict[str, Any]:
    """The run's start script, empty where it is gone, and the files of secrets that it reads."""
    texts = {}
    for name in ("launch.sh", *SECRETS):
        found = read(os.path.join(folder(state, run), name))
        if found is not None:
            texts[name] = found.content.decode("utf-8", "surrogateescape")
    return {"script": texts.pop("launch.sh", ""), "secrets": texts}


def server_process(state: str, run: str) -> procs.Process | None:
    """The run's main process, while it lives.

    The pid is written by the launch script just before it becomes the server, so it counts only
    if the process carries the run's own variable.
    """
    pid = written_pid(state, run)
    process = procs.find(pid) if pid is not None else None
    if process is None or not process.alive or procs.run_of(process.pid) != run:
        return None
    return process


def written_pid(state: str, run: str) -> int | None:
    """The pid that the launch script wrote; None before it did, also while the file is empty."""
    try:
        with open(os.path.join(folder(state, run), "pid")) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def exit_status(state: str, run: str) -> int | None:
    """The status the server's shell saw (128 + signal where a signal ended it)."""
    try:
        with open(os.path.join(folder(state, run), "exit_status")) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _ended_at(home: str) -> float | None:
    """When the server's shell saw it end, in seconds since the epoch."""
    try:
        return os.stat(os.path.join(home, "exit_status")).st_mtime
    except OSError:
        return None


def newest(state: str) -> str:
    """The run that was started last.

    Raises:
        Refused: ConfigError; there is none.
    """
    known = ids(state)
    if not known:
        raise Refused(
            "ConfigError", "the host has no runs yet", hint="inv deploy PROFILE starts one"
        )
    return known[-1]


def look(
    state: str, run: str | None, living: dict[str, list[procs.Process]] | None = None
) -> dict[str, Any]:
    """A run, or the newest, as it is now; ``living`` is `procs.by_run`, where the caller has it.

    Raises:
        Refused: ConfigError; the host has no such run, or none at all.
    """
    run = newest(state) if run is None else run
    home = folder(state, run)
    started = record(state, run)
    rebooted = started.get("boot_id") != procs.boot_id()
    alive = (procs.by_run() if living is None else living).get(run, [])
    server = None if rebooted else server_process(state, run)
    log = os.path.join(home, "server.log")
    return {
        "run": run,
        "record": started,
        "rebooted": rebooted,
        "server_pid": server.pid if server else None,
        "pids": [process.pid for process in alive],
        "exit_status": exit_status(state, run),
        "ended_at": _ended_at(home),
        "stop_requested": stop_requested(state, run),
        "outcome": outcome(state, run),
        "log": log,
        "log_bytes": os.path.getsize(log) if os.path.exists(log) else 0,
        "now": time.time(),
    }


def all_ids(state: str) -> dict[str, Any]:
    """`ids` as an answer."""
    return {"ids": ids(state)}


def stop_requested(state: str, run: str) -> bool:
    """Whether this tool has asked the run to stop."""
    return os.path.exists(os.path.join(folder(state, run), "stop_requested"))


def stopped_by(state: str, run: str) -> str:
    """Who asked the run to stop; empty where that isn't known."""
    found = read(os.path.join(folder(state, run), "stop_requested"))
    return "" if found is None else found.content.decode().partition("\n")[2].strip()


def outcome(state: str, run: str) -> dict[str, Any] | None:
    """What the last wait for this run found; None where none has ended."""
    try:
        with open(os.path.join(folder(state, run), "outcome.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def note_outcome(state: str, run: str, note: dict[str, Any]) -> dict[str, Any]:
    """Write down what a wait found, by the host's clock."""
    path = os.path.join(folder(state, run), "outcome.json")
    write(path, json.dumps({**note, "at": time.time()}).encode())
    return {}


def start(
    state: str,
    run: str,
    note: dict[str, Any],
    script: bytes,
    secrets: list[tuple[str, int]] | None = None,
) -> dict[str, Any]:
    """Make the run's folder and start its script, detached from this connection.

    Args:
        script: the start script, and behind it the contents of the files of secrets.
        secrets: those files, each its name and its length.

    Raises:
        Refused: ToolError; the run exists already.
        OSError: the disk is full; the folder is gone again.
    """
    state_dir(state)
    private_dir(os.path.join(expand(state), "runs"))
    home = folder(state, run)
    if os.path.exists(home):
        raise Refused("ToolError", f"the host already has a run {run}")
    private_dir(home)
    end = len(script) - sum(length for _, length in secrets or ())
    script, rest = script[:end], script[end:]
    try:
        for name, length in secrets or ():
            if name not in SECRETS:
                raise Refused("ToolError", f"{name!r} is no file of secrets")
            write(os.path.join(home, name), rest[:length])
            rest = rest[length:]
        supervisor = _launch(home, run, note, script)
    except OSError:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return {"run": run, "folder": home, "supervisor_pid": supervisor.pid}


def _launch(home: str, run: str, note: dict[str, Any], script: bytes) -> subprocess.Popen[bytes]:
    write(os.path.join(home, "launch.sh"), script, mode=0o700)
    # Opened here for its mode, and so that a follower finds it at once.
    os.close(os.open(os.path.join(home, "server.log"), os.O_CREAT | os.O_WRONLY, 0o600))
    started = {
        **note,
        "run": run,
        "boot_id": procs.boot_id(),
        "started_at": time.time(),
        "oom_kills": kernel.oom_kills(),
    }
    write(os.path.join(home, "run.json"), json.dumps(started, indent=1).encode())
    # The environment is the script's own; it starts from the little that a login has.
    kept = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME") if name in os.environ}
    return subprocess.Popen(
        ["/bin/bash", "-c", _SUPERVISE, "sglang-remote-supervisor", home],
        env={
            **kept,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            procs.RUN_VARIABLE: run,
        },
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(state: str, run: str, grace_s: float, who: str = "") -> Iterator[dict[str, Any]]:
    """End every process of the run, and tell how it goes; returns when they and their GPU memory
    are gone.

    TERM first, KILL after ``grace_s`` seconds; children that appear meanwhile are included. ``who``
    asked for it is told to whoever waits for the run.
    """
    home = folder(state, run)
    alive = procs.members(run)
    pids = {process.pid for process in alive}
    seen = outcome(state, run)
    failed = seen is not None and seen.get("outcome") in _FAILED
    # What is left of a server that failed is ended; that it failed stays the verdict.
    if alive and not failed:
        # A full disk must not keep a server alive.
        with contextlib.suppress(OSError):
            write(os.path.join(home, "stop_requested"), f"{time.time():f}\n{who}\n".encode())
    yield from end(lambda: procs.members(run), grace_s)
    yield from gpus.released(pids)
    # A supervisor that was killed could not write it.
    if alive and exit_status(state, run) is None:
        with contextlib.suppress(OSError):
            write(os.path.join(home, "exit_status"), b"137\n")


def end(living: Any, grace_s: float) -> Iterator[dict[str, Any]]:
    """TERM, then KILL, all that ``living()`` still finds; yields a message a second."""
    began = time.monotonic()
    told: set[tuple[int, int]] = set()
    killed: set[tuple[int, int]] = set()
    last = 0.0
    while True:
        # A process in the middle of an exec shows no environment: one look is no proof.
        alive = living() or living()
        if not alive:
            return
        waited = time.monotonic() - began
        if waited > grace_s + 30:
            raise Refused(
                "ToolError",
                f"{len(alive)} processes don't end, not even on SIGKILL",
                evidence=[f"pid {p.pid} state {p.state}" for p in alive],
                hint="a process in state D waits for a device or file system: look at dmesg",
            )
        number, done = (signal.SIGTERM, told) if waited < grace_s else (signal.SIGKILL, killed)
        for process in alive:
            key = (process.pid, process.start)
            if key not in done:
                procs.send(process, number)
                done.add(key)
        if waited - last >= 1 or not last:
            last = waited or 0.001
            yield {"alive": len(alive), "waited_s": round(waited, 1), "killing": waited >= grace_s}
        time.sleep(0.05)


def stop_foreign(pid: int, start_ticks: int, grace_s: float) -> Iterator[dict[str, Any]]:
    """End one process that this tool did not start, and its descendants.

    Raises:
        Refused: ToolError; the pid now belongs to another process than the one that was shown.
    """
    if not procs.same(pid, start_ticks):
        raise Refused("ToolError", f"pid {pid} is no longer the process that was shown")
    family = _descendants(pid)
    yield from end(lambda: [p for p in family if procs.same(p.pid, p.start)], grace_s)
    yield from gpus.released({process.pid for process in family})


def _descendants(root: int) -> list[procs.Process]:
    everyone = [process for pid in procs.pids() if (process := procs.find(pid)) is not None]
    family, grew = {root}, True
    while grew:
        more = {p.pid for p in everyone if p.parent in family} - family
        grew = bool(more)
        family |= more
    return [process for process in everyone if process.pid in family]
