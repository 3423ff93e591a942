"""Whatever a task does to a host has its row, whichever way the task ends; secrets have none."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually
from labs import FILE, SERVES, Lab
from sessions import once_watched

from remote import experiment, overview, patch_work, server, stopping, watching
from remote.errors import (
    ConnectionLost,
    NotReady,
    PatchRefused,
    PreflightFailed,
    ServerCrashed,
    ToolError,
)
from remote.planning import PatchChoice

STAMP = "[2026-11-29 12:00:01 TP1]"
MEMORY = f"""say('''{STAMP} Scheduler hit an exception: Traceback (most recent call last):
  File "/x/site-packages/sglang/srt/model_executor/model_runner.py", line 20, in init_memory_pool
    raise RuntimeError("x")
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
'''); wait()"""


@pytest.fixture
def lab_task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Lab:
    return Lab(local_host, fake_venv, tmp_path)


def test_a_deploy_that_gets_ready_has_its_row(lab_task: Lab) -> None:
    run = lab_task.deploy(SERVES, "env.NCCL_DEBUG=INFO", note="is it quicker?")
    row = lab_task.newest
    assert (row.id, row.outcome, row.profile, row.host) == (run, "ready", "plain", "lab")
    assert row.seconds is not None and row.seconds == row.ready_seconds
    assert row.minutes_lost == 0.0
    assert row.sets == ("env.NCCL_DEBUG=INFO",) and "--model-path" in row.argv
    assert row.note == "is it quicker?"
    assert row.fingerprint["sglang"] == "0.5.9" and row.fingerprint["patches"] == {}
    assert row.who == f"{row.user}@{os.uname().nodename}"
    assert Path(row.folder) == lab_task.runs / run
    assert lab_task.happened() == ["deploy"]
    event = lab_task.event("deploy")
    assert (event.run, event.details["changed"]) == (run, True)


def test_the_note_is_kept_on_the_host_and_shown(
    lab_task: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lab_task.deploy(note="is it quicker?")
    assert "is it quicker?" in (lab_task.folder(run) / "run.json").read_text()
    found = overview.status(lab_task.session)
    assert found["run"]["note"] == "is it quicker?"
    overview.show_status(lab_task.session.display, found)
    assert "note: is it quicker?" in capsys.readouterr().out


def test_a_crash_has_its_cause_and_its_minutes(lab_task: Lab) -> None:
    with pytest.raises(ServerCrashed):
        lab_task.deploy(MEMORY)
    row = lab_task.newest
    assert (row.outcome, row.first_rank, row.failed) == ("crashed", "TP1", True)
    assert row.kind and row.cause and row.minutes_lost is not None
    assert lab_task.happened(row.id) == ["deploy", "crash"]
    assert lab_task.event("crash").details["kind"] == row.kind
    with pytest.raises(ServerCrashed):  # asked again, it crashed no second time
        experiment.wait(lab_task.session, row.id, None, bundle=False)
    assert lab_task.happened(row.id) == ["deploy", "crash"]
    assert lab_task.newest == row


def test_exactly_the_same_that_crashed_is_warned_of_with_its_note(
    lab_task: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ServerCrashed):
        lab_task.deploy(MEMORY, note="more memory for the pool")
    crashed = lab_task.newest
    assert "already tried" not in "".join(capsys.readouterr())
    lab_task.deploy(SERVES)
    told = " ".join("".join(capsys.readouterr()).split())
    assert re.search(r"already tried exactly this on \d{4}-\d\d-\d\d \d\d:\d\d: run", told)
    assert f"run {crashed.id} crashed ({crashed.kind}: " in told
    assert "its note: more memory for the pool" in told
    lab_task.deploy(SERVES, "env.NCCL_DEBUG=INFO")
    assert "already tried" not in "".join(capsys.readouterr())
    lab_task.deploy(SERVES, dry=True)
    told = "".join(capsys.readouterr())
    assert "already tried" in told and "of 2 such starts 1 failed" in " ".join(told.split())


def test_nothing_changed_is_an_event_and_no_start(lab_task: Lab) -> None:
    lab_task.deploy()
    lab_task.deploy(note="again")
    assert len(lab_task.ledger.runs()) == 1
    assert lab_task.happened() == ["deploy", "deploy"]
    assert lab_task.event("deploy").details == {
        "profile": "plain",
        "note": "again",
        "changed": False,
    }


def test_a_look_leaves_no_trace(lab_task: Lab) -> None:
    lab_task.deploy(dry=True)
    assert not lab_task.ledger.exists


def test_what_makes_way_is_stopped_on_record(lab_task: Lab) -> None:
    first = lab_task.deploy()
    second = lab_task.deploy(SERVES, "env.NCCL_DEBUG=INFO")
    before = lab_task.ledger.run(first)
    assert before is not None and before.outcome == "ready"
    assert lab_task.happened(first) == ["deploy", "stop"]
    assert second in lab_task.event("stop").details["why"]
    stopping.stop(lab_task.session, None)
    assert lab_task.happened(second) == ["deploy", "stop"]
    assert lab_task.newest.outcome == "ready"


def test_a_deploy_that_is_refused_is_an_event_with_the_reason(lab_task: Lab) -> None:
    with pytest.raises(PreflightFailed):
        lab_task.deploy(SERVES, "flags.mem-fraction-statik=0.8")
    assert lab_task.ledger.runs() == []
    assert lab_task.event("deploy").details["error"]["type"] == "PreflightFailed"


def test_a_start_whose_patch_is_refused_is_a_row_that_says_so(lab_task: Lab) -> None:
    def meanwhile(made: object) -> None:
        (lab_task.venv.site / FILE).write_bytes(b"# edited meanwhile\n")

    with pytest.raises(PatchRefused):
        lab_task.deploy(patches=PatchChoice(named=("first",)), expects=meanwhile)
    assert lab_task.newest.outcome == "refused" and FILE in lab_task.newest.cause


def test_the_patches_are_in_the_row_with_what_they_write(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.proving.prove_all", lambda *_: ())
    lab_task.deploy(patches=PatchChoice(named=("first",)))
    ((name, digest),) = lab_task.newest.fingerprint["patches"].items()
    assert name == "mine/first" and re.match("[0-9a-f]{64}", digest)
    stopping.stop(lab_task.session, None)
    patch_work.rollback(lab_task.session, None)
    event = lab_task.event("rollback")
    assert event.details["remaining"] == [] and FILE in event.details["files"][0]
    patch_work.apply(lab_task.session, "first")
    assert FILE in lab_task.event("patch").details["files"][0]
    (lab_task.venv.site / FILE).write_bytes(b"# edited\n")
    with pytest.raises(ToolError):
        patch_work.apply(lab_task.session, "no-such-set")
    with pytest.raises(PatchRefused):
        patch_work.apply(lab_task.session, "first")
    assert lab_task.event("patch").details["error"]["type"] == "PatchRefused"


# Before it is known to run, between that and the follow, and in the follow.
@pytest.mark.parametrize("moment", ["show_proofs", "Budgets", "StartWatch"])
def test_ctrl_c_says_how_to_take_a_start_up_again(
    lab_task: Lab,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moment: str,
) -> None:
    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab_task.deploy()
    assert f"inv wait --run {lab_task.newest.id}" in capsys.readouterr().out


def test_an_interrupted_start_stays_started_until_somebody_looks(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server.until_ready

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab_task.deploy()
    assert lab_task.newest.outcome == "started" and lab_task.newest.minutes_lost is None
    monkeypatch.setattr(server, "until_ready", real)
    experiment.wait(lab_task.session, None, 60.0)
    assert lab_task.newest.outcome == "ready"


def test_a_lost_link_leaves_a_start_that_a_status_completes(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> object:
        raise ConnectionLost("the connection was lost")

    monkeypatch.setattr(server, "until_ready", lost)
    with pytest.raises(ConnectionLost):
        lab_task.deploy("say('loading'); die()")
    assert lab_task.newest.outcome == "started"
    run = lab_task.newest.id
    eventually(lambda: server.look(lab_task.host, lab_task.host.settings, run).exit_status)
    overview.status(lab_task.session)
    assert lab_task.newest.outcome == "crashed" and lab_task.newest.seconds is not None
    assert lab_task.happened(run) == ["deploy", "crash"]
    monkeypatch.undo()
    with pytest.raises(ServerCrashed):
        experiment.wait(lab_task.session, run, None, bundle=False)
    assert lab_task.newest.kind
    assert lab_task.happened(run) == ["deploy", "crash", "diagnosis"]


def test_a_link_lost_before_the_start_is_no_start_in_the_end(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab_task.deploy()

    call = lab_task.host.call

    def until_the_start(function: str, data: bytes = b"", **params: Any) -> Any:
        if function == "runs.start":
            raise ConnectionLost("the connection was lost")
        return call(function, data, **params)

    monkeypatch.setattr(lab_task.host, "ahead", lambda requests: None)
    monkeypatch.setattr(lab_task.host, "call", until_the_start)
    with pytest.raises(ConnectionLost):
        lab_task.deploy(SERVES, "env.NCCL_DEBUG=INFO")
    overview.status(lab_task.session)
    assert lab_task.newest.outcome == "started"  # it may be on its way
    lab_task.ledger.note_launched(lab_task.newest.id, 1.0)
    overview.status(lab_task.session)
    assert {row.outcome for row in lab_task.ledger.runs()} == {"ready", "not_started"}


def test_not_ready_in_time_goes_on_and_may_get_ready(lab_task: Lab, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with pytest.raises(NotReady):
        lab_task.deploy(f"hold({str(go)!r}); {SERVES}", timeout_s=1.0)
    assert lab_task.newest.outcome == "not_ready" and lab_task.newest.failed
    go.touch()
    experiment.wait(lab_task.session, None, 60.0)
    assert lab_task.newest.outcome == "ready" and lab_task.newest.minutes_lost == 0.0


def test_a_death_while_it_is_watched_is_on_record(
    lab_task: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    run = lab_task.deploy(f"serve(); ready(); hold({str(go)!r}); die()")
    once_watched(monkeypatch, go.touch)
    with pytest.raises(ServerCrashed):
        watching.watch(lab_task.session, run, 60.0, bundle=False)
    row = lab_task.newest
    assert (row.outcome, row.failed) == ("died_after_ready", True)
    assert row.ready_seconds is not None and row.minutes_lost is not None


def test_a_ready_server_that_serves_no_more_is_on_record(
    lab_task: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab_task.deploy()
    monkeypatch.setattr(server, "answers", lambda *_: "the port is closed")
    with pytest.raises(ToolError):
        experiment.wait(lab_task.session, run, None)
    assert lab_task.newest.outcome in ("hung", "died_after_ready")


def test_a_run_of_another_client_is_taken_in(lab_task: Lab) -> None:
    lab_task.deploy(note="mine")
    lab_task.ledger.path.unlink()
    overview.status(lab_task.session)
    row = lab_task.newest
    assert (row.outcome, row.profile, row.note) == ("ready", "plain", "mine")
    assert row.identity and row.seconds is not None
    assert Path(row.folder).is_dir()


def test_a_ledger_that_cannot_be_written_costs_one_warning(
    lab_task: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_task.runs.mkdir(exist_ok=True)
    lab_task.ledger.path.write_text("nothing of the sort " * 100)
    run = lab_task.deploy()
    stopping.stop(lab_task.session, run)
    told = "".join(capsys.readouterr())
    assert told.count("not everything is recorded") == 1 and "ledger.sqlite" in told


def test_no_secret_enters(lab_task: Lab) -> None:
    secrets = ("hf_" + "aB3" * 8, "open-sesame-77", "quiet-word-88")
    token, key, named = secrets
    lab_task.session = replace(lab_task.session, scrubber=type(lab_task.session.scrubber)(["MINE"]))
    settings = replace(lab_task.host.settings, secrets=("MINE",))
    lab_task.session = replace(lab_task.session, host_settings=settings)
    play = f"say('Scheduler hit an exception: Traceback'); say('ValueError: {key} {token}'); wait()"
    with pytest.raises(ServerCrashed):
        lab_task.deploy(
            play,
            *(f"env.HF_TOKEN={token}", f"flags.api-key={key}", f"env.MINE={named}"),
            note=f"with {token}, {key} and MINE={named}",
        )
    row = lab_task.newest
    assert row.outcome == "crashed" and row.note.startswith("with ***")
    lab_task.session.record.event("bench", row.id, argv=["--api-key", key], text=f"{named}")
    lab_task.session.record.point(
        {
            "bench": "b",
            "level": 1,
            "repeat": 1,
            "run": row.id,
            "valid": False,
            "reasons": [f"401 for {key}"],
            "metrics": {},
        }
    )
    for path in lab_task.runs.rglob("*"):
        if path.is_file():
            for secret in secrets:
                assert secret.encode() not in path.read_bytes(), (path.name, secret)
    assert not [s for s in secrets if s in (lab_task.folder(row.id) / "run.json").read_text()]


def test_the_same_start_with_another_secret_is_the_same(lab_task: Lab) -> None:
    lab_task.deploy(SERVES, "env.HF_TOKEN=hf_" + "a" * 20)
    lab_task.again()
    lab_task.deploy(SERVES, "env.HF_TOKEN=hf_" + "b" * 20, restart=True)
    assert len({row.identity for row in lab_task.ledger.runs()}) == 1
    assert len(lab_task.ledger.runs()) == 2


def test_a_restart_is_the_same_start_with_a_note_of_its_own(lab_task: Lab) -> None:
    lab_task.deploy(note="first")
    experiment.restart(lab_task.session, 60.0, note="second")
    rows = lab_task.ledger.runs()
    assert [row.note for row in rows] == ["second", "first"]
    assert rows[0].identity == rows[1].identity
