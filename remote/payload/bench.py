"""Benches on the host: start one detached, follow it, stop it, look at those of a run."""

from __future__ import annotations

import fcntl
import functools
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from . import bench_folder, bench_runner, procs, runs
from .files import expand, remove, write
from .lock import holder
from .refusal import Refused

_LOOK_S = 0.1
_TELL_S = 1.0
#: Of a result, of the step lines and of the samples, at most so much travels.
_RESULT_BYTES = 64 * 1024 * 1024
_STEPS_BYTES = 8 * 1024 * 1024
_SAMPLES_BYTES = 16 * 1024 * 1024
_STEP = re.compile(rb"[^\n]*(?:\] (?:Decode|Prefill) batch|Cache (?:not )?flushed)[^\n]*\n?")
_BLOCK = 1024 * 1024
#: The client's own bar: ``12%|#2        | 8/64 [00:03<00:22,  2.44it/s]``.
_BAR = re.compile(rb"(\d+)/(\d+) \[[^\]]*\]?")


def start(
    state: str,
    run: str,
    bench: str,
    venv: str,
    address: str,
    port: int,
    plan: dict[str, Any],
    jobs: list[dict[str, Any]],
    limit_s: float,
    who: dict[str, Any],
) -> dict[str, Any]:
    """Start measuring these points, detached from this connection.

    Args:
        jobs: of each point its ``name``, ``level``, ``repeat``, ``seed``, ``prompts`` and the
            client's words ``argv``, in which ``{output}`` stands for the result's path.
        limit_s: seconds that one point may take.
        who: user and client, for whoever else wants to measure this run.

    Raises:
        Refused: Locked, a bench of this run is going on; ToolError, the run's server is gone.
    """
    runs.record(state, run)
    at = bench_folder.make(state, run, bench)
    lock = _lock(state, run)
    try:
        server = runs.server_process(state, run)
        if server is None:
            raise Refused(
                "ToolError",
                f"run {run} has no living server to measure",
                hint="inv status shows what it does; inv restart starts it again",
            )
        _end_leftovers(state, run)
        for name in ("end.json", "stop_requested"):
            remove(os.path.join(at, name))
        for job in jobs:
            remove(os.path.join(at, "points", f"{job['name']}.json"))
        order = {
            "state": expand(state),
            "run": run,
            "bench": bench,
            "python": os.path.join(venv, "bin", "python"),
            "address": address,
            "port": port,
            "server": {"pid": server.pid, "start": server.start},
            "jobs": [_order(at, job, limit_s) for job in jobs],
        }
        write(os.path.join(at, "plan.json"), json.dumps(plan, indent=1).encode())
        write(os.path.join(at, "order.json"), json.dumps(order, indent=1).encode())
        write(os.path.join(at, "program.zip"), _program())
        runner = _launch(at, bench, lock)
        note = {"task": f"bench {bench}", **who, "pid": runner, "since": time.time()}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(note).encode(), 0)
        process = procs.find(runner)
        begun = {**note, "start": process.start if process else 0, "boot_id": procs.boot_id()}
        write(os.path.join(at, "runner.json"), json.dumps(begun, indent=1).encode())
    finally:
        os.close(lock)  # the runner holds it on, through its own descriptor
    return {"bench": bench, "runner_pid": runner, "folder": at}


def _end_leftovers(state: str, run: str) -> None:
    """End what a runner that was killed left behind: its client would go on asking the server."""
    for bench in bench_folder.ids(state, run):
        marked = functools.partial(procs.marked, bench_folder.BENCH_VARIABLE, bench)
        for _ in runs.end(marked, 5.0):
            pass


def require_idle(state: str, run: str) -> dict[str, Any]:
    """Nothing measures that run.

    Raises:
        Refused: Locked; a bench of this run is going on, with who started it.
    """
    who = bench_folder.measured_by(state, run)
    if who is not None:
        raise _measured(run, who)
    return {}


def _order(at: str, job: dict[str, Any], limit_s: float) -> dict[str, Any]:
    output = os.path.join(at, "raw", f"{job['name']}.jsonl")
    argv = [str(word).replace("{output}", output) for word in job["argv"]]
    return {**job, "argv": argv, "limit_s": limit_s}


def _lock(state: str, run: str) -> int:
    """The lock of a run's benches, held.

    Raises:
        Refused: Locked; a bench of this run is going on.
    """
    path = bench_folder.lock_path(state, run)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = holder(fd)
        os.close(fd)
        raise _measured(run, who) from None
    return fd


def _measured(run: str, who: str) -> Refused:
    return Refused(
        "Locked",
        f"run {run} is being measured already: two benches at once would measure each other",
        evidence=[who],
        hint=f"inv bench --run {run} --resume follows and collects that one",
    )


def _program() -> bytes:
    """The runner and what it imports, as they are loaded here, as a zipped package."""
    assert bench_runner.__package__ == __package__
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sys.modules):
            if name != __package__ and not name.startswith(f"{__package__}."):
                continue
            spec = sys.modules[name].__spec__
            source = spec.loader.get_source(name) if spec is not None and spec.loader else None  # type: ignore[attr-defined]
            inner = name[len(str(__package__)) :].lstrip(".").replace(".", "/")
            if source is not None:
                archive.writestr(f"payload/{inner or '__init__'}.py", source)
    return packed.getvalue()


def _launch(at: str, bench: str, lock: int) -> int:
    """Start the runner with the lock's descriptor; its pid."""
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        " from payload import bench_runner; bench_runner.main()"
    )
    log = os.open(os.path.join(at, "runner.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kept = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME") if name in os.environ}
    program = os.path.join(at, "program.zip")
    try:
        runner = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start, program, at, str(lock)],
            env={
                **kept,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "LANG": os.environ.get("LANG", "C.UTF-8"),
                bench_folder.BENCH_VARIABLE: bench,
            },
            cwd=at,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],
            start_new_session=True,
        )
    finally:
        os.close(log)
    return runner.pid


def look(state: str, run: str) -> dict[str, Any]:
    """The benches of a run: whether they go on, the points done, how they ended."""
    return {"benches": [_seen(state, run, bench) for bench in bench_folder.ids(state, run)]}


def _seen(state: str, run: str, bench: str) -> dict[str, Any]:
    at = bench_folder.folder(state, run, bench)
    points = bench_folder.points(at)
    begun = bench_folder.read_json(os.path.join(at, "runner.json"))
    return {
        "bench": bench,
        "plan": bench_folder.read_json(os.path.join(at, "plan.json")),
        "running": _runs(begun),
        "who": begun,
        "done": [point["name"] for point in points if point["state"] == "done"],
        "end": bench_folder.read_json(os.path.join(at, "end.json")),
    }


def _runs(begun: dict[str, Any] | None) -> bool:
    """Whether the runner that was written down still lives."""
    return (
        begun is not None
        and begun.get("boot_id") == procs.boot_id()
        and procs.same(int(begun["pid"]), int(begun["start"]))
    )


def follow(
    state: str, run: str, bench: str, have: list[str], pause: Callable[[float], bool]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Finished points as they come, progress meanwhile, and at last the end.

    Args:
        have: the points that the client has already.
        pause: waits that many seconds; True when the client wants this to stop.

    Messages: ``{"point": state, "parts": {name: bytes or None}}`` with the parts one after another,
    compressed (zlib): ``raw`` the client's result, ``gpu`` and ``processes`` nvidia-smi's,
    ``steps`` the server's step lines; ``{"progress": …}`` each second; ``{"end": …}`` last.
    """
    at = bench_folder.folder(state, run, bench)
    sent = set(have)
    told = 0.0
    while True:
        # Looked at before the points, so that what the runner did last is read after its end.
        begun = bench_folder.read_json(os.path.join(at, "runner.json"))
        over = not _runs(begun)
        points = bench_folder.points(at)
        for point in points:
            if point["state"] == "done" and point["name"] not in sent:
                sent.add(point["name"])
                yield _packed(state, run, at, point)
        if over:
            yield {"end": _end(state, at)}, b""
            return
        if time.monotonic() - told >= _TELL_S:
            told = time.monotonic()
            yield {"progress": _progress(at, points)}, b""
        if pause(_LOOK_S):
            return


def _end(state: str, at: str) -> dict[str, Any]:
    """How the runner ended; it may have had no room to say so."""
    end = bench_folder.read_json(os.path.join(at, "end.json"))
    if end is not None:
        return end
    info = os.statvfs(at)
    if info.f_bavail * info.f_frsize < _BLOCK:
        return {"outcome": "disk_full", "why": "the host's disk is full"}
    said = bench_folder.read_bytes(os.path.join(at, "runner.log"), 2000) or b""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    why = "what measures on the host is gone"
    return {"outcome": "vanished", "why": f"{why}: {lines[-1]}" if lines else why}


def _packed(state: str, run: str, at: str, point: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    name = point["name"]
    parts = {
        "raw": bench_folder.read_bytes(os.path.join(at, "raw", f"{name}.jsonl"), _RESULT_BYTES),
        "gpu": bench_folder.read_bytes(os.path.join(at, "gpu", f"{name}.csv"), _SAMPLES_BYTES),
        "processes": bench_folder.read_bytes(
            os.path.join(at, "gpu", f"{name}.processes.csv"), _SAMPLES_BYTES
        ),
        "steps": _steps(state, run, point),
    }
    sizes = {part: None if content is None else len(content) for part, content in parts.items()}
    data = zlib.compress(b"".join(content or b"" for content in parts.values()), 1)
    return {"point": point, "parts": sizes}, data


def _steps(state: str, run: str, point: dict[str, Any]) -> bytes | None:
    """The step lines of the server's log from the point's beginning to its end."""
    path = os.path.join(runs.folder(state, run), "server.log")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    kept = b""
    with os.fdopen(fd, "rb") as log:
        if os.fstat(log.fileno()).st_ino != point["log_inode"]:
            return None
        log.seek(point["log_begin"])
        left, pending = point["log_end"] - point["log_begin"], b""
        while left > 0 and len(kept) < _STEPS_BYTES and (block := log.read(min(_BLOCK, left))):
            left -= len(block)
            whole, newline, pending = (pending + block).rpartition(b"\n")
            kept += b"".join(_STEP.findall(whole + newline))
    return kept + b"".join(_STEP.findall(pending))


def _progress(at: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the runner is: the point, its seconds, and the requests that the client has had."""
    order = bench_folder.read_json(os.path.join(at, "order.json")) or {"jobs": []}
    names = [job["name"] for job in order["jobs"]]
    done = {point["name"] for point in points if point["state"] == "done"}
    running = next((point for point in points if point["state"] == "running"), None)
    progress: dict[str, Any] = {
        "done": sum(1 for name in names if name in done),
        "of": len(names),
    }
    if running is not None:
        progress |= {
            "level": running["level"],
            "repeat": running["repeat"],
            "elapsed_s": round(time.time() - running["started_at"], 1),
            "prompts": running["prompts"],
        }
        said = bench_folder.read_bytes(os.path.join(at, "raw", f"{running['name']}.log"), 4096)
        bars = _BAR.findall(said or b"")
        if bars:
            progress["requests"] = int(bars[-1][0])
    return progress


def stop(state: str, run: str, bench: str, grace_s: float) -> Iterator[dict[str, Any]]:
    """End a bench and nothing else; the server goes on. Tells how it goes."""
    at = bench_folder.folder(state, run, bench)
    write(os.path.join(at, "stop_requested"), b"%f\n" % time.time())
    yield from runs.end(lambda: procs.marked(bench_folder.BENCH_VARIABLE, bench), grace_s)
