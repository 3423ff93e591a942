"""SECURITY.md names a test for each promise: the tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_every_test_that_is_named_is_there() -> None:
    page = (PROJECT / "SECURITY.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) > 30
    for path, name in named:
        tree = ast.parse((PROJECT / path).read_text("utf-8"))
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, path


def test_every_promise_names_one() -> None:
    page = (PROJECT / "SECURITY.md").read_text("utf-8")
    rows = [
        row for row in page.splitlines() if row.startswith("| ") and row != "| promise | test |"
    ]
    assert rows and not [row for row in rows if "::test_" not in row]
