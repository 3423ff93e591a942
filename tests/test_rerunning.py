"""The same start again, or a refusal that says what is not the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import LocalHost, Venv
from labs import FILE, SERVES, Lab

from remote import rerunning, server
from remote.core.run_record import RunRow
from remote.errors import ConfigError, PreflightFailed
from remote.planning import PatchChoice


@pytest.fixture
def lab_task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Lab:
    return Lab(local_host, fake_venv, tmp_path)


def rerun(task: Lab, row: RunRow, force: bool = False) -> str:
    found = rerunning.rerun(task.session, row, force=force, note="", timeout_s=60.0, bundle=False)
    return str(found["run"])


def first(task: Lab, *sets: str, **options: object) -> RunRow:
    run = task.deploy(SERVES, *sets, **options)
    row = task.ledger.run(run)
    assert row is not None
    return row


def test_a_run_is_started_again_as_it_was(lab_task: Lab) -> None:
    row = first(lab_task, "env.NCCL_DEBUG=INFO", note="why not")
    lab_task.deploy(SERVES)
    again = lab_task.ledger.run(rerun(lab_task, row))
    assert again is not None and again.id != row.id
    assert (again.identity, again.sets) == (row.identity, row.sets)
    assert again.note == f"rerun of {row.id}: why not"
    assert server.look(lab_task.host, lab_task.host.settings, again.id).state == "ready"


def test_a_host_that_changed_is_refused_and_named(lab_task: Lab) -> None:
    row = first(lab_task)
    lab_task.venv.install("transformers", "5.0", {})
    with pytest.raises(PreflightFailed) as refused:
        rerun(lab_task, row)
    assert "transformers: none → 5.0" in refused.value.evidence
    assert "--force" in str(refused.value.hint)
    assert server.look(lab_task.host, lab_task.host.settings, row.id).state == "ready"
    assert [each.id for each in lab_task.ledger.runs()] == [row.id]


def test_force_starts_it_anyway_and_says_what_differs(
    lab_task: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    row = first(lab_task)
    lab_task.venv.install("transformers", "5.0", {})
    again = lab_task.ledger.run(rerun(lab_task, row, force=True))
    assert again is not None and again.identity != row.identity
    assert "transformers: none → 5.0" in "".join(capsys.readouterr())


def test_a_profile_that_changed_is_refused_with_the_lines(lab_task: Lab) -> None:
    row = first(lab_task)
    folder = lab_task.session.folders[0] / "profiles"
    with (folder / "plain.yaml").open("a") as file:
        file.write("env:\n  NCCL_DEBUG: WARN\n")
    with pytest.raises(ConfigError) as refused:
        rerun(lab_task, row)
    assert "  +export NCCL_DEBUG=WARN" in refused.value.evidence


def test_a_patch_set_that_changed_is_refused(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.proving.prove_all", lambda *_: ())
    row = first(lab_task, patches=PatchChoice(named=("first",)))
    diff = lab_task.session.folders[0] / "patches" / "mine" / "first" / "a.diff"
    diff.write_text(diff.read_text().replace("first()", "other()"))
    with pytest.raises(ConfigError) as refused:
        rerun(lab_task, row)
    (line,) = refused.value.evidence
    assert line.startswith("patch mine/first: ")
    assert b"first()" in (lab_task.venv.site / FILE).read_bytes()


def test_a_run_with_a_secret_cannot_be_had_again(lab_task: Lab) -> None:
    row = first(lab_task, "env.HF_TOKEN=hf_" + "a" * 20)
    with pytest.raises(ConfigError, match="secret that is not kept"):
        rerun(lab_task, row)


def test_a_run_of_an_older_tool_needs_force(lab_task: Lab) -> None:
    row = RunRow("20261129-201530-plain-00aa", 1.0, "lab", "plain", client="desk")
    with pytest.raises(ConfigError) as refused:
        rerun(lab_task, row)
    assert "no record of its environment" in refused.value.evidence[0]
    lab_task.venv.play(SERVES)
    assert rerun(lab_task, row, force=True)
