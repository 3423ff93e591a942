"""What follows a crash or a hang: the cause at once, then the evidence, scrubbed, in one file."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path

import pytest
from hosts import LocalHost, Venv, eventually
from sessions import Task

from remote import diagnosing, experiment, inspecting, server, stopping, watching
from remote.display import Display
from remote.errors import ConfigError, ConnectionLost, ServerCrashed, ServerHung, ToolError

STAMP = "[2026-11-29 12:00:01"
TRACEBACK = f"""say('''{STAMP} TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/site-packages/sglang/srt/managers/scheduler.py", line 10, in run_scheduler_process
    scheduler = Scheduler()
  File "/x/site-packages/sglang/srt/model_executor/model_runner.py", line 20, in init_memory_pool
    raise RuntimeError("x")
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
''')"""
TWO = "a = rank('scheduler_TP0'); b = rank('scheduler_TP1'); "
WORKS = f"say('{STAMP} TP0] Load weight begin. avail mem=1 GB'); "


@pytest.fixture
def task(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Task:
    return Task(local_host, fake_venv, tmp_path)


def failure_of(task: Task, run: str, bundle: bool = False) -> ToolError:
    with pytest.raises(ToolError) as raised:
        experiment.wait(task.session, run, 60.0, bundle=bundle)
    return raised.value


def test_a_crash_names_kind_cause_rank_and_lines(task: Task) -> None:
    error = failure_of(task, task.start(f"{TWO}{TRACEBACK}; wait()"))
    assert isinstance(error, ServerCrashed)
    told = "\n".join(error.evidence)
    assert "kv_pool_too_small" in told or "memory" in told
    assert "first on TP1" in told
    assert "line 6: RuntimeError: Not enough memory." in told
    diagnosis = error.as_dict()["diagnosis"]
    assert isinstance(diagnosis, dict)
    assert (diagnosis["outcome"], diagnosis["first_rank"]) == ("crashed", "TP1")
    assert error.hint and "--set mem-fraction-static=" in error.hint


def test_a_traceback_that_follows_the_fatal_line_is_waited_for(task: Task) -> None:
    head, _, rest = TRACEBACK.partition("\n")
    play = f"{head}'''); time.sleep(0.1); say('''{rest}; wait()"
    error = failure_of(task, task.start(play))
    assert "Not enough memory" in "\n".join(error.evidence)


def test_a_killed_rank_is_named_although_the_log_is_silent(task: Task) -> None:
    run = task.start(f"{TWO}{WORKS}time.sleep(1.5); b.kill(); wait()")
    error = failure_of(task, run)
    assert error.exit_code == 10
    told = "\n".join(error.evidence)
    assert "process_killed (high confidence)" in told and "TP1" in told


def test_a_stopped_rank_hangs_the_start_and_is_left_alone(task: Task) -> None:
    play = f"{TWO}{WORKS}b.send_signal(signal.SIGSTOP); wait()"
    run = task.start(play)
    error = failure_of(task, run)
    assert isinstance(error, ServerHung) and error.exit_code == 11
    assert "rank_stopped (high confidence): TP1 is stopped" in "\n".join(error.evidence)
    look = server.look(task.host, task.host.settings, run)
    assert (look.state, len(look.pids) >= 4) == ("hung", True)
    assert look.outcome is not None and look.outcome["kind"] == "rank_stopped"


def test_without_a_cause_the_logs_end_is_quoted(task: Task) -> None:
    error = failure_of(task, task.start("say('one'); say('two words'); raise SystemExit(1)"))
    assert "two words" in error.evidence
    assert "exit status 1" in error.message


def test_a_host_that_no_longer_answers_does_not_hide_the_verdict(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = task.start(f"{TRACEBACK}; wait()")
    real = task.host.call

    def call(function: str, data: bytes = b"", **params: object) -> object:
        if function in ("evidence.look", "bundle.wants_spy"):
            raise ConnectionLost("the connection was lost")
        return real(function, data, **params)

    monkeypatch.setattr(task.host, "call", call)
    error = failure_of(task, run, bundle=True)
    assert "Not enough memory" in "\n".join(error.evidence)
    assert "not in this verdict" in "".join(capsys.readouterr())


def test_the_bundle_is_taken_before_anything_is_killed(task: Task) -> None:
    run = task.start(f"{TWO}{TRACEBACK}; wait()")
    failure_of(task, run, bundle=True)
    assert not server.look(task.host, task.host.settings, run).alive
    folder = task.local(run) / "evidence"
    names = {path.name for path in folder.iterdir()}
    assert {"diagnosis.json", "tracebacks.txt", "processes.txt", "launch.sh"} <= names
    assert [name for name in names if name.startswith("proc-TP1-")]
    assert "sglang::scheduler_TP1" in (folder / "processes.txt").read_text()
    assert "Not enough memory" in (folder / "tracebacks.txt").read_text()
    with tarfile.open(task.local(run) / "evidence.tar.gz") as archive:
        packed = {Path(name).name for name in archive.getnames()}
        log = archive.extractfile(f"{run}/server.log")
        assert log is not None and b"Not enough memory" in log.read()
    assert packed == names | {"server.log"}
    assert (task.local(run) / "evidence.tar.gz").stat().st_mode & 0o777 == 0o600


def test_no_secret_is_in_the_bundle(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> None:
    task = Task(local_host, fake_venv, tmp_path, secrets="LICENSE")
    run = "20261129-120000-secrets-0001"
    fake_venv.play("say('key is w4ndb-key-1 of hf_aaaaaaaaaaaaaaaaaaaa'); wait()")
    script = (
        b"export WANDB_API_KEY=w4ndb-key-1 LICENSE=l1cense\nexport HF_TOKEN='two w0rds'\n"
        + fake_venv.launch_script(local_host.settings.port).rstrip()
        + b" --api-key k3y-of-the-api\n"
    )
    settings = local_host.settings
    server.start_request(settings, run, script, {"profile": "test"}).of(local_host)
    eventually(task.says(run, b"key is"))
    inspecting.pull(task.session, run)
    texts = [p.read_text() for p in (task.local(run) / "evidence").iterdir()]
    whole = "\n".join([*texts, (task.local(run) / "server.log").read_text()])
    for secret in ("w4ndb-key-1", "l1cense", "w0rds", "k3y-of-the-api", "hf_aaaa"):
        assert secret not in whole
    assert "WANDB_API_KEY=***" in whole


def test_a_pull_after_the_end_keeps_what_was_seen_alive(task: Task) -> None:
    run = task.start(f"{TWO}{TRACEBACK}; wait()")
    failure_of(task, run, bundle=True)
    before = (task.local(run) / "evidence" / "processes.txt").read_text()
    pulled = inspecting.pull(task.session, run)
    assert pulled["new_bytes"] == 0
    assert (task.local(run) / "evidence" / "processes.txt").read_text() == before


def test_diagnose_reads_a_run_as_it_stands(task: Task) -> None:
    run = task.start(f"{TWO}{WORKS}say('up'); wait()")
    eventually(task.says(run, b"up"))
    told = inspecting.diagnose(task.session, None)
    assert (told["outcome"], told["kind"], told["phase"]) == ("not_ready", None, "weights")
    ranks = task.host.call("evidence.look", state=task.host.settings.state, run=run, known={})
    os.kill(ranks["ranks"]["TP1"]["pid"], signal.SIGSTOP)
    eventually(lambda: inspecting.diagnose(task.session, run)["kind"] == "rank_stopped")


def test_diagnose_reads_logs_from_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "their.log"
    log.write_text(eval(TRACEBACK[len("say(") : -1]))
    told = inspecting.diagnose_files(Display(), [str(log)])
    assert {"outcome", "kind", "confidence", "cause", "phase", "raised_in", "first_rank"} <= (
        told.keys()
    )
    assert {"ranks", "evidence", "advice", "alternatives"} <= told.keys()
    assert told["outcome"] == "crashed" and told["first_rank"] == "TP1"
    assert "Not enough memory" in capsys.readouterr().out
    json.dumps(told)


def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.log"):
        inspecting.diagnose_files(Display(), [str(tmp_path / "none.log")])
    with pytest.raises(ConfigError, match="twice"):
        inspecting.diagnose_files(Display(), ["a", "a"])
    with pytest.raises(ConfigError, match="exclude"):
        inspecting.diagnose_files(Display(), ["a"], "20261129-120000-test-0dbe")
    with pytest.raises(ConfigError, match="standard input"):
        inspecting.diagnose_files(Display(), [""])


def test_a_cause_stays_known_when_the_processes_are_gone(task: Task) -> None:
    run = task.start(f"{TWO}{WORKS}time.sleep(1.5); b.kill(); wait()")
    first = failure_of(task, run).as_dict()["diagnosis"]
    assert not server.look(task.host, task.host.settings, run).alive
    again = inspecting.diagnose(task.session, run)
    assert (
        again == first and again["kind"] == "process_killed" and again["ranks"]["TP1"] == "failed"
    )


def test_a_rank_that_dies_while_serving_is_missed_at_once(task: Task, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = task.start(f"{TWO}{WORKS}serve(); ready(); hold({str(go)!r}); b.kill(); wait()")
    assert experiment.wait(task.session, run, 60.0)["verdict"]["outcome"] == "ready"
    go.touch()
    eventually(lambda: server.look(task.host, task.host.settings, run).state == "dying")
    told = inspecting.diagnose(task.session, run)
    assert (told["outcome"], told["kind"]) == ("died_after_ready", "process_killed")
    assert "TP1" in told["cause"]
    with pytest.raises(ServerCrashed, match="has crashed"):
        watching.watch(task.session, run, 5.0)


def test_described_says_nothing_of_a_healthy_server(task: Task) -> None:
    run = task.start("serve(); ready(); wait()")
    experiment.wait(task.session, run, 60.0)
    findings = diagnosing.explain(task.session, run)
    assert list(diagnosing.described(findings.diagnosis)) == []


def test_a_start_teaches_how_long_the_next_may_take(task: Task) -> None:
    from remote.core.phases import Phase
    from remote.ledger import Ledger

    run = task.start(f"{WORKS}time.sleep(0.3); serve(); ready(); wait()")
    verdict = experiment._follow(task.session, run, "test", 60.0, whole=True)
    assert verdict.outcome is server.Outcome.READY
    learnt = Ledger(task.session.settings.runs).phases("lab", "test")
    assert learnt[Phase.WEIGHTS][0] > 0.1


def test_a_ledger_that_cannot_be_used_keeps_no_server_from_starting(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = task.session.settings.runs
    runs.mkdir()
    (runs / "ledger.sqlite").write_text("nothing of the sort " * 100)
    run = task.start("serve(); ready(); wait()")
    verdict = experiment._follow(task.session, run, "test", 60.0, whole=True)
    assert verdict.outcome is server.Outcome.READY
    assert "ledger.sqlite can't be used" in "".join(capsys.readouterr())


def test_a_stopped_ranks_verdict_outlives_the_server(task: Task) -> None:
    run = task.start(f"{TWO}{WORKS}b.send_signal(signal.SIGSTOP); wait()")
    first = failure_of(task, run).as_dict()["diagnosis"]
    stopping.stop(task.session, run)
    assert inspecting.diagnose(task.session, run) == first
    inspecting.pull(task.session, run)
    look = server.look(task.host, task.host.settings, run)
    assert look.outcome is not None and look.outcome["kind"] == "rank_stopped"


def test_what_is_kept_of_the_diagnosis_is_json_with_its_lines(task: Task) -> None:
    run = task.start(f"{TWO}{TRACEBACK}; wait()")
    told = failure_of(task, run, bundle=True).as_dict()["diagnosis"]
    kept = json.loads((task.local(run) / "evidence/diagnosis.json").read_text())
    assert kept == told
    assert "Not enough memory" in kept["evidence"][0]["text"]


def test_secrets_in_a_log_from_anywhere_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "their.log"
    secrets = ("hf_abcdefghijklmnopqrstuvwx", "sk-abcdefghijklmnop1234", "hunter2hunter2")
    log.write_text(
        f"server_args=ServerArgs(tp_size=1)\nOSError: 401 Client Error with {secrets[0]} for"
        f" https://me:{secrets[2]}@huggingface.co --api-key={secrets[1]}\n"
    )
    display = Display(as_json=True)
    display.json(inspecting.diagnose_files(display, [str(log)]))
    shown = "".join(capsys.readouterr())
    assert "401 Client Error" in shown
    assert not [secret for secret in secrets if secret in shown]
