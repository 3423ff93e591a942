"""Servers that a state folder no longer knows are named, never ended by a guess."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import LocalHost, Venv
from labs import Lab

from remote import overview, stopping
from remote.errors import PreflightFailed
from remote.payload import procs, runs


@pytest.fixture
def lab_task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Iterator[Lab]:
    yield Lab(local_host, fake_venv, tmp_path)
    local_host.close()


def test_a_server_whose_state_folder_was_moved_away_is_named(lab_task: Lab) -> None:
    run = lab_task.deploy()
    state = Path(lab_task.host.settings.state)
    moved = state.rename(state.with_name("moved"))
    try:
        (shown,) = [line for line in overview.status(lab_task.session)["strays"] if run in line]
        (told,) = [line for line in stopping.stop(lab_task.session, None)["strays"] if run in line]
        assert shown == told and "it was moved" in told
        living = procs.members(run)
        assert living and all(str(process.pid) in told for process in living)
        with pytest.raises(PreflightFailed, match=f"run {run}") as taken:
            lab_task.deploy()
        assert "inv stop" in str(taken.value.hint)
    finally:
        list(runs.stop(str(moved), run, 5.0))


def test_a_server_that_is_known_is_no_stray(lab_task: Lab) -> None:
    run = lab_task.deploy()
    assert not [line for line in overview.status(lab_task.session)["strays"] if run in line]
