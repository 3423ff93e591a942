"""The embedded host as a whole: up, status, down, reset."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from remote.errors import ConfigError, ToolError
from remote.sandbox import setup
from remote.sandbox.entry import host_entry
from remote.sandbox.layout import PRIVATE_FOLDER, Layout
from remote.sandbox.packages import load_pins
from remote.sandbox.pip import Pip
from remote.sandbox.process import started_in
from remote.sandbox.record import ServerRecord
from remote.sandbox.setup import Plan, Progress, StepState
from remote.sandbox.steps import Work, all_steps, installed, python_minor

#: How long the SSH server may take to listen, and to end.
START_TIMEOUT_S = 30.0
STOP_GRACE_S = 5.0

REAL_HOST = """\
give a GPU host in invoke.yaml instead:
hosts:
  gpu:
    address: root@HOST
    venv: /root/ml-env
    model: /models/MODEL
    port: 30000"""


@dataclass(frozen=True)
class SandboxEntry:
    """The embedded host, up: its settings, and what had to be done for it."""

    host: Mapping[str, object]
    set_up: bool
    server_started: bool


@dataclass(frozen=True)
class SandboxStatus:
    """The embedded host as found; ``ssh_pid`` and ``ssh_port`` are None while it is down."""

    folder: Path
    steps: tuple[StepState, ...]
    disk_bytes: int
    ssh_pid: int | None
    ssh_port: int | None
    python: str | None
    versions: Mapping[str, str]
    leftovers: tuple[int, ...]

    @property
    def installed(self) -> bool:
        return all(step.done for step in self.steps)


@dataclass(frozen=True)
class Down:
    """What ``down`` did: the SSH server's pid, if one was stopped, and what still runs."""

    stopped_pid: int | None
    leftovers: tuple[int, ...]


@dataclass(frozen=True)
class Sandbox:
    """One sandbox folder; every method may be called at any time, from several shells."""

    folder: Path

    @property
    def layout(self) -> Layout:
        return Layout(self.folder)

    def plan(self) -> Plan:
        """What ``up`` would still have to do.

        Raises:
            ConfigError: not Linux, or a Python without pinned packages.
        """
        require_linux(sys.platform, platform.machine())
        return setup.plan(self.layout, all_steps(load_pins(python_minor(self.layout))))

    def up(
        self, report: Callable[[Progress], None], confirm: Callable[[str], bool]
    ) -> SandboxEntry:
        """Set up what is missing and start the SSH server, or find both done.

        Args:
            report: told of every step, first of what the set-up will cost.
            confirm: asked before anything much larger than that is downloaded.

        Raises:
            ConfigError: not Linux, or a Python without pinned packages.
            ToolError: a step failed, too little disk, or the SSH server did not start.
        """
        require_linux(sys.platform, platform.machine())
        layout = self.layout
        with self._locked(report) as lock:
            pins = load_pins(python_minor(layout))
            work = Work(layout, Pip(layout.venv_python, layout.setup_log, (lock,)), pins, confirm)
            set_up = setup.run(work, all_steps(pins), report)
            record = self._server()
            started = record is None or not layout.known_hosts.is_file()
            if record is None or started:
                self._stop_server()  # one whose keys are gone lets nobody in
                port = start_server(layout)
            else:
                port = record.port
        return SandboxEntry(host_entry(layout, port, bool(self.leftover_pids())), set_up, started)

    def status(self) -> SandboxStatus:
        """Look, and change nothing.

        Raises:
            ConfigError: not Linux, or a Python without pinned packages and no venv yet.
        """
        require_linux(sys.platform, platform.machine())
        layout = self.layout
        there = layout.folder.is_dir()
        python = python_minor(layout)
        record = self._server()
        return SandboxStatus(
            folder=layout.folder,
            steps=setup.states(layout, all_steps(load_pins(python))),
            disk_bytes=setup.disk_used(layout.folder) if there else 0,
            ssh_pid=record.process.pid if record else None,
            ssh_port=record.port if record else None,
            python=python if layout.venv_python.exists() else None,
            versions=installed(layout),
            leftovers=self.leftover_pids(),
        )

    def leftover_pids(self) -> tuple[int, ...]:
        """Processes started through the sandbox that still run."""
        return started_in(self.layout.home, self.layout.venv)

    def down(self) -> Down:
        """Stop the SSH server, if the process on record is still that server; nothing else.

        What was started through it lives on and is listed.
        """
        if not self.layout.folder.is_dir():
            return Down(None, ())
        with self._locked(_unreported):
            return self._stop_server()

    def reset(self) -> int:
        """Take the sandbox away, folder and all.

        Returns:
            The bytes freed.

        Raises:
            ToolError: something started through it still runs, or the folder is no sandbox.
        """
        layout = self.layout
        if not layout.folder.is_dir():
            return 0
        if foreign := layout.foreign():
            raise ToolError(
                f"{layout.folder} holds what the embedded host did not put there",
                evidence=[str(path) for path in foreign],
                hint="nothing was removed; move these away first",
            )
        with self._locked(_unreported):
            if leftovers := self.leftover_pids():
                raise ToolError(
                    f"{len(leftovers)} process(es) of the embedded host still run",
                    evidence=[f"pid {pid}: {command_line(pid)}" for pid in leftovers],
                    hint="inv stop, then inv sandbox.reset again",
                )
            self._stop_server()
            freed = setup.disk_used(layout.folder)
            shutil.rmtree(layout.folder)
        return freed

    def _server(self) -> ServerRecord | None:
        """The SSH server on record, where that very process runs."""
        record = ServerRecord.read(self.layout.server_record)
        return record if record is not None and record.process.alive else None

    def _stop_server(self) -> Down:
        record = self._server()
        stopped = record is not None and record.process.stop(STOP_GRACE_S)
        return Down(record.process.pid if record and stopped else None, self.leftover_pids())

    @contextlib.contextmanager
    def _locked(self, report: Callable[[Progress], None]) -> Iterator[int]:
        """Hold the sandbox's lock; yields its file descriptor.

        A reset may have removed the file that was waited for: then the new one is taken.
        """
        layout = self.layout
        while True:
            layout.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
            descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting = "another task is working on the embedded host; waiting for it"
                    report(Progress(0, 0, "lock", waiting))
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_file_at(descriptor, layout.lock):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)


def require_linux(system: str, machine: str) -> None:
    """Make sure that the embedded host can run on this kind of machine.

    On another processor SGLang 0.5.9's CPU path calls compiled kernels outright.

    Args:
        system: as in ``sys.platform``.
        machine: as of ``platform.machine()``.

    Raises:
        ConfigError: it can't; the hint is a real host's four lines.
    """
    if (system, machine) != ("linux", "x86_64"):
        raise ConfigError(
            f"the embedded host needs Linux on x86-64; this is {system} on {machine}",
            hint=REAL_HOST,
        )


def start_server(layout: Layout) -> int:
    """Start the SSH server, detached, and wait until it listens.

    Returns:
        Its port.

    Raises:
        ToolError: it ended or stayed silent; its log is the evidence.
    """
    ours, theirs = os.pipe()
    package_root = Path(__file__).resolve().parents[2]
    try:
        with layout.server_log.open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "remote.sandbox.server", str(layout.folder), str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                env={**os.environ, "PYTHONPATH": str(package_root)},
                cwd="/",
                check=False,
            )
        os.close(theirs)
        theirs = -1
        readable, _, _ = select.select([ours], [], [], START_TIMEOUT_S)
        said = os.read(ours, 16) if readable else b""
    finally:
        os.close(ours)
        if theirs != -1:
            os.close(theirs)
    if not said:
        raise ToolError(
            "the embedded host's SSH server did not start",
            evidence=layout.server_log.read_text(errors="replace").splitlines()[-10:],
            hint=f"its log is {layout.server_log}",
        )
    return int(said)


def _unreported(progress: Progress) -> None:
    """A listener for work too short to follow."""


def command_line(pid: int) -> str:
    """A process's command line, by blanks; empty where it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
