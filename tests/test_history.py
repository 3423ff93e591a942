"""Past runs listed, shown, compared and exported, with no host in reach."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from remote import history
from remote.core.phases import Phase
from remote.core.run_list import Asked
from remote.core.run_record import Ending, RunRow
from remote.display import Display
from remote.errors import ConfigError, ToolError
from remote.ledger import EventRow, Ledger

A, B, C = (
    "20261129-201530-baseline-00aa",
    "20261129-203000-piecewise-00bb",
    "20261130-080000-piecewise-00cc",
)
FOUND = {"driver": "580", "gpus": ["NVIDIA H200"] * 2, "torch": "2.9.1", "venv": "0" * 64}


class Past:
    """A project with three runs: one served and was measured, one crashed, one is going on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.ledger = Ledger(self.runs)
        self.settings: dict[str, object] = {"runs": str(self.runs)}
        self.display = Display()
        self.start(A, 1000.0, "baseline", ("--tp-size", "2"), note="the reference")
        self.start(
            B,
            2000.0,
            "piecewise",
            ("--tp-size", "2", "--enable-piecewise-cuda-graph"),
            fingerprint={**FOUND, "torch": "2.10", "patches": {"flashinfer/fp4-opaque": "a" * 64}},
        )
        self.start(C, 3000.0, "piecewise", ("--tp-size", "2"), host="cpu")
        self.ledger.note_ending(A, Ending("ready", seconds=95.0))
        self.ledger.note_phases("gpu", "baseline", A, {Phase.WEIGHTS: 60.5}, 1095.0)
        crash = Ending("crashed", "kv_pool_too_small", "no memory", "TP1", "kv_pool", 90.0)
        self.ledger.note_ending(B, crash)
        self.ledger.note_event(EventRow(2090.0, "ann", "desk", "gpu", B, "crash", {"kind": "x"}))
        for run, factor in ((A, 1.0), (B, 1.1)):
            for level in (1, 4):
                self.ledger.note_point(self.point(run, level, 100.0 * level * factor))
        self.ledger.note_point({**self.point(A, 4, 1.0), "repeat": 2, "valid": False})

    def start(self, run: str, at: float, profile: str, argv: tuple[str, ...], **more: Any) -> None:
        values = {"host": "gpu", "fingerprint": {**FOUND, "patches": {}}, **more}
        row = RunRow(run, at, profile=profile, argv=argv, user="ann", client="desk", **values)
        self.ledger.note_start(row)
        folder = self.runs / run
        folder.mkdir(parents=True, exist_ok=True)
        script = f"cd -- /root/runs/{run}\nexec python -m sglang.launch_server {' '.join(argv)}\n"
        (folder / "launch.sh").write_text(script)
        plan = {"run": run, "host": row.host, "profile": profile, "argv": list(argv), "user": "ann"}
        (folder / "plan.json").write_text(json.dumps({**plan, "note": row.note}))

    def point(self, run: str, level: int, throughput: float) -> dict[str, Any]:
        return {
            "bench": f"bench-{run}",
            "run": run,
            "level": level,
            "repeat": 1,
            "valid": True,
            "reasons": [],
            "input_len": 16,
            "output_len": 8,
            "started_at": 0,
            "ended_at": 9,
            "metrics": {"output_throughput": throughput, "ttft_p99_ms": 5.0},
        }

    def list(self, **asked: Any) -> dict[str, Any]:
        return history.runs(self.settings, self.folder, self.display, Asked(**asked))

    def show(self, word: str) -> dict[str, Any]:
        return history.show(self.settings, self.folder, self.display, word)

    def diff(self, was: str, now: str) -> dict[str, Any]:
        return history.diff(self.settings, self.folder, self.display, was, now)

    def export(self, what: str, form: str, output: str) -> dict[str, Any] | None:
        return history.export(self.settings, self.folder, self.display, what, form, output)


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path)


def ids(found: dict[str, Any]) -> list[str]:
    return [row["id"] for row in found["runs"]]


def test_the_list_sums_up_what_was_lost(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    found = past.list()
    assert ids(found) == [C, B, A]
    assert (found["total"], found["failed"], found["minutes_lost"]) == (3, 1, 1.5)
    assert found["runs"][2]["output_throughput"] == {"mean": 400.0, "level": 4}
    told = capsys.readouterr().out
    assert "3 runs, 1 failed, 1.5 minutes lost" in told
    assert "crashed: kv_pool_too_small" in told and "400.0 at 4" in told and "the reference" in told


def test_the_limit_cuts_the_list_and_not_the_sum(
    past: Past, capsys: pytest.CaptureFixture[str]
) -> None:
    found = past.list(limit=1, sort="minutes_lost", host="gpu")
    assert ids(found) == [B] and (found["total"], found["minutes_lost"]) == (2, 1.5)
    assert "1 shown" in capsys.readouterr().out


def test_all_about_one_run(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    found = past.show(B)
    assert (found["run"]["kind"], found["kept_by"]) == ("kv_pool_too_small", "ledger")
    assert [event["what"] for event in found["events"]] == ["crash"]
    assert found["files"] == ["launch.sh", "plan.json"]
    told = capsys.readouterr().out
    for words in (
        "crashed (kv_pool_too_small: no memory)",
        "by ann@desk",
        "after 1 min 30 s, in phase kv_pool, first on TP1",
        "flashinfer/fp4-opaque (aaaaaaaaaaaa)",
        "GPUs: 2 × NVIDIA H200",
        "1.5 minutes lost",
    ):
        assert words in told
    past.show(A)
    told = capsys.readouterr().out
    assert "note: the reference" in told and "loading weights 60.5 s" in told


@pytest.mark.parametrize(("word", "run"), [("last", C), (A[:16], A), (B, B), (C[:8], C)])
def test_a_run_is_found_by_what_is_unique(past: Past, word: str, run: str) -> None:
    assert past.show(word)["run"]["id"] == run


@pytest.mark.parametrize("word", ["20261129", "2027", "", "../x"])
def test_what_is_not_unique_is_refused_with_what_there_is(past: Past, word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        past.show(word)
    assert refused.value.evidence and "inv runs" in str(refused.value.hint)


def test_the_same_start_is_named(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("20261201-000000-p-0001", "20261201-000001-p-0002"):
        past.ledger.note_start(RunRow(run, 1.0, "gpu", "p", identity="same"))
    assert past.show("20261201-000001")["same_starts"] == ["20261201-000000-p-0001"]


def test_a_lost_ledger_leaves_the_folders(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    (past.runs / B / "verdict.json").write_text(
        json.dumps({"outcome": "crashed", "elapsed_s": 90.0, "phase": "kv_pool"})
    )
    (past.runs / B / "diagnosis.json").write_text(
        json.dumps({"kind": "kv_pool_too_small", "cause": "no memory", "first_rank": "TP1"})
    )
    past.ledger.path.unlink()
    assert past.list()["runs"] == []
    assert "3 folders" in capsys.readouterr().out
    found = past.show(B)
    assert found["kept_by"] == "folder"
    assert (found["run"]["outcome"], found["run"]["kind"]) == ("crashed", "kv_pool_too_small")
    assert (found["run"]["profile"], found["run"]["seconds"]) == ("piecewise", 90.0)
    assert past.show("last")["run"]["id"] == C
    assert past.diff(A, B)["flags"]["added"] == ["--enable-piecewise-cuda-graph"]
    assert not past.ledger.exists


def test_a_folder_that_holds_nonsense_is_still_shown(past: Past) -> None:
    past.ledger.path.unlink()
    for name in ("plan.json", "verdict.json"):
        (past.runs / B / name).write_text("{ not json")
    assert past.show(B)["run"]["outcome"] == "started"


def test_without_any_run_nothing_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"runs": str(tmp_path / "runs")}
    assert history.runs(settings, tmp_path, Display(), Asked())["total"] == 0
    assert "nothing was started yet" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no run was started yet"):
        history.find(settings, tmp_path, "last")


def test_what_differs_between_two_runs(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    found = past.diff(A, B)
    assert found["flags"] == {"removed": [], "added": ["--enable-piecewise-cuda-graph"]}
    assert [(e["what"], e["was"], e["now"]) for e in found["environment"]] == [
        ("torch", "2.9.1", "2.10"),
        ("patch flashinfer/fp4-opaque", None, "a" * 12),
    ]
    assert "+exec python -m sglang.launch_server --tp-size 2 --enable-piecewise" in found["script"]
    assert A not in found["script"] and B not in found["script"]
    shown = {(p["level"], p["metric"]): (p["was"], p["now"]) for p in found["points"]}
    assert shown[4, "output_throughput"] == (400.0, pytest.approx(440.0))  # invalid left out
    told = capsys.readouterr().out
    assert "1.100" in told and "inv compare" in told


def test_the_same_start_differs_in_nothing(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    twin = "20261129-220000-baseline-00dd"
    past.start(twin, 4000.0, "baseline", ("--tp-size", "2"))
    found = past.diff(A, twin)
    assert found["script"] == "" and found["environment"] == []
    assert "the same flags, environment, patches and script" in capsys.readouterr().out


def test_a_script_that_is_not_kept_is_said(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    (past.runs / A / "launch.sh").unlink()
    assert past.diff(A, B)["script"] is None
    assert "is not kept here" in "".join(capsys.readouterr())


def test_runs_and_points_are_exported(past: Past, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    assert past.export("runs", "csv", str(path)) == {
        "file": str(path),
        "rows": 3,
        "what": "runs",
        "format": "csv",
    }
    rows = list(csv.DictReader(path.open()))
    assert [row["id"] for row in rows] == [C, B, A]
    assert rows[1]["fingerprint.torch"] == "2.10" and rows[1]["minutes_lost"] == "1.5"
    path = tmp_path / "points.jsonl"
    past.export("points", "jsonl", str(path))
    points = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(points) == 5 and points[0] == past.point(A, 1, 100.0)


def test_an_export_goes_to_standard_output(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    assert past.export("runs", "jsonl", "") is None
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [C, B, A]


def test_a_failed_export_leaves_what_was_there(
    past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "runs.csv"
    path.parent.mkdir()
    path.write_text("earlier\n")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match="No space left"):
        past.export("runs", "csv", str(path))
    assert path.read_text() == "earlier\n"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("what", "form", "output"),
    [("rows", "csv", "x"), ("runs", "xml", "x"), ("runs", "csv", "."), ("runs", "csv", "no/x")],
)
def test_an_export_that_cannot_be_is_refused(
    past: Past, tmp_path: Path, what: str, form: str, output: str
) -> None:
    with pytest.raises(ConfigError):
        past.export(what, form, str(tmp_path / output))
