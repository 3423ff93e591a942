"""`inv restore`: everything of this tool is gone from the host, and that is proven, or refused."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv
from labs import CODE, FILE, SERVES, Lab

from remote import patch_work, patching, restoring
from remote.errors import ConfigError, PatchRefused, ToolError
from remote.payload import procs
from remote.payload.bench_folder import BENCH_VARIABLE
from remote.planning import PatchChoice

PATCH = "mine/first"


@pytest.fixture
def lab_task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Lab:
    lab = Lab(local_host, fake_venv, tmp_path)
    hook = tmp_path / "templates" / "patches" / "mine" / "hook"
    hook.mkdir()
    for name in ("sglang_remote_mine.py", "sglang_remote_mine.pth"):
        (hook / name).write_text("import os\n")
    (hook / "manifest.yaml").write_text(
        "summary: a hook\ndistribution: flashinfer-python\nversions: '>=0.6'\n"
        "delivery: hook\nfiles: [sglang_remote_mine.py, sglang_remote_mine.pth]\n"
    )
    lab.session = replace(lab.session, confirmed=True)
    return lab


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below, but for bytecode that Python itself keeps of what it imports."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }


def state(lab: Lab) -> Path:
    return Path(lab.host.settings.state)


def test_the_host_is_what_it_was_and_that_is_proven(lab_task: Lab) -> None:
    before = everything(lab_task.venv.site)
    run = lab_task.deploy(SERVES, patches=PatchChoice(added=(PATCH, "mine/hook")))
    assert everything(lab_task.venv.site) != before
    report = restoring.restore(lab_task.session)
    assert everything(lab_task.venv.site) == before
    assert not state(lab_task).exists() and not procs.members(run)
    assert report["holds"] and report["stopped"] == [run]
    assert {line["check"] for line in report["proofs"]} == {"files", "processes", "left over"}
    (edited,) = [row for row in report["files"] if row["path"].endswith(FILE)]
    digest = hashlib.sha256(CODE).hexdigest()
    assert (edited["sha256"], edited["recorded"]) == (digest, digest)
    assert {"stop", "restore"} <= {*lab_task.happened()}


def test_folders_made_for_it_go_too_and_others_stay(lab_task: Lab) -> None:
    settings = lab_task.host.settings
    base = Path(settings.state).parent / "there"
    base.mkdir()
    for nested, left in ((base / "n1" / "n2" / "state", base), (base / "m" / "state", base / "m")):
        told = replace(settings, state=str(nested))
        host = LocalHost(told, lab_task.host.home)
        session = replace(lab_task.session, host=host, host_settings=told)
        patch_work.apply(session, PATCH)
        if left != base:
            (left / "mine").write_text("somebody's own")
        restoring.restore(session)
        host.close()
        assert not nested.exists() and left.exists()
    assert sorted(path.name for path in base.rglob("*")) == ["m", "mine"]


def test_a_second_time_there_is_nothing_to_do_and_it_is_proven_again(lab_task: Lab) -> None:
    patch_work.apply(lab_task.session, PATCH)
    restoring.restore(lab_task.session)
    report = restoring.restore(lab_task.session)
    assert report["holds"] and report["stopped"] == []
    assert not state(lab_task).exists()


def test_nothing_is_touched_without_a_confirmation(lab_task: Lab) -> None:
    run = lab_task.deploy(SERVES, patches=PatchChoice(added=(PATCH,)))
    lab_task.session = replace(lab_task.session, confirmed=False)
    with pytest.raises(ConfigError, match="not confirmed"):
        restoring.restore(lab_task.session)
    assert procs.members(run) and (lab_task.venv.site / FILE).read_bytes() != CODE


def test_a_file_edited_since_is_named_and_nothing_is_touched(lab_task: Lab) -> None:
    run = lab_task.deploy(SERVES, patches=PatchChoice(added=(PATCH,)))
    edited = lab_task.venv.site / FILE
    edited.write_bytes(b"# by hand\n")
    with pytest.raises(PatchRefused) as refusal:
        restoring.restore(lab_task.session)
    assert refusal.value.evidence[0].startswith(f"{edited}: sha256 ")
    assert procs.members(run) and edited.read_bytes() == b"# by hand\n"
    patch_work.rollback(lab_task.session, None)
    assert restoring.restore(lab_task.session)["holds"]
    assert edited.read_bytes() == CODE


def test_a_file_that_pip_replaced_is_proven_by_record(lab_task: Lab) -> None:
    patch_work.apply(lab_task.session, PATCH)
    newer = b"# another version\n"
    lab_task.venv.install("flashinfer-python", "0.6.3", {FILE: newer})
    assert restoring.restore(lab_task.session)["holds"]
    assert (lab_task.venv.site / FILE).read_bytes() == newer


def test_a_file_that_comes_back_otherwise_fails_loudly(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_work.apply(lab_task.session, PATCH)
    taken_back = patching.take_back

    def and_then_edited(*words: Any) -> Any:
        done = taken_back(*words)
        (lab_task.venv.site / FILE).write_bytes(b"# in between\n")
        return done

    monkeypatch.setattr(patching, "take_back", and_then_edited)
    with pytest.raises(ToolError, match="not as it was") as failure:
        restoring.restore(lab_task.session)
    assert failure.value.exit_code == 1
    assert any(str(lab_task.venv.site / FILE) in line for line in failure.value.evidence)


def test_a_leftover_hook_fails_loudly(lab_task: Lab) -> None:
    left = lab_task.venv.site / "sglang_remote_old.pth"
    left.write_text("import sglang_remote_old\n")
    with pytest.raises(ToolError, match="not as it was") as failure:
        restoring.restore(lab_task.session)
    assert str(left) in failure.value.evidence


@pytest.fixture
def bench_process(lab_task: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries a bench's mark, of a run of this host."""
    folder = state(lab_task) / "runs" / "20261129-120000-x-0001" / "bench" / "20261129-120001-ab12"
    folder.mkdir(parents=True)
    for path in (state(lab_task), state(lab_task) / "runs"):
        path.chmod(0o700)
    process = subprocess.Popen(["sleep", "300"], env={BENCH_VARIABLE: folder.name})
    yield process
    process.kill()
    process.wait()


def test_what_a_bench_left_running_is_ended_and_a_strangers_process_is_not(
    lab_task: Lab, bench_process: subprocess.Popen[bytes]
) -> None:
    stranger = subprocess.Popen(["sleep", "300"], env={BENCH_VARIABLE: "of-another-state-folder"})
    try:
        assert restoring.restore(lab_task.session)["holds"]
        assert bench_process.wait(10) < 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_folder_with_other_peoples_files_is_not_removed(lab_task: Lab) -> None:
    patch_work.apply(lab_task.session, PATCH)
    (state(lab_task) / "thesis.tex").write_text("mine")
    with pytest.raises(ToolError, match="did not put there") as refusal:
        restoring.restore(lab_task.session)
    assert refusal.value.evidence == ("thesis.tex",)
    assert (state(lab_task) / "thesis.tex").read_text() == "mine"
    assert (lab_task.venv.site / FILE).read_bytes() != CODE


def test_a_link_in_the_folder_is_removed_and_what_it_points_to_stays(
    lab_task: Lab, tmp_path: Path
) -> None:
    patch_work.apply(lab_task.session, PATCH)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (state(lab_task) / "cache" / "link").symlink_to(outside)
    assert restoring.restore(lab_task.session)["holds"]
    assert (outside / "kept").read_text() == "kept"


def test_a_home_folder_is_never_removed(lab_task: Lab, home: Path) -> None:
    settings = replace(lab_task.host.settings, state="~")
    session = replace(lab_task.session, host_settings=settings)
    with pytest.raises(ToolError, match="home folder"):
        restoring.restore(session)
    assert home.is_dir()
