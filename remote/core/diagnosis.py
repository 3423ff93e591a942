"""From a log's reading, and what the host knows, to one cause among N ranks.

The order of thought is that of an engineer on call. Did it fail at all? Which traceback is an
origin, and which a consequence? Does anything printed before it explain it? Only then: which kind
is it. Consequences (a lost connection, a signal from a child) are never a cause; where there is
nothing else the answer is ``insufficient_evidence``, with what to fetch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from remote.core.consequences import ends_its_process
from remote.core.failure_sites import culprit, stuck_in
from remote.core.log_lines import LogLine, own_words
from remote.core.matching import Case, Match, make_case, match, matches, quote
from remote.core.nearest import nearest
from remote.core.phases import Phase
from remote.core.reading import Reading
from remote.core.rules import (
    BY_KIND,
    INSUFFICIENT,
    UNCLASSIFIED,
    Confidence,
    Rule,
    Sign,
    host,
    kernels,
    memory,
    serving,
)
from remote.core.tracebacks import FoldedTraceback
from remote.core.verdict import (
    ONLY_RANK,
    Alternative,
    Diagnosis,
    Outcome,
    ProcessEvidence,
    Quote,
    Role,
)

_TERMINATED = -15
_KILLED = frozenset({-9, 137, None})
_MAX_EVIDENCE = 8
_MAX_ALTERNATIVES = 6

#: Rules believed on single lines, in the log of a server that got ready and names no death.
_BELIEVED_AFTER_READY = (
    host.KILLED,
    kernels.DEVICE_ASSERT,
    kernels.ILLEGAL_ACCESS,
    memory.LEAK,
    serving.WATCHDOG,
)
#: Kinds that do not end the server.
_OUTCOME_OF_KIND = {
    "distributed_hang": Outcome.HUNG,
    "driver_runtime_mismatch": Outcome.UNKNOWN,
    "watchdog_or_health": Outcome.HUNG,
}
#: Where a start fell silent → what that most likely is.
_SILENT_IN = {
    Phase.DISTRIBUTED: "distributed_hang",
    Phase.WEIGHTS: "host_oom_kill",
    Phase.DECODE_CAPTURE: "distributed_hang",
    Phase.PREFILL_CAPTURE: "distributed_hang",
    Phase.JIT_BUILD: "jit_lock_hang",
    Phase.SERVING: "watchdog_or_health",
}


def diagnose(reading: Reading, process: ProcessEvidence | None = None) -> Diagnosis:
    """The verdict over a log, with what the host knows about its process."""
    process = process or ProcessEvidence()
    state = reading.state
    if process.alive is None and not reading.of_a_server:
        return _no_log(reading)
    ready = state.ready.line if state.ready else 0
    stop = state.stop_requested.line if state.stop_requested else None
    failures = [
        folded
        for folded in reading.tracebacks
        if folded.traceback.first_line > ready
        and (stop is None or folded.traceback.first_line < stop)
        and ends_its_process(folded.traceback, state.opened)
    ]
    case = make_case(reading, failures, ready)
    # A child that ended on SIGTERM did what it was told, whoever told it.
    fatal = state.fatal is not None and state.fatal.exit_code != _TERMINATED
    stopping = process.stop_requested or stop is not None
    if state.ready is not None:
        if fatal or (process.alive is False and case.origin is not None and not stopping):
            return _failed(case, Outcome.DIED_AFTER_READY, process, failures)
        return _up(case, process, stopping)
    if fatal or case.origin is not None:
        return _failed(case, Outcome.CRASHED, process, failures)
    if stopping:
        return Diagnosis(Outcome.NOT_READY, phase=state.phase)
    return _unfinished(case, process, failures)


def _no_log(reading: Reading) -> Diagnosis:
    """Nothing that a server printed: prose, another program's file, or nothing at all."""
    what = "None of it was printed by a server." if reading.lines else "There is nothing in it."
    return Diagnosis(Outcome.UNKNOWN, cause=what, advice=(_WHERE_LOGS_ARE,))


_WHERE_LOGS_ARE = (
    "a run's log is `server.log` in its folder: `inv pull` brings it, `inv diagnose --run ID` reads"
    " it"
)


def _failed(
    case: Case, outcome: Outcome, process: ProcessEvidence, failures: list[FoldedTraceback]
) -> Diagnosis:
    """Something failed: what, and on which rank first."""
    found = matches(case)
    if not found:
        return _unexplained(case, outcome, process, failures)
    best = found[0]
    if best.rule.kind == "model_arch_unsupported":
        best = _swallowed_import(case, best)
    if best.rule.kind in ("host_oom_kill", "distributed_hang") and _KILL.search(best.quote.text):
        best = _killed_by(best, process, case)
    return _diagnosis(case, outcome, best, failures, found[1:])


def _killed_by(best: Match, process: ProcessEvidence, case: Case) -> Match:
    """A kill is the kernel's, for memory, only where it says so; unasked, the likely stands."""
    if process.kernel_oom is None and process.alive is None:
        return best
    rule = BY_KIND["host_oom_kill" if process.kernel_oom else "process_killed"]
    confidence = Confidence.MEDIUM if process.kernel_oom is None else Confidence.HIGH
    killed = [rank for rank, status in process.dead_ranks.items() if status in _KILLED]
    fatal = case.reading.state.fatal
    said = _DEAD.search(fatal.text) if fatal is not None else None
    if not killed and said is not None:
        killed = [f"TP{said['rank']}" if case.reading.world > 1 else ONLY_RANK]
    sign = replace(best.sign, confidence=confidence)
    return replace(best, rule=rule, sign=sign, rank=best.rank or "".join(killed[:1]))


#: A line that tells of a SIGKILL, whoever sent it.
_KILL = re.compile(r"\b(?:exit|killed|kill)", re.IGNORECASE)
_DEAD = re.compile(r"Rank (?P<rank>\d+) scheduler")


def _up(case: Case, process: ProcessEvidence, stopping: bool) -> Diagnosis:
    """A server that got ready, and whose log names no death."""
    healthy = Diagnosis(Outcome.READY, phase=Phase.SERVING)
    if stopping:
        return healthy
    told = _told_by_the_host(case, Outcome.DIED_AFTER_READY, process)
    if told is not None:
        return told
    by_lines = replace(case, origin=None, places="", phase=Phase.SERVING)
    for found in matches(by_lines):
        if found.rule in _BELIEVED_AFTER_READY and _printed(case, found):
            outcome = _OUTCOME_OF_KIND.get(found.rule.kind, Outcome.DIED_AFTER_READY)
            return _diagnosis(by_lines, outcome, found, [], [])
    if process.alive is False:
        return _unexplained(by_lines, Outcome.DIED_AFTER_READY, process, [])
    return _silence(by_lines, process) if process.hung else healthy


def _printed(case: Case, found: Match) -> bool:
    """Whether a program printed the line that decides: a server's log may hold users' words too."""
    numbered = {case.reading.number(line.number): line for line in case.lines}
    line = numbered.get(found.quote.line)
    return line is None or own_words(line)


def _unfinished(case: Case, process: ProcessEvidence, failures: list[FoldedTraceback]) -> Diagnosis:
    """Neither ready nor an error of its own: a refused command, a telling warning, silence."""
    told = _told_by_the_host(case, Outcome.CRASHED, process)
    if told is not None:
        return told
    found = matches(case)
    if found:
        outcome = _OUTCOME_OF_KIND.get(found[0].rule.kind, Outcome.CRASHED)
        return _diagnosis(case, outcome, found[0], failures, found[1:])
    if failures or process.alive is False:
        return _unexplained(case, Outcome.CRASHED, process, failures)
    state = case.reading.state
    if process.hung or (state.ranks and _fell_silent(case.reading)):
        return _silence(case, process)
    bare = _bare_exception(case) if process.alive is None else None
    if bare is not None:
        return _diagnosis(case, Outcome.CRASHED, bare, failures, [])
    slow = match(case, kernels.SLOW) if case.reading.excerpt else None
    if slow is not None:
        return _diagnosis(case, Outcome.NOT_READY, slow, [], [])
    return Diagnosis(
        Outcome.NOT_READY,
        cause=f"Nothing failed so far; the log ends while the server is {state.phase.label}.",
        phase=state.phase,
        advice=(
            *_last_phases(case.reading),
            "if nothing follows: `inv wait` tells a slow start from a hung one",
        ),
    )


def _bare_exception(case: Case) -> Match | None:
    """A log that ends in an exception whose traceback somebody left out."""
    last = case.reading.last_line
    if last is None or last.number == case.reading.cut_line or not _EXCEPTION.match(last.text):
        return None
    sign = Sign("", confidence=Confidence.LOW)
    at = quote(case.reading, last.number, last.text)
    return Match(UNCLASSIFIED, sign, {"what": last.text}, at, last.rank)


_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)\b: \S")


def _swallowed_import(case: Case, unknown: Match) -> Match:
    """An architecture is unknown because importing its module had failed: that is the cause."""
    served = [name.lower() for name in re.findall(r"\w+", unknown.groups["what"])]
    for line in case.reading.lines:
        found = _IGNORED_IMPORT.search(line.text)
        family = re.match(r"[a-z]{3,}", found["module"]) if found else None
        if found and family and any(name.startswith(family[0]) for name in served):
            return replace(
                unknown,
                rule=BY_KIND["model_import_swallowed"],
                groups={"what": found["why"]},
                quote=quote(case.reading, line.number, line.text),
            )
    return unknown


_IGNORED_IMPORT = re.compile(
    r"Ignore import error when loading sglang\.srt\.models\.(?P<module>\w+)[.:]? ?(?P<why>.*)"
)


# --- without a rule that fits -------------------------------------------------------------------


def _unexplained(
    case: Case, outcome: Outcome, process: ProcessEvidence, failures: list[FoldedTraceback]
) -> Diagnosis:
    """Something failed, and no rule says what.

    A rank's own exception goes before what the host tells: SGLang kills its processes after it.
    """
    if case.origin is None or not case.origin.traceback.root.type:
        told = _told_by_the_host(case, outcome, process)
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
        return _diagnosis(case, outcome, found, failures, [])
    return _insufficient(case, outcome, failures)


def _insufficient(case: Case, outcome: Outcome, failures: list[FoldedTraceback]) -> Diagnosis:
    """Only consequences: who lost whom, and where each rank was."""
    reading = case.reading
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
        advice=(*_last_phases(reading), *INSUFFICIENT.advice),
    )


def _last_phases(reading: Reading) -> tuple[str, ...]:
    """Where each rank was, as the first thing to look at."""
    phases = reading.state.ranks
    if not phases:
        return ()
    told = ", ".join(f"{rank or 'the server'} {phase.label}" for rank, phase in phases.items())
    return (f"last phase seen: {told}",)


def _told_by_the_host(case: Case, outcome: Outcome, process: ProcessEvidence) -> Diagnosis | None:
    """Causes that only the process table, the kernel or the disk can tell."""
    roles: dict[str, Role] = dict.fromkeys(case.reading.last_of_rank, Role.COLLATERAL)
    killed = [rank for rank, status in process.dead_ranks.items() if status in _KILLED]
    dead = process.alive is False
    named: list[str] = []
    if process.stopped_ranks:
        outcome, kind, named = Outcome.HUNG, "rank_stopped", list(process.stopped_ranks)
        roles.update(dict.fromkeys(named, Role.STOPPED))
        told = ", ".join(named)
    elif killed or (
        # After a fatal line SGLang ends its own processes in this way.
        process.exit_status is not None
        and process.exit_status in _KILLED
        and case.reading.state.fatal is None
    ):
        kind, named = ("host_oom_kill" if process.kernel_oom else "process_killed"), killed
        roles.update(dict.fromkeys(named, Role.FAILED))
        told = ", ".join(named) or "the main process"
    elif (dead or process.hung) and process.full_disks:
        kind, told = "disk_or_permission", f"no room left on {', '.join(process.full_disks)}"
    elif dead and process.gpus is not None and process.gpus < case.reading.world:
        kind, told = "more_ranks_than_gpus", f"{case.reading.world} ranks, {process.gpus} GPUs"
    else:
        return None
    rule = BY_KIND[kind]
    return Diagnosis(
        outcome=outcome,
        kind=kind,
        confidence=Confidence.HIGH,
        cause=_sentence(rule.cause, {"what": told}),
        phase=case.phase,
        first_rank=named[0] if named else "",
        ranks=roles,
        evidence=(
            Quote(0, f"on the host: {told}"),
            *(Quote(0, line) for line in process.kernel_lines[: _MAX_EVIDENCE - 1]),
        ),
        advice=rule.advice,
        alternatives=_taken_for(rule),
    )


def _fell_silent(reading: Reading) -> bool:
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


def _silence(case: Case, process: ProcessEvidence) -> Diagnosis:
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
        cause=_sentence(_STILL if rule is INSUFFICIENT else rule.cause, told),
        phase=state.phase,
        ranks={
            rank: Role.SUSPECTED if rank == state.slowest_rank else Role.SILENT
            for rank in reading.last_of_rank
        },
        evidence=(quote(reading, last.number, last.text),) if last.number else (),
        advice=(*_last_phases(reading), *rule.advice),
        alternatives=_taken_for(rule),
    )


_STILL = "It stands still while {phase}, and neither its log nor the host says why: {what}."


# --- putting a verdict into words ---------------------------------------------------------------


def _diagnosis(
    case: Case,
    outcome: Outcome,
    best: Match,
    failures: Sequence[FoldedTraceback],
    others: Sequence[Match],
) -> Diagnosis:
    rule, reading = best.rule, case.reading
    state = reading.state
    # A fatal line that decides by itself makes the tracebacks behind it consequences.
    by_line = (
        best.traceback is None
        and state.fatal is not None
        and (reading.number(state.fatal.line) == best.quote.line)
    )
    folded = None if by_line else best.traceback or case.origin
    what = best.groups["what"]
    groups = {**best.groups, "what": what if len(what) <= 300 else what[:300] + "…"}
    roles, first = _roles(reading, failures, folded, best.rank)
    return Diagnosis(
        outcome=outcome,
        kind=rule.kind,
        confidence=best.sign.confidence,
        cause=_sentence(rule.cause, groups),
        phase=state.phase if by_line else case.told_phase,
        raised_in=_site(reading, folded),
        first_rank=first,
        ranks=roles,
        spread=folded.summary(reading.world) if folded is not None and folded.ranks else "",
        evidence=_evidence(reading, best, folded),
        advice=(*_nearest_flags(reading, best), *rule.advice),
        alternatives=_alternatives(rule, others),
    )


def _site(reading: Reading, folded: FoldedTraceback | None) -> str:
    if folded is not None:
        return culprit(folded.traceback.root)
    return stuck_in(reading.stacks)


def _sentence(template: str, groups: Mapping[str, str]) -> str:
    """A rule's sentence with its groups filled in; braces in what is quoted stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: groups.get(found[1], "").rstrip(". "), template)


def _roles(
    reading: Reading,
    failures: Sequence[FoldedTraceback],
    cause: FoldedTraceback | None,
    rank: str,
) -> tuple[dict[str, Role], str]:
    """Each rank's part, and the rank that failed first."""
    failed = set(cause.ranks) if cause is not None else {rank}
    collateral = {rank for folded in failures for rank in folded.ranks} - failed
    roles = {
        name: Role.FAILED
        if name in failed
        else Role.COLLATERAL
        if name in collateral
        else Role.SILENT
        for name in reading.last_of_rank
    }
    return roles, cause.ranks[0] if cause is not None and cause.ranks else rank


_COMPILER_ERROR = re.compile(r"\b(?:error|fatal)\b ?:|cannot find -l|undefined reference")


def _evidence(reading: Reading, best: Match, folded: FoldedTraceback | None) -> tuple[Quote, ...]:
    """The sign's line, each exception's own line, and a compiler's first error."""
    quotes = [best.quote]
    for block in folded.traceback.chain if folded is not None else ():
        quotes.append(quote(reading, block.line, block.headline))
        said = list(zip(block.message_lines, block.message.split("\n"), strict=False))[1:]
        errors = [(number, text) for number, text in said if _COMPILER_ERROR.search(text)]
        quotes += [quote(reading, number, text.strip()) for number, text in errors[:1]]
    first_on_line = {one.line: one for one in reversed(quotes)}
    kept = [one for one in dict.fromkeys(quotes) if first_on_line[one.line] is one]
    return tuple(kept[:_MAX_EVIDENCE])


def _taken_for(rule: Rule) -> tuple[Alternative, ...]:
    return tuple(Alternative(kind, why) for kind, why in rule.taken_for.items())


def _alternatives(rule: Rule, others: Sequence[Match]) -> tuple[Alternative, ...]:
    """What the rule is taken for, and what else has a sign in this log."""
    also = [
        Alternative(kind, f"a sign of it is there too, but {rule.kind} explains it")
        for kind in dict.fromkeys(other.rule.kind for other in others)
        if kind != rule.kind and kind not in rule.taken_for
    ]
    return (*_taken_for(rule), *also)[:_MAX_ALTERNATIVES]


_FLAG = re.compile(r"--[a-z][a-z0-9-]*")


def _nearest_flags(reading: Reading, best: Match) -> tuple[str, ...]:
    """For a flag that was refused: the nearest one in the usage that the parser printed."""
    if best.rule.kind != "bad_cli":
        return ()
    refused = _FLAG.findall(best.groups["what"].replace("_", "-"))
    known = {flag for line in reading.lines for flag in _FLAG.findall(line.text)}
    near = [name for flag in refused for name in nearest(flag, known - {flag}, 1)]
    return tuple(f"nearest flag that this SGLang knows: {name}" for name in near)
