"""A host behind sshd and a `FaultProxy`: SGLang's stand-in, patch sets, and sessions that reach it.

The host is this machine, so that tests look at its files without the connection under test.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from counting_proxy import CountingProxy
from fault_proxy import FaultProxy
from hosts import LocalHost, end_runs, eventually, new_run
from patch_lab import PatchLab
from rig import OpenSSH

from remote import server
from remote.clock import SystemClock
from remote.config import Address, HostSettings, SSHSettings
from remote.errors import Locked
from remote.payload import lock, procs, runs
from remote.session import Session
from remote.ssh import SSHHost

_SAID = '{"text": " 4", "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-1, 5]]}}'
#: A server that serves until it is ended.
SERVES = f"serve(answer={_SAID!r}); ready(); wait()"

#: As long as a link may be silent, where a test would wait for it often.
SILENT_S = 4.0

T = TypeVar("T")


class HastyClock(SystemClock):
    """A clock that never sleeps for long: what is waited for are only a test's own processes."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))


@contextmanager
def impatient() -> Iterator[None]:
    """A silent link counts as dead after `SILENT_S`, for the block."""
    with (
        patch("remote.agent.DEAD_AFTER_S", SILENT_S),
        patch("remote.connecting.DEAD_AFTER_S", SILENT_S),
        patch("remote.ssh.DEAD_AFTER_S", SILENT_S),
    ):
        yield


class FaultLab:
    """A venv with patch sets and a profile ``plain``, reached straight or through a proxy."""

    def __init__(
        self, folder: Path, sshd: OpenSSH, proxy: FaultProxy | CountingProxy | None = None
    ) -> None:
        self.folder, self.sshd, self.proxy = folder, sshd, proxy
        self.patches = PatchLab(folder)
        self.venv = self.patches.venv
        profiles = self.patches.templates / "profiles"
        profiles.mkdir(parents=True)
        (profiles / "plain.yaml").write_text("description: nothing\nready_timeout_s: 60\n")
        self.venv.play(SERVES)
        self.venv.measure("result()")
        port = sshd.port if proxy is None else proxy.port
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {sshd.public('host_key')}")
        self.settings: HostSettings = replace(
            self.patches.settings,
            address=Address("127.0.0.1", getpass.getuser(), port),
            identity_file=sshd.identity,
            known_hosts=known,
            ssh_config="none",
        )

    @property
    def state(self) -> str:
        return self.settings.state

    def host(self, redial_s: float = 20.0) -> SSHHost:
        return SSHHost(self.settings, SSHSettings(5.0, False, 5.0, redial_s))

    @contextmanager
    def session(self, redial_s: float = 20.0, client: str = "client") -> Iterator[Session]:
        """A task's session, with a connection of its own; ``client`` names its folder here."""
        host = self.host(redial_s)
        made = self.patches.session(host)
        settings = replace(made.settings, runs=self.folder / client / "runs")
        try:
            yield replace(made, settings=settings, host_settings=self.settings, clock=HastyClock())
        finally:
            host.close()

    def entry(self) -> dict[str, Any]:
        """The host as invoke.yaml has it."""
        return {
            "address": str(self.settings.address),
            "venv": self.settings.venv,
            "model": self.settings.model,
            "port": self.settings.port,
            "state": self.settings.state,
            "identity_file": str(self.settings.identity_file),
            "known_hosts": str(self.settings.known_hosts),
            "ssh_config": "none",
        }

    def start(self, play: str, **note: Any) -> str:
        """Start a server that does as told, without the connection; its run."""
        run = new_run()
        self.venv.play(play)
        script = self.venv.launch_script(self.settings.port)
        runs.start(self.state, run, {"profile": "plain", "argv": [], **note}, script)
        return run

    def serve(self) -> str:
        """A run that serves and is known to."""
        run = self.start(SERVES)
        host = LocalHost(self.settings, self.folder)
        eventually(lambda: server.answers(host, self.settings, run) is None)
        host.close()
        runs.note_outcome(self.state, run, {"outcome": "ready", "reason": "serving"})
        return run

    def log(self, run: str) -> Path:
        """The run's log on the host."""
        return Path(runs.folder(self.state, run)) / "server.log"

    def living(self) -> dict[str, list[procs.Process]]:
        """The host's runs that have processes."""
        known = set(runs.ids(self.state))
        return {run: found for run, found in procs.by_run().items() if run in known}

    def let_go(self) -> None:
        """Return when nobody holds the host."""
        eventually(lambda: lock.look(self.state)["holder"] is None, 30.0)

    def close(self) -> None:
        end_runs(self.state)


def unless_locked(task: Callable[[], T]) -> T:
    """The task's answer, tried again while what a lost connection left behind holds the host."""
    found: list[T] = []

    def tried() -> bool:
        try:
            found.append(task())
        except Locked:
            return False
        return True

    eventually(tried, 30.0)
    return found[0]
