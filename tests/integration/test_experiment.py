"""`inv experiment` on the embedded host: interrupted, gone on with, and every figure traced."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import eventually
from pages import document, line_at, sources
from rig import Client

from remote.sandbox.control import Sandbox

WORDS = (
    *("experiment", "baseline,piecewise", "--concurrency", "1,4", "--repeats", "2"),
    *("--prompts", "8", "--input-len", "16", "--output-len", "8"),
)
_WHOLE_S = 900


@pytest.fixture
def client(embedded: Sandbox, tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path / "project", {}, {"sandbox": {"folder": str(embedded.folder)}})
    yield made
    made.inv("stop")
    made.inv("rollback-patch")


def rows(client: Client) -> list[dict[str, Any]]:
    found = client.runs.glob("*/bench/*/points.jsonl")
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_an_interrupted_experiment_goes_on_to_the_same_rows(client: Client) -> None:
    first = client.start(*WORDS)
    try:
        eventually(lambda: len(rows(client)) >= 5, within_s=_WHOLE_S)  # in the second bench
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    second = client.start(*WORDS, "--json")
    stdout, stderr = second.communicate(timeout=_WHOLE_S)
    assert second.returncode == 0, stderr
    assert "going on with experiment" in stderr and "1 of 3 steps are done" in stderr

    told = json.loads(stdout)
    steps = told["experiment"]["steps"]
    assert [(step["name"], step["stage"], len(step["runs"])) for step in steps] == [
        ("baseline", "done", 1),
        ("piecewise", "done", 1),  # the server that was found measuring went on
        ("baseline again", "done", 1),
    ]
    wanted = {(level, repeat) for level in (1, 4) for repeat in (1, 2)}
    found = rows(client)
    assert len(found) == 12 and all(row["valid"] for row in found)
    for step in steps:
        mine = {(r["level"], r["repeat"]): r["seed"] for r in found if r["run"] in step["runs"]}
        assert mine.keys() == wanted
        assert all(seed == repeat for (_, repeat), seed in mine.items()), "the same seeds"

    data = document(Path(told["report"]["html"]))
    points = [point for run in data["runs"] for point in run["points"]]
    assert {run["id"] for run in data["runs"]} == {step["runs"][0] for step in steps}
    assert len(points) == 12 and len(sources(data)) == 12
    for point in points:
        raw = line_at(client.runs, point["source"])
        assert point["metrics"]["output_throughput"] == raw["output_throughput"]
        assert point["metrics"]["ttft_p99_ms"] == raw["p99_ttft_ms"]
    for row in told["comparisons"]["piecewise"]["speed"]["rows"]:
        assert all(line_at(client.runs, source) for side in row["sources"] for source in side)
    assert told["comparisons"]["piecewise"]["output"]["verdict"] == "within"

    listed = json.loads(client.inv("runs", "--json").stdout)
    assert len(listed["runs"]) == 3
    status = json.loads(client.inv("status", "--json").stdout)
    assert status["run"]["state"] == "stopped" and status["patches"]["applied"] == []
