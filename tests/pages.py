"""What a report's page carries as data, and where it says that comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def document(page: Path) -> Any:
    """The data in a page."""
    text = page.read_text("utf-8")
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found, "the page carries its data"
    return json.loads(found[1])


def sources(value: Any) -> set[str]:
    """Every ``file:line`` of a result in the data, wherever it stands."""
    if isinstance(value, dict):
        return {each for key in value for each in sources(value[key])}
    if isinstance(value, list):
        return {each for item in value for each in sources(item)}
    return {value} if isinstance(value, str) and re.search(r"\.jsonl:\d+\Z", value) else set()


def line_at(runs: Path, source: str) -> Any:
    """The JSON line that a source names."""
    name, _, number = source.rpartition(":")
    return json.loads((runs / name).read_text("utf-8").splitlines()[int(number) - 1])
