"""One start as the ledger keeps it: what was started, what became of it, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from remote.core.host_facts import RunState

STARTED = "started"
READY = "ready"
#: A start that ended so never served, or serves no more because it failed.
FAILED = frozenset({"crashed", "died_after_ready", "hung", "not_ready", "refused", "not_started"})
#: Every word an outcome can be, in the order of a life.
OUTCOMES = (
    *(STARTED, "not_started", "refused", "not_ready", READY, "hung", "crashed"),
    *("died_after_ready", "stopped", "rebooted", "ended"),
)
#: Nothing that is learnt later changes these.
_FINAL = frozenset(
    {"crashed", "died_after_ready", "stopped", "rebooted", "ended", "refused", "not_started"}
)


@dataclass(frozen=True)
class RunRow:
    """A row of the ledger's runs.

    Attributes:
        at: when it was started, in seconds since the epoch.
        user, client: who started it, and on which machine.
        choice: the patch sets asked for, as `deploy.PatchChoice`.
        argv: the rendered flags, secrets masked.
        script_identity: see `start_identity.script_identity`.
        identity: see `start_identity.identity`.
        fingerprint: the environment, see `start_identity.fingerprint`.
        outcome: one of `OUTCOMES`; ``started`` until somebody saw more.
        seconds: from the start to the outcome; None where nobody saw when.
        ready_seconds: from the start to readiness, where it got there.
        minutes_lost: see `minutes_lost`; None where that is not known.
        points_lost: bench points that a dying server left invalid.
        folder: what is kept of it here; empty where nothing is.
    """

    id: str
    at: float
    host: str
    profile: str
    user: str = ""
    client: str = ""
    sets: tuple[str, ...] = ()
    choice: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    script_identity: str = ""
    identity: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = STARTED
    kind: str = ""
    cause: str = ""
    first_rank: str = ""
    phase: str = ""
    seconds: float | None = None
    ready_seconds: float | None = None
    minutes_lost: float | None = None
    points_lost: int = 0
    note: str = ""
    folder: str = ""

    @property
    def who(self) -> str:
        return f"{self.user}@{self.client}" if self.client else self.user

    @property
    def failed(self) -> bool:
        return self.outcome in FAILED

    @property
    def ending(self) -> str:
        """What became of it in a line."""
        why = ": ".join(part for part in (self.kind, self.cause) if part)
        return self.outcome.replace("_", " ") + (f" ({why})" if why else "")

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json`` and exported."""
        return {**asdict(self), "sets": list(self.sets), "argv": list(self.argv)}

    @classmethod
    def from_record(
        cls, run: str, host: str, at: float, record: Mapping[str, Any], folder: str = ""
    ) -> RunRow:
        """From what was written down at the start (`deploy.Plan.record`), also by an older tool."""
        return cls(
            id=run,
            at=at,
            host=host,
            profile=str(record.get("profile", "")),
            user=str(record.get("user", "")),
            client=str(record.get("client", "")),
            sets=tuple(map(str, record.get("sets", ()))),
            choice=dict(record.get("patch_choice", {})),
            argv=tuple(map(str, record.get("argv", ()))),
            script_identity=str(record.get("script_identity", "")),
            identity=str(record.get("start_identity", "")),
            fingerprint=dict(record.get("environment_fingerprint", {})),
            note=str(record.get("note", "")),
            folder=folder,
        )


@dataclass(frozen=True)
class Ending:
    """What was learnt of how a start ended; empty and None where that was not learnt."""

    outcome: str
    kind: str = ""
    cause: str = ""
    first_rank: str = ""
    phase: str = ""
    seconds: float | None = None


def settled(row: RunRow, learnt: Ending) -> RunRow:
    """The row with what was learnt, however late and in whatever order it is learnt.

    A death is final, but its diagnosis may come later; a server that was ready and is gone died
    after it; one that is stopped on request when it serves, or after it failed, stays what it was.
    """
    new = learnt.outcome
    if row.outcome == READY and new == "crashed":
        new = "died_after_ready"
    if row.outcome == "died_after_ready" and new == "crashed":
        new = row.outcome
    if new == row.outcome or (row.outcome == "crashed" and new == "died_after_ready"):
        return replace(
            row,
            outcome=new,
            kind=row.kind or learnt.kind,
            cause=learnt.cause if learnt.kind and not row.kind else row.cause or learnt.cause,
            first_rank=row.first_rank or learnt.first_rank,
            phase=row.phase or learnt.phase,
            seconds=learnt.seconds if row.seconds is None else row.seconds,
        )
    if new == STARTED or row.outcome in _FINAL:
        return row
    if row.outcome in (READY, "hung") and new in ("stopped", "not_ready"):
        return row
    if row.outcome != STARTED and new in ("refused", "not_started"):
        return row
    ready_seconds = row.ready_seconds
    if new == READY and ready_seconds is None:
        ready_seconds = learnt.seconds
    return replace(
        row,
        outcome=new,
        kind=learnt.kind,
        cause=learnt.cause,
        first_rank=learnt.first_rank,
        phase=learnt.phase,
        seconds=learnt.seconds,
        ready_seconds=ready_seconds,
    )


def learnt_from(found: RunState) -> tuple[Ending, ...]:
    """What the host knows of a run, in its order; nothing before somebody saw where it led."""
    told = found.outcome or {}
    seen = str(told.get("outcome", ""))
    outcome = found.state
    if outcome == "crashed":
        outcome = "died_after_ready" if seen in (READY, "died_after_ready") else "crashed"
    elif seen == READY and outcome in ("stopped", "rebooted", "ended", "dying"):
        outcome = READY
    elif outcome in ("starting", "dying"):
        outcome = seen
    if outcome not in OUTCOMES:
        return ()
    told_at = told.get("at")
    if outcome == READY:
        return (Ending(READY, seconds=_span(found, told_at)),)
    if seen != outcome:
        ready = (Ending(READY, seconds=_span(found, told_at)),) if seen == READY else ()
        # Whether one that was stopped had served until then, nobody saw.
        died = outcome in ("crashed", "died_after_ready")
        return (*ready, Ending(outcome, seconds=_span(found, found.ended_at) if died else None))
    return (
        Ending(
            outcome,
            kind=str(told.get("kind") or ""),
            cause=str(told.get("cause") or told.get("reason") or ""),
            seconds=_span(found, found.ended_at, told_at),
        ),
    )


def _span(found: RunState, *ends: float | None) -> float | None:
    """Seconds from the start to the first of the moments, by the host's clock."""
    began, known = found.record.get("started_at"), [float(at) for at in ends if at is not None]
    return round(max(min(known) - float(began), 0.0), 1) if known and began else None


def minutes_lost(row: RunRow, points_lost_s: float = 0.0) -> float | None:
    """Minutes that a start cost and gave nothing for.

    From the start to the verdict for one that did not get ready. Of one that served and then
    failed, its way to readiness, which must be gone again, and the bench points it died in.

    Args:
        points_lost_s: what those points took.

    Returns:
        None where it is not known: nobody saw how, or when, the start ended.
    """
    if row.outcome == STARTED:
        return None
    if row.outcome in (READY, "ended"):
        return 0.0
    if row.outcome in ("rebooted", "stopped"):
        return 0.0 if row.ready_seconds is not None else _minutes(row.seconds)
    if row.ready_seconds is not None:
        return _minutes(row.ready_seconds + points_lost_s)
    if row.outcome == "died_after_ready":
        return _minutes(points_lost_s or None)
    return _minutes(row.seconds)


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def headline(points: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, int] | None:
    """A run's figure for one metric: the mean over the repeats at its highest level.

    Args:
        points: rows as `bench_result.Point.as_dict` gives them; the invalid ones don't count.

    Returns:
        The figure and the level; None where no valid point has it.
    """
    found: dict[int, list[float]] = {}
    for point in points:
        value = point["metrics"].get(metric) if point["valid"] else None
        if value is not None:
            found.setdefault(int(point["level"]), []).append(float(value))
    if not found:
        return None
    level = max(found)
    return sum(found[level]) / len(found[level]), level
