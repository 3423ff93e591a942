"""Measures the points of a bench one after another, in a process of its own, detached.

It is started with the folder of the bench and the descriptor that holds the lock of the run's
benches: whoever looks whether that lock is free knows whether this still runs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from . import bench_folder, gpus, procs, ranks, readiness, runs
from .files import expand, remove, write

_LOOK_S = 0.1
#: A dead server's client finds that all its requests fail, and says so in its result.
_LAST_WORDS_S = 5.0
#: No step logged for so long, and a generation that isn't answered in that: it hangs.
_QUIET_S = 60.0
_ANSWER_S = 60.0
#: Requests that failed while the server still lives may be the first sign of its death.
_DEATH_S = 2.0
_RANKS_S = 2.0
_FLUSH_S = 10.0
_SAMPLE_PROCESSES_S = 5.0
_BLOCK = 1024 * 1024
_FULL_BYTES = 1024 * 1024

_GPU_FIELDS = (
    "timestamp,index,uuid,power.draw,clocks.sm,memory.used,utilization.gpu,temperature.gpu"
)
#: The newer name, and the one that drivers before 535 know.
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
#: Lists of the client's result that reach 100 MB at high levels, and that no figure needs.
_BULKY = ("itls", "generated_texts", "text_chunks")


class Stopped(Exception):
    """Somebody asked to end it."""


class Over(Exception):
    """No further point can be measured."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why


class Runner:
    """One go at the points of ``order.json``."""

    def __init__(self, folder: str) -> None:
        order = bench_folder.read_json(os.path.join(folder, "order.json"))
        if order is None:
            raise Over("failed", "its order can't be read")
        self._folder = folder
        self._order = order
        self._state, self._run = str(order["state"]), str(order["run"])
        self._port, self._address = int(order["port"]), str(order["address"])
        self._server = int(order["server"]["pid"]), int(order["server"]["start"])
        self._log = os.path.join(runs.folder(self._state, self._run), "server.log")
        self._gpu_fields = _gpu_fields()

    def work(self) -> dict[str, Any]:
        """Measure all; how it ended."""
        try:
            for job in self._order["jobs"]:
                self._check_server()
                self._measure(job)
        except Over as over:
            return {"outcome": over.outcome, "why": over.why}
        except Stopped:
            return {"outcome": "stopped", "why": "it was asked to stop"}
        return {"outcome": "finished", "why": ""}

    @property
    def _alive(self) -> bool:
        return procs.same(*self._server)

    def _check_server(self) -> None:
        """Raises Over where the run's server is gone."""
        if not self._alive:
            raise Over(*self._gone())

    def _gone(self) -> tuple[str, str]:
        if runs.stop_requested(self._state, self._run):
            return "server_stopped", "the server was stopped on request"
        until = time.monotonic() + 1.0
        while (status := runs.exit_status(self._state, self._run)) is None:
            if time.monotonic() > until:
                return "server_gone", "the server's process is gone"
            time.sleep(0.02)
        return "server_gone", f"the server's process is gone (exit status {status})"

    def _stranger(self) -> str | None:
        """Why the port is not the run's; None where it is."""
        taken, holders = procs.listeners(self._port)
        if not taken:
            return f"nothing listens on port {self._port}"
        strangers = [pid for pid in holders if procs.run_of(pid) != self._run]
        if strangers or not holders:
            return f"port {self._port} is held by another process than this run's"
        return None

    def _path(self, kind: str, name: str) -> str:
        return os.path.join(self._folder, kind, name)

    def _measure(self, job: dict[str, Any]) -> None:
        """One point, from its first state to its last.

        Raises:
            Over: after its last state was written, where it was the last of all.
        """
        name = str(job["name"])
        point = {
            **job,
            "run": self._run,
            "state": "running",
            "started_at": time.time(),
            "log_inode": os.stat(self._log).st_ino,
            "log_begin": os.path.getsize(self._log),
        }
        self._note(point)
        over: Over | None = None
        troubles: list[str] = []
        stranger = self._stranger()
        if stranger is not None and self._alive:
            troubles.append(stranger)
            over = Over("stranger", stranger)
        else:
            self._flush(troubles)
            sampling = _Sampling(self._path("gpu", name), self._gpu_fields)
            try:
                point["exit_status"], over = self._client(job, troubles)
            finally:
                sampling.stop()
        self._condense(name, job, point)
        point.update(ended_at=time.time(), log_end=os.path.getsize(self._log))
        if over is None:
            over = self._afterwards(point, troubles)
        if _full(self._state):
            # What the client could not write to its end is no result: the point stays open.
            raise Over("disk_full", "the host's disk is full")
        if over is not None and over.outcome == "server_stopped":
            raise over
        self._note({**point, "state": "done", "troubles": troubles})
        if over is not None:
            raise over

    def _flush(self, troubles: list[str]) -> None:
        """Empty the prefix cache: levels share their prompts.

        The client does so too, after its warm-up, but asks once and doesn't look at the answer,
        which is no while the server still tidies up after a request.
        """
        _, holders = procs.listeners(self._port)
        key = readiness.api_key(holders)
        until = time.monotonic() + _FLUSH_S
        status = None
        while time.monotonic() < until:
            # A server that doesn't answer any more shows so at the point itself.
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, _ = readiness.ask(
                    self._address, self._port, "POST", "/flush_cache", {}, _FLUSH_S, key
                )
            if status == 200:
                return
            time.sleep(_LOOK_S)
        if status is not None:
            why = f"/flush_cache answers {status}"
            troubles.append(f"the prefix cache could not be emptied before the point: {why}")

    def _note(self, point: dict[str, Any]) -> None:
        write(self._path("points", f"{point['name']}.json"), json.dumps(point, indent=1).encode())

    def _client(self, job: dict[str, Any], troubles: list[str]) -> tuple[int | None, Over | None]:
        """Run the bench client to its end, or until the server or the time is over."""
        name = str(job["name"])
        remove(self._path("raw", f"{name}.jsonl"))
        fd = os.open(self._path("raw", f"{name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            client = subprocess.Popen(
                [str(self._order["python"]), *job["argv"]],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
            )
        finally:
            os.close(fd)
        try:
            over = self._watch(client, float(job["limit_s"]), troubles)
        finally:
            _end(client)
        status = client.returncode
        if over is None and status != 0 and not troubles:
            said = bench_folder.read_bytes(self._path("raw", f"{name}.log"), 4096) or b""
            lines = said.decode("utf-8", "replace").strip().splitlines()
            last = f": {lines[-1].strip()[:300]}" if lines else ""
            troubles.append(f"bench_serving ended with exit status {status}{last}")
        return status, over

    def _environment(self) -> dict[str, str]:
        """The server's own, for its model and its packages are the client's; the marks differ."""
        env = procs.environment(self._server[0])
        env.pop(procs.RUN_VARIABLE, None)
        env[bench_folder.BENCH_VARIABLE] = str(self._order["bench"])
        env["NO_PROXY"] = env["no_proxy"] = self._address
        env["PYTHONUNBUFFERED"] = "1"
        env.pop("API_KEY", None)
        env.pop("OPENAI_API_KEY", None)
        _, holders = procs.listeners(self._port)
        key = readiness.api_key(holders)
        if key:
            env["OPENAI_API_KEY"] = key
        return env

    def _watch(
        self, client: subprocess.Popen[bytes], limit_s: float, troubles: list[str]
    ) -> Over | None:
        """Wait for the client; why there is nothing more to measure, where that is so."""
        began = worked_at = looked_at = time.monotonic()
        steps = _Steps(self._log)
        asking: _Asking | None = None
        while client.poll() is None:
            now = time.monotonic()
            over = None if self._alive else Over(*self._gone())
            if over is None and now - looked_at > _RANKS_S:
                looked_at, over = now, self._dead_rank()
            if over is not None:
                troubles.append(f"the server died during the point: {over.why}")
                if over.outcome != "server_stopped":
                    _await(client, _LAST_WORDS_S)
                return over
            if now - began > limit_s:
                troubles.append(f"took longer than {limit_s:.0f} s and was ended")
                return None
            # Only a step is a sign of work: health checks and refusals are logged all the same.
            if steps.news():
                worked_at, asking = now, None
            if asking is None and now - worked_at > _QUIET_S:
                asking = _Asking(self._run, self._address, self._port)
            if asking is not None and asking.answer is not None:
                if not asking.answer["ok"]:
                    why = f"a generation is not answered: {asking.answer['why']}"
                    troubles.append(f"the server hung during the point: {why}")
                    return Over("server_hung", why)
                worked_at, asking = now, None
            time.sleep(_LOOK_S)
        return None

    def _dead_rank(self) -> Over | None:
        """A rank that ended while the server's main process goes on without it."""
        for child in ranks.dead_children(procs.members(self._run)):
            if str(child["name"]).startswith("sglang::"):
                return Over(
                    "server_gone", f"its process {child['name']} ended (pid {child['pid']})"
                )
        return None

    def _afterwards(self, point: dict[str, Any], troubles: list[str]) -> Over | None:
        """Whether the server is still there; where something failed, whether it still serves."""
        if self._alive and (troubles or point["completed"] != point["prompts"]):
            until = time.monotonic() + _DEATH_S
            while self._alive and time.monotonic() < until:
                dead = self._dead_rank()
                if dead is not None:
                    troubles.append(f"the server died during the point: {dead.why}")
                    return dead
                time.sleep(_LOOK_S)
            if self._alive:
                found = readiness.check(self._run, self._address, self._port, _ANSWER_S)
                if self._alive and not found["ok"] and not found.get("final"):
                    troubles.append(f"the server does not serve after the point: {found['why']}")
                    return Over("server_hung", str(found["why"]))
        if not self._alive:
            over = Over(*self._gone())
            troubles.append(f"the server died during the point: {over.why}")
            return over
        stranger = self._stranger()
        if stranger is not None:
            troubles.append(f"after the point, {stranger}")
            return Over("stranger", stranger)
        return None

    def _condense(self, name: str, job: dict[str, Any], point: dict[str, Any]) -> None:
        """Take out of the result what is bulky; what is no JSON stays as it is."""
        path = self._path("raw", f"{name}.jsonl")
        point["completed"] = None
        try:
            with open(path, encoding="utf-8") as file:
                *_, last = (line for line in file if line.strip())
            result = json.loads(last)
            point["completed"] = result.get("completed")
        except (OSError, ValueError, AttributeError):
            return
        for key in _BULKY:
            result.pop(key, None)
        write(path, json.dumps(result).encode() + b"\n")


class _Steps:
    """The steps that a server's log gets."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = os.path.getsize(path)

    def news(self) -> bool:
        """Whether a step was logged since the last look; a part of the last line may wait."""
        if os.path.getsize(self._path) <= self._offset:
            return False
        with open(self._path, "rb") as log:
            log.seek(self._offset)
            fresh, newline, _ = log.read(_BLOCK).rpartition(b"\n")
        self._offset += len(fresh) + len(newline)
        return b"] Decode batch" in fresh or b"] Prefill batch" in fresh


class _Asking:
    """A readiness check in a thread of its own: the client goes on being watched meanwhile."""

    def __init__(self, run: str, address: str, port: int) -> None:
        self.answer: dict[str, Any] | None = None
        self._asked = run, address, port
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        self.answer = readiness.check(*self._asked, _ANSWER_S)


class _Sampling:
    """nvidia-smi beside a point: a row a second of each GPU, and who is on them.

    Args:
        path: of its files, without ending.
        fields: what to ask for; None where there is no nvidia-smi, and then it does nothing.
    """

    def __init__(self, path: str, fields: str | None) -> None:
        self._stopped = threading.Event()
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        found = gpus.program()
        for ending in (".csv", ".processes.csv"):
            remove(path + ending)
        if fields is None or found is None:
            return
        fd = os.open(f"{path}.csv", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                [found, f"--query-gpu={fields}", "--format=csv,nounits", "-l", "1"],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
            )
        finally:
            os.close(fd)
        threading.Thread(target=self._processes, args=(found,), daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._process is not None:
            _end(self._process)

    def _processes(self, found: str) -> None:
        query = f"--query-compute-apps={gpus.APP_FIELDS}"
        fd = os.open(f"{self._path}.processes.csv", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(fd, "w") as file:
            while not self._stopped.is_set():
                try:
                    done = subprocess.run(
                        [found, query, "--format=csv,noheader,nounits"],
                        capture_output=True,
                        timeout=20,
                        stdin=subprocess.DEVNULL,
                    )
                    for line in done.stdout.decode("utf-8", "replace").splitlines():
                        file.write(_described(line))
                    file.flush()
                except (OSError, subprocess.TimeoutExpired):
                    return
                self._stopped.wait(_SAMPLE_PROCESSES_S)


def _described(line: str) -> str:
    """A process on a GPU with what only this machine can tell of it; empty where it is unseen.

    In a container nvidia-smi may tell the pids of the machine around it: what has no process here
    can't be told apart.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3 or not cells[1].isdigit() or procs.find(int(cells[1])) is None:
        return ""
    pid = int(cells[1])
    # SGLang's title and a command line are one line; a stray newline must not make two rows.
    command = " ".join(" ".join(procs.command_line(pid)[:4]).split()) or procs.name(pid)
    run = procs.run_of(pid) or "-"
    return f"{time.time():.0f},{cells[0]},{pid},{cells[2]},{run},{procs.owner(pid)},{command}\n"


def _gpu_fields() -> str | None:
    """What this host's nvidia-smi can be asked for; None where there is none that answers."""
    found = gpus.program()
    if found is None:
        return None
    for reason in _REASON_FIELDS:
        fields = f"{_GPU_FIELDS},{reason}"
        try:
            done = subprocess.run(
                [found, f"--query-gpu={fields}", "--format=csv,nounits"],
                capture_output=True,
                timeout=30,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            return fields
    return _GPU_FIELDS


def _await(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child that may have ended; it is ours until it is waited for, so its pid is too."""
    if process.poll() is None:
        process.terminate()
        _await(process, 5.0)
    if process.poll() is None:
        process.kill()
    process.wait()


def _full(state: str) -> bool:
    info = os.statvfs(expand(state))
    return info.f_bavail * info.f_frsize < _FULL_BYTES


def _stop(number: int, frame: object) -> None:
    raise Stopped


def main() -> None:
    """Measure, and write down how it ended."""
    folder = sys.argv[1]
    os.set_inheritable(int(sys.argv[2]), False)
    os.umask(0o077)  # for the client's files: other users of the host are not to read prompts
    signal.signal(signal.SIGTERM, _stop)
    try:
        end = Runner(folder).work()
    except Stopped:
        end = {"outcome": "stopped", "why": "it was asked to stop"}
    except Over as over:
        end = {"outcome": over.outcome, "why": over.why}
    except Exception as error:
        end = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"}
        if isinstance(error, OSError) and error.errno == 28:
            end = {"outcome": "disk_full", "why": "the host's disk is full"}
        write(os.path.join(folder, "end.json"), json.dumps({**end, "at": time.time()}).encode())
        raise
    write(os.path.join(folder, "end.json"), json.dumps({**end, "at": time.time()}).encode())
