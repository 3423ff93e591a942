"""Real faults of the real SGLang: outcome, kind and exit code of each, and its evidence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import PROJECT, Client, OpenSSH, free_port, gpu_like, newest_run, started, wait_for

from remote.payload import procs, ranks
from remote.sandbox.control import Sandbox


def rank(run: Path, name: str) -> int:
    """The pid of a rank, as soon as it bears its name."""
    for _ in range(6000):
        roster = ranks.roster(procs.members(run.name), None)
        if name in roster:
            return roster[name].pid
        signal.sigtimedwait([], 0.02)
    raise AssertionError(f"no {name} appeared")


def failed(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """The end of a task started with ``--json``: its exit code, diagnosis and prose."""
    stdout, stderr = process.communicate(timeout=180)
    assert "Traceback (most recent call last):\n  File" not in stderr.partition("error on")[0]
    error = json.loads(stdout)["error"]
    assert error["exit_code"] == process.returncode, stderr
    return process.returncode, error["diagnosis"], stderr


def evidence(client: Client, run: Path) -> dict[str, str]:
    """The evidence that was brought, by the part of its files' names before the pid."""
    folder = client.runs / run.name / "evidence"
    assert (folder.parent / "evidence.tar.gz").exists()
    return {
        path.stem.rpartition("-")[0] or path.stem: path.read_text("utf-8", "replace")
        for path in folder.iterdir()
    }


def with_flag(client: Client, entry: dict[str, Any], words: str) -> None:
    """Give the client a start script of its own, with words that no plan has checked."""
    templates = client.folder / "templates"
    templates.mkdir(exist_ok=True)
    ours = (PROJECT / "templates" / "launch.sh.j2").read_text()
    (templates / "launch.sh.j2").write_text(
        ours.replace("-m sglang.launch_server", f"-m sglang.launch_server {words}")
    )
    client.configure({"gpu": entry}, {"templates": str(templates)})


def test_a_scheduler_killed_during_the_start(client: Client, entry: dict[str, Any]) -> None:
    deploy = client.start("deploy", "baseline", "--json")
    run = started(deploy, entry["state"])
    os.kill(rank(run, "scheduler"), signal.SIGKILL)
    status, diagnosis, stderr = failed(deploy)
    assert (status, diagnosis["outcome"]) == (10, "crashed")
    assert (diagnosis["kind"], diagnosis["confidence"]) == ("process_killed", "high")
    assert diagnosis["first_rank"] == "scheduler"
    assert "process_killed" in stderr
    assert {"launch", "kernel", "processes", "diagnosis"} & evidence(client, run).keys()
    shown = client.inv("status", "--json").json()["run"]
    assert (shown["state"], shown["processes"]) == ("crashed", 0)


def test_a_scheduler_stopped_during_the_start(client: Client, entry: dict[str, Any]) -> None:
    deploy = client.start("deploy", "baseline", "--json")
    run = started(deploy, entry["state"])
    stopped = rank(run, "scheduler")
    os.kill(stopped, signal.SIGSTOP)
    status, diagnosis, stderr = failed(deploy)
    assert (status, diagnosis["outcome"]) == (11, "hung")
    assert (diagnosis["kind"], diagnosis["first_rank"]) == ("rank_stopped", "scheduler")
    assert "scheduler is stopped" in stderr
    brought = evidence(client, run)
    assert "T (stopped)" in brought["proc-scheduler"]
    # A server that hangs is left as it is: let go on, the start can be taken up again.
    os.kill(stopped, signal.SIGCONT)
    waited = client.inv("wait")
    assert waited.status == 0, waited.output


def test_a_serving_scheduler_stopped_then_killed(client: Client, entry: dict[str, Any]) -> None:
    deployed = client.inv("deploy", "baseline")
    assert deployed.status == 0, deployed.output
    run = newest_run(entry["state"])
    healthy = client.inv("diagnose", "--json").json()
    assert (healthy["outcome"], healthy["kind"]) == ("ready", None)

    scheduler = rank(run, "scheduler")
    watch = client.start("watch", "--json")
    os.kill(scheduler, signal.SIGSTOP)
    status, diagnosis, _ = failed(watch)
    assert (status, diagnosis["kind"]) == (11, "rank_stopped")
    assert diagnosis["phase"] == "serving"
    assert client.inv("diagnose", "--json").json()["kind"] == "rank_stopped"
    os.kill(scheduler, signal.SIGCONT)
    watched = client.inv("watch", "--seconds", "3", "--json")
    assert watched.status == 0, watched.output
    assert watched.json()["outcome"] == "ready"

    watch = client.start("watch", "--json")
    assert watch.stderr is not None
    assert "is ready" in watch.stderr.readline()
    os.kill(scheduler, signal.SIGKILL)
    status, diagnosis, _ = failed(watch)
    assert (status, diagnosis["outcome"]) == (10, "died_after_ready")
    assert (diagnosis["kind"], diagnosis["first_rank"]) == ("process_killed", "scheduler")
    pulled = client.inv("pull", "--json").json()
    assert pulled["new_bytes"] == 0
    log = (client.runs / run.name / "server.log").read_bytes()
    assert log == (run / "server.log").read_bytes()
    assert "Z" in evidence(client, run)["processes"]


def test_the_port_taken_under_its_hands(client: Client, entry: dict[str, Any]) -> None:
    deploy = client.start("deploy", "baseline", "--json")
    started(deploy, entry["state"])
    with socket.create_server(("127.0.0.1", entry["port"])):
        status, diagnosis, _ = failed(deploy)
    assert (status, diagnosis["kind"]) == (10, "port_in_use")
    assert any("address already in use" in quote["text"] for quote in diagnosis["evidence"])


def test_a_flag_that_the_server_refuses(client: Client, entry: dict[str, Any]) -> None:
    with_flag(client, entry, "--enable-piecewise-cuda-graf")
    status, diagnosis, stderr = failed(client.start("deploy", "baseline", "--json"))
    assert (status, diagnosis["kind"]) == (10, "bad_cli")
    assert "--enable-piecewise-cuda-graf" in diagnosis["cause"]
    assert "--enable-piecewise-cuda-graph" in " ".join(diagnosis["advice"])
    assert "exit status 2" in stderr


def test_a_model_that_is_nowhere(client: Client, entry: dict[str, Any]) -> None:
    client.configure({"gpu": {**entry, "model": "nobody/has-this-model"}}, {})
    status, diagnosis, _ = failed(client.start("deploy", "baseline", "--json"))
    assert (status, diagnosis["kind"]) == (10, "hf_access_or_path")


def test_a_rank_that_crashes_among_two(client: Client, entry: dict[str, Any]) -> None:
    possible = {k: why for k, why in entry["unavailable"].items() if k != "tensor_parallel"}
    client.configure({"gpu": {**entry, "unavailable": possible}}, {})
    deploy = client.start("deploy", "baseline", "--set", "tensor_parallel=2", "--json")
    run = started(deploy, entry["state"])
    status, diagnosis, stderr = failed(deploy)
    assert (status, diagnosis["outcome"]) == (10, "crashed")
    assert diagnosis["kind"] == "more_ranks_than_gpus", stderr
    assert diagnosis["first_rank"] in ("TP0", "TP1")
    assert diagnosis["ranks"][diagnosis["first_rank"]] == "failed"
    assert "Traceback" in evidence(client, run)["tracebacks"]


@pytest.fixture
def cramped(embedded: Sandbox, tmp_path: Path) -> Iterator[tuple[Client, OpenSSH, Path]]:
    """A client of a host whose state folder is a small file system."""
    state = tmp_path / "small" / "state"
    server = OpenSSH(tmp_path / "cramped-sshd", small_disk=tmp_path / "small")
    server.start()
    entry = gpu_like(embedded, server, state, free_port())
    client = Client(tmp_path / "cramped", {"gpu": entry})
    yield client, server, state
    client.inv("stop")
    server.stop()


def test_the_logs_disk_is_full(cramped: tuple[Client, OpenSSH, Path]) -> None:
    client, server, state = cramped
    deploy = client.start("deploy", "baseline", "--json")
    run = started(deploy, server.inside(state))
    wait_for(run / "server.log")
    filled = client.inv("run", f"cat /dev/zero >{state}/filler")
    assert "No space left on device" in filled.output
    status, diagnosis, stderr = failed(deploy)
    assert status in (10, 11), stderr
    assert diagnosis["kind"] == "disk_or_permission", stderr
    assert str(state.parent) in stderr
