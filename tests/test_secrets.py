"""Planted secrets: the server gets them, and nothing that is kept, shown or listed has them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import LocalHost, Venv
from labs import SERVES, Lab

from remote import crash, diagnosing, experiment, server
from remote.core.scrubbing import Scrubber
from remote.core.server_log import LogReader
from remote.errors import ConfigError, ServerCrashed
from remote.experiment import DeployOptions
from remote.payload import procs, readiness
from remote.store import LocalRun

TOKEN, KEY, PLAIN = "hf_plantedTokenOfTheHub01", "planted-api-key-02", "planted value 03"
#: A variable whose name tells nothing; where its value is kept tells that it is secret.
INNOCENT = "MY_SETTING"


@pytest.fixture
def lab_task(
    local_host: LocalHost, fake_venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lab:
    (tmp_path / "key-file").write_text(KEY + "\n")
    monkeypatch.setenv("TOKEN_HERE", TOKEN)
    monkeypatch.setenv("PLAIN_HERE", PLAIN)
    return Lab(local_host, fake_venv, tmp_path)


def sets(tmp_path: Path) -> tuple[str, ...]:
    return (
        "env.HF_TOKEN={env: TOKEN_HERE}",
        f"flags.api-key={{file: {tmp_path / 'key-file'}}}",
        f"env.{INNOCENT}={{command: printenv PLAIN_HERE}}",
    )


def files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())


def holding(*folders: Path) -> list[str]:
    """The files below in which any of the planted secrets stands."""
    planted = [secret.encode() for secret in (TOKEN, KEY, PLAIN)]
    return sorted(
        path.name for path in files(*folders) if any(s in path.read_bytes() for s in planted)
    )


def command_lines() -> str:
    words = [" ".join(procs.command_line(pid)) for pid in procs.pids() if pid != os.getpid()]
    return "\n".join(words)


SAYS_THEM = (
    "import os; say('server_args=ServerArgs(api_key=%r)' % 'planted-api-key-02');"
    " say('the token is ' + os.environ['HF_TOKEN'] + ', and ' + os.environ['MY_SETTING']); "
)


def test_the_server_has_them_and_they_stand_nowhere_but_in_its_files(
    lab_task: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = Path(lab_task.host.settings.state)
    run = lab_task.deploy(SERVES, *sets(tmp_path), note=f"with {KEY}")
    there = lab_task.folder(run)
    pid = server.look(lab_task.host, lab_task.host.settings, run).server_pid
    assert pid is not None
    environment = procs.environment(pid)
    assert (environment["HF_TOKEN"], environment[INNOCENT]) == (TOKEN, PLAIN)
    assert readiness.api_key([pid]) == KEY
    assert KEY not in command_lines() and TOKEN not in command_lines()
    assert holding(state) == ["secrets.env", "secrets.yaml"]
    for name in ("secrets.env", "secrets.yaml"):
        assert stat.S_IMODE((there / name).stat().st_mode) == 0o600
    assert holding(lab_task.runs) == []
    assert any(path.suffix == ".sqlite" for path in files(lab_task.runs))
    shown = capfd.readouterr()
    assert not [s for s in (TOKEN, KEY, PLAIN) if s in shown.out + shown.err]
    assert json.loads((there / "run.json").read_text())["sets"] == list(sets(tmp_path))


def test_a_crash_and_its_bundle_show_none_of_them(
    lab_task: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ServerCrashed) as crashed:
        lab_task.deploy(
            SAYS_THEM + "say('[Errno 98] address already in use'); wait()",
            *sets(tmp_path),
            bundle=True,
        )
    run = lab_task.newest.id
    assert (lab_task.local(run) / "evidence.tar.gz").exists()
    assert holding(lab_task.runs) == []
    shown = capfd.readouterr()
    told = shown.out + shown.err + json.dumps(crashed.value.as_dict())
    assert not [s for s in (TOKEN, KEY, PLAIN) if s in told]


def test_another_client_masks_what_only_the_host_knows(lab_task: Lab, tmp_path: Path) -> None:
    run = lab_task.deploy(SAYS_THEM + SERVES, *sets(tmp_path))
    elsewhere = replace(
        lab_task.session,
        scrubber=Scrubber(),
        settings=replace(lab_task.session.settings, runs=tmp_path / "other-runs"),
    )
    diagnosing.pull(elsewhere, run)
    local = LocalRun(tmp_path / "other-runs", run, Scrubber())
    crash.gather(
        lab_task.host, lab_task.host.settings, run, local, elsewhere.clock, lambda text: None
    )
    assert (local.folder / "evidence" / "environment.txt").exists()
    assert b"the token is ***" in local.log_path.read_bytes()
    assert holding(tmp_path / "other-runs") == []


def test_where_sglang_reads_no_file_the_key_is_passed_and_that_is_said(
    lab_task: Lab, fake_venv: Venv, tmp_path: Path
) -> None:
    known = json.loads((fake_venv.folder / "flags.json").read_text())
    known["flags"].pop("config")
    (fake_venv.folder / "flags.json").write_text(json.dumps(known) + "\n")
    run = lab_task.deploy(SERVES, *sets(tmp_path))
    assert KEY in command_lines()
    assert holding(Path(lab_task.host.settings.state)) == ["secrets.env"]
    warned = json.dumps(json.loads((lab_task.local(run) / "plan.json").read_text()))
    assert KEY not in warned and holding(lab_task.runs) == []


def test_another_secret_is_another_start_and_the_same_one_is_not(
    lab_task: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lab_task.deploy(SERVES, *sets(tmp_path))
    assert lab_task.deploy(SERVES, *sets(tmp_path)) == first
    monkeypatch.setenv("TOKEN_HERE", TOKEN + "x")
    assert lab_task.deploy(SERVES, *sets(tmp_path)) != first


def test_a_restart_reads_them_again_from_where_they_are_kept(lab_task: Lab, tmp_path: Path) -> None:
    lab_task.deploy(SERVES, *sets(tmp_path))
    run = str(experiment.restart(lab_task.session, None)["run"])
    pid = server.look(lab_task.host, lab_task.host.settings, run).server_pid
    assert pid is not None and procs.environment(pid)["HF_TOKEN"] == TOKEN


def test_a_secret_that_is_not_there_starts_nothing(
    lab_task: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN_HERE")
    with pytest.raises(ConfigError, match="TOKEN_HERE"):
        lab_task.deploy(SERVES, *sets(tmp_path))
    assert not (Path(lab_task.host.settings.state) / "runs").exists()


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.7", "127.0.0.1.example.com"])
def test_a_server_that_the_network_reaches_needs_a_key(
    lab_task: Lab, tmp_path: Path, bind: str
) -> None:
    settings = replace(lab_task.host.settings, bind=bind)
    session = replace(lab_task.session, host_settings=settings)
    dry = DeployOptions(dry=True)
    with pytest.raises(ConfigError, match="without a key") as refusal:
        experiment.deploy_profile(session, "plain", dry)
    assert "inv tunnel" in str(refusal.value.hint)
    keyed = replace(dry, sets=sets(tmp_path)[1:2])
    assert experiment.deploy_profile(session, "plain", keyed)["changed"] is False


@pytest.mark.parametrize(
    "word", ["flags.api-key=", "flags.api-key=' '", "flags.api-key={env: BLANK}"]
)
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_an_empty_key_is_no_key(
    lab_task: Lab, word: str, bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLANK", " \n")
    settings = replace(lab_task.host.settings, bind=bind)
    session = replace(lab_task.session, host_settings=settings)
    with pytest.raises(ConfigError, match="is empty"):
        experiment.deploy_profile(session, "plain", DeployOptions(dry=True, sets=(word,)))


@pytest.mark.parametrize(
    "word",
    [
        "flags.api-key={enviroment: MY_KEY}",
        "flags.api-key={env: A, file: b}",
        "flags.tokenizer-path={env: A, command: b}",
        "flags.api-key={}",
        "env.HF_TOKEN={enviroment: MY_KEY}",
    ],
)
def test_a_mistyped_source_is_refused_and_never_the_secret_itself(lab_task: Lab, word: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        experiment.deploy_profile(lab_task.session, "plain", DeployOptions(dry=True, sets=(word,)))
    told = f"{refusal.value.message} {refusal.value.evidence}"
    assert "wanted" in told and "mapping" in told


def test_the_log_is_read_alike_with_and_without_secrets() -> None:
    """The scrubbed copy still tells where a start stands."""
    reader = LogReader()
    scrubber = Scrubber()
    scrubber.learn([KEY])
    line = f"[2026-11-29 12:00:01] server_args=ServerArgs(api_key='{KEY}', tp_size=2)\n"
    reader.feed(scrubber.data(line.encode()))
    assert KEY not in str(reader.state.server_args)
