"""The hosts of the integration tests as fixtures."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import PROJECT, Client, OpenSSH, free_port, gpu_like

from remote.sandbox.control import Sandbox

# A shell starts what it puts in the background with Ctrl-C ignored, and so it would be inherited by
# the tasks that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The embedded host, set up where it isn't yet, with no server and no patch of an earlier
    deploy: the tests' other hosts share its venv.
    """
    folder = Path(os.environ.get("INVOKE_SANDBOX_FOLDER", PROJECT / ".sandbox"))
    sandbox = Sandbox(folder)
    sandbox.up(lambda progress: None, lambda question: False)
    client = Client(tmp_path_factory.mktemp("clean"), {}, {"sandbox": {"folder": str(folder)}})
    for task in ("stop", "rollback-patch"):
        done = client.inv(task)
        assert done.status == 0, done.output
    yield sandbox
    sandbox.down()


@pytest.fixture
def openssh(tmp_path: Path) -> Iterator[OpenSSH]:
    server = OpenSSH(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def entry(embedded: Sandbox, openssh: OpenSSH, tmp_path: Path) -> dict[str, Any]:
    return gpu_like(embedded, openssh, tmp_path / "state", free_port())


@pytest.fixture
def client(entry: dict[str, Any], tmp_path: Path) -> Iterator[Client]:
    """A client of the OpenSSH host ``gpu``; whatever it started is stopped afterwards."""
    made = Client(tmp_path / "project", {"gpu": entry})
    yield made
    made.configure({"gpu": entry}, {})
    if Path(entry["state"]).exists():
        made.inv("stop")
        made.inv("rollback-patch")
