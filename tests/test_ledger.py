"""What earlier starts took, kept and read again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from remote.core.phases import Phase
from remote.errors import ToolError
from remote.ledger import Ledger


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
