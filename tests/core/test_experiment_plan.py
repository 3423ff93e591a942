"""What an experiment is made of, from what was typed; and that it survives being written down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from remote.core.experiment_plan import Experiment, Role, Stage, Step, steps
from remote.errors import ConfigError


def experiment(*found: Step, host: str = "lab", **matrix: str) -> Experiment:
    return Experiment("20261129-200000-ab12", host, found, matrix, 1.0)


def test_the_baseline_comes_first_and_once_more_last() -> None:
    found = steps("baseline,piecewise,mscclpp", ())
    assert [(step.name, step.role) for step in found] == [
        ("baseline", Role.BASELINE),
        ("piecewise", Role.CANDIDATE),
        ("mscclpp", Role.CANDIDATE),
        ("baseline again", Role.DRIFT),
    ]
    assert found[-1].profile == "baseline"


def test_candidates_are_swept_and_the_baseline_is_not() -> None:
    found = steps("baseline,piecewise", ("mem-fraction-static=0.8,0.9", "max-running-requests=64"))
    assert [(step.profile, step.sets) for step in found] == [
        ("baseline", ()),
        ("piecewise", ("mem-fraction-static=0.8", "max-running-requests=64")),
        ("piecewise", ("mem-fraction-static=0.9", "max-running-requests=64")),
        ("baseline", ()),
    ]
    assert len({step.name for step in found}) == 4


def test_one_profile_is_swept_against_itself() -> None:
    assert [step.sets for step in steps("baseline", ("x=1,2",))] == [(), ("x=1",), ("x=2",), ()]


@pytest.mark.parametrize(
    ("profiles", "sweeps", "said"),
    [
        ("baseline", (), "nothing to hold against"),
        ("", (), "without gaps"),
        ("baseline,,piecewise", (), "without gaps"),
        ("baseline,baseline", (), "twice"),
        ("baseline,piecewise", ("x",), "key=a,b,c"),
        ("baseline,piecewise", ("=1",), "key=a,b,c"),
        ("baseline,piecewise", ("x=1,1",), "twice"),
        ("baseline,piecewise", ("x=",), "without gaps"),
        ("baseline,piecewise", ("x=1", "x=2"), "swept twice"),
        ("a,b", (f"x={','.join(map(str, range(80)))}",), "80 candidates"),
    ],
)
def test_what_gives_no_experiment_is_told(
    profiles: str, sweeps: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        steps(profiles, sweeps)
    assert any(said in line for line in refused.value.evidence)


def test_it_is_the_same_after_a_trip_through_json() -> None:
    first, *others = steps("baseline,piecewise", ("x=1",))
    first = replace(first.started("r1").started("r2"), stage=Stage.MEASURED, bench="b")
    failed = replace(others[0], stage=Stage.FAILED, error={"message": "it died", "exit_code": 10})
    made = experiment(first, failed, *others[1:], concurrency="1,4")
    assert Experiment.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    assert made.baseline.run == "r2" and not made.over
    with pytest.raises(ValueError, match="no experiment"):
        Experiment.from_dict({"id": "x"})


def test_the_same_is_what_was_asked_for_however_far_it_is() -> None:
    asked = steps("baseline,piecewise", ())
    begun = experiment(replace(asked[0], stage=Stage.DONE), *asked[1:], concurrency="1")
    assert begun.same_as(experiment(*asked, concurrency="1"))
    assert not begun.same_as(experiment(*asked, concurrency="2"))
    assert not begun.same_as(experiment(*asked, concurrency="1", host="other"))
    assert not begun.same_as(experiment(*steps("baseline,mscclpp", ()), concurrency="1"))
