"""Two benches side by side: what is said of the candidate, and how often wrongly."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from remote.core.comparison import (
    DECIDING,
    Comparison,
    Row,
    Verdict,
    compare,
    compare_published,
    floor,
)
from remote.core.published import read_published
from remote.errors import ConfigError

PLAN: dict[str, Any] = {
    "model": "/models/GLM-5-NVFP4",
    "tokenizer": "/models/GLM-5-NVFP4",
    "input_len": 1024,
    "output_len": 1024,
    "range_ratio": 1.0,
    "gpus": 8,
    "flush_cache": True,
    "warm_up": True,
    "prompts": {"1": 64, "10": 64, "256": 1280, "1024": 5120},
}
LEVELS = (1, 10, 256, 1024)
FIGURES = {"output_throughput": 1500.0, "ttft_p99_ms": 800.0, "tpot_p99_ms": 40.0}


@dataclass(frozen=True)
class APoint:
    level: int
    repeat: int
    metrics: Mapping[str, float]
    valid: bool = True
    reasons: Sequence[str] = ()
    bench: str = "20261129-200000-ab12"
    run: str = "r1"
    origin: str = "r1/raw/x.jsonl:1"


def noisy(
    dice: random.Random,
    repeats: int,
    shifts: Mapping[int, float] | None = None,
    levels: Sequence[int] = LEVELS,
    noise: Mapping[int, float] | None = None,
    metrics: Mapping[str, float] = FIGURES,
) -> list[APoint]:
    """Points with 2% noise; at a level with a shift, throughput falls and latencies rise by it."""
    points = []
    for level in levels:
        shift = (shifts or {}).get(level, 0.0)
        spread = (noise or {}).get(level, 0.02)
        for repeat in range(1, repeats + 1):
            figures = {
                name: value
                * (1 - shift if name.endswith("throughput") else 1 + shift)
                * (1 + dice.gauss(0, spread))
                for name, value in metrics.items()
            }
            points.append(APoint(level, repeat, figures))
    return points


def table(baseline: Sequence[APoint], candidate: Sequence[APoint], **changed: Any) -> Comparison:
    return compare(baseline, candidate, PLAN, {**PLAN, **changed})


def row(found: Comparison, level: int, metric: str = "output_throughput") -> Row:
    return next(each for each in found.rows if (each.level, each.metric) == (level, metric))


UNLIKE_NOISE = {1: 0.01, 10: 0.02, 256: 0.04, 1024: 0.08}


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("levels", [LEVELS, LEVELS[:2], LEVELS[-1:]])
@pytest.mark.parametrize("noise", [None, UNLIKE_NOISE])
def test_equal_sides_give_a_table_without_any_verdict_95_times_in_100(
    repeats: int, levels: Sequence[int], noise: Mapping[int, float] | None
) -> None:
    dice = random.Random(5)
    clean = sum(
        table(
            noisy(dice, repeats, levels=levels, noise=noise),
            noisy(dice, repeats, levels=levels, noise=noise),
        ).verdict
        is Verdict.NO_DIFFERENCE
        for _ in range(1000)
    )
    assert clean >= 950


@pytest.mark.parametrize(
    ("shifted", "levels"),
    [(LEVELS, LEVELS), ((1024,), LEVELS), ((1,), LEVELS), ((256,), (256,))],
)
def test_a_shift_of_5_percent_is_found_90_times_in_100(
    shifted: Sequence[int], levels: Sequence[int]
) -> None:
    dice = random.Random(7)
    shifts = dict.fromkeys(shifted, 0.05)
    found = sum(
        table(noisy(dice, 5, levels=levels), noisy(dice, 5, shifts, levels=levels)).verdict
        is Verdict.WORSE
        for _ in range(500)
    )
    assert found >= 450


def test_a_level_that_is_noisier_than_the_rest_is_not_lent_their_calm() -> None:
    dice = random.Random(11)
    noise = {1: 0.1, 10: 0.01, 256: 0.01, 1024: 0.01}
    wrong = sum(
        table(noisy(dice, 3, noise=noise), noisy(dice, 3, noise=noise)).verdict
        is not Verdict.NO_DIFFERENCE
        for _ in range(600)
    )
    assert wrong <= 30


def test_the_interval_holds_the_true_ratio_95_times_in_100() -> None:
    dice = random.Random(3)
    held = 0
    for _ in range(300):
        found = row(table(noisy(dice, 5), noisy(dice, 5, {10: 0.04})), 10)
        assert found.low is not None and found.high is not None
        held += found.low < 0.96 < found.high
    assert 276 <= held <= 298


def test_a_clear_gain_reads_better_at_its_level_and_the_other_levels_show_nothing() -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 5), noisy(dice, 5, {1024: -0.2}))
    assert found.verdict is Verdict.BETTER
    assert found.summary == "better"
    assert {each.verdict for each in found.rows if each.level == 1024} == {Verdict.BETTER}
    assert {each.verdict for each in found.rows if each.level == 1} == {Verdict.NO_DIFFERENCE}
    gained = row(found, 1024)
    assert gained.ratio == pytest.approx(1.2, abs=0.04)
    assert gained.low is not None and gained.low > 1
    assert gained.repeats == (5, 5)


def test_better_here_and_worse_there_is_mixed() -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 5), noisy(dice, 5, {1: 0.3, 1024: -0.3}))
    assert found.verdict is Verdict.MIXED


def test_only_output_throughput_and_the_two_latencies_are_judged() -> None:
    dice = random.Random(1)
    figures = {**FIGURES, "total_throughput": 3000.0, "itl_p50_ms": 30.0, "e2e_mean_ms": 900.0}
    found = table(
        noisy(dice, 5, metrics=figures), noisy(dice, 5, dict.fromkeys(LEVELS, 0.3), metrics=figures)
    )
    for each in found.rows:
        assert each.low is not None
        assert (each.verdict is Verdict.WORSE) == (each.metric in DECIDING)
        assert (each.p is not None) == each.deciding


@pytest.mark.parametrize("repeats", [(1, 3), (3, 1), (1, 1)])
def test_one_repeat_gives_a_ratio_no_verdict_and_the_reason(repeats: tuple[int, int]) -> None:
    dice = random.Random(1)
    found = table(noisy(dice, repeats[0]), noisy(dice, repeats[1], {1: 0.5}))
    assert found.verdict is Verdict.NONE
    assert found.summary == "no verdict"
    for each in found.rows:
        assert each.ratio is not None and each.low is None and each.p is None
        assert "one repeat in" in each.reason and "no verdict" in each.reason


def test_figures_that_never_vary_are_equal_or_not() -> None:
    still = [APoint(1, repeat, FIGURES) for repeat in (1, 2, 3)]
    slower = [APoint(1, repeat, {**FIGURES, "output_throughput": 1400.0}) for repeat in (1, 2, 3)]
    assert table(still, still).verdict is Verdict.NO_DIFFERENCE
    assert row(table(still, slower), 1).verdict is Verdict.WORSE


def test_invalid_points_are_left_out_and_told() -> None:
    dice = random.Random(1)
    bad = APoint(10, 4, {"output_throughput": 1.0}, valid=False, reasons=["3 requests failed"])
    found = table(noisy(dice, 3), [*noisy(dice, 3), bad])
    assert found.verdict is Verdict.NO_DIFFERENCE
    assert found.candidate.points == 12
    assert found.candidate.left_out == ("level 10, repeat 4: 3 requests failed",)
    assert row(found, 10).repeats == (3, 3)


def test_of_a_point_measured_anew_the_last_counts() -> None:
    points = [
        APoint(1, 1, {"output_throughput": 1.0}, valid=False, reasons=["the server died"]),
        APoint(1, 1, FIGURES),
        APoint(1, 2, FIGURES),
    ]
    found = table(points, points)
    assert row(found, 1).repeats == (2, 2)
    assert not found.baseline.left_out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "/models/GLM-4.6"}, "unlike model: /models/GLM-5-NVFP4 against /models/GLM-4.6"),
        ({"input_len": 512}, "unlike input length: 1024 against 512"),
        ({"output_len": 8}, "unlike output length"),
        ({"gpus": 4}, "unlike number of GPUs: 8 against 4"),
        ({"tokenizer": "other"}, "unlike tokenizer"),
        ({"flush_cache": False}, "unlike flushing of the cache"),
    ],
)
def test_unlike_benches_are_not_compared(change: dict[str, Any], said: str) -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 3), noisy(dice, 3), **change)
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.unlike and found.unlike[0].startswith(said)
    for each in found.rows:
        assert each.verdict is Verdict.NOT_COMPARABLE
        assert each.ratio is None and each.baseline is not None and each.candidate is not None


def test_one_model_in_two_places_is_one_model() -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 3), noisy(dice, 3), model="/data/GLM-5-NVFP4/", tokenizer=None)
    assert not found.unlike
    assert any("tokenizer" in note and "not known" in note for note in found.notes)


def test_another_number_of_prompts_makes_that_level_incomparable() -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 3), noisy(dice, 3), prompts={**PLAN["prompts"], "1024": 64})
    assert row(found, 1024).verdict is Verdict.NOT_COMPARABLE
    assert "5120 prompts against 64" in row(found, 1024).reason
    assert row(found, 256).verdict is Verdict.NO_DIFFERENCE


def test_a_level_missing_on_one_side_is_shown_as_such() -> None:
    dice = random.Random(1)
    dead = [
        APoint(256, repeat, {}, valid=False, reasons=["the server died"]) for repeat in (1, 2, 3)
    ]
    found = table(noisy(dice, 3), [*noisy(dice, 3, levels=(1, 10)), *dead])
    assert row(found, 1024).verdict is Verdict.NOT_COMPARABLE
    assert row(found, 1024).reason == "level 1024 was not measured by candidate"
    assert row(found, 256).reason == "no valid point at level 256 in candidate (3 invalid)"
    assert found.verdict is Verdict.NO_DIFFERENCE


def test_figures_that_are_none_are_not_averaged() -> None:
    points = [
        APoint(1, 1, {**FIGURES, "tpot_p99_ms": 0.0}),
        APoint(1, 2, {**FIGURES, "tpot_p99_ms": float("nan")}),
    ]
    found = table(points, points)
    assert row(found, 1, "tpot_p99_ms").verdict is Verdict.NOT_COMPARABLE
    assert "no figure above zero" in row(found, 1, "tpot_p99_ms").reason
    assert found.verdict is Verdict.NO_DIFFERENCE


def test_every_figure_names_the_lines_it_comes_from() -> None:
    points = [APoint(4, n, FIGURES, origin=f"r1/bench/b/raw/c4-r{n}.jsonl:{n}") for n in (1, 2)]
    found = row(table(points, points), 4)
    assert found.sources[0] == ("r1/bench/b/raw/c4-r1.jsonl:1", "r1/bench/b/raw/c4-r2.jsonl:2")


def test_the_table_goes_into_json() -> None:
    dice = random.Random(1)
    text = json.dumps(table(noisy(dice, 3), noisy(dice, 3)).as_dict(), allow_nan=False)
    assert json.loads(text)["summary"] == "no difference shown"


def test_the_lowest_ratio_of_output_throughput_is_held_against_the_floor() -> None:
    dice = random.Random(1)
    still = dict.fromkeys(LEVELS, 0.0001)
    found = table(noisy(dice, 2, noise=still), noisy(dice, 2, {10: 0.05, 256: 0.01}, noise=still))
    held = floor(found, 0.97)
    assert [each.level for each in held.below] == [10]
    assert held.lowest is not None and held.lowest.ratio == pytest.approx(0.95, abs=0.001)
    assert not floor(found, 0.94).below


def test_a_level_without_a_ratio_passes_no_floor() -> None:
    dice = random.Random(1)
    found = table(noisy(dice, 2), noisy(dice, 2, levels=LEVELS[:3]))
    assert [each.level for each in floor(found, 0.9).unknown] == [1024]


@pytest.mark.parametrize("least", [0.0, -1.0, float("nan"), float("inf")])
def test_a_floor_that_is_no_ratio_is_refused(least: float) -> None:
    with pytest.raises(ConfigError, match="ratio above 0"):
        floor(table([], []), least)


PUBLISHED = """\
Concurrency,Output throughput (tok/s),Total tok/s,P99 TTFT (s),Median ITL ms,remarks
1,66.4,,,15.0,alone
1024,"1,520","3,028",2.5,n/a,
"""


def test_a_published_table_gives_ratios_and_no_verdict() -> None:
    figures = {"output_throughput": 1672.0, "total_throughput": 3331.0, "ttft_p99_ms": 2500.0}
    points = [APoint(1024, repeat, figures) for repeat in (1, 2, 3)]
    found = compare_published(read_published(PUBLISHED, "field.csv"), points)
    output = row(found, 1024)
    assert output.ratio == pytest.approx(1.1)
    assert output.low is None and output.verdict is Verdict.NONE
    assert "spread unknown" in output.reason
    assert output.sources[0] == ("field.csv:3",)
    assert row(found, 1024, "ttft_p99_ms").ratio == pytest.approx(1.0)
    assert row(found, 1).reason == "not in candidate"
    assert found.summary == "no verdict"
    assert [each.level for each in floor(found, 0.97).unknown] == [1]
