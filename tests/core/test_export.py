"""Rows for other tools: a reader gets back what was written."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from remote.core import export

ROWS: list[dict[str, Any]] = [
    {"id": "r1", "note": 'a, "b"\nc', "metrics": {"ttft": 1.5}, "sets": ["x=1", "y"], "lost": None},
    {"id": "r2", "note": "", "metrics": {"itl": 2}, "sets": []},
]


def test_csv_has_a_column_for_whatever_any_row_has() -> None:
    read = list(csv.DictReader(io.StringIO(export.text(ROWS, "csv"))))
    assert [row["id"] for row in read] == ["r1", "r2"]
    assert read[0]["note"] == 'a, "b"\nc'
    assert (read[0]["metrics.ttft"], read[1]["metrics.ttft"]) == ("1.5", "")
    assert json.loads(read[0]["sets"]) == ["x=1", "y"]
    assert (read[1]["sets"], read[0]["lost"], read[1]["lost"]) == ("", "", "")


def test_a_table_steers_no_terminal() -> None:
    shown = export.text([{"note": "ok \x1b[2J\x1b]0;pwned\x07 then"}], "csv")
    assert "\x1b" not in shown and "\x07" not in shown and "then" in shown


def test_jsonl_is_every_row_as_it_is() -> None:
    assert [json.loads(line) for line in export.text(ROWS, "jsonl").splitlines()] == ROWS


def test_nothing_is_no_line() -> None:
    assert export.text([], "csv") == "" == export.text([], "jsonl")
