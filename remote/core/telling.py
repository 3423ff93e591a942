"""A match put into words: the sentence, each rank's part, the lines that decide, what it isn't."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from remote.core.failure_sites import culprit, stood, stuck_in
from remote.core.matching import Case, Match, quote
from remote.core.nearest import nearest
from remote.core.reading import Reading
from remote.core.rules import Rule, communication, serving
from remote.core.tracebacks import FoldedTraceback
from remote.core.verdict import Alternative, Diagnosis, Outcome, Quote, Role

_MAX_EVIDENCE = 8
_MAX_ALTERNATIVES = 6


def in_words(
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
    cause = sentence(rule.cause, groups)
    if rule is communication.TIMEOUT:
        roles = _waiters(case, best, roles)
        missing = [rank for rank, role in roles.items() if role is Role.SUSPECTED]
        if missing:
            cause += f" {_listed(missing)} did not report it: look there first."
    if rule is serving.WATCHDOG and folded is None:
        roles, first, where = _standing(reading, roles, first)
        cause += where
    return Diagnosis(
        outcome=outcome,
        kind=rule.kind,
        confidence=best.sign.confidence,
        cause=cause,
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


def sentence(template: str, groups: Mapping[str, str]) -> str:
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


def _waiters(case: Case, best: Match, roles: Mapping[str, Role]) -> dict[str, Role]:
    """Of a collective that timed out: who reports it waited, and who doesn't is what it waited for.

    The watchdog's lines name ranks in torch's way; those are the same processes.
    """
    waited = {
        _as_tagged(line.rank, roles)
        # Of lines alike few are kept, but each rank's last is.
        for line in (*case.lines, *case.reading.last_of_rank.values())
        if line.rank and best.sign.find(line.text)
    }
    waited |= {_as_tagged(rank, roles) for rank, role in roles.items() if role is Role.FAILED}
    tagged = {_as_tagged(rank, roles) for rank in roles}
    silent = tagged - waited
    # One or two of many are missing; where most say nothing, the log holds only some of them.
    named = len(waited) > len(silent) > 0
    return {
        rank: Role.FAILED
        if rank in waited
        else Role.SUSPECTED
        if named
        else roles.get(rank, Role.SILENT)
        for rank in sorted(tagged, key=_in_order)
    }


def _standing(
    reading: Reading, roles: Mapping[str, Role], first: str
) -> tuple[dict[str, Role], str, str]:
    """Of ranks that made no progress: which one the others wait for, by py-spy's dumps.

    Returns:
        Each rank's part, the first rank, and a sentence of its own or nothing.
    """
    ranks = {rank: each for rank, each in stood(reading.stacks).items() if rank}
    waiting = [rank for rank, each in ranks.items() if each.waits]
    busy = [rank for rank in ranks if rank not in waiting]
    if not waiting or not 0 < len(busy) <= len(waiting):
        return dict(roles), first, ""
    parts = {rank: Role.COLLATERAL if rank in waiting else Role.SUSPECTED for rank in ranks}
    places = _listed([f"{rank} stood in {ranks[rank].where}" for rank in busy])
    sentence = f" {_listed(waiting)} waited for the GPU or for other ranks, {places}: look there"
    return {**roles, **parts}, busy[0], f"{sentence} first."


def _as_tagged(rank: str, known: Mapping[str, Role]) -> str:
    """``rank3`` as ``TP3``, where the log knows that one too."""
    number = rank.removeprefix("rank")
    return f"TP{number}" if number.isdigit() and f"TP{number}" in known else rank


def _in_order(rank: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", rank)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


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


def taken_for(rule: Rule) -> tuple[Alternative, ...]:
    return tuple(Alternative(kind, why) for kind, why in rule.taken_for.items())


def _alternatives(rule: Rule, others: Sequence[Match]) -> tuple[Alternative, ...]:
    """What the rule is taken for, and what else has a sign in this log."""
    also = [
        Alternative(kind, f"a sign of it is there too, but {rule.kind} explains it")
        for kind in dict.fromkeys(other.rule.kind for other in others)
        if kind != rule.kind and kind not in rule.taken_for
    ]
    return (*taken_for(rule), *also)[:_MAX_ALTERNATIVES]


_FLAG = re.compile(r"--[a-z][a-z0-9-]*")


def _nearest_flags(reading: Reading, best: Match) -> tuple[str, ...]:
    """For a flag that was refused: the nearest one in the usage that the parser printed."""
    if best.rule.kind != "bad_cli":
        return ()
    refused = _FLAG.findall(best.groups["what"].replace("_", "-"))
    known = {flag for line in reading.lines for flag in _FLAG.findall(line.text)}
    near = [name for flag in refused for name in nearest(flag, known - {flag}, 1)]
    return tuple(f"nearest flag that this SGLang knows: {name}" for name in near)
