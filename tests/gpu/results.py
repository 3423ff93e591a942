"""What the steps saw, as rows kept in one JSON file, written after every step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DONE, PART, FAILED = "done", "part", "failed"


@dataclass(frozen=True)
class Row:
    """One check: ``ok`` None is a figure that nothing judges, or a check that was not made."""

    check: str
    ok: bool | None
    saw: str
    wanted: str = ""

    @property
    def mark(self) -> str:
        return {True: "ok", False: "WRONG", None: "-"}[self.ok]


@dataclass
class Step:
    """One step as it went; ``state`` is done, part (cut short, to be gone on with) or failed."""

    name: str
    rows: list[Row] = field(default_factory=list)
    state: str = PART
    seconds: float = 0.0
    note: str = ""

    def check(self, check: str, ok: bool, saw: object, wanted: object = "") -> bool:
        self.rows.append(Row(check, ok, shown(saw), shown(wanted)))
        return ok

    def equal(self, check: str, saw: object, wanted: object) -> bool:
        return self.check(check, saw == wanted, saw, wanted)

    def figure(self, check: str, saw: object) -> None:
        self.rows.append(Row(check, None, shown(saw)))

    def needs_gpu(self, check: str) -> None:
        self.rows.append(Row(check, None, "needs a GPU", "a GPU"))


@dataclass
class Results:
    """All steps of one run on one host, and the facts that later steps build on.

    Attributes:
        facts: by name, of JSON's own kinds: runs' ids, what a start took, memory before.
    """

    path: Path
    steps: dict[str, Step] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What earlier calls left; empty where there is nothing."""
        try:
            raw = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path)
        return cls(
            path, {name: _step(name, each) for name, each in raw["steps"].items()}, raw["facts"]
        )

    def write(self) -> None:
        """All of it, in place of what stood there."""
        steps = {
            name: {
                "state": step.state,
                "seconds": round(step.seconds, 1),
                "note": step.note,
                "rows": [asdict(row) for row in step.rows],
            }
            for name, step in self.steps.items()
        }
        text = json.dumps({"steps": steps, "facts": self.facts}, indent=1) + "\n"
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(text, "utf-8")
        beside.replace(self.path)

    def done(self, name: str) -> bool:
        return name in self.steps and self.steps[name].state == DONE

    @property
    def wrong(self) -> list[tuple[str, Row]]:
        """The checks that failed, with their steps."""
        return [
            (name, row) for name, step in self.steps.items() for row in step.rows if row.ok is False
        ]

    def table(self) -> str:
        """All rows for a person, in Markdown."""
        lines = ["| step | check | | saw | wanted |", "|---|---|---|---|---|"]
        for name, step in self.steps.items():
            rows = list(step.rows) or [Row(step.state, None, step.note)]
            lines += [_line(name, row) for row in rows]
        return "\n".join(lines) + "\n"


def _line(step: str, row: Row) -> str:
    cells = [step, row.check, row.mark, row.saw, row.wanted if row.ok is False else ""]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _step(name: str, raw: Mapping[str, Any]) -> Step:
    rows = [Row(**row) for row in raw["rows"]]
    return Step(name, rows, raw["state"], raw["seconds"], raw["note"])


def shown(value: object) -> str:
    """A value as a row shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return json.dumps(value, default=str)


def chosen(asked: str, known: Sequence[str]) -> list[str]:
    """The steps meant by ``a,b,fault``; a word means itself and all that begin with it and a dash.

    Raises:
        ValueError: a word means none.
    """
    if not asked:
        return list(known)
    found: list[str] = []
    for word in (each.strip() for each in asked.split(",")):
        exact = [word] if word in known else []
        group = [name for name in known if name.startswith(f"{word}-")] if not exact else []
        if not exact + group:
            raise ValueError(f"no step {word!r}; there are {', '.join(known)}")
        found += exact + group
    return [name for name in known if name in found]
