"""Runs: started detached, found again, and ended to the last process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually, new_run, read_json

from remote.config import HostSettings
from remote.errors import ConfigError, ToolError
from remote.payload import procs


class Runs:
    """Starts and ends runs on the host of a test."""

    def __init__(self, host: LocalHost, venv: Venv) -> None:
        self.host = host
        self.venv = venv
        self.state = host.settings.state

    def start(self, play: str) -> str:
        run = new_run()
        self.venv.play(play)
        script = self.venv.launch_script(self.host.settings.port)
        self.script(script, run)
        return run

    def script(self, script: bytes, run: str) -> None:
        self.host.call(
            "runs.start", data=script, state=self.state, run=run, note={"profile": "test"}
        )

    def look(self, run: str) -> dict[str, Any]:
        return dict(self.host.call("runs.look", state=self.state, run=run))

    def stop(self, run: str, grace_s: float = 10.0) -> list[dict[str, Any]]:
        with self.host.stream("runs.stop", state=self.state, run=run, grace_s=grace_s) as messages:
            return [dict(message.body) for message in messages]

    def folder(self, run: str) -> Path:
        return Path(self.state) / "runs" / run

    def log(self, run: str) -> bytes:
        return (self.folder(run) / "server.log").read_bytes()

    def until_ended(self, run: str) -> None:
        eventually(lambda: (f := self.look(run))["exit_status"] is not None and not f["pids"])

    def until_says(self, run: str, text: bytes) -> None:
        eventually(lambda: text in self.log(run))


@pytest.fixture
def runs(local_host: LocalHost, fake_venv: Venv) -> Runs:
    return Runs(local_host, fake_venv)


def test_a_run_outlives_the_connection_that_started_it(runs: Runs) -> None:
    run = runs.start("say('up'); wait()")
    runs.until_says(run, b"up")
    runs.host.cut()
    runs.host.close()
    found = runs.look(run)
    assert found["server_pid"] in found["pids"]
    assert found["exit_status"] is None and not found["rebooted"]
    assert found["record"]["profile"] == "test"
    assert os.getsid(found["server_pid"]) != os.getsid(0)


def test_its_files_are_private_and_its_script_can_be_run_by_hand(runs: Runs) -> None:
    run = runs.start("say('up'); wait()")
    assert stat.S_IMODE(runs.folder(run).stat().st_mode) == 0o700
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in runs.folder(run).iterdir()
        if path.name in ("launch.sh", "server.log", "run.json")
    }
    assert modes == {"launch.sh": 0o700, "server.log": 0o600, "run.json": 0o600}


def test_every_process_carries_the_runs_mark_and_no_login_shells_environment(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    runs.script(b"env | sort\n", run)
    runs.until_says(run, b"\n_=")
    names = {line.partition(b"=")[0] for line in runs.log(run).splitlines()}
    assert names >= {b"HOME", b"PATH", procs.RUN_VARIABLE.encode()}
    assert names <= {b"HOME", b"USER", b"LOGNAME", b"PATH", b"LANG", b"PWD", b"SHLVL", b"_"} | {
        procs.RUN_VARIABLE.encode()
    }


@pytest.mark.parametrize(
    ("play", "status"),
    [("raise SystemExit(0)", 0), ("raise SystemExit(3)", 3), ("die()", 137), ("die(11)", 139)],
)
def test_the_exit_status_is_the_shells(runs: Runs, play: str, status: int) -> None:
    run = runs.start(play)
    runs.until_ended(run)
    assert runs.look(run)["exit_status"] == status


def test_stop_ends_every_process_also_those_that_left_the_group(runs: Runs) -> None:
    run = runs.start("orphan(); say('up'); wait()")
    runs.until_says(run, b"up")
    assert len(runs.look(run)["pids"]) == 3  # the supervisor, the server, its orphan
    runs.stop(run)
    found = runs.look(run)
    assert found["pids"] == [] and found["stop_requested"]
    assert found["exit_status"] == 128 + signal.SIGTERM


def test_stop_kills_what_ignores_term(runs: Runs) -> None:
    run = runs.start("ignore_term(); say('up'); wait()")
    runs.until_says(run, b"up")
    told = runs.stop(run, grace_s=0.2)
    assert told[0]["alive"] and not told[0]["killing"]
    found = runs.look(run)
    assert found["pids"] == [] and found["exit_status"] == 137


def test_stop_leaves_every_other_process_alone(runs: Runs) -> None:
    stays = runs.start("say('up'); wait()")
    goes = runs.start("say('up'); wait()")
    runs.until_says(goes, b"up")
    runs.stop(goes)
    assert runs.look(goes)["pids"] == []
    assert runs.look(stays)["server_pid"] is not None


def test_stopping_what_has_ended_is_no_stop(runs: Runs) -> None:
    run = runs.start("raise SystemExit(3)")
    runs.until_ended(run)
    assert runs.stop(run) == []
    found = runs.look(run)
    assert not found["stop_requested"] and found["exit_status"] == 3


def test_a_disk_that_takes_no_note_does_not_keep_a_server_alive(runs: Runs) -> None:
    run = runs.start("say('up'); wait()")
    runs.until_says(run, b"up")
    (runs.folder(run) / "stop_requested").mkdir()  # no file can be put there
    runs.stop(run)
    assert runs.look(run)["pids"] == []


def test_a_start_that_fails_leaves_no_folder(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote.payload import runs as payload_runs

    def full(path: str, content: bytes, mode: int = 0o600) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(payload_runs, "write", full)
    run = new_run()
    with pytest.raises(OSError, match="No space"):
        payload_runs.start(runs.state, run, {}, b"true\n")
    assert not runs.folder(run).exists()


def test_a_folder_without_a_record_is_no_run(runs: Runs) -> None:
    run = new_run()
    (runs.folder(run)).mkdir(parents=True)
    assert runs.host.call("runs.ids", state=runs.state) == {"ids": []}
    with pytest.raises(ConfigError):
        runs.look(run)


def test_a_run_is_started_once(runs: Runs) -> None:
    run = runs.start("say('up'); wait()")
    with pytest.raises(ToolError, match="already has a run"):
        runs.script(b"echo second\n", run)


@pytest.mark.parametrize("run", ["../etc", "a/b", "", "-rf", "a\nb"])
def test_what_is_no_id_names_no_folder(runs: Runs, run: str) -> None:
    with pytest.raises(ConfigError, match="not the id of a run"):
        runs.look(run)


def test_a_pid_that_now_belongs_to_another_process_is_not_the_server(runs: Runs) -> None:
    run = runs.start("raise SystemExit(0)")
    runs.until_ended(run)
    (runs.folder(run) / "pid").write_text(f"{os.getpid()}\n")
    assert runs.look(run)["server_pid"] is None


def test_a_run_from_before_a_reboot_is_said_so(runs: Runs) -> None:
    run = runs.start("raise SystemExit(0)")
    record = runs.folder(run) / "run.json"
    record.write_text(record.read_text().replace(procs.boot_id(), "an-earlier-boot"))
    assert runs.look(run)["rebooted"]


def test_an_outcome_is_kept_with_the_hosts_time(runs: Runs) -> None:
    run = runs.start("raise SystemExit(0)")
    note = {"outcome": "crashed", "reason": "x", "line": None}
    runs.host.call("runs.note_outcome", state=runs.state, run=run, note=note)
    kept = runs.look(run)["outcome"]
    assert {key: kept[key] for key in note} == note
    assert read_json(runs.folder(run) / "outcome.json")["at"] > 0


def foreign() -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen(["bash", "-c", "sleep 300 & wait"], stdin=subprocess.DEVNULL)
    eventually(lambda: any((p := procs.find(c)) and p.parent == process.pid for c in procs.pids()))
    found = procs.find(process.pid)
    assert found is not None
    return process, found.start


def test_a_foreign_process_is_ended_with_its_children(runs: Runs) -> None:
    process, start = foreign()
    children = [c for c in procs.pids() if (p := procs.find(c)) and p.parent == process.pid]
    with runs.host.stream(
        "runs.stop_foreign", pid=process.pid, start_ticks=start, grace_s=5.0
    ) as messages:
        list(messages)
    assert process.wait() == -signal.SIGTERM
    left = [found for child in children if (found := procs.find(child)) and found.alive]
    assert children and not left


def test_a_foreign_pid_taken_by_another_process_meanwhile_is_refused(
    runs: Runs, lab: HostSettings
) -> None:
    process, start = foreign()
    with (
        pytest.raises(ToolError, match="no longer the process that was shown"),
        runs.host.stream(
            "runs.stop_foreign", pid=process.pid, start_ticks=start - 1, grace_s=5.0
        ) as messages,
    ):
        list(messages)
    assert process.poll() is None
    for child in [c for c in procs.pids() if (p := procs.find(c)) and p.parent == process.pid]:
        os.kill(child, signal.SIGKILL)
    process.wait()


def test_runs_are_in_the_order_of_the_hosts_clock_whatever_their_ids_say(runs: Runs) -> None:
    wanted = [new_run().replace("120000", time) for time in ("130000", "110000", "120000")]
    for run in wanted:
        runs.script(b"true\n", run)
        runs.until_ended(run)
    assert runs.host.call("runs.ids", state=runs.state)["ids"] == wanted
