"""Reports over what is kept here: every figure of a page stands in a file of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts import FakeClock
from measured_past import MeasuredPast
from pages import document, line_at, sources

from remote import reporting
from remote.core import experiment_plan
from remote.core.experiment_plan import Experiment, Stage
from remote.core.run_record import Ending
from remote.display import Display
from remote.errors import ConfigError, ToolError
from remote.experimenting import Kept

A, B, C, D = (
    "20261129-200000-baseline-00aa",
    "20261129-203000-piecewise-00bb",
    "20261129-210000-mscclpp-00cc",
    "20261129-213000-baseline-00dd",
)


@pytest.fixture
def past(tmp_path: Path) -> MeasuredPast:
    made = MeasuredPast(tmp_path)
    for run, profile, speed in ((A, "baseline", 1.0), (B, "piecewise", 1.2), (D, "baseline", 1.0)):
        made.start(run, profile)
        made.measure(run, speed)
        made.answer(run)
    made.start(C, "mscclpp", Ending("crashed", "nccl_init_error", "<b>no NVLink</b>", "TP3"))
    return made


def experiment(past: MeasuredPast) -> Kept:
    steps = experiment_plan.steps("baseline,piecewise,mscclpp", ())
    stages = (Stage.DONE, Stage.DONE, Stage.FAILED, Stage.DONE)
    done = tuple(
        replace(step.started(run), stage=stage)
        for step, run, stage in zip(steps, (A, B, C, D), stages, strict=True)
    )
    store = Kept(past.runs, "20261129-200000-ab12")
    store.write(Experiment("20261129-200000-ab12", "gpu", done, {}, 1.0))
    return store


def report(past: MeasuredPast, **asked: str) -> dict[str, Any]:
    return reporting.write(past.raw, past.project, Display(), FakeClock(), **asked)


def test_every_figure_of_an_experiment_is_traceable(past: MeasuredPast) -> None:
    store = experiment(past)
    told = report(past)
    assert Path(told["html"]) == store.folder / "report.html"
    assert told["runs"] == [A, B, C, D]
    data = document(Path(told["html"]))
    found = sources(data)
    assert len(found) == 30, "ten points of three runs"
    assert all(line_at(past.runs, source) for source in found)
    points = [point for run in data["runs"] for point in run["points"]]
    assert len(points) == 30
    for point in points:
        assert point["metrics"] == line_at(past.runs, point["source"])


def test_a_crash_is_a_row_with_its_diagnosis_and_nothing_in_it_is_markup(
    past: MeasuredPast,
) -> None:
    experiment(past)
    told = report(past, experiment="last")
    page, text = Path(told["html"]).read_text(), Path(told["markdown"]).read_text()
    for each in (page, text):
        assert "nccl_init_error" in each.replace("\\", "") and "<b>no NVLink" not in each
    assert "1 failed" in text.splitlines()[0]
    assert "piecewise" in text and "better" in text


def test_named_runs_are_held_against_the_baseline(past: MeasuredPast, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    told = report(past, runs="20261129-2030", baseline=A, output=str(page))
    assert told == {
        "html": str(page),
        "markdown": str(page.with_suffix(".md")),
        "runs": [B, A],
    }
    data = document(page)
    assert len(data["comparisons"]) == 1
    assert "exec python # piecewise" in page.read_text(), "the exact script"


def test_without_an_experiment_the_newest_runs_are_reported(past: MeasuredPast) -> None:
    told = report(past)
    assert told["runs"] == [A, B, D, C]
    assert Path(told["html"]) == past.runs / "report.html"


def test_what_cannot_be_reported_is_said(past: MeasuredPast, tmp_path: Path) -> None:
    for asked, said in (
        ({"runs": A, "experiment": "last"}, "exclude"),
        ({"experiment": "last"}, "no experiment here"),
        ({"runs": "nonsense"}, "no run known"),
        ({"runs": A, "output": str(tmp_path / "x.md")}, "another ending"),
    ):
        with pytest.raises(ConfigError, match=said):
            report(past, **asked)
    with pytest.raises(ToolError, match="can't be written"):
        (tmp_path / "file").write_text("")
        report(past, runs=A, output=str(tmp_path / "file" / "page.html"))
    with pytest.raises(ConfigError, match="nothing was started"):
        reporting.write({"runs": str(tmp_path / "none")}, tmp_path, Display(), FakeClock())
