"""Real hosts for the tests: an OpenSSH server of their own, and the embedded host.

Both lead to the same venv with the real SGLang on CPU, the embedded host's.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml

from remote.sandbox.control import Sandbox
from remote.sandbox.entry import CPU_ENV, CPU_FLAGS, UNAVAILABLE

PROJECT = Path(__file__).resolve().parents[1]
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
if SSHD is None:
    pytest.exit("the tests need an SSH server: sudo apt-get install openssh-server", returncode=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class OpenSSH:
    """An sshd on loopback with keys made for it.

    ``options`` are lines of sshd_config; ``sftp`` is its subsystem, if it has one.
    ``file_limit_kib`` is the size past which no file of its sessions can grow; ``small_disk`` is a
    folder that is a file system of ``disk_kib`` of its own for them, and for nobody else (see
    `inside`). ``mounts`` are lines of shell that change what its sessions see of the file system,
    and nobody else.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ()
    file_limit_kib: int | None = None
    small_disk: Path | None = None
    disk_kib: int = 60 * 1024
    mounts: tuple[str, ...] = ()
    sftp: str | None = "internal-sftp"
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True)
        for name in ("host_key", "client_key", "other_key"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(self.folder / name)
            (self.folder / name).chmod(0o600)
            key.write_public_key(self.folder / f"{name}.pub")
        self.authorize("client_key")
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.public('host_key')}")

    @property
    def identity(self) -> Path:
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    def sessions(self) -> int:
        """How many sessions it has started, on all its connections: commands, shells, sftp."""
        return self.log.read_text("utf-8", "replace").count("Starting session: ")

    def public(self, name: str) -> str:
        return (self.folder / f"{name}.pub").read_text()

    def authorize(self, name: str) -> None:
        (self.folder / "authorized_keys").write_text(self.public(name))

    def start(self) -> None:
        config = self.folder / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.folder / 'host_key'}",
                    f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
                    f"PidFile {self.folder / 'sshd.pid'}",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "UsePAM no",
                    "StrictModes no",
                    "PermitRootLogin yes",
                    *([f"Subsystem sftp {self.sftp}"] if self.sftp else []),
                    *self.options,
                    "LogLevel VERBOSE",
                    "",
                ]
            )
        )
        if os.geteuid() == 0:  # sshd's own folder, which its package makes at boot
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [str(SSHD), "-D", "-E", str(self.log), "-f", str(config)]
        if self.file_limit_kib is not None:
            limit = f'ulimit -f {self.file_limit_kib}; exec "$@"'
            command = ["bash", "-c", limit, "bash", *command]
        mounts = list(self.mounts)
        if self.small_disk is not None:
            self.small_disk.mkdir(parents=True)
            options = f"size={self.disk_kib}k,mode=700"
            mounts.append(f"mount -t tmpfs -o {options} tmpfs {shlex.quote(str(self.small_disk))}")
        if mounts:
            as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
            lines = "\n".join(["set -e", *mounts, 'exec "$@"'])
            command = ["unshare", "--mount", *as_root, "bash", "-c", lines, "bash", *command]
        self.process = subprocess.Popen(command)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None
            time.sleep(0.05)
        raise AssertionError("sshd does not listen")

    def inside(self, path: Path) -> Path:
        """A path as the sessions see it."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root") / path.relative_to("/")

    def stop(self) -> None:
        if self.process is not None:
            self.drop()
            self.process.terminate()
            self.process.wait(10)
            self.process = None

    def drop(self) -> int:
        """End every connection, as a network that goes away does; the count."""
        assert self.process is not None
        sessions = _descendants(self.process.pid, "sshd")
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(sessions)


def _descendants(root: int, name: str) -> list[int]:
    """The processes below ``root`` of that command name."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        parent = int(tail.split()[1])
        if head.partition("(")[2].startswith(name) and parent == root:
            found += [int(entry.name), *_descendants(int(entry.name), name)]
    return found


@dataclass(frozen=True)
class Done:
    """A finished task."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class Client:
    """A project folder of its own with an invoke.yaml, in which tasks are run for real."""

    folder: Path
    hosts: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        tasks = self.folder / "tasks.py"
        if not tasks.exists():
            tasks.symlink_to(PROJECT / "tasks.py")
        self.configure(self.hosts, self.settings)

    def configure(self, hosts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        content = {"hosts": dict(hosts), "runs": str(self.folder / "runs"), **settings}
        (self.folder / "invoke.yaml").write_text(yaml.safe_dump(content))

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a task; its standard streams are pipes."""
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *words],
            cwd=self.folder,
            env={**env, "HOME": str(self.folder / "home"), "PYTHONPATH": str(PROJECT)},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def inv(self, *words: str, stdin: str | None = None) -> Done:
        """Run a task to its end."""
        process = self.start(*words, stdin=subprocess.PIPE if stdin is not None else -3)
        try:
            stdout, stderr = process.communicate(stdin, timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Done(process.returncode, stdout, stderr)


def gpu_like(embedded: Sandbox, server: OpenSSH, state: Path, port: int) -> dict[str, Any]:
    """A host entry that leads through ``server`` to the embedded host's venv."""
    return {
        "address": f"{getpass.getuser()}@127.0.0.1:{server.port}",
        "venv": str(embedded.layout.venv),
        "model": str(embedded.layout.model),
        "port": port,
        "state": str(state),
        "identity_file": str(server.identity),
        "known_hosts": str(server.known_hosts),
        "ssh_config": "none",
        "flags": dict(CPU_FLAGS),
        "env": dict(CPU_ENV),
        "unavailable": dict(UNAVAILABLE),
    }


def newest_run(state: str | Path) -> Path:
    """The folder on the host of the run started last."""
    return max((Path(state) / "runs").iterdir())


def wait_for(path: Path, within_s: float = 60.0) -> str:
    """The content of a file that is about to appear."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if path.exists() and (content := path.read_text()):
            return content
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


def started(process: subprocess.Popen[str], state: str | Path) -> Path:
    """The run that a deploy in progress has just started, its pid written."""
    runs = Path(state) / "runs"
    while not runs.exists() or not list(runs.iterdir()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    run = newest_run(state)
    wait_for(run / "pid")
    return run
