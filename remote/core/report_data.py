"""What a report is made from: runs with their points, and comparisons of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from remote.core import quality
from remote.core.comparison import Comparison, MeasuredPoint

#: Outcomes of a start that went well, or was ended on purpose.
_WELL = frozenset({"ready", "serving", "stopped", "started", ""})


@dataclass(frozen=True)
class ReportRun:
    """One start of a server, and what was measured on it.

    Attributes:
        at: when it began, in seconds since the epoch.
        outcome: as the verdict has it: ``ready``, ``crashed``, …
        kind: of a failure, from its diagnosis; ``cause`` is that in a sentence.
        phases: seconds by name of the phase, in their order.
        environment: by name: ``driver``, ``sglang``, …; lists and mappings are told as such.
        script: the launch script, scrubbed.
        source: where all but the points is kept, below the folder of the runs.
    """

    id: str
    at: float
    host: str
    profile: str
    outcome: str
    note: str = ""
    kind: str = ""
    cause: str = ""
    first_rank: str = ""
    minutes_lost: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    script: str = ""
    points: tuple[MeasuredPoint, ...] = ()
    source: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome not in _WELL


@dataclass(frozen=True)
class QualityNote:
    """How a run's answers stood to the baseline's."""

    run: str
    report: quality.Report
    source: str = ""


@dataclass(frozen=True)
class ReportData:
    """All of a report; ``made_at`` in seconds since the epoch."""

    title: str
    made_at: float
    runs: tuple[ReportRun, ...]
    comparisons: tuple[Comparison, ...] = ()
    qualities: tuple[QualityNote, ...] = ()
