"""The matrix from its options, the client's words, and how long it is said to take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench_samples import bench_plan_with

from remote.core import bench_plan
from remote.core.bench_plan import Asked, BenchPlan, Earlier, Usual
from remote.errors import ConfigError, PreflightFailed

USUAL = Usual((1, 10, 256, 1024), 1024, 1024, 3)
FLAGS: dict[str, dict[str, object]] = {
    name: {}
    for name in (
        *("backend", "dataset-name", "host", "port", "model", "tokenizer", "seed"),
        *("random-input-len", "random-output-len", "random-range-ratio"),
        *("num-prompts", "max-concurrency", "warmup-requests"),
        *("output-file", "output-details", "flush-cache"),
    )
}


def words(**changed: Any) -> tuple[str, ...]:
    values: dict[str, Any] = {
        "address": "127.0.0.1",
        "port": 30000,
        "model": "/m",
        "tokenizer": "/m",
        "input_len": 16,
        "output_len": 8,
        "sglang": "0.5.9",
        **changed,
    }
    flags = values.pop("flags", FLAGS)
    return bench_plan.client_words(flags, **values)


def plan(**changed: Any) -> BenchPlan:
    values = {"levels": (1, 256), "prompts": {1: 64, 256: 1280}, "argv": words(), **changed}
    return bench_plan_with(**values)


def test_without_options_the_settings_hold() -> None:
    made = bench_plan.matrix(Asked(), USUAL)
    assert made.levels == (1, 10, 256, 1024)
    assert (made.input_len, made.output_len, made.repeats) == (1024, 1024, 3)
    assert made.prompts == {1: 64, 10: 64, 256: 1280, 1024: 5120}


def test_two_benches_of_the_same_matrix_have_the_same_seeds() -> None:
    baseline = bench_plan.matrix(Asked(), USUAL)
    assert bench_plan.matrix(Asked(), USUAL).seeds == baseline.seeds
    longer = bench_plan.matrix(Asked(repeats="5"), USUAL)
    assert longer.seeds[:3] == baseline.seeds
    assert len(set(longer.seeds)) == 5


def test_quick_is_lighter_but_for_what_was_typed() -> None:
    made = bench_plan.matrix(Asked(quick=True, output_len="512"), USUAL)
    assert (made.input_len, made.output_len, made.repeats) == (256, 512, 2)
    assert made.prompts[1024] == 2048
    small = bench_plan.matrix(Asked(quick=True), Usual((1,), 16, 8, 1))
    assert (small.input_len, small.output_len, small.repeats) == (16, 8, 1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(concurrency=" "), "found nothing"),
        (Asked(concurrency="1,,4"), "'' is no number"),
        (Asked(concurrency="0,4"), "0 is not between 1"),
        (Asked(concurrency="-1"), "-1 is not between 1"),
        (Asked(concurrency="4,4"), "4 stands there twice"),
        (Asked(concurrency="four"), "'four' is no number"),
        (Asked(concurrency="1.5"), "'1.5' is no number"),
        (Asked(input_len="0"), "--input-len: wanted a whole number from 1"),
        (Asked(output_len="-8"), "--output-len: wanted a whole number from 1"),
        (Asked(repeats="many"), "--repeats: wanted a whole number from 1"),
        (Asked(prompts="0"), "--prompts: wanted a whole number from 1"),
        (Asked(concurrency="1,64", prompts="8"), "8 prompts can't keep 64 requests in flight"),
    ],
)
def test_what_can_not_be_measured_is_refused(asked: Asked, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        bench_plan.matrix(asked, USUAL)
    assert any(words in line for line in refused.value.evidence)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        bench_plan.matrix(Asked(concurrency="x,0", repeats="0"), USUAL)
    assert len(refused.value.evidence) == 3


def test_points_come_repeat_by_repeat_and_the_first_of_a_level_warms_up() -> None:
    jobs = plan().jobs
    assert [job.name for job in jobs] == ["c1-r1", "c256-r1", "c1-r2", "c256-r2"]
    assert [job.warm_ups for job in jobs] == [1, 64, 1, 1]
    assert [job.seed for job in jobs] == [1, 1, 2, 2]


def test_what_is_missing_warms_up_again() -> None:
    jobs = plan().missing({(1, 1), (256, 1)})
    assert [(job.name, job.warm_ups, job.seed) for job in jobs] == [
        ("c1-r2", 1, 2),
        ("c256-r2", 64, 2),
    ]


def test_a_plan_survives_its_file() -> None:
    assert BenchPlan.from_dict(json.loads(json.dumps(plan().as_dict()))) == plan()


@pytest.mark.parametrize("known", [{}, {"bench": "x"}, {**plan().as_dict(), "prompts": None}])
def test_a_damaged_plan_is_none(known: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        BenchPlan.from_dict(known)


def test_the_clients_words_for_a_point() -> None:
    job = plan().jobs[1]
    said = bench_plan.filled(words(), job, "/raw/c256-r1.jsonl")
    assert said[:2] == ["-m", "sglang.bench_serving"]
    for name, value in {
        "dataset-name": "random-ids",
        "num-prompts": "1280",
        "max-concurrency": "256",
        "seed": "1",
        "warmup-requests": "64",
        "output-file": "/raw/c256-r1.jsonl",
        "random-range-ratio": "1.0",
    }.items():
        assert said[said.index(f"--{name}") + 1] == value
    assert {"--flush-cache", "--output-details"} <= set(said)
    assert "--tokenizer" not in said
    assert not any("{" in word for word in said)


def test_a_tokenizer_of_its_own_is_named() -> None:
    said = words(tokenizer="/tok")
    assert said[said.index("--tokenizer") + 1] == "/tok"


def test_a_client_that_can_not_flush_is_refused() -> None:
    lacking = {name: spec for name, spec in FLAGS.items() if name != "flush-cache"}
    with pytest.raises(PreflightFailed) as refused:
        words(flags=lacking)
    assert refused.value.evidence == ("it has no --flush-cache",)


def test_a_client_without_random_ids_is_refused() -> None:
    with pytest.raises(PreflightFailed) as refused:
        words(flags={**FLAGS, "dataset-name": {"choices": ["random", "sharegpt"]}})
    assert refused.value.evidence == ("it has no --dataset-name random-ids",)


def test_a_client_that_counts_its_own_warm_up_is_left_to_it() -> None:
    less = {name: spec for name, spec in FLAGS.items() if name != "warmup-requests"}
    assert "--warmup-requests" not in words(flags=less)


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["--model-path", "m"], 1),
        (["--tp-size", "8"], 8),
        (["--tensor-parallel-size=4", "--pp-size", "2"], 8),
        (["--tp", "2", "--dp-size", "4"], 8),
        (["--tp-size", "8", "--dp-size", "8", "--enable-dp-attention"], 8),
    ],
)
def test_the_gpus_of_a_server(argv: list[str], count: int) -> None:
    assert bench_plan.gpus_of(argv) == count


def test_without_earlier_points_the_guess_says_that_it_is_one() -> None:
    found = bench_plan.expected(plan(), plan().jobs, [])
    assert "nothing was measured on lab with baseline yet" in found.basis
    assert found.low_s * 2 < found.high_s


def test_from_earlier_points_of_the_same_level() -> None:
    earlier = [
        Earlier(1, 64, 16, 8, measured_s=10.0, whole_s=15.0),
        Earlier(256, 1280, 16, 8, measured_s=40.0, whole_s=45.0),
    ]
    found = bench_plan.expected(plan(), plan().jobs, earlier)
    assert found.low_s < 2 * 15 + 2 * 45 < found.high_s
    assert found.basis == "from 2 earlier points on lab with baseline"
    longer = bench_plan.expected(plan(output_len=80), plan().jobs, earlier)
    assert longer.low_s > found.high_s


def test_a_level_never_measured_makes_the_range_wide() -> None:
    earlier = [Earlier(1, 64, 16, 8, measured_s=10.0, whole_s=15.0)]
    found = bench_plan.expected(plan(), plan().jobs, earlier)
    assert "none at some of these levels" in found.basis
    assert found.high_s > 5 * found.low_s
