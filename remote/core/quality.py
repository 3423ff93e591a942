"""Does the candidate still say what the baseline says? Fast and wrong is worse than slow.

Both were asked the same prompts at temperature 0, several times each, with the log-probability of
every token of the answer. Two answers to one prompt are alike as far as their tokens are; there
they part. Their distance has two parts:

``logprob``  mean absolute difference of the log-probabilities up to and with the token where they
             part. That token counts although it is another one: where a tie fell the other way,
             both sides give theirs about the same probability.
``parted``   the share of tokens after the parting. Greedy answers part for good at the first tie,
             so this is coarse, but it sees an answer that is another and just as sure of itself.

Each is averaged over prompts, not tokens: an answer that is wrong from its first token on would
otherwise weigh the least. The measure is the baseline's distance to itself. Where that is nothing,
since a server in one state may well repeat itself to the last bit, a floor holds: another kernel
that adds up in another order is no fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import combinations, product
from typing import Any

from remote.errors import ConfigError

#: How many times the baseline's own distance a candidate may be away.
_TIMES_NOISE = 3.0
#: Nats: a token's probability off by one part in twenty. Other kernels at 16 bits stay at a fifth
#: of it; a scale that is wrong by a factor leaves it by ten times.
_LOGPROB_FLOOR = 0.05
#: Three quarters of all tokens after a parting: ties alone do less in answers of some thirty
#: tokens, and answers to something else part at once.
_PARTED_FLOOR = 0.75
#: A baseline this far from itself can't tell right from wrong.
_LOGPROB_USELESS = 0.5
_PARTED_USELESS = 0.9
#: An answer of one token over and over, from this length on.
_STUCK_TOKENS = 8
#: The chance that an equal candidate is called worse at the questions.
_QUESTIONS_ERROR = 0.05


class Quality(str, Enum):
    """What is said of the candidate's output."""

    WITHIN = "within"
    OUTSIDE = "outside"
    UNUSABLE = "unusable"  #: the baseline's answers can't be measured by


@dataclass(frozen=True)
class Answer:
    """What the server said to one prompt."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  #: one each token; NaN where the server gave no number
    text: str = ""

    @property
    def broken(self) -> str:
        """Why this is no answer, if it is none."""
        if not self.tokens:
            return "empty"
        if len(self.logprobs) != len(self.tokens):
            return f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probabilities"
        if any(math.isnan(value) or value > 1e-3 for value in self.logprobs):
            return "log-probabilities that are no numbers below 0"
        return ""

    @property
    def stuck(self) -> bool:
        return len(self.tokens) >= _STUCK_TOKENS and len(set(self.tokens)) == 1


@dataclass(frozen=True)
class Question:
    """A question with its answer, and what the server said."""

    question: str
    answer: str
    said: str = ""

    @property
    def right(self) -> bool:
        """Whether the answer stands in what was said, as whole words."""
        wanted = _words(self.answer)
        return bool(wanted) and f" {' '.join(wanted)} " in f" {' '.join(_words(self.said))} "


@dataclass(frozen=True)
class AnswerSet:
    """All that one run was asked and said."""

    run: str
    prompts: tuple[str, ...]
    repetitions: tuple[tuple[Answer, ...], ...]  #: each with one answer a prompt
    questions: tuple[Question, ...] = ()

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> AnswerSet:
        """From a run's quality.json.

        Raises:
            ValueError: it is none.
        """
        try:
            found = cls(
                run=str(known["run"]),
                prompts=tuple(str(prompt) for prompt in known["prompts"]),
                repetitions=tuple(
                    tuple(_answer(each) for each in answers) for answers in known["repetitions"]
                ),
                questions=tuple(
                    Question(str(each["question"]), str(each["answer"]), str(each.get("said", "")))
                    for each in known.get("questions") or ()
                ),
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"no answers of a run: {wrong!r}") from wrong
        if not found.prompts or not found.repetitions:
            raise ValueError("no prompts or no answers to them")
        if any(len(answers) != len(found.prompts) for answers in found.repetitions):
            raise ValueError("not one answer for each prompt")
        return found


@dataclass(frozen=True)
class Distance:
    """How far answers are apart, averaged over prompts and pairs of repetitions."""

    logprob: float  #: nats
    parted: float  #: share of tokens after the parting
    prompts_parted: float  #: share of prompts whose answers part
    first: int | None  #: the earliest position, from 0, where any part


@dataclass(frozen=True)
class Report:
    """The verdict, and what it rests on."""

    verdict: Quality
    reasons: tuple[str, ...] = ()  #: why it isn't within
    notes: tuple[str, ...] = ()
    distance: Distance | None = None
    noise: Distance | None = None  #: the baseline's to itself; None where it was asked once
    candidate_noise: Distance | None = None
    logprob_limit: float | None = None
    parted_limit: float | None = None
    right: tuple[float, float] | None = None  #: shares of right answers, baseline and candidate
    right_p: float | None = None  #: one-sided: of the candidate knowing no less

    @property
    def summary(self) -> str:
        if self.verdict is Quality.OUTSIDE:
            return "worse: output differs"
        if self.verdict is Quality.UNUSABLE:
            return "output not compared"
        return "output as the baseline's, within what is allowed"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "summary": self.summary}


def judge(baseline: AnswerSet, candidate: AnswerSet) -> Report:
    """Hold a candidate's answers against the baseline's."""
    if baseline.prompts != candidate.prompts:
        return Report(Quality.UNUSABLE, ("the two were asked other prompts",))
    useless = _broken(baseline)
    if useless:
        return Report(Quality.UNUSABLE, tuple(f"baseline: {each}" for each in useless))
    reasons = [*_broken(candidate), *_degenerate(baseline, candidate)]
    if _broken(candidate):
        return Report(Quality.OUTSIDE, tuple(reasons))

    noise = _within(baseline)
    notes = _notes(baseline, noise)
    if noise and (noise.logprob > _LOGPROB_USELESS or noise.parted > _PARTED_USELESS):
        reason = (
            f"baseline: too far from itself to measure by: {noise.logprob:.3f} nats,"
            f" {noise.parted:.0%} of tokens after a parting"
        )
        return Report(Quality.UNUSABLE, (reason,), notes, noise=noise)

    found = _distance(product(baseline.repetitions, candidate.repetitions))
    own_logprob, own_parted = (noise.logprob, noise.parted) if noise else (0.0, 0.0)
    logprob_limit = max(_LOGPROB_FLOOR, _TIMES_NOISE * own_logprob)
    parted_limit = max(_PARTED_FLOOR, min(_TIMES_NOISE * own_parted, (1 + own_parted) / 2))
    if found.logprob > logprob_limit:
        reasons.append(
            f"log-probabilities differ by {found.logprob:.3f} nats, allowed are {logprob_limit:.3f}"
        )
    if found.parted > parted_limit:
        reasons.append(
            f"{found.parted:.0%} of tokens come after a parting, allowed are {parted_limit:.0%}"
        )
    right, p, worse = _questions(baseline.questions, candidate.questions)
    return Report(
        verdict=Quality.OUTSIDE if reasons or worse else Quality.WITHIN,
        reasons=(*reasons, *worse),
        notes=notes,
        distance=found,
        noise=noise,
        candidate_noise=_within(candidate),
        logprob_limit=logprob_limit,
        parted_limit=parted_limit,
        right=right,
        right_p=p,
    )


def read_questions(text: str, name: str) -> tuple[Question, ...]:
    """A file of questions: JSON lines of ``{"question": …, "answer": …}``.

    Args:
        name: the file's, for messages.

    Raises:
        ConfigError: a line that is none, with its number, or no questions at all.
    """
    found, problems = [], []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as wrong:
            problems.append(f"line {number}: no JSON: {wrong}")
            continue
        values = [row.get(key) if isinstance(row, dict) else None for key in ("question", "answer")]
        question, answer = [
            str(value) if isinstance(value, (str, int, float)) else "" for value in values
        ]
        if question.strip() and _words(answer):
            found.append(Question(question, answer))
        else:
            problems.append(f'line {number}: wanted {{"question": "…", "answer": "…"}}')
    if problems:
        raise ConfigError(f"{name} can't be read", evidence=problems)
    if not found:
        raise ConfigError(f"{name} holds no questions")
    return tuple(found)


def _answer(known: Mapping[str, Any]) -> Answer:
    return Answer(
        tokens=tuple(int(token) for token in known["tokens"]),
        logprobs=tuple(math.nan if value is None else float(value) for value in known["logprobs"]),
        text=str(known.get("text", "")),
    )


def _words(text: str) -> list[str]:
    """Lower-case words and numbers; ``1,520`` is one."""
    return re.findall(r"[^\W_]+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text.casefold()))


def _broken(answers: AnswerSet) -> list[str]:
    """What can't be measured, a prompt named once."""
    found: dict[int, str] = {}
    for repetition in answers.repetitions:
        for number, answer in enumerate(repetition, 1):
            if answer.broken:
                found.setdefault(number, answer.broken)
    by_fault: dict[str, list[int]] = {}
    for number, fault in found.items():
        by_fault.setdefault(fault, []).append(number)
    return [
        f"unusable answers to {_prompts(numbers)}: {fault}" for fault, numbers in by_fault.items()
    ]


def _degenerate(baseline: AnswerSet, candidate: AnswerSet) -> list[str]:
    """Output that says nothing, where the baseline's says something."""
    stuck = [
        number
        for number in range(len(candidate.prompts))
        if any(answers[number].stuck for answers in candidate.repetitions)
        and not any(answers[number].stuck for answers in baseline.repetitions)
    ]
    found = []
    if stuck:
        found.append(f"one token over and over for {_prompts([number + 1 for number in stuck])}")
    if _constant(candidate) and not _constant(baseline):
        found.append("the same answer to every prompt")
    return found


def _constant(answers: AnswerSet) -> bool:
    """Whether the prompts make no difference, for three of them or more."""
    return len(answers.prompts) >= 3 and any(
        len({answer.tokens for answer in repetition}) == 1 for repetition in answers.repetitions
    )


def _prompts(numbers: Sequence[int]) -> str:
    return f"prompt{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _within(answers: AnswerSet) -> Distance | None:
    """The distance of a run to itself; None where it was asked once."""
    if len(answers.repetitions) < 2:
        return None
    return _distance(combinations(answers.repetitions, 2))


def _distance(pairs: Iterable[tuple[Sequence[Answer], Sequence[Answer]]]) -> Distance:
    found = [
        _apart(ours, theirs)
        for one, other in pairs
        for ours, theirs in zip(one, other, strict=True)
    ]
    partings = [at for _, _, at in found if at is not None]
    return Distance(
        logprob=math.fsum(logprob for logprob, _, _ in found) / len(found),
        parted=math.fsum(parted for _, parted, _ in found) / len(found),
        prompts_parted=len(partings) / len(found),
        first=min(partings, default=None),
    )


def _apart(ours: Answer, theirs: Answer) -> tuple[float, float, int | None]:
    """Nats, share of tokens after the parting, and where they part."""
    pairs = zip(ours.tokens, theirs.tokens, strict=False)
    shorter = min(len(ours.tokens), len(theirs.tokens))
    longer = max(len(ours.tokens), len(theirs.tokens))
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), shorter)
    seen = slice(0, at + 1)
    gaps = [
        _gap(one, other)
        for one, other in zip(ours.logprobs[seen], theirs.logprobs[seen], strict=False)
    ]
    return math.fsum(gaps) / len(gaps), 1 - at / longer, at if at < longer else None


def _gap(one: float, other: float) -> float:
    """Of two log-probabilities; of nothing (minus infinity) to something it is all there is."""
    return 0.0 if one == other else min(abs(one - other), 100.0)


def _notes(baseline: AnswerSet, noise: Distance | None) -> tuple[str, ...]:
    found = []
    if noise is None:
        found.append("the baseline was asked once: its own noise is unknown, the floor holds")
    elif noise.logprob == 0 and noise.parted == 0:
        found.append("the baseline repeats itself exactly: the floor holds")
    if all(answer.stuck for answer in baseline.repetitions[0]) or _constant(baseline):
        found.append("the baseline's own answers say nothing: neither does this check, much")
    return tuple(found)


def _questions(
    baseline: Sequence[Question], candidate: Sequence[Question]
) -> tuple[tuple[float, float] | None, float | None, tuple[str, ...]]:
    """Shares of right answers, the one-sided p-value, and whether that is worse.

    Of the questions that only one side knows, as many should be the candidate's (McNemar's test,
    exact).
    """
    theirs = {each.question: each for each in candidate}
    pairs = [(each, theirs[each.question]) for each in baseline if each.question in theirs]
    if not pairs:
        return None, None, ()
    lost = sum(one.right and not other.right for one, other in pairs)
    won = sum(other.right and not one.right for one, other in pairs)
    differing = lost + won
    ways = sum(math.comb(differing, count) for count in range(lost, differing + 1))
    p = ways / 2**differing
    shares = tuple(sum(pair[side].right for pair in pairs) / len(pairs) for side in (0, 1))
    worse = (
        f"{shares[1]:.0%} of {len(pairs)} questions right instead of {shares[0]:.0%}"
        f" (one-sided p {p:.3f})"
    )
    return (shares[0], shares[1]), p, (worse,) if p < _QUESTIONS_ERROR else ()
