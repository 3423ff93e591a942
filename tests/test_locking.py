"""Two people at once: one wins, the other is told who; taking the host from somebody is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv
from labs import FILE, SERVES, Lab

from remote import locking, patch_work, stopping
from remote.errors import ConfigError, ConnectionLost, Locked

WHO = {"task": "deploy piecewise", "user": "ann", "client": "desk", "message": "is it quicker?"}


@pytest.fixture
def bob(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Lab:
    return Lab(local_host, fake_venv, tmp_path)


@pytest.fixture
def ann(bob: Lab, home: Path) -> Iterator[LocalHost]:
    """Another client, with the host's lock."""
    host = LocalHost(bob.host.settings, home)
    host.call("lock.take", state=bob.host.settings.state, who=WHO)
    yield host
    host.close()


def told(bob: Lab, **flags: Any) -> None:
    bob.session = replace(bob.session, **flags)


def test_the_second_is_told_whom_it_waits_for_and_how_to_take_the_host(
    bob: Lab, ann: LocalHost
) -> None:
    with pytest.raises(Locked) as refusal:
        stopping.stop(bob.session, None)
    assert "deploy piecewise by ann on desk" in refusal.value.evidence[0]
    assert "is it quicker?" in refusal.value.evidence[0]
    assert "--break-lock" in str(refusal.value.hint)


def test_a_lock_is_broken_only_with_a_confirmation(bob: Lab, ann: LocalHost) -> None:
    told(bob, break_lock=True)
    with pytest.raises(ConfigError, match="not confirmed"):
        stopping.stop(bob.session, None)
    assert ann.call("facts.python")
    assert "break_lock" not in bob.happened()


def test_a_broken_lock_is_said_and_on_record(
    bob: Lab, ann: LocalHost, capsys: pytest.CaptureFixture[str]
) -> None:
    told(bob, break_lock=True, confirmed=True)
    stopping.stop(bob.session, None)
    shown = capsys.readouterr()
    assert "held by deploy piecewise by ann on desk" in shown.err
    assert "had left its lock" not in shown.out
    assert "by ann on desk" in bob.event("break_lock").details["holder"]
    with pytest.raises(ConnectionLost):
        ann.call("facts.python")


def test_without_a_holder_there_is_nothing_to_break(bob: Lab) -> None:
    told(bob, break_lock=True)
    stopping.stop(bob.session, None)
    assert "break_lock" not in bob.happened()


def test_a_task_that_was_torn_away_is_mentioned_by_the_next(
    bob: Lab, ann: LocalHost, capsys: pytest.CaptureFixture[str]
) -> None:
    ann.cut()
    stopping.stop(bob.session, None)
    assert "interrupted task had left its lock: deploy piecewise by ann" in capsys.readouterr().out
    assert "lock_taken_over" in bob.happened()


def of_ann(bob: Lab, run: str) -> None:
    """The run's record as another client would have written it."""
    record = bob.folder(run) / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **ANN}))


ANN = {"user": "ann", "client": "desk", "note": "is it quicker?"}
PATCH = "mine/first"


def test_nothing_is_stopped_or_patched_under_a_start_of_somebody_else(bob: Lab) -> None:
    run = bob.start("wait()")
    of_ann(bob, run)
    before = (bob.venv.site / FILE).read_bytes()
    for task in (
        lambda: bob.deploy(SERVES),
        lambda: patch_work.apply(bob.session, PATCH),
        lambda: patch_work.rollback(bob.session, None),
        lambda: stopping.stop(bob.session, None),
        lambda: stopping.stop(bob.session, run),
    ):
        with pytest.raises(Locked, match="still starting") as refusal:
            task()
        assert f"run {run}, test by ann on desk" in refusal.value.evidence[0]
        assert "is it quicker?" in refusal.value.evidence[0]
    assert (bob.venv.site / FILE).read_bytes() == before
    assert bob.host.call("runs.look", state=bob.host.settings.state, run=run)["pids"]


def test_ones_own_start_is_ones_own_to_stop(bob: Lab) -> None:
    first = bob.start("wait()")
    record = bob.folder(first) / "run.json"
    from remote.host_lock import whoami

    record.write_text(json.dumps({**json.loads(record.read_text()), **whoami()}))
    assert bob.deploy(SERVES) != first


def test_somebody_elses_start_makes_way_once_that_is_confirmed(bob: Lab) -> None:
    run = bob.start("wait()")
    of_ann(bob, run)
    told(bob, break_lock=True)
    with pytest.raises(ConfigError, match="not confirmed"):
        bob.deploy(SERVES)
    told(bob, confirmed=True)
    assert bob.deploy(SERVES) != run
    assert not bob.host.call("runs.look", state=bob.host.settings.state, run=run)["pids"]
    assert "ann on desk" in bob.event("break_lock").details["holder"]


def test_the_lock_carries_the_note_without_its_secrets(bob: Lab, home: Path) -> None:
    bob.session.scrubber.learn(["s3cret-value"])
    with locking.held(bob.session, "deploy plain", "with s3cret-value"):
        other = LocalHost(bob.host.settings, home)
        holder = other.call("lock.look", state=bob.host.settings.state)["holder"]
        other.close()
    assert holder.endswith(": with ***")
