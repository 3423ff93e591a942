"""One verdict over the logs of several nodes or ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from remote.core.diagnosis import diagnose
from remote.core.reading import Reading
from remote.core.verdict import Diagnosis, Outcome, ProcessEvidence, Role

#: Kinds that a rank shows while another one has the cause, worst last.
_WAITING = ("distributed_hang", "collective_timeout", "insufficient_evidence", "unclassified")


def diagnose_together(
    readings: Mapping[str, Reading], process: ProcessEvidence | None = None
) -> Diagnosis:
    """The verdict of the log that holds the cause, with the ranks of all of them.

    Args:
        readings: by the name under which each log is quoted; at least one.
        process: what the host knows.
    """
    verdicts = {name: diagnose(reading, process) for name, reading in readings.items()}
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))

    def order(name: str) -> tuple[int, str]:
        kind = verdicts[name].kind
        if kind is None:
            return (len(_WAITING) + 1, "")
        waiting = _WAITING.index(kind) + 1 if kind in _WAITING else 0
        return (waiting, _failed_at(readings[name]))

    decisive = min(verdicts, key=order)
    best = verdicts[decisive]
    if best.kind is None:
        return next((v for v in verdicts.values() if v.outcome is not Outcome.READY), best)
    ranks = dict(best.ranks)
    for verdict in verdicts.values():
        for rank, role in verdict.ranks.items():
            same = verdict.kind == best.kind
            told = Role.COLLATERAL if role is Role.FAILED and not same else role
            ranks.setdefault(rank, told)
    quotes = tuple(replace(quote, log=decisive) for quote in best.evidence)
    return replace(best, ranks=ranks, evidence=quotes)


def _failed_at(reading: Reading) -> str:
    """When the log first tells of a failure, as it writes time; after all others if it doesn't."""
    stamps = [folded.traceback.stamp for folded in reading.tracebacks if folded.traceback.stamp]
    if reading.state.fatal is not None and reading.state.fatal.stamp:
        stamps.append(reading.state.fatal.stamp)
    return min(stamps, default="~")
