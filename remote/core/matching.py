"""Trying the rules on what a log holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from remote.core.consequences import is_noise, is_secondary, names_an_exception
from remote.core.failure_sites import phase_of, places
from remote.core.log_lines import LogLine, own_words
from remote.core.phases import Phase
from remote.core.reading import Reading
from remote.core.rules import RULES, Confidence, Rule, Sign, Where
from remote.core.tracebacks import FoldedTraceback
from remote.core.verdict import Quote

_MAX_QUOTE = 600


@dataclass(frozen=True)
class Case:
    """What the rules are tried on."""

    reading: Reading
    origin: FoldedTraceback | None  #: the earliest traceback that is no consequence
    phase: Phase  #: in which it failed: as that stack tells, else as the log does
    lines: tuple[LogLine, ...]  #: those that may decide
    places: str = ""  #: the origin's frames, one ``path:function`` a line

    @property
    def told_phase(self) -> Phase | None:
        """The phase, unless an excerpt leaves it open."""
        scheduler = self.origin is not None and "hit an exception" in self.origin.traceback.header
        return None if scheduler and self.phase is Phase.ARGUMENTS else self.phase


@dataclass(frozen=True)
class Match:
    """A rule that applies, and where."""

    rule: Rule
    sign: Sign
    groups: Mapping[str, str]  #: of the sign's pattern; ``what`` is always there
    quote: Quote
    rank: str = ""
    traceback: FoldedTraceback | None = None


def make_case(reading: Reading, failures: list[FoldedTraceback], after: int) -> Case:
    """The case over a log.

    Args:
        reading: the log.
        failures: its tracebacks that ended a process, by first line.
        after: only lines behind this one count.
    """
    origin = next(
        (
            folded
            for folded in failures
            if names_an_exception(folded.traceback) and not is_secondary(folded.traceback)
        ),
        None,
    )
    lines = tuple(line for line in reading.lines if line.number > after and not is_noise(line.text))
    if origin is None:
        return Case(reading, None, reading.state.phase, lines)
    return Case(
        reading, origin, _phase(reading, origin), lines, "\n".join(places(origin.traceback))
    )


def _phase(reading: Reading, origin: FoldedTraceback) -> Phase:
    state = reading.state
    told = phase_of(origin.traceback)
    if told is None and not state.phase.of_the_server:
        told = state.ranks.get(origin.traceback.rank)
    # The warm-up's request is served like any other.
    if told is Phase.SERVING and state.opened and state.ready is None:
        return state.phase
    return told or state.phase


def matches(case: Case) -> list[Match]:
    """The rules that apply, best first.

    What the deciding traceback says for certain goes before what stands on a line somewhere, but
    for the line on which the server was lost, if it comes first. Otherwise precedence decides.
    """
    fatal = case.reading.state.fatal
    foremost, certain, fatal_line, others = [], [], [], []
    for rule in RULES:
        found = _all(case, rule)
        if not found:
            continue
        if rule.foremost:
            foremost.append(found[0])
        elif any(m.traceback and m.sign.confidence is Confidence.HIGH for m in found):
            certain.append(found[0])
        elif fatal is not None and found[0].quote.line == case.reading.number(fatal.line):
            fatal_line.append(found[0])
        else:
            others.append(found[0])
    return [*foremost, *fatal_line, *certain, *others]


def match(case: Case, rule: Rule) -> Match | None:
    """The first sign of one rule, if there is any."""
    return next(iter(_all(case, rule)), None)


def _all(case: Case, rule: Rule) -> list[Match]:
    return [found for sign in rule.signs if (found := _try(case, rule, sign)) is not None]


def _try(case: Case, rule: Rule, sign: Sign) -> Match | None:
    if sign.phases is not None and case.phase not in sign.phases:
        return None
    if sign.alone and case.origin is not None:
        return None
    if sign.frames and not re.search(sign.frames, case.places, re.MULTILINE):
        return None
    if sign.not_frames and re.search(sign.not_frames, case.places, re.MULTILINE):
        return None
    found = None
    if case.origin is not None:
        if sign.where is Where.FRAMES:
            found = _in_frames(case, rule, sign, case.origin)
        elif sign.where is not Where.LINE:
            found = _in_exceptions(case, rule, sign, case.origin)
    if found is None and sign.where in (Where.LINE, Where.ANYWHERE):
        found = _in_lines(case, rule, sign)
    return found


def _in_frames(case: Case, rule: Rule, sign: Sign, origin: FoldedTraceback) -> Match | None:
    found = sign.find(case.places)
    if found is None:
        return None
    block = origin.traceback.root
    at = quote(case.reading, block.line, block.headline)
    return _made(rule, sign, found, at, origin.traceback.rank, origin)


def _in_exceptions(case: Case, rule: Rule, sign: Sign, origin: FoldedTraceback) -> Match | None:
    for block in origin.traceback.chain:
        text = ": ".join(part for part in (block.type, block.message) if part)
        found = sign.find(text)
        if found is None:
            continue
        above = text.count("\n", 0, found.start())
        numbers = block.message_lines
        number = numbers[above] if above < len(numbers) else block.line
        if sign.whole and number == case.reading.cut_line:
            continue
        at = quote(case.reading, number, text.split("\n")[above])
        return _made(rule, sign, found, at, origin.traceback.rank, origin)
    return None


def _in_lines(case: Case, rule: Rule, sign: Sign) -> Match | None:
    log = case.reading.of_sglang
    for line in case.lines:
        if not log and not own_words(line):  # what somebody wrote, or another program's source
            continue
        if sign.whole and line.number == case.reading.cut_line:
            continue
        if found := sign.find(line.text):
            at = quote(case.reading, line.number, line.text)
            return _made(rule, sign, found, at, line.rank)
    for stack in case.reading.stacks:
        for frame in stack.frames:
            if found := sign.find(frame.function):
                at = quote(case.reading, stack.line, frame.function)
                return _made(rule, sign, found, at, stack.rank)
    return None


def _made(
    rule: Rule,
    sign: Sign,
    found: re.Match[str],
    at: Quote,
    rank: str,
    traceback: FoldedTraceback | None = None,
) -> Match:
    groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
    if not groups.get("what"):
        groups["what"] = at.text
    return Match(rule, sign, groups, at, rank, traceback)


def quote(reading: Reading, line: int, text: str) -> Quote:
    """A line as it is quoted: with its number in the log as given, and not without end."""
    cut = text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "…"
    return Quote(reading.number(line), cut)
