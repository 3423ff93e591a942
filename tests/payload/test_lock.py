"""One task at a time; the holder is named, and a dead holder holds nothing."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, eventually

from remote.config import HostSettings
from remote.errors import ConnectionLost, Locked
from remote.payload import lock, procs

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


def note(state: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(state) / "lock").read_text())
    return found


def test_the_holder_says_who_where_what_and_why(lab: HostSettings, local_host: LocalHost) -> None:
    local_host.call("lock.take", state=lab.state, who={**WHO, "message": "is it quicker?"})
    found = note(lab.state)
    assert found["boot_id"] == procs.boot_id() and procs.same(found["pid"], found["start"])
    holder = local_host.call("lock.look", state=lab.state)["holder"]
    assert holder.startswith("deploy piecewise by ann on desk, since 20")
    assert holder.endswith(f"(pid {found['pid']} on {socket.gethostname()}): is it quicker?")


def test_nobody_holds_what_was_released_or_never_taken(
    lab: HostSettings, local_host: LocalHost
) -> None:
    assert local_host.call("lock.look", state=lab.state)["holder"] is None
    assert not Path(lab.state).exists()
    local_host.call("lock.take", state=lab.state, who=WHO)
    local_host.call("lock.release")
    assert local_host.call("lock.look", state=lab.state)["holder"] is None


def test_an_interrupted_task_is_told_to_the_next(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    assert local_host.call("lock.take", state=lab.state, who=WHO) == {"abandoned": None}
    local_host.cut()
    second = LocalHost(lab, home)
    answer = eventually(lambda: take_or_none(second, lab.state))
    assert answer["abandoned"].startswith("deploy piecewise by ann on desk")
    second.call("lock.release")
    assert second.call("lock.take", state=lab.state, who=WHO) == {"abandoned": None}
    second.close()


def take_or_none(host: LocalHost, state: str) -> Any:
    try:
        return host.call("lock.take", state=state, who=WHO)
    except Locked:
        return None


@pytest.mark.parametrize(
    ("changed", "is_gone"),
    [
        ({}, False),
        ({"start": 1}, True),
        ({"boot_id": "another boot"}, True),
        ({"host": "another machine", "start": 1}, False),
        ({"pid": None}, False),
    ],
)
def test_a_holder_is_gone_only_where_that_is_certain(
    changed: dict[str, Any], is_gone: bool
) -> None:
    assert lock.gone({**lock._own(WHO), **changed}) is is_gone


def test_a_lock_that_only_a_dead_holders_child_keeps_is_taken_over(
    lab: HostSettings, local_host: LocalHost
) -> None:
    """A descriptor that slipped into another process must not hold the host for ever."""
    state = Path(lab.state)
    state.mkdir(mode=0o700)
    kept = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(kept, fcntl.LOCK_EX)
    os.write(kept, json.dumps({**lock._own(WHO), "start": 1}).encode())
    answer = local_host.call("lock.take", state=lab.state, who=WHO)
    os.close(kept)
    assert note(lab.state)["pid"] != os.getpid() and "abandoned" in answer


def test_a_holder_that_lives_is_never_taken_over(lab: HostSettings, local_host: LocalHost) -> None:
    state = Path(lab.state)
    state.mkdir(mode=0o700)
    kept = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(kept, fcntl.LOCK_EX)
    for content in (lock._own(WHO), {}):
        os.ftruncate(kept, 0)
        os.pwrite(kept, json.dumps(content).encode(), 0)
        assert not taken(local_host, lab.state)
    os.close(kept)


def test_breaking_it_ends_the_holder_that_was_shown_and_no_other(
    lab: HostSettings, local_host: LocalHost, home: Path
) -> None:
    local_host.call("lock.take", state=lab.state, who=WHO)
    second = LocalHost(lab, home)
    shown = second.call("lock.look", state=lab.state)["note"]
    with pytest.raises(Locked):
        second.call("lock.break", state=lab.state, note={**shown, "since": 1.0})
    assert procs.same(shown["pid"], shown["start"])
    second.call("lock.break", state=lab.state, note=shown)
    assert not procs.same(shown["pid"], shown["start"])
    assert taken(second, lab.state)
    with pytest.raises(ConnectionLost):
        local_host.call("facts.python")
    second.close()
