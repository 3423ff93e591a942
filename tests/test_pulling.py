"""The log brought here: only what is new, whatever happens to link and file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import FakeClock, LocalHost, Venv, eventually
from sessions import Task

from remote import pulling
from remote.config import HostSettings


class Pulls:
    """Pulls one run's log."""

    def __init__(self, task: Task, run: str) -> None:
        self.task, self.run = task, run
        self.there = task.folder(run) / "server.log"
        self.here = task.local(run) / "server.log"

    def __call__(self, host: LocalHost | None = None) -> int:
        settings = self.task.host.settings
        local = self.task.session.local(self.run)
        clock = FakeClock()
        return pulling.pull_log(
            host or self.task.host, settings, self.run, local, clock, lambda done, size: None
        )


@pytest.fixture
def pulls(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Pulls:
    task = Task(local_host, fake_venv, tmp_path)
    run = task.start("say('first'); wait()")
    eventually(task.says(run, b"first"))
    return Pulls(task, run)


def grow(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_only_new_bytes_travel(pulls: Pulls) -> None:
    assert pulls() == len(b"first\n")
    assert pulls() == 0
    grow(pulls.there, b"second\n")
    assert pulls() == len(b"second\n")
    assert pulls.here.read_bytes() == b"first\nsecond\n"


def test_a_line_that_was_half_there_is_made_whole(pulls: Pulls) -> None:
    grow(pulls.there, b"half")
    pulls()
    assert pulls.here.read_bytes() == b"first\nhalf"
    grow(pulls.there, b" and half\n")
    pulls()
    assert pulls.here.read_bytes() == b"first\nhalf and half\n"


def test_a_log_that_was_cut_or_replaced_comes_anew(pulls: Pulls) -> None:
    pulls()
    pulls.there.write_bytes(b"cut\n")
    assert pulls() == 4
    assert pulls.here.read_bytes() == b"cut\n"
    other = pulls.there.with_name("other")
    other.write_bytes(b"another file, and longer\n")
    other.rename(pulls.there)
    pulls()
    assert pulls.here.read_bytes() == b"another file, and longer\n"


@pytest.mark.parametrize("budget", [3000, 20_000, 60_000])
def test_a_lost_connection_loses_and_doubles_nothing(
    pulls: Pulls, lab: HostSettings, home: Path, budget: int
) -> None:
    lines = b"".join(b"line %d %s\n" % (n, bytes(str(n * 7919), "ascii") * 5) for n in range(40000))
    grow(pulls.there, lines)
    flaky = LocalHost(lab, home, budgets=[budget] * 3)
    pulls(flaky)
    flaky.close()
    assert flaky.connections == 4
    assert pulls.here.read_bytes() == b"first\n" + lines


def test_a_copy_whose_end_is_unknown_begins_anew(pulls: Pulls) -> None:
    pulls()
    with pulls.task.session.local(pulls.run).log(go_on=True) as log:
        log.write(b"written by a follow that was killed\n")
    pulls()
    assert pulls.here.read_bytes() == b"first\n"


def test_secrets_stay_on_the_host(pulls: Pulls) -> None:
    grow(pulls.there, b"server_args=ServerArgs(api_key='s3cret', port=1)\n")
    pulls()
    assert b"s3cret" not in pulls.here.read_bytes()
    grow(pulls.there, b"more\n")
    assert pulls() == len(b"more\n")
    assert pulls.here.read_bytes().endswith(b"more\n")
