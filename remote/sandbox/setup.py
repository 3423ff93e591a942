"""Setting the embedded host up: what it will cost, then the steps still missing, in order."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from remote.errors import ToolError
from remote.sandbox.keys import write_private
from remote.sandbox.layout import Layout
from remote.sandbox.steps import Step, Work


@dataclass(frozen=True)
class Progress:
    """One thing to show: step ``step`` of ``of`` (0: before the first), and what it is doing."""

    step: int
    of: int
    name: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """What the set-up will do before it does it; sizes are measured, not exact."""

    folder: Path
    steps: tuple[str, ...]
    download_bytes: int
    disk_bytes: int

    @property
    def sentence(self) -> str:
        return (
            f"the embedded host will be set up in {self.folder}: about "
            f"{self.download_bytes / 1e6:.0f} MB to download, {self.disk_bytes / 1e9:.1f} GB of "
            f"disk ({', '.join(self.steps)})"
        )


@dataclass(frozen=True)
class StepState:
    """A step as it stands: done or not, and when it was done (ISO 8601, UTC)."""

    name: str
    done: bool
    at: str | None = None


@dataclass(frozen=True)
class Record:
    """What ``setup.json`` remembers of the steps done."""

    path: Path
    steps: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record; an absent or unreadable one remembers nothing."""
        try:
            steps = json.loads(path.read_bytes())["steps"]
        except (OSError, ValueError, KeyError, TypeError):
            return cls(path)
        return cls(path, steps if isinstance(steps, dict) else {})

    def holds(self, step: Step) -> bool:
        """Whether the step was done, and from the same inputs as it would be now."""
        return self.steps.get(step.name, {}).get("inputs") == step.inputs

    def with_step(self, step: Step, took_s: float) -> Record:
        """The record with that step done now, written."""
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        done = {"inputs": step.inputs, "at": at, "took_s": round(took_s, 1)}
        record = Record(self.path, {**self.steps, step.name: done})
        write_private(self.path, json.dumps({"steps": record.steps}, indent=1).encode())
        return record


def states(layout: Layout, steps: Sequence[Step]) -> tuple[StepState, ...]:
    """Each step as recorded *and* as found; what was deleted by hand is not done."""
    record = Record.read(layout.setup_record)
    found = []
    for step in steps:
        at = record.steps.get(step.name, {}).get("at")
        done = record.holds(step) and step.found(layout)
        found.append(StepState(step.name, done, str(at) if done and at else None))
    return tuple(found)


def plan(layout: Layout, steps: Sequence[Step]) -> Plan:
    """What is still to be done, and what that costs."""
    missing = [
        step for step, state in zip(steps, states(layout, steps), strict=True) if not state.done
    ]
    return Plan(
        layout.folder,
        tuple(step.name for step in missing),
        sum(step.download_bytes for step in missing),
        sum(step.disk_bytes for step in missing),
    )


def check_disk(todo: Plan, free_bytes: int) -> None:
    """Refuse to begin what would not fit, the downloads counted that pip unpacks from.

    Raises:
        ToolError: naming what is free and what is needed.
    """
    needed = todo.disk_bytes + todo.download_bytes
    if free_bytes < needed:
        raise ToolError(
            f"not enough disk for the embedded host in {todo.folder}: "
            f"{free_bytes / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed on the way",
            hint="make room, or name a folder on another disk",
        )


def run(
    work: Work,
    steps: Sequence[Step],
    report: Callable[[Progress], None],
) -> bool:
    """Do the steps that are not done, each checked by looking when it has run.

    An interruption leaves the steps before it recorded; the one it hit starts anew.

    Returns:
        Whether there was anything to do.

    Raises:
        ToolError: a step failed, too little disk, or a step that ran did not leave what it should.
    """
    layout = work.layout
    todo = plan(layout, steps)
    if not todo.steps:
        return False
    check_disk(todo, shutil.disk_usage(layout.folder).free)
    report(Progress(0, len(steps), "plan", todo.sentence))
    record = Record.read(layout.setup_record)
    for number, step in enumerate(steps, start=1):
        if record.holds(step) and step.found(layout):
            continue

        def detail(line: str, number: int = number, name: str = step.name) -> None:
            report(Progress(number, len(steps), name, line))

        detail(step.purpose)
        started = time.monotonic()
        step.run(work, detail)
        if not step.found(layout):
            raise ToolError(
                f"the step '{step.name}' ran, but what it should have left in {layout.folder} "
                "is not there",
                hint=f"its output is in {layout.setup_log}; inv sandbox.reset starts afresh",
            )
        record = record.with_step(step, time.monotonic() - started)
    return True


def disk_used(folder: Path) -> int:
    """Bytes on disk under a folder, links not followed."""
    total = 0
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
        except OSError:  # removed meanwhile
            continue
    return total
