"""Runs kept here: ids that sort by time, private files, one folder each."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from remote.errors import ConfigError
from remote.store import LocalRun, check_run_id, new_run_id


def test_ids_sort_by_time_and_say_the_profile() -> None:
    first = new_run_id("piecewise", 1_796_000_000.0)
    later = new_run_id("baseline", 1_796_000_001.0)
    assert first < later
    assert first.startswith("20261130-") and "-piecewise-" in first


def test_two_runs_in_one_second_differ() -> None:
    assert len({new_run_id("p", 0.0) for _ in range(20)}) > 1


@pytest.mark.parametrize("profile", ["a/b", "../x", "ü", "a b;c", "x" * 300, "", "-"])
def test_any_profiles_name_makes_an_id_that_is_one(profile: str) -> None:
    run = new_run_id(profile, 0.0)
    assert check_run_id(run) == run
    assert "/" not in run


@pytest.mark.parametrize("run", ["", "..", "../x", "a/b", ".hidden", "-x", "a\n", "x" * 102])
def test_what_is_no_id_names_no_folder(run: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LocalRun(tmp_path, run)
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_and_written_whole(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "runs", "20261129-120000-p-0001")
    run.write("launch.sh", b"old")
    run.write("launch.sh", b"new")
    run.write_json("plan.json", {"where": Path("/x"), "é": 1})
    with run.log() as log:
        log.write(b"line\n")
    names = sorted(path.name for path in run.folder.iterdir())
    assert names == ["launch.sh", "plan.json", "server.log"]
    assert (run.folder / "launch.sh").read_bytes() == b"new"
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    for name in names:
        assert stat.S_IMODE((run.folder / name).stat().st_mode) == 0o600


def test_a_log_is_begun_anew(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, "20261129-120000-p-0001")
    for text in (b"first, and long\n", b"second\n"):
        with run.log() as log:
            log.write(text)
    assert (run.folder / "server.log").read_bytes() == b"second\n"
