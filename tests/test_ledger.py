"""Every start, its end, its points and its phases, kept and read again."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote.core.phases import Phase
from remote.core.run_record import Ending, RunRow
from remote.errors import ToolError
from remote.ledger import EventRow, Ledger
from remote.ledger.schema import STEPS

VERSION_1 = Path(__file__).parent / "cases" / "ledger" / "version-1.sqlite"


def start(run: str = "r1", at: float = 100.0, **more: Any) -> RunRow:
    return RunRow(id=run, at=at, **{"host": "gpu", "profile": "baseline", **more})


def point(level: int, repeat: int = 1, *, run: str = "r1", **more: Any) -> dict[str, Any]:
    throughput = more.pop("output_throughput", 100.0)
    return {
        "bench": "20261129-201530-00ff",
        "run": run,
        "level": level,
        "repeat": repeat,
        "valid": True,
        "reasons": [],
        "metrics": {"output_throughput": throughput},
        "started_at": 1000.0,
        "ended_at": 1060.0,
        **more,
    }


def test_phases_come_back_by_host_and_profile_newest_last(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs")
    for number, seconds in enumerate((30.0, 10.0, 20.0)):
        ledger.note_phases("gpu", "baseline", f"run{number}", {Phase.WEIGHTS: seconds}, number)
    ledger.note_phases("gpu", "piecewise", "other", {Phase.WEIGHTS: 99.0}, 9)
    ledger.note_phases("cpu", "baseline", "another", {Phase.HTTP: 1.0}, 9)
    assert Ledger(tmp_path / "runs").phases("gpu", "baseline") == {Phase.WEIGHTS: [30, 10, 20]}


def test_only_the_last_starts_count(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(15):
        ledger.note_phases("gpu", "p", f"run{number}", {Phase.HTTP: float(number)}, number)
    assert ledger.phases("gpu", "p")[Phase.HTTP] == [float(n) for n in range(5, 15)]


def test_a_start_noted_twice_counts_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for seconds in (1.0, 2.0):
        ledger.note_phases("gpu", "p", "run", {Phase.HTTP: seconds}, seconds)
    assert ledger.phases("gpu", "p") == {Phase.HTTP: [2.0]}


def test_reading_makes_no_file(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "runs").phases("gpu", "p") == {}
    assert not (tmp_path / "runs").exists()


def test_a_phase_of_a_newer_tool_is_passed_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_phases("gpu", "p", "run", {Phase.HTTP: 1.0}, 1)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as base:
        base.execute("INSERT INTO phase_durations VALUES ('gpu','p','run','teleport',1,1)")
    assert ledger.phases("gpu", "p") == {Phase.HTTP: [1.0]}


def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.sqlite") as base:
        base.execute("PRAGMA user_version = 99")
    with pytest.raises(ToolError, match="newer version"):
        Ledger(tmp_path).phases("gpu", "p")


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("nothing of the sort " * 100)
    with pytest.raises(ToolError, match=r"ledger\.sqlite can't be used"):
        Ledger(tmp_path).note_phases("gpu", "p", "run", {Phase.HTTP: 1.0}, 1)


def test_a_start_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    row = start(
        user="ann",
        client="desk",
        sets=("tp-size=2", "env.NCCL_DEBUG=INFO"),
        choice={"named": [], "added": ["fp4-opaque"], "bare": False},
        argv=("--tp-size", "2"),
        script_identity="5c",
        identity="1d",
        fingerprint={"driver": "580", "gpus": ["NVIDIA H200"] * 2, "patches": {"a/b": "77"}},
        note="is it faster with ‘two’?",
        folder="runs/r1",
    )
    assert Ledger(tmp_path / "runs").note_start(row)
    assert Ledger(tmp_path / "runs").run("r1") == row


def test_a_start_is_kept_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.note_start(start(note="first"))
    assert not ledger.note_start(start(note="second"))
    assert [row.note for row in ledger.runs()] == ["first"]


def test_starts_are_listed_newest_first_by_host_and_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for run, at, host in (("a", 10.0, "gpu"), ("b", 30.0, "gpu"), ("c", 20.0, "cpu")):
        ledger.note_start(start(run, at, host=host))
    assert [row.id for row in ledger.runs()] == ["b", "c", "a"]
    assert [row.id for row in ledger.runs(host="gpu", since=20.0)] == ["b"]


def test_an_end_is_kept_with_what_it_cost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_start(start())
    learnt = Ending("crashed", "kv_pool_too_small", seconds=90.0)
    before, after = ledger.note_ending("r1", learnt) or (None, None)
    assert before == start() and after is not None and after == ledger.run("r1")
    assert (after.outcome, after.kind, after.minutes_lost) == ("crashed", learnt.kind, 1.5)
    assert ledger.note_ending("r1", Ending("crashed", seconds=500.0)) is None
    assert ledger.note_ending("r2", Ending("crashed")) is None


def test_a_death_in_a_bench_costs_its_start_and_its_points(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_start(start())
    ledger.note_ending("r1", Ending("ready", seconds=120.0))
    ledger.note_point(point(1))
    ledger.note_point(point(4, valid=False, reasons=["the server died"]))
    before = ledger.run("r1")
    assert before is not None and (before.minutes_lost, before.points_lost) == (0.0, 0)
    ledger.note_ending("r1", Ending("crashed", seconds=600.0))
    after = ledger.run("r1")
    assert after is not None and after.outcome == "died_after_ready"
    assert (after.minutes_lost, after.points_lost) == (3.0, 1)


def test_a_point_that_is_noted_after_the_death_is_reckoned_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_start(start())
    ledger.note_ending("r1", Ending("ready", seconds=60.0))
    ledger.note_ending("r1", Ending("died_after_ready", seconds=600.0))
    ledger.note_point(point(4, valid=False, reasons=["the server died"]))
    row = ledger.run("r1")
    assert row is not None and (row.minutes_lost, row.points_lost) == (2.0, 1)


def test_a_point_measured_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    class Measured:
        def as_dict(self) -> dict[str, Any]:
            return point(4, output_throughput=55.0)

    ledger = Ledger(tmp_path)
    ledger.note_point(point(4, valid=False))
    ledger.note_point(Measured())
    ledger.note_point(point(1))
    ledger.note_point(point(1, repeat=2, run="r2"))
    assert [(p["level"], p["repeat"]) for p in ledger.points()] == [(1, 1), (1, 2), (4, 1)]
    assert ledger.points(["r1"])[1] == point(4, output_throughput=55.0)


def test_events_come_back_in_their_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    rows = [
        EventRow(5.0, "ann", "desk", "gpu", "r1", "deploy", {"changed": True}),
        EventRow(6.0, "ann", "desk", "gpu", None, "rollback", {"files": ["a"]}),
    ]
    for row in rows:
        ledger.note_event(row)
    assert ledger.events() == rows
    assert ledger.events("r1") == rows[:1]


def test_the_baseline_named_last_comes_first(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.set_baseline("gpu", "june", "r1", 1.0)
    ledger.set_baseline("gpu", "july", "r2", 2.0)
    ledger.set_baseline("gpu", "june", "r3", 3.0)
    ledger.set_baseline("cpu", "june", "r9", 9.0)
    assert list(ledger.baselines("gpu").items()) == [("june", "r3"), ("july", "r2")]


def test_reading_of_anything_makes_no_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert (ledger.runs(), ledger.points(), ledger.events(), ledger.run("r")) == ([], [], [], None)
    assert not ledger.exists


def test_a_file_of_version_1_is_brought_up_to_date_and_keeps_what_it_has(tmp_path: Path) -> None:
    shutil.copy(VERSION_1, tmp_path / "ledger.sqlite")
    ledger = Ledger(tmp_path)
    before = ledger.phases("sandbox", "piecewise")
    assert round(before[Phase.ARGUMENTS][0], 3) == 27.096
    ledger.note_start(start())
    ledger.note_ending("r1", Ending("ready", seconds=1.0))
    assert ledger.phases("sandbox", "piecewise") == before
    assert [row.outcome for row in ledger.runs()] == ["ready"]
    with sqlite3.connect(tmp_path / "ledger.sqlite") as base:
        assert base.execute("PRAGMA user_version").fetchone() == (len(STEPS),)


def test_a_step_that_fails_leaves_the_old_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(VERSION_1, tmp_path / "ledger.sqlite")
    broken = (*STEPS[:1], "CREATE TABLE runs (id TEXT); CREATE TABLE runs (id TEXT);")
    monkeypatch.setattr("remote.ledger.schema.STEPS", broken)
    with pytest.raises(ToolError):
        Ledger(tmp_path).note_start(start())
    assert (tmp_path / "ledger.sqlite").read_bytes() == VERSION_1.read_bytes()


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    code = """
import sys; from pathlib import Path
from remote.core.run_record import Ending, RunRow; from remote.ledger import EventRow, Ledger
ledger, me = Ledger(Path(sys.argv[1])), sys.argv[2]
for n in range(40):
    ledger.note_start(RunRow(id=f"{me}-{n}", at=n, host="gpu", profile="p"))
    ledger.note_ending(f"{me}-{n}", Ending("ready", seconds=1.0))
    ledger.note_event(EventRow(n, me, "c", "gpu", f"{me}-{n}", "deploy", {}))
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), me], stderr=subprocess.PIPE)
        for me in "ab"
    ]
    for process in both:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr.decode()
    ledger = Ledger(tmp_path)
    assert len(ledger.runs()) == 80 and {row.outcome for row in ledger.runs()} == {"ready"}
    assert len(ledger.events()) == 80


def test_a_writer_that_dies_in_the_middle_leaves_nothing_half(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note_start(start())
    code = """
import os, sys; from pathlib import Path; from remote.ledger.schema import writing
with writing(Path(sys.argv[1])) as base:
    base.execute("UPDATE runs SET outcome = 'ready'")
    os._exit(9)
"""
    died = subprocess.run([sys.executable, "-c", code, str(ledger.path)], check=False)
    assert died.returncode == 9
    assert [row.outcome for row in ledger.runs()] == ["started"]
