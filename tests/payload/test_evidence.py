"""What a host tells of a run: ranks, kernel, disks; and the bundle of all of it."""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually, new_run

from remote.payload import bundle, evidence, kernel

TWO = "a = rank('scheduler_TP0'); b = rank('scheduler_TP1'); say('up'); wait()"


class Run:
    """A run on the host of a test."""

    def __init__(self, host: LocalHost, venv: Venv) -> None:
        self.host, self.venv, self.id = host, venv, new_run()
        self.state = host.settings.state

    def start(self, play: str = TWO) -> None:
        self.venv.play(play)
        script = self.venv.launch_script(self.host.settings.port)
        self.host.call("runs.start", data=script, state=self.state, run=self.id, note={})
        log = Path(self.state) / "runs" / self.id / "server.log"
        eventually(lambda: b"up" in log.read_bytes())

    def look(self, **known: int) -> Any:
        return self.host.call("evidence.look", state=self.state, run=self.id, known=known)

    def bundle(self, limit_s: float = 20.0) -> dict[str, str]:
        with self.host.stream(
            "bundle.collect",
            state=self.state,
            run=self.id,
            venv=str(self.venv.folder),
            limit_s=limit_s,
        ) as pieces:
            return {piece.body["name"]: piece.data.decode() for piece in pieces}

    def signal(self, rank: str, number: int) -> int:
        pid = int(self.look()["ranks"][rank]["pid"])
        os.kill(pid, number)
        return pid


@pytest.fixture
def run(local_host: LocalHost, fake_venv: Venv) -> Run:
    return Run(local_host, fake_venv)


def test_ranks_are_seen_with_their_states(run: Run) -> None:
    run.start()
    told = run.look()
    assert told["alive"] and told["exit_status"] is None and not told["stop_requested"]
    assert told["ranks"].keys() == {"server", "TP0", "TP1"}
    run.signal("TP1", signal.SIGSTOP)
    eventually(lambda: run.look()["ranks"]["TP1"]["state"] == "T")


def test_a_killed_rank_is_told_with_its_status(run: Run) -> None:
    run.start()
    pid = run.signal("TP0", signal.SIGKILL)
    eventually(lambda: "TP0" not in run.look()["ranks"])
    assert run.look(TP0=pid)["dead"] == [{"rank": "TP0", "pid": pid, "exit": -9}]
    (nameless,) = run.look()["dead"]
    assert (nameless["rank"], nameless["pid"], nameless["exit"]) == (None, pid, -9)


def test_the_kernel_is_asked_since_the_start(run: Run) -> None:
    run.start()
    told = run.look()["kernel"]
    assert told["lines"] == [] or "reason" not in told
    assert told["oom_kills"].keys() == told["oom_kills_before"].keys() == {"host", "group"}


def test_messages_from_before_are_left_out() -> None:
    text = "[   10.5] old\n[  200.25] new\nno time\n[  300.0] newer\n"
    assert kernel._printed(text, 100.0) == ["[  200.25] new", "[  300.0] newer"]


def test_a_full_file_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk,) = evidence.disks([str(tmp_path), str(tmp_path)])
    assert not disk["full"] and disk["free_bytes"] > 0
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    (disk,) = evidence.disks([str(tmp_path)])
    assert disk["full"]


def test_the_bundle_holds_processes_kernel_disks_and_versions(run: Run) -> None:
    run.start()
    files = run.bundle()
    assert {
        "launch.sh",
        "run.json",
        "environment.txt",
        "processes.txt",
        "kernel.txt",
        "disks.txt",
        "versions.txt",
        "nvidia-smi.txt",
    } <= files.keys()
    assert list(files)[:1] == ["launch.sh"]
    assert "sglang::scheduler_TP1" in files["processes.txt"]
    assert f"SGLANG_REMOTE_RUN={run.id}" in files["environment.txt"]
    assert "sglang 0.5.9" in files["versions.txt"]
    (status,) = [text for name, text in files.items() if name.startswith("proc-TP1-")]
    assert "State:" in status and "threads:" in status


def test_every_rank_is_asked_for_its_stack(run: Run) -> None:
    spy = run.venv.folder / "bin" / "py-spy"
    spy.write_text('#!/bin/sh\necho "Process $*"\n')
    spy.chmod(0o755)
    run.start()
    run.signal("TP1", signal.SIGSTOP)
    eventually(lambda: run.look()["ranks"]["TP1"]["state"] == "T")
    stacks = {name: text for name, text in run.bundle().items() if name.startswith("stack-")}
    assert {name.rpartition("-")[0] for name in stacks} == {
        "stack-server",
        "stack-TP0",
        "stack-TP1",
    }
    for name, text in stacks.items():
        pid = name.rpartition("-")[2].partition(".")[0]
        assert f"--pid {pid}" in text
        # A process that is stopped already can't be stopped for a look.
        assert ("--nonblocking" in text) is ("TP1" in name)


def test_a_spy_is_brought_once(run: Run) -> None:
    state, venv = run.state, str(run.venv.folder)
    assert run.host.call("bundle.wants_spy", state=state, venv=venv)["wanted"]
    run.host.call("bundle.bring_spy", data=zlib.compress(b"#!/bin/sh\n"), state=state)
    assert not run.host.call("bundle.wants_spy", state=state, venv=venv)["wanted"]
    found = bundle.find_spy(state, venv)
    assert found is not None and os.access(found, os.X_OK)


def test_a_run_that_is_gone_gives_what_is_left(run: Run) -> None:
    run.start("say('up'); raise SystemExit(3)")
    eventually(lambda: run.look()["exit_status"] == 3)
    files = run.bundle()
    assert files["exit_status"] == "3\n"
    assert not [name for name in files if name.startswith(("proc", "stack", "environment"))]


def test_what_would_come_too_late_is_named(run: Run) -> None:
    run.start()
    assert "kernel.txt" in run.bundle(limit_s=0.0)["incomplete.txt"]


@pytest.mark.parametrize(
    ("export", "count"),
    [("", 8), ("export CUDA_VISIBLE_DEVICES=0,3", 2), ("export CUDA_VISIBLE_DEVICES=''", 0)],
)
def test_gpus_are_those_that_the_server_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: str, count: int
) -> None:
    for number in range(8):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    home = tmp_path / "runs" / "r"
    home.mkdir(parents=True)
    (home / "launch.sh").write_text(f"#!/bin/bash\n{export}\nexec python\n")
    monkeypatch.setattr(evidence, "_GPU_FOLDER", str(tmp_path / "gpus"))
    assert evidence._gpus(str(tmp_path), "r") == count
