"""A host for benchmarks: an sshd on loopback behind a link of any length, and SGLang's stand-in."""

from __future__ import annotations

import getpass
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests"))

from counting_proxy import Counted, CountingProxy  # noqa: E402
from hosts import Venv, free_port  # noqa: E402
from rig import OpenSSH  # noqa: E402

from benchmarks.job import (  # noqa: E402
    DISTRIBUTION,
    SERVER_S,
    VERSION,
    Steps,
    sources,
)
from remote.payload import runs  # noqa: E402

_SAID = '{"text": " 4", "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-1, 5]]}}'
_SERVES = f"serve(answer={_SAID!r}); ready(); wait()"

#: Nothing passes for so long: it is over.
_QUIET_S = 0.5


@dataclass(frozen=True)
class Cost:
    """What a task costs on the wire.

    Attributes:
        sessions: commands that sshd started.
        packets: TCP segments both ways, acknowledgements among them.
        sent_kb: from the client to the host.
    """

    connections: int
    sessions: int
    packets: int
    round_trips: int
    sent_kb: int


class Target:
    """The host, and what a client needs to reach it.

    Attributes:
        link: the way there; ``link.delay_s`` holds for connections made from then on.
        home: the home folder of its sessions.
        run: where peers put script, patches, log and pid.
        state: this tool's own folder there.
    """

    def __init__(self, folder: Path, patches: int = 5) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.run, self.state = self.home / "run", self.home / "state"
        self.sshd = OpenSSH(
            folder / "sshd",
            options=("MaxStartups 100", "MaxSessions 100", f"SetEnv HOME={self.home}"),
        )
        self.server_port = free_port()
        self.venv = Venv(self.home / "ml-env")
        self.files = sources(folder / "sources", self.venv.folder, self.server_port, patches)
        self.venv.install(DISTRIBUTION, VERSION, self.files.package)
        self.steps = Steps(self.run, self.venv.site, self.venv.folder)
        self.sshd.start()
        self.link = CountingProxy(self.sshd.port)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.link.port} {self.sshd.public('host_key')}")
        self.user = getpass.getuser()
        self._parents: list[subprocess.Popen[bytes]] = []

    @property
    def identity(self) -> Path:
        return self.sshd.identity

    def close(self) -> None:
        self.end_servers()
        for parent in self._parents:
            parent.wait(10)
        self.link.close()
        self.sshd.stop()

    @contextmanager
    def at(self, rtt_s: float) -> Iterator[None]:
        """A link with that round-trip time, for the block."""
        self.link.delay_s = rtt_s / 2
        try:
            yield
        finally:
            self.link.delay_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[list[Cost]]:
        """What goes over the link in the block; the list has its cost afterwards."""
        before, sessions = self.link.counted(), self.sshd.sessions()
        cost: list[Cost] = []
        yield cost
        spent = self._quiet().since(before)
        cost.append(
            Cost(
                spent.connections,
                self.sshd.sessions() - sessions,
                spent.packets,
                spent.round_trips,
                round(spent.bytes_out / 1000),
            )
        )

    def _quiet(self) -> Counted:
        """What has passed once nothing passes any more; a peer may keep its connection."""
        seen, now = None, self.link.counted()
        while now != seen:
            time.sleep(_QUIET_S)
            seen, now = now, self.link.counted()
        return now

    def original_files(self) -> None:
        """The package as it was installed, with nothing beside it."""
        shutil.rmtree(self.venv.site / "flashinfer", ignore_errors=True)
        for path, content in self.files.package.items():
            (self.venv.site / path).parent.mkdir(exist_ok=True)
            (self.venv.site / path).write_bytes(content)

    def old_server(self) -> None:
        """A peer's folder with nothing but the pid and the log of a server that serves."""
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir()
        script = self.run / "launch.sh"
        script.write_bytes(self.files.script.read_bytes())
        self.venv.play(_SERVES)
        # Its parent stays, so that it is gone for whoever looks as soon as it has ended; and is not
        # waited for, so that its CPU seconds are not taken for a peer's.
        parent = f"{self.steps.start}; wait"
        self._parents.append(subprocess.Popen(["bash", "-c", parent], start_new_session=True))
        self._await_server()
        script.unlink()
        self.slow_server()

    def slow_server(self) -> None:
        """Servers started from now on take their time."""
        self.venv.play(f"time.sleep({SERVER_S}); {_SERVES}")

    def old_run(self, run: str) -> None:
        """A run of this tool that serves."""
        self.venv.play(_SERVES)
        script = self.venv.launch_script(self.server_port)
        runs.start(str(self.state), run, {"profile": "old", "argv": []}, script)
        self._await_server()
        runs.note_outcome(str(self.state), run, {"outcome": "ready", "reason": "serving"})
        self.slow_server()

    def serves(self) -> bool:
        """Whether a server answers on the port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def servers(self) -> list[int]:
        """The pids of all servers of this host."""
        mark = f"{self.venv.folder}/play".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end_servers(self) -> None:
        for pid in self.servers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self.servers():
            time.sleep(0.01)

    def _await_server(self) -> None:
        until = time.monotonic() + 20
        while not self.serves():
            assert time.monotonic() < until, "the old server does not serve"
            time.sleep(0.02)
