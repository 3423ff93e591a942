"""A host's facts judged, from case files: what each host's doctor must say, and nothing worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hosts import read_json

from remote.core import doctor, host_facts
from remote.core.checks import Level, Line, Start
from remote.core.doctor import Pin, Way

CASES = Path(__file__).parents[1] / "cases" / "doctor"
HEALTHY = "h200-x2"


def merged(base: Any, changes: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    both = {key: merged(base.get(key), value) for key, value in changes.items()}
    return {key: value for key, value in {**base, **both}.items() if value != "(gone)"}


def lines(name: str) -> list[Line]:
    case = read_json(CASES / f"{name}.json")
    found = merged(read_json(CASES / f"{HEALTHY}.json"), case.get("changes", {}))
    facts = host_facts.read(found["facts"])
    start = Start("gpu", 30000, **case.get("start", {}))
    said = doctor.read_imports(found["imports"], 180.0)
    return [*doctor.host_lines(facts, start), *doctor.torch_lines(facts, said)]


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.json")))
def test_a_host_is_told_what_is_wrong_with_it_and_nothing_worse(name: str) -> None:
    found = lines(name)
    expects = read_json(CASES / f"{name}.json").get("expects", [])
    for check, level, words in expects:
        fitting = [
            line
            for line in found
            if line.check == check and line.level.value == level
            if words in "\n".join([line.text, *line.evidence])
        ]
        assert fitting, (check, level, words, [line for line in found if line.check == check])
    told = {check for check, level, _ in expects if level != "ok"}
    assert not [line for line in found if line.level is not Level.OK and line.check not in told]


def test_every_failure_and_warning_has_a_remedy() -> None:
    for path in CASES.glob("*.json"):
        for line in lines(path.stem):
            assert line.level is Level.OK or line.remedy, line


def way(**changed: Any) -> Way:
    values = {
        "address": "root@gpu:22",
        "login": "logged in by publickey",
        "host_key": "on record",
        "accepts_new_keys": False,
        "round_trip_s": 0.02,
        "clock_off_s": 0.1,
        "unsure_s": 0.01,
    }
    return Way(**{**values, **changed})


@pytest.mark.parametrize(
    ("changed", "check", "words"),
    [
        ({"clock_off_s": 3600.0}, "clock", "3600 s ahead of"),
        ({"clock_off_s": -3600.0}, "clock", "3600 s behind"),
        ({"accepts_new_keys": True}, "host key", "on record"),
        ({"round_trip_s": 0.8}, "ssh", "800 ms"),
    ],
)
def test_what_is_odd_about_the_way_is_a_warning(
    changed: dict[str, Any], check: str, words: str
) -> None:
    (line,) = [line for line in doctor.way_lines(way(**changed)) if line.level is not Level.OK]
    assert (line.check, line.level) == (check, Level.WARNING) and words in line.text


def test_a_clock_is_not_called_wrong_for_a_slow_way() -> None:
    assert all(
        line.level is not Level.WARNING or line.check == "ssh"
        for line in doctor.way_lines(way(clock_off_s=7.0, unsure_s=4.0, round_trip_s=8.0))
    )


def test_a_start_is_read_from_its_command_line() -> None:
    start = Start.from_plan(
        "gpu",
        30000,
        ["--tp-size", "4", "--pp-size=2", "--load-format", "dummy", "--skip-tokenizer-init"],
        {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7,0,1"},
    )
    assert start == Start("gpu", 30000, 8, (2, 3, 4, 5, 6, 7, 0, 1), weights=False, tokenizer=False)
    assert Start.from_plan("gpu", 1, ["--tp-size", "2"], {}).balanced
    off = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"}
    assert not Start.from_plan("gpu", 1, ["--tp-size", "2"], off).balanced
    assert Start.from_plan("gpu", 1, [], {"CUDA_VISIBLE_DEVICES": "GPU-ab"}).visible is None


def test_requirements_that_are_not_met_are_named_with_what_is_wanted() -> None:
    pins = [Pin("torch", "==2.9.1", "2.13.0"), Pin("xgrammar", "==0.1.27", "0.1.27")]
    line = doctor.pin_line(pins, pins[:1])
    assert line.level is Level.WARNING and "1 of 2" in line.text
    assert line.evidence == ("torch: 2.13.0, SGLang wants ==2.9.1",)
    assert "torch==2.9.1" in str(line.remedy)
    assert doctor.pin_line(pins, []).level is Level.OK
