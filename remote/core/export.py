"""Rows as CSV and as JSON lines, for a spreadsheet or a notebook."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from remote.core.log_lines import printable_lines

FORMATS = ("csv", "jsonl")


def text(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """All rows in one of `FORMATS`."""
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    flat = [_flat(row) for row in rows]
    columns = dict.fromkeys(name for row in flat for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    if columns:
        writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row without depth: ``metrics.ttft_p99_ms``; a list is one cell of JSON."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            found[f"{prefix}{name}"] = json.dumps(value) if value else ""
        else:
            # A table is looked at on terminals too; JSON escapes by itself.
            found[f"{prefix}{name}"] = printable_lines(value) if isinstance(value, str) else value
    return found
