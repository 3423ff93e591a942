"""Answers held against the baseline's: noise passes, a wrong scale does not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from remote.core.quality import (
    Answer,
    AnswerSet,
    Quality,
    Question,
    judge,
    read_questions,
)
from remote.errors import ConfigError

PROMPTS = tuple(f"prompt {number}" for number in range(10))
VOCABULARY = 40
LENGTH = 32


@cache
def logits(prompt: str, prefix: tuple[int, ...]) -> tuple[float, ...]:
    dice = random.Random(repr((prompt, prefix)))
    return tuple(dice.gauss(0, 3) for _ in range(VOCABULARY))


Fault = Callable[[Sequence[float], random.Random], list[float]]


def rounding(size: float) -> Fault:
    return lambda values, dice: [value + dice.gauss(0, size) for value in values]


def scaled(factor: float) -> Fault:
    return lambda values, dice: [value * factor for value in values]


def answer(prompt: str, fault: Fault, dice: random.Random) -> Answer:
    """What a greedy model with a fault in its logits says."""
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(LENGTH):
        values = fault(logits(prompt, tuple(tokens)), dice)
        best = max(range(VOCABULARY), key=values.__getitem__)
        whole = math.log(math.fsum(math.exp(value - values[best]) for value in values))
        tokens.append(best)
        logprobs.append(-whole)
    return Answer(tuple(tokens), tuple(logprobs))


def asked(fault: Fault, seed: int = 0, times: int = 3) -> AnswerSet:
    dice = random.Random(seed)
    return AnswerSet(
        "r1",
        PROMPTS,
        tuple(tuple(answer(prompt, fault, dice) for prompt in PROMPTS) for _ in range(times)),
    )


EXACT = rounding(0.0)


def test_a_server_that_repeats_itself_is_within_its_own_floor() -> None:
    found = judge(asked(EXACT), asked(EXACT))
    assert found.verdict is Quality.WITHIN
    assert found.distance is not None and found.distance.logprob == 0
    assert found.distance.first is None
    assert "the floor holds" in found.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_other_kernels_round_otherwise_and_are_within(seed: int) -> None:
    found = judge(asked(EXACT), asked(rounding(0.02), seed))
    assert found.verdict is Quality.WITHIN, found.reasons
    assert found.distance is not None and 0 < found.distance.logprob < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_baseline_allows_as_much_noise(seed: int) -> None:
    found = judge(asked(rounding(0.15), 100 + seed), asked(rounding(0.15), seed))
    assert found.verdict is Quality.WITHIN, found.reasons
    assert found.noise is not None and found.noise.prompts_parted > 0


@pytest.mark.parametrize(
    "fault",
    [scaled(0.5), scaled(0.8), scaled(2.0), scaled(-1.0), rounding(1.0), rounding(6.0)],
    ids=["half", "four fifths", "double", "sign", "disturbed", "drowned"],
)
def test_a_wrong_scale_is_outside(fault: Fault) -> None:
    found = judge(asked(rounding(0.02), 1), asked(fault, 2))
    assert found.verdict is Quality.OUTSIDE
    assert found.summary == "worse: output differs"
    assert found.reasons


def test_other_answers_that_are_as_sure_of_themselves_are_outside() -> None:
    right = asked(EXACT)
    wrong = replace(
        right,
        repetitions=tuple(
            tuple(replace(each, tokens=tuple(t + 1 for t in each.tokens)) for each in answers)
            for answers in right.repetitions
        ),
    )
    found = judge(right, wrong)
    assert found.verdict is Quality.OUTSIDE
    assert found.distance is not None and found.distance.first == 0
    assert found.reasons == ("100% of tokens come after a parting, allowed are 75%",)


def test_one_prompt_answered_with_garbage_is_enough() -> None:
    right = asked(EXACT)
    garbage = Answer((1, 2, 3), (-2.5, -3.0, -2.0))
    wrong = replace(
        right, repetitions=tuple((*answers[:-1], garbage) for answers in right.repetitions)
    )
    assert judge(right, wrong).verdict is Quality.OUTSIDE


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (Answer((), ()), "unusable answers to prompt 4: empty"),
        (Answer((1, 2), (-0.1, math.nan)), "no numbers"),
        (Answer((1, 2), (-0.1, math.inf)), "no numbers"),
        (Answer((1, 2), (-0.1,)), "2 tokens with 1 log-probabilities"),
        (Answer((7,) * LENGTH, (-0.1,) * LENGTH), "one token over and over for prompt 4"),
    ],
)
def test_no_answer_at_all_is_outside_and_a_baseline_without_any_is_no_measure(
    spoilt: Answer, said: str
) -> None:
    right = asked(EXACT)
    first = right.repetitions[0]
    wrong = replace(right, repetitions=((*first[:3], spoilt, *first[4:]), *right.repetitions[1:]))
    found = judge(right, wrong)
    assert found.verdict is Quality.OUTSIDE
    assert said in found.reasons[0]
    if spoilt.broken:
        assert judge(wrong, right).verdict is Quality.UNUSABLE


def test_the_same_answer_to_every_prompt_is_outside() -> None:
    right = asked(EXACT)
    same = (right.repetitions[0][0],) * len(PROMPTS)
    found = judge(right, replace(right, repetitions=(same, same)))
    assert found.verdict is Quality.OUTSIDE
    assert "the same answer to every prompt" in found.reasons


def test_a_model_that_always_says_one_thing_is_compared_with_a_warning() -> None:
    stuck = AnswerSet("r", PROMPTS, ((Answer((7,) * 8, (-0.5,) * 8),) * len(PROMPTS),) * 3)
    found = judge(stuck, stuck)
    assert found.verdict is Quality.WITHIN
    assert any("say nothing" in note for note in found.notes)


def test_a_baseline_that_never_says_the_same_is_no_measure() -> None:
    found = judge(asked(rounding(6.0), 1), asked(EXACT))
    assert found.verdict is Quality.UNUSABLE
    assert "too far from itself" in found.reasons[0]


def test_a_baseline_asked_once_has_the_floor_and_says_so() -> None:
    found = judge(asked(EXACT, times=1), asked(rounding(0.02)))
    assert found.verdict is Quality.WITHIN
    assert "asked once" in found.notes[0]


def test_other_prompts_are_not_compared() -> None:
    other = replace(asked(EXACT), prompts=tuple(reversed(PROMPTS)))
    assert judge(asked(EXACT), other).verdict is Quality.UNUSABLE


def test_an_answer_that_stops_early_parts_at_its_end() -> None:
    right = asked(EXACT)
    short = replace(
        right,
        repetitions=tuple(
            tuple(Answer(each.tokens[:4], each.logprobs[:4]) for each in answers)
            for answers in right.repetitions
        ),
    )
    found = judge(right, short)
    assert found.verdict is Quality.OUTSIDE
    assert found.distance is not None
    assert found.distance.first == 4
    assert found.distance.parted == pytest.approx(28 / 32)


def questions(right: int, of: int = 40) -> tuple[Question, ...]:
    return tuple(
        Question(f"q{number}", "Paris", "It is Paris." if number < right else "It is Parisian.")
        for number in range(of)
    )


@pytest.mark.parametrize(("knows", "verdict"), [(38, "within"), (20, "outside"), (40, "within")])
def test_fewer_right_answers_are_worse_where_chance_does_not_explain_them(
    knows: int, verdict: str
) -> None:
    baseline = replace(asked(EXACT, times=2), questions=questions(39))
    found = judge(baseline, replace(baseline, questions=questions(knows)))
    assert found.verdict.value == verdict
    assert found.right == (39 / 40, knows / 40)


@pytest.mark.parametrize(
    ("answer", "said", "right"),
    [
        ("1520", "That makes 1,520 tokens.", True),
        ("3.5", "It is 3.5", True),
        ("3", "It is 3.5", False),
        ("New York", "in new york, of course", True),
        ("York", "Yorkshire", False),
        ("Köln", "KÖLN!", True),
    ],
)
def test_an_answer_is_right_where_it_stands_as_whole_words(
    answer: str, said: str, right: bool
) -> None:
    assert Question("?", answer, said).right is right


def test_answers_are_read_from_what_a_run_keeps() -> None:
    text = (
        '{"run": "r1", "prompts": ["a"], "repetitions":'
        ' [[{"text": "x", "tokens": [5, 6], "logprobs": [-0.5, null]}]], "questions": []}'
    )
    found = AnswerSet.from_dict(json.loads(text))
    assert found.repetitions[0][0].tokens == (5, 6)
    assert found.repetitions[0][0].broken
    json.dumps(judge(found, found).as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"run": "r", "prompts": [], "repetitions": []},
        {"run": "r", "prompts": ["a", "b"], "repetitions": [[{"tokens": [], "logprobs": []}]]},
        {"run": "r", "prompts": ["a"], "repetitions": [["x"]]},
        {"run": "r", "prompts": ["a"], "repetitions": 3},
    ],
)
def test_anything_else_is_refused(known: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no"):
        AnswerSet.from_dict(known)


def test_a_file_of_questions_is_read_and_a_bad_line_named() -> None:
    assert read_questions('{"question": "2+2", "answer": 4}\n\n', "q.jsonl") == (
        Question("2+2", "4"),
    )
    with pytest.raises(ConfigError) as refused:
        read_questions('{"question": "a", "answer": "b"}\n{"question": "a"}\nx\n', "q.jsonl")
    assert [line.split(":")[0] for line in refused.value.evidence] == ["line 2", "line 3"]
    with pytest.raises(ConfigError, match="no questions"):
        read_questions("", "q.jsonl")
