"""`inv bench` with the client of the real SGLang on CPU, over a real sshd; one deploy for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rig import Client, Done, OpenSSH, free_port, gpu_like, newest_run

from remote.sandbox.control import Sandbox

MATRIX = (
    *("bench", "--concurrency", "1,4", "--input-len", "16", "--output-len", "8"),
    *("--prompts", "8", "--repeats", "1"),
)
POINTS = [(1, 1), (4, 1)]


@dataclass
class Serving:
    """A client, and the server that it has deployed."""

    client: Client
    state: Path

    @property
    def run(self) -> Path:
        """The newest run's folder on the host."""
        return newest_run(self.state)

    def measure(self, *words: str) -> Done:
        return self.client.inv(*MATRIX, "--json", *words)

    def begin(self) -> subprocess.Popen[str]:
        """Start a bench and come back while its first point is measured."""
        known = set(self.run.glob("bench/2*"))
        task = self.client.start(*MATRIX, "--json")

        def measuring() -> bool:
            assert task.poll() is None, task.communicate()
            return any(
                json.loads(path.read_text())["state"] == "running"
                for folder in set(self.run.glob("bench/2*")) - known
                for path in folder.glob("points/c*.json")
            )

        wait_until(measuring)
        return task

    def resumed(self) -> dict[str, Any]:
        done = self.client.inv("bench", "--resume", "--json")
        assert done.status == 0, done.output
        found: dict[str, Any] = done.json()
        return found


def wait_until(happened: Callable[[], bool], within_s: float = 120.0) -> None:
    until = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.05)


def points(report: dict[str, Any]) -> list[tuple[int, int]]:
    return [(point["level"], point["repeat"]) for point in report["points"]]


@pytest.fixture(scope="module")
def serving(embedded: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("bench")
    openssh = OpenSSH(folder / "sshd")
    openssh.start()
    state = folder / "state"
    client = Client(folder / "project", {"gpu": gpu_like(embedded, openssh, state, free_port())})
    deployed = client.inv("deploy", "baseline")
    assert deployed.status == 0, deployed.output
    yield Serving(client, state)
    client.inv("stop")
    client.inv("rollback-patch")
    openssh.stop()


def test_the_matrix_is_measured_and_every_figure_traceable(serving: Serving) -> None:
    done = serving.measure()
    assert done.status == 0, done.output
    report = done.json()
    assert points(report) == POINTS
    assert report["invalid"] == report["missing"] == []
    assert "expected to take" in done.stderr
    assert "no GPU figures: there is no nvidia-smi" in done.stderr
    for point in report["points"]:
        source = serving.client.runs / serving.run.name / point["source"]["file"]
        kept = json.loads(source.read_text(), parse_constant=pytest.fail)
        assert kept["output_throughput"] == point["metrics"]["output_throughput"] > 0
        assert kept["completed"] == point["completed"] == 8
        assert kept["output_lens"] == [8] * 8
        assert point["gpu"] is None
        assert point["server"]["prefill_lines"] > 0
    quality = json.loads((serving.client.runs / serving.run.name / "quality.json").read_text())
    first, second, _ = quality["repetitions"]
    assert len(first) == len(quality["prompts"])
    assert first[0]["tokens"] == second[0]["tokens"]  # a server repeats itself at temperature 0


def test_a_client_killed_in_the_middle_is_resumed_and_a_second_one_refused(
    serving: Serving,
) -> None:
    task = serving.begin()
    second = serving.measure()
    assert second.status == 15, second.output
    assert "is being measured already" in second.stderr
    task.send_signal(signal.SIGKILL)
    task.wait()
    report = serving.resumed()
    assert points(report) == POINTS
    # What two goes brought home is what one would have: each row once, and no point twice.
    rows = Path(report["folder"], "points.jsonl").read_text().splitlines()
    assert sorted((row["level"], row["repeat"]) for row in map(json.loads, rows)) == POINTS

    # A line that a crash of this machine spoilt comes again from the host, the same.
    Path(report["folder"], "points.jsonl").write_text("\n".join([rows[0][:50], *rows[1:], ""]))
    assert serving.resumed()["points"] == report["points"]


def test_an_interrupted_client_leaves_the_bench_and_says_how_to_collect_it(
    serving: Serving,
) -> None:
    task = serving.begin()
    task.send_signal(signal.SIGINT)
    _, stderr = task.communicate(timeout=60)
    assert task.returncode == 130
    assert "the bench goes on; collect it with: inv bench --run" in stderr
    assert points(serving.resumed()) == POINTS


def test_a_server_killed_in_the_middle_of_a_point_is_diagnosed_and_replaced(
    serving: Serving,
) -> None:
    dead = serving.run
    task = serving.begin()
    os.kill(int((dead / "pid").read_text()), signal.SIGKILL)
    stdout, stderr = task.communicate(timeout=300)
    assert task.returncode == 4, stderr
    report = json.loads(stdout)
    assert points(report) == POINTS
    killed = report["points"][0]
    assert (killed["run"], killed["valid"]) == (dead.name, False)
    assert "the server died during the point" in killed["reasons"][0]
    assert all(point["run"] == serving.run.name != dead.name for point in report["points"][1:])
    assert all(point["valid"] for point in report["points"][1:])
    assert "killed from outside with SIGKILL" in stderr
    assert "starting the same once more" in stderr
