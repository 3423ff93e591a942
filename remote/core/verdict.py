"""What a diagnosis says, and what it may know beside the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from remote.core.phases import Phase
from remote.core.rules import Confidence

#: What a server's only rank is called; its lines wear no tag.
ONLY_RANK = "scheduler"


class Outcome(str, Enum):
    """What became of the server."""

    READY = "ready"
    CRASHED = "crashed"
    DIED_AFTER_READY = "died_after_ready"
    HUNG = "hung"
    NOT_READY = "not_ready"
    UNKNOWN = "unknown"


class Role(str, Enum):
    """A rank's part in a failure."""

    FAILED = "failed"  #: it printed the cause
    COLLATERAL = "collateral"  #: it failed because another did
    SUSPECTED = "suspected"  #: it printed nothing while others lost it
    SILENT = "silent"  #: it printed nothing about the failure
    STOPPED = "stopped"  #: it lives and does not run


#: What SIGKILL leaves as a status, by Python's and by a shell's account; None where nobody saw it.
KILLED_STATUSES = frozenset({-9, 137, None})


@dataclass(frozen=True)
class ProcessEvidence:
    """What the host knows beside the log; None where nobody asked."""

    alive: bool | None = None  #: whether the server's main process runs
    exit_status: int | None = None  #: of the main process, negative for a signal
    stop_requested: bool = False  #: this tool asked it to stop
    hung: bool = False  #: past its phase's budget without a sign of work
    dead_ranks: Mapping[str, int | None] = field(default_factory=dict)  #: rank → exit status
    stopped_ranks: tuple[str, ...] = ()  #: in state T of the process table
    kernel_oom: bool | None = None  #: the kernel says that it killed one of them for memory
    kernel_lines: tuple[str, ...] = ()
    gpus: int | None = None  #: that the server can see
    full_disks: tuple[str, ...] = ()  #: mount points without room that the server writes to

    @property
    def killed_ranks(self) -> list[str]:
        """The dead ranks that SIGKILL ended, as far as can be told."""
        return [rank for rank, status in self.dead_ranks.items() if status in KILLED_STATUSES]


@dataclass(frozen=True)
class Quote:
    """A line that decides, as it stands in the log; line 0 is the host's word."""

    line: int
    text: str
    log: str = ""  #: which log, where several were read

    def as_dict(self) -> dict[str, object]:
        """The shape printed with ``--json``."""
        named = {"log": self.log} if self.log else {}
        return {**named, "line": self.line, "text": self.text}


@dataclass(frozen=True)
class Alternative:
    """What it is easily taken for, and why it isn't."""

    kind: str
    why_not: str


@dataclass(frozen=True)
class Diagnosis:
    """The verdict over one start."""

    outcome: Outcome
    kind: str | None = None  #: None where nothing failed
    confidence: Confidence | None = None
    cause: str = ""  #: one sentence
    phase: Phase | None = None
    raised_in: str = ""  #: ``path:function`` of the innermost frame that matters
    first_rank: str = ""
    ranks: Mapping[str, Role] = field(default_factory=dict)
    spread: str = ""  #: ``2 of 2 ranks, first TP1 at 19:00:14``
    evidence: tuple[Quote, ...] = ()
    advice: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Diagnosis:
        """From `as_dict`, through JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(
                outcome=Outcome(known["outcome"]),
                kind=known["kind"],
                confidence=Confidence(known["confidence"]) if known["confidence"] else None,
                cause=str(known["cause"]),
                phase=Phase(known["phase"]) if known["phase"] else None,
                raised_in=str(known["raised_in"]),
                first_rank=str(known["first_rank"]),
                ranks={str(rank): Role(role) for rank, role in known["ranks"].items()},
                spread=str(known.get("spread", "")),
                evidence=tuple(
                    Quote(int(each["line"]), str(each["text"]), str(each.get("log", "")))
                    for each in known["evidence"]
                ),
                advice=tuple(map(str, known["advice"])),
                alternatives=tuple(
                    Alternative(str(each["kind"]), str(each["why_not"]))
                    for each in known["alternatives"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"no diagnosis: {wrong!r}") from wrong

    def as_dict(self) -> dict[str, object]:
        """The shape printed with ``--json``."""
        return {
            "outcome": self.outcome.value,
            "kind": self.kind,
            "confidence": self.confidence.value if self.confidence else None,
            "cause": self.cause,
            "phase": self.phase.value if self.phase else None,
            "raised_in": self.raised_in,
            "first_rank": self.first_rank,
            "ranks": {rank: role.value for rank, role in self.ranks.items()},
            "evidence": [quote.as_dict() for quote in self.evidence],
            "advice": list(self.advice),
            "alternatives": [
                {"kind": other.kind, "why_not": other.why_not} for other in self.alternatives
            ],
        }
