"""One run against another, from what is kept here: verdicts, refusals, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hosts import FakeClock
from measured_past import MeasuredPast

from remote import comparing
from remote.display import Display
from remote.errors import ConfigError, MeasurementInvalid, Regression, ToolError

A, B, C = (
    "20261129-200000-baseline-00aa",
    "20261129-203000-piecewise-00bb",
    "20261129-210000-mscclpp-00cc",
)


@pytest.fixture
def past(tmp_path: Path) -> MeasuredPast:
    made = MeasuredPast(tmp_path)
    for run, profile in ((A, "baseline"), (B, "piecewise"), (C, "mscclpp")):
        made.start(run, profile)
    made.measure(A)
    return made


def compare(past: MeasuredPast, run: str, **more: Any) -> dict[str, Any]:
    return comparing.compare(past.raw, past.project, Display(), run, **more)


def name(past: MeasuredPast, run: str, called: str = "", after_s: float = 0.0) -> dict[str, Any]:
    clock = FakeClock()
    clock.sleep(after_s)
    return comparing.name_baseline(past.raw, past.project, Display(), clock, run, called)


def test_a_faster_run_is_better_than_the_named_baseline(
    past: MeasuredPast, capsys: pytest.CaptureFixture[str]
) -> None:
    past.measure(B, 1.2)
    assert name(past, "20261129-2000")["run"] == A
    told = compare(past, B)
    assert (told["baseline"], told["candidate"], told["verdict"]) == (A, B, "better")
    rows = {(row["level"], row["metric"]): row for row in told["speed"]["rows"]}
    assert rows[16, "output_throughput"]["ratio"] == pytest.approx(1.2, rel=0.02)
    assert rows[1, "tpot_p99_ms"]["verdict"] == "better"
    assert told["output"] is None, "neither was asked"
    assert "verdict: better" in capsys.readouterr().out
    json.dumps(told)


def test_a_slower_run_is_worse_and_fails_only_where_that_was_asked(past: MeasuredPast) -> None:
    past.measure(B, 0.9)
    assert compare(past, B, baseline=A)["verdict"] == "worse"
    assert compare(past, B, baseline=A, fail_under=0.85)["verdict"] == "worse"
    with pytest.raises(Regression) as refused:
        compare(past, B, baseline=A, fail_under=0.97)
    assert refused.value.exit_code == 3
    assert [line.partition(":")[0] for line in refused.value.evidence] == ["level 1", "level 16"]


def test_output_that_differs_is_worse_whatever_its_speed(past: MeasuredPast) -> None:
    past.measure(B, 1.3)
    past.answer(A)
    past.answer(B, shift=1.0)
    with pytest.raises(Regression) as refused:
        compare(past, B, baseline=A)
    assert "worse: output differs" in refused.value.evidence[0]
    assert refused.value.details["verdict"] == "worse: output differs"
    past.answer(B, shift=0.001)
    assert compare(past, B, baseline=A)["verdict"] == "better"


def test_another_model_or_length_is_not_comparable(past: MeasuredPast) -> None:
    past.measure(B, 1.2, model="/models/other", input_len=512)
    told = compare(past, B, baseline=A)
    assert told["verdict"] == "not comparable"
    assert len(told["speed"]["unlike"]) == 2
    with pytest.raises(MeasurementInvalid) as refused:
        compare(past, B, baseline=A, fail_under=0.97)
    assert refused.value.exit_code == 4


def test_one_repeat_has_no_verdict_and_says_so(
    past: MeasuredPast, capsys: pytest.CaptureFixture[str]
) -> None:
    past.measure(B, 2.0, repeats=1)
    assert compare(past, B, baseline=A)["verdict"] == "no verdict"
    assert "one repeat" in capsys.readouterr().err


def test_invalid_points_are_left_out_and_counted(
    past: MeasuredPast, capsys: pytest.CaptureFixture[str]
) -> None:
    past.measure(B, 1.0, invalid={(16, 2): "3 of 80 requests failed"})
    compare(past, B, baseline=A)
    assert "left out: level 16, repeat 2: 3 of 80 requests failed" in capsys.readouterr().err


def test_a_published_table_gives_ratios_and_no_verdict(past: MeasuredPast, tmp_path: Path) -> None:
    table = tmp_path / "field.csv"
    table.write_text("concurrency,output tok/s,total tok/s\n16,1520,3028\n")
    told = compare(past, A, baseline=str(table))
    rows = {(row["level"], row["metric"]): row for row in told["speed"]["rows"]}
    assert rows[16, "output_throughput"]["ratio"] == pytest.approx(1600 / 1520, rel=0.02)
    assert told["verdict"] == "no verdict"
    with pytest.raises(ConfigError, match="none"):
        compare(past, A, baseline=str(tmp_path / "none.csv"))


def test_the_baseline_named_last_counts_and_each_has_its_name(past: MeasuredPast) -> None:
    past.measure(B, 1.0)
    past.measure(C, 1.5)
    name(past, A)
    name(past, B, "patched", after_s=60.0)
    assert compare(past, C)["baseline"] == B
    assert compare(past, C, baseline="baseline")["baseline"] == A


@pytest.mark.parametrize(
    ("run", "baseline", "said"),
    [
        (A, "", "no baseline yet"),
        (A, A, "the baseline itself"),
        (C, A, "nothing was measured"),
        (A, "nonsense", "no run known"),
        ("2026", A, "several"),
    ],
)
def test_what_cannot_be_compared_is_said(
    past: MeasuredPast, run: str, baseline: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        compare(past, run, baseline=baseline)
    assert refused.value.hint


def test_damaged_answers_are_no_traceback(past: MeasuredPast) -> None:
    past.measure(B)
    (past.runs / B / "quality.json").write_text("{")
    with pytest.raises(ToolError, match="quality"):
        compare(past, B, baseline=A)


def test_a_run_that_was_not_measured_is_no_baseline(past: MeasuredPast) -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        name(past, C)
