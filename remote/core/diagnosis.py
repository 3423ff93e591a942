"""From a log's reading, and what the host knows, to one cause among N ranks.

The order of thought is that of an engineer on call. Did it fail at all? Which traceback is an
origin, and which a consequence? Does anything printed before it explain it? Only then: which kind
is it. Consequences (a lost connection, a signal from a child) are never a cause; where there is
nothing else the answer is ``insufficient_evidence``, with what to fetch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from remote.core.consequences import ends_its_process
from remote.core.log_events import StartState
from remote.core.log_lines import own_words
from remote.core.matching import Case, Match, make_case, match, matches, quote
from remote.core.phases import Phase
from remote.core.reading import Reading
from remote.core.rules import (
    BY_KIND,
    UNCLASSIFIED,
    Confidence,
    Sign,
    host,
    kernels,
    memory,
    serving,
)
from remote.core.telling import in_words
from remote.core.tracebacks import FoldedTraceback
from remote.core.verdict import (
    ONLY_RANK,
    Diagnosis,
    Outcome,
    ProcessEvidence,
)
from remote.core.without_rule import (
    fell_silent,
    killed,
    last_phases,
    silence,
    told_by_the_host,
    unexplained,
)

_TERMINATED = -15
#: A server that lost a rank may log steps of the others for a moment.
_SERVED_ON_S = 15.0
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
    if state.ready is not None and process.alive is not False and _served_on(state):
        return _up(make_case(reading, [], ready), process, process.stop_requested)
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


def _served_on(state: StartState) -> bool:
    """Whether steps were logged long after what looks fatal: it was somebody's words then."""
    if state.fatal is None or state.last_step is None or state.last_step.line < state.fatal.line:
        return False
    times = []
    for stamp in (state.fatal.stamp, state.last_step.stamp):
        try:
            times.append(datetime.fromisoformat(stamp))
        except ValueError:
            return False
    return (times[1] - times[0]).total_seconds() > _SERVED_ON_S


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
        return unexplained(case, outcome, process, failures)
    best = found[0]
    if best.traceback is None and not best.rank:
        best = replace(best, rank=_died(case, best))
    if best.rule.kind == "model_arch_unsupported":
        best = _swallowed_import(case, best)
    if best.rule.kind in ("host_oom_kill", "distributed_hang") and _KILL.search(best.quote.text):
        best = _killed_by(best, process, case)
    return in_words(case, outcome, best, failures, found[1:])


def _killed_by(best: Match, process: ProcessEvidence, case: Case) -> Match:
    """A kill is the kernel's, for memory, only where it says so; unasked, the likely stands."""
    if process.kernel_oom is None and process.alive is None:
        return best
    rule = BY_KIND["host_oom_kill" if process.kernel_oom else "process_killed"]
    confidence = Confidence.MEDIUM if process.kernel_oom is None else Confidence.HIGH
    sign = replace(best.sign, confidence=confidence)
    rank = (
        "".join(process.killed_ranks[:1])
        or best.rank
        or (ONLY_RANK if case.reading.world == 1 else "")
    )
    return replace(best, rule=rule, sign=sign, rank=rank)


#: A line that tells of a SIGKILL, whoever sent it.
_KILL = re.compile(r"\b(?:exit|killed|kill)", re.IGNORECASE)
#: How the launcher names a rank's process: by its number, or in the process's name.
_DEAD = re.compile(r"\bRank (?P<rank>\d+) scheduler|Subprocess scheduler_(?:TP)?(?P<number>\d+)\b")


def _died(case: Case, best: Match) -> str:
    """The rank whose process the deciding line, or the fatal one, says to be dead."""
    fatal = case.reading.state.fatal
    for text in (best.quote.text, fatal.text if fatal is not None else ""):
        if said := _DEAD.search(text):
            number = said["rank"] or said["number"]
            return f"TP{number}" if case.reading.world > 1 else ""
    return ""


def _up(case: Case, process: ProcessEvidence, stopping: bool) -> Diagnosis:
    """A server that got ready, and whose log names no death."""
    healthy = Diagnosis(Outcome.READY, phase=Phase.SERVING)
    if stopping:
        return healthy
    told = told_by_the_host(case, Outcome.DIED_AFTER_READY, process)
    if told is not None:
        return told
    by_lines = replace(case, origin=None, places="", phase=Phase.SERVING)
    for found in matches(by_lines):
        if found.rule in _BELIEVED_AFTER_READY and _printed(case, found):
            outcome = _OUTCOME_OF_KIND.get(found.rule.kind, Outcome.DIED_AFTER_READY)
            return in_words(by_lines, outcome, found, [], [])
    ended = killed(case, Outcome.DIED_AFTER_READY) if process.alive is None else None
    if ended is not None:
        return ended
    if process.alive is False:
        return unexplained(by_lines, Outcome.DIED_AFTER_READY, process, [])
    return silence(by_lines, process) if process.hung else healthy


def _printed(case: Case, found: Match) -> bool:
    """Whether a program printed the line that decides: a server's log may hold users' words too."""
    numbered = {case.reading.number(line.number): line for line in case.lines}
    line = numbered.get(found.quote.line)
    return line is None or own_words(line)


def _unfinished(case: Case, process: ProcessEvidence, failures: list[FoldedTraceback]) -> Diagnosis:
    """Neither ready nor an error of its own: a refused command, a telling warning, silence."""
    told = told_by_the_host(case, Outcome.CRASHED, process)
    if told is not None:
        return told
    found = matches(case)
    if found:
        outcome = _OUTCOME_OF_KIND.get(found[0].rule.kind, Outcome.CRASHED)
        return in_words(case, outcome, found[0], failures, found[1:])
    if failures or process.alive is False:
        return unexplained(case, Outcome.CRASHED, process, failures)
    state = case.reading.state
    if process.hung or (state.ranks and fell_silent(case.reading)):
        return silence(case, process)
    ended = killed(case, Outcome.CRASHED) if process.alive is None else None
    if ended is not None:
        return ended
    bare = _bare_exception(case) if process.alive is None else None
    if bare is not None:
        return in_words(case, Outcome.CRASHED, bare, failures, [])
    slow = match(case, kernels.SLOW) if case.reading.excerpt else None
    if slow is not None:
        return in_words(case, Outcome.NOT_READY, slow, [], [])
    return Diagnosis(
        Outcome.NOT_READY,
        cause=f"Nothing failed so far; the log ends while the server is {state.phase.label}.",
        phase=state.phase,
        advice=(
            *last_phases(case.reading),
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
