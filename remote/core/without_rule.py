"""Verdicts where no rule fits: what the host knows, where a log is cut off, silence."""

from __future__ import annotations

import re

from remote.core.consequences import names_an_exception
from remote.core.failure_sites import culprit
from remote.core.log_lines import LogLine
from remote.core.matching import Case, Match, quote
from remote.core.phases import Phase
from remote.core.reading import Reading
from remote.core.rules import BY_KIND, INSUFFICIENT, UNCLASSIFIED, Confidence, Sign, serving
from remote.core.telling import in_words, sentence, taken_for
from remote.core.tracebacks import FoldedTraceback
from remote.core.verdict import KILLED_STATUSES, Diagnosis, Outcome, ProcessEvidence, Quote, Role

_MAX_EVIDENCE = 8
#: Where a start fell silent → what that most likely is.
_SILENT_IN = {
    Phase.DISTRIBUTED: "distributed_hang",
    Phase.WEIGHTS: "host_oom_kill",
    Phase.DECODE_CAPTURE: "distributed_hang",
    Phase.PREFILL_CAPTURE: "distributed_hang",
    Phase.JIT_BUILD: "jit_lock_hang",
    Phase.SERVING: "watchdog_or_health",
}


def unexplained(
    case: Case, outcome: Outcome, process: ProcessEvidence, failures: list[FoldedTraceback]
) -> Diagnosis:
    """Something failed, and no rule says what.

    A rank's own exception goes before what the host tells: SGLang kills its processes after it.
    """
    if case.origin is None or not case.origin.traceback.root.type:
        told = told_by_the_host(case, outcome, process)
        if told is not None:
            return told
    if case.origin is not None and case.origin.traceback.root.type:
        block = case.origin.traceback.root
        headline = quote(case.reading, block.line, block.headline)
        sign = Sign("", confidence=Confidence.LOW)
        found = Match(
            UNCLASSIFIED,
            sign,
            {"what": block.headline},
            headline,
            case.origin.traceback.rank,
            case.origin,
        )
        return in_words(case, outcome, found, failures, [])
    return _insufficient(case, outcome, failures)


def _insufficient(case: Case, outcome: Outcome, failures: list[FoldedTraceback]) -> Diagnosis:
    """Only consequences: who lost whom, and where each rank was."""
    reading = case.reading
    cut = [folded for folded in failures if not names_an_exception(folded.traceback)]
    if cut and cut[0] is failures[0]:
        return _cut_off(case, outcome, cut[0])
    lost = {rank for folded in failures for rank in folded.ranks}
    roles = {
        rank: Role.COLLATERAL if rank in lost else Role.SUSPECTED if lost else Role.SILENT
        for rank in reading.last_of_rank
    }
    quotes = [
        quote(reading, folded.traceback.root.line, folded.traceback.root.headline)
        for folded in failures[:3]
        if folded.traceback.root.type
    ]
    if reading.state.fatal is not None:
        quotes.append(quote(reading, reading.state.fatal.line, reading.state.fatal.text))
    suspects = [rank for rank, role in roles.items() if role is Role.SUSPECTED]
    cause = INSUFFICIENT.cause
    if suspects:
        named = ", ".join(suspects[:8])
        cause += f" Suspected: {named}, which printed nothing while the others lost the connection."
    return Diagnosis(
        outcome=outcome,
        kind=INSUFFICIENT.kind,
        confidence=Confidence.MEDIUM,
        cause=cause,
        phase=case.phase,
        ranks=roles,
        evidence=tuple(quotes),
        advice=(*last_phases(reading), *INSUFFICIENT.advice),
    )


def killed(case: Case, outcome: Outcome) -> Diagnosis | None:
    """A shell says that its program was killed: by the kernel, by somebody, or by SGLang itself."""
    for line in case.lines if case.reading.of_sglang else ():
        if _KILLED_LINE.match(line.text):
            return Diagnosis(
                outcome=outcome,
                kind=INSUFFICIENT.kind,
                confidence=Confidence.MEDIUM,
                cause="The server was killed (SIGKILL); this log doesn't tell by whom.",
                phase=case.phase,
                evidence=(quote(case.reading, line.number, line.text),),
                advice=(*reversed(INSUFFICIENT.advice), *last_phases(case.reading)),
            )
    return None


#: What a shell says of a program that it had started.
_KILLED_LINE = re.compile(r"Killed(?: +\S*python.*)?$|\S+: line \d+: +\d+ Killed\b")


def _cut_off(case: Case, outcome: Outcome, first: FoldedTraceback) -> Diagnosis:
    """The log ends within the first failing rank's traceback: who failed is known, and not why."""
    reading, traceback = case.reading, first.traceback
    rank = first.ranks[0] if first.ranks else ""
    who = f" of {rank}" if rank else ""
    header = traceback.header or "Traceback (most recent call last):"
    return Diagnosis(
        outcome=outcome,
        kind=INSUFFICIENT.kind,
        confidence=Confidence.MEDIUM,
        cause=f"The log ends within the traceback{who}, before the exception is named.",
        phase=case.phase,
        raised_in=culprit(traceback.root),
        first_rank=rank,
        ranks={name: Role.FAILED if name == rank else Role.SILENT for name in reading.last_of_rank},
        evidence=(quote(reading, traceback.first_line, header),),
        advice=INSUFFICIENT.advice,
    )


def last_phases(reading: Reading) -> tuple[str, ...]:
    """Where each rank was, as the first thing to look at."""
    phases = reading.state.ranks
    if not phases:
        return ()
    told = ", ".join(f"{rank or 'the server'} {phase.label}" for rank, phase in phases.items())
    return (f"last phase seen: {told}",)


def told_by_the_host(case: Case, outcome: Outcome, process: ProcessEvidence) -> Diagnosis | None:
    """Causes that only the process table, the kernel or the disk can tell."""
    roles: dict[str, Role] = dict.fromkeys(case.reading.last_of_rank, Role.COLLATERAL)
    killed = process.killed_ranks
    dead = process.alive is False
    named: list[str] = []
    if process.stopped_ranks:
        outcome, kind, named = Outcome.HUNG, "rank_stopped", list(process.stopped_ranks)
        roles.update(dict.fromkeys(named, Role.STOPPED))
        told = ", ".join(named)
    elif (dead or process.hung) and process.full_disks and not process.kernel_oom:
        # Before the killed ones: a server that can't write its log ends its own processes.
        kind, told = "disk_or_permission", f"no room left on {', '.join(process.full_disks)}"
    elif killed or (
        # After a fatal line SGLang ends its own processes in this way.
        process.exit_status is not None
        and process.exit_status in KILLED_STATUSES
        and case.reading.state.fatal is None
    ):
        kind, named = ("host_oom_kill" if process.kernel_oom else "process_killed"), killed
        roles.update(dict.fromkeys(named, Role.FAILED))
        told = ", ".join(named) or "the main process"
    elif dead and process.gpus is not None and process.gpus < case.reading.world:
        kind, told = "more_ranks_than_gpus", f"{case.reading.world} ranks, {process.gpus} GPUs"
    else:
        return None
    rule = BY_KIND[kind]
    return Diagnosis(
        outcome=outcome,
        kind=kind,
        confidence=Confidence.HIGH,
        cause=sentence(rule.cause, {"what": told}),
        phase=case.phase,
        first_rank=named[0] if named else "",
        ranks=roles,
        evidence=(
            Quote(0, f"on the host: {told}"),
            *(Quote(0, line) for line in process.kernel_lines[: _MAX_EVIDENCE - 1]),
        ),
        advice=rule.advice,
        alternatives=taken_for(rule),
    )


def fell_silent(reading: Reading) -> bool:
    """Whether an excerpt was made to show that nothing follows.

    A whole log that ends in a start may simply have been read too early. One that somebody cut
    out, whose last line is complete, and where the ranks stand at the same place or a kernel or
    communicator is waited for, was not.
    """
    if not reading.excerpt or reading.cut_line or not reading.lines:
        return False
    state = reading.state
    phases = {rank: phase for rank, phase in state.ranks.items() if rank}
    together = len(phases) > 1 and len(set(phases.values())) == 1 and phases.keys() <= state.inside
    return together or _AWAITED.search(reading.lines[-1].text) is not None


_AWAITED = re.compile(r"Loading JIT ops|FlashInfer JIT is loading|NCCL INFO .*Init START")


def silence(case: Case, process: ProcessEvidence) -> Diagnosis:
    """The log ends in the middle of a start, and not because it was read too early."""
    reading = case.reading
    state = reading.state
    last = max(
        (*reading.last_of_rank.values(), *reading.lines[-1:]),
        key=lambda line: line.number,
        default=LogLine(0, "nothing at all"),
    )
    kind = _SILENT_IN.get(state.phase, INSUFFICIENT.kind)
    lives = process.hung or process.alive
    if (kind == "host_oom_kill" and lives) or last.text.startswith("Registering 0 cuda graph"):
        kind = INSUFFICIENT.kind
    rule = serving.STUCK if kind == serving.STUCK.kind else BY_KIND[kind]
    told = {"phase": state.phase.label, "what": f"the last line is `{last.text[:120]}`"}
    return Diagnosis(
        outcome=Outcome.HUNG,
        kind=kind,
        confidence=Confidence.MEDIUM if process.hung else Confidence.LOW,
        cause=sentence(_STILL if rule is INSUFFICIENT else rule.cause, told),
        phase=state.phase,
        ranks={
            rank: Role.SUSPECTED if rank == state.slowest_rank else Role.SILENT
            for rank in reading.last_of_rank
        },
        evidence=(quote(reading, last.number, last.text),) if last.number else (),
        advice=(*last_phases(reading), *rule.advice),
        alternatives=taken_for(rule),
    )


_STILL = "It stands still while {phase}, and neither its log nor the host says why: {what}."
