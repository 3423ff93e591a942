"""One task at a time; the holder is named, and a dead holder holds nothing."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hosts import LocalHost, eventually

from remote.config import HostSettings
from remote.errors import Locked

WHO = {"task": "deploy piecewise", "user": "ann", "client": "desk"}


def taken(host: LocalHost, state: str) -> bool:
    try:
        host.call("lock.take", state=state, who={"task": "stop", "user": "bob", "client": "lap"})
    except Locked:
        return False
    return True


def test_the_second_task_is_told_who_holds_the_host(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    local_host.call("lock.take", state=lab.state, who=WHO)
    second = LocalHost(lab, home)
    with pytest.raises(Locked) as refusal:
        second.call("lock.take", state=lab.state, who=WHO)
    second.close()
    assert refusal.value.exit_code == 15
    assert "deploy piecewise by ann on desk" in refusal.value.evidence[0]
    assert stat.S_IMODE((Path(lab.state) / "lock").stat().st_mode) == 0o600


def test_released_it_is_free_for_the_next(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    second = LocalHost(lab, home)
    local_host.call("lock.take", state=lab.state, who=WHO)
    local_host.call("lock.take", state=lab.state, who=WHO)
    local_host.call("lock.release")
    assert taken(second, lab.state)
    assert not taken(local_host, lab.state)
    second.close()


def test_it_ends_with_a_connection_that_dies(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    second = LocalHost(lab, home)
    local_host.call("lock.take", state=lab.state, who=WHO)
    assert not taken(second, lab.state)
    local_host.cut()
    assert eventually(lambda: taken(second, lab.state))
    second.close()


def test_a_server_started_under_it_does_not_keep_it(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    local_host.call("lock.take", state=lab.state, who=WHO)
    run = "20261129-120000-lock-0001"
    local_host.call("runs.start", data=b"sleep 300\n", state=lab.state, run=run, note={})
    local_host.cut()
    second = LocalHost(lab, home)
    assert eventually(lambda: taken(second, lab.state))
    assert second.call("runs.look", state=lab.state, run=run)["pids"]
    second.close()
