"""A host without SSH for the tests: the real payload in a Python of this machine, over pipes."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from remote.agent import Agent
from remote.config import Address, BenchSettings, HostSettings
from remote.host import Answer, Link, Piece, Request
from remote.payload import procs, runs
from remote.remembered import Remembered
from remote.starter import start_command

#: What the stand-ins for SGLang's server and bench client run; see `Venv.play` and `Venv.measure`.
_SERVER = Path(__file__).with_name("fake_server.py")
_CLIENT = Path(__file__).with_name("fake_bench.py")
_CLIENT_FLAGS = (
    "backend dataset-name host port model tokenizer seed random-input-len random-output-len"
    " random-range-ratio num-prompts max-concurrency warmup-requests output-file output-details"
    " flush-cache"
)


class FakeClock:
    """A clock that moves when somebody sleeps, and by ``step_s`` whenever it is read."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.step_s = step_s
        self.slept: list[float] = []

    def monotonic_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def wall_s(self) -> float:
        return 1_796_000_000.0 + self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


class Pipes:
    """`remote.agent.ByteChannel` over the pipes of a process here.

    Args:
        budget: received bytes after which the connection is cut, in the middle of whatever it
            carries; None: never.
    """

    def __init__(self, line: str, home: Path, budget: int | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._budget = budget
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "USER": "tester"},
            cwd=home,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.sent: list[bytes] = []
        self.received = 0

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        view = memoryview(data)
        while view:
            if self._in.closed:
                raise BrokenPipeError("closed by the test")
            view = view[self._in.write(view) :]

    def receive(self, timeout_s: float) -> bytes:
        if self._budget is not None and self._budget <= 0:
            self.cut()
            raise ConnectionResetError("cut by the test")
        if not select.select([self._out], [], [], timeout_s)[0]:
            raise TimeoutError
        size = 65536 if self._budget is None else min(65536, self._budget)
        chunk: bytes = os.read(self._out.fileno(), size)
        self.received += len(chunk)
        if self._budget is not None:
            self._budget -= len(chunk)
        return chunk

    def cut(self) -> None:
        """As when the machine at the other end falls silent and its sshd ends the session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self._in.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.cut()
        self._out.close()

    def ended(self) -> tuple[int | None, bytes]:
        status = self.process.wait(5)
        self._stderr.seek(0)
        return status, self._stderr.read()


class LocalHost:
    """`remote.host.Host` on this machine.

    Args:
        budgets: for the first connections, after how many received bytes each is cut.
    """

    def __init__(
        self,
        settings: HostSettings,
        home: Path,
        budgets: Sequence[int] = (),
        python: str = sys.executable,
        remembered: Remembered | None = None,
    ) -> None:
        self._remembered = remembered
        self.settings = settings
        self.home = home
        self._budgets = list(budgets)
        self._python = python
        self._agent: Agent | None = None
        self.pipes: Pipes | None = None
        self.connections = 0
        self.redial_s = 60.0

    @property
    def name(self) -> str:
        return self.settings.name

    def link(self) -> Link:
        return Link("pipes to this machine", "as this user", "no key between pipes")

    def ahead(self, requests: Sequence[Request]) -> None:
        self._asked().ahead(requests)

    def call(self, function: str, data: bytes = b"", **params: Any) -> Answer:
        return self._asked().call(function, data, params)[0]

    def fetch(self, function: str, **params: Any) -> Piece:
        return Piece(*self._asked().call(function, b"", params))

    def stream(self, function: str, **params: Any) -> AbstractContextManager[Iterator[Piece]]:
        return self._asked().stream(function, params)

    def interact(self, command: Sequence[str]) -> int:
        return subprocess.run(list(command), check=False).returncode

    @contextmanager
    def tunnel(self, local_port: int, remote_port: int) -> Iterator[int]:
        yield remote_port

    def cut(self) -> None:
        """Lose the connection now."""
        assert self.pipes is not None
        self.pipes.cut()

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent = None

    def _asked(self) -> Agent:
        if self._agent is None:
            budget = self._budgets.pop(0) if self._budgets else None
            self.pipes = Pipes(start_command(self._python), self.home, budget)
            self.connections += 1
            self._agent = Agent(
                self.pipes,
                self.name,
                self.settings.venv,
                self.settings.state,
                self._remembered,
            )
        return self._agent


class Venv:
    """A venv whose python plays SGLang: its parsers' flags, a server and a bench client that do as
    told.

    Everything else that it is asked to run, it runs in this interpreter.
    """

    def __init__(self, folder: Path, sglang: str = "0.5.9") -> None:
        self.folder = folder
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"
        (folder / "bin").mkdir(parents=True)
        self.site.mkdir(parents=True)
        known = read_json(Path(__file__).parent / "cases" / "flags" / f"{sglang}.json")
        flags = folder / "flags.json"
        flags.write_text(json.dumps(known) + "\n")
        client = folder / "bench_flags.json"
        client.write_text(
            json.dumps({"sglang": sglang, "flags": dict.fromkeys(_CLIENT_FLAGS.split())}) + "\n"
        )
        python = folder / "bin" / "python"
        python.write_text(
            "#!/bin/bash\n"
            'if [ "$*" = "- --json" ]; then\n'
            f"  if grep -q bench_serving; then exec cat {client}; else exec cat {flags}; fi\n"
            "fi\n"
            'if [ "$2" = sglang.launch_server ]; then\n'
            f'  exec {sys.executable} -S {_SERVER} {folder}/play "$@"\n'
            "fi\n"
            'if [ "$2" = sglang.bench_serving ]; then\n'
            f'  exec {sys.executable} -S {_CLIENT} {folder}/bench_play "$@"\n'
            "fi\n"
            f'exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        for name, number in (("torch", "2.9.1"), ("sglang", sglang)):
            self.install(name, number, {})

    def install(self, name: str, version: str, files: Mapping[str, bytes]) -> None:
        """Put a distribution there as pip would: files, metadata and RECORD."""
        import base64
        import hashlib

        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        rows = []
        for path, content in files.items():
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            (self.site / path).write_bytes(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{path},sha256={digest.decode()},{len(content)}\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(rows))

    def play(self, part: str) -> None:
        """What the next server does: Python, with the functions of `fake_server.py`."""
        (self.folder / "play").write_text(part)

    def measure(self, part: str) -> None:
        """What the bench client does from now on: Python, with the functions of `fake_bench.py`."""
        (self.folder / "bench_play").write_text(part)

    def launch_script(self, port: int) -> bytes:
        """A start script as the template renders it, cut down to what the host relies on."""
        python = self.folder / "bin" / "python"
        return (f'echo "$$" > pid\nexec {python} -m sglang.launch_server --port {port}\n').encode()


def host_settings(tmp_path: Path, venv: Path, **changed: Any) -> HostSettings:
    """A host's settings with its state under the test's folder and a port that is free."""
    values: dict[str, Any] = {
        "name": "lab",
        "address": Address("127.0.0.1"),
        "venv": str(venv),
        "model": "org/tiny",
        "port": free_port(),
        "bench": BenchSettings((1,), 8, 8, 1, 0),
        "state": str(tmp_path / "state"),
        **changed,
    }
    return HostSettings(**values)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_run() -> str:
    """An id that no other test's processes carry."""
    return f"20261129-120000-test-{secrets.token_hex(6)}"


def end_runs(state: str) -> None:
    """Kill what a test left running."""
    until = time.monotonic() + 5
    for run in runs.ids(state):
        while (left := procs.members(run)) and time.monotonic() < until:
            for process in left:
                procs.send(process, 9)
            time.sleep(0.01)


def eventually(happened: Callable[[], Any], within_s: float = 60.0) -> Any:
    """The first true answer; for what another process does in its own time."""
    until = time.monotonic() + within_s
    while not (answer := happened()):
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)
    return answer


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
