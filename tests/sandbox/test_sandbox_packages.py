from __future__ import annotations

from pathlib import Path

import pytest

from remote.errors import ConfigError
from remote.sandbox.packages import (
    FLASHINFER_GROUP,
    REQUIREMENTS,
    SGLANG_GROUP,
    TORCH,
    load_pins,
    name_of,
    parse_pins,
    pinned_pythons,
)

NOTED = "# heading\n\nHf_Transfer==0.1.9  # a remark\ntorch==2.13.0\n"


def test_names_are_compared_as_indexes_do() -> None:
    assert parse_pins(NOTED, "3.11").versions == {"hf-transfer": "0.1.9", "torch": "2.13.0"}
    assert name_of("partial_json_parser<2") == "partial-json-parser"


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==", "torch==2.13.0; x", "-e ."])
def test_a_line_that_does_not_pin_is_refused_by_its_number(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 ") as caught:
        parse_pins(f"numpy==2.4.6\n{line}\n", "3.11")

    assert caught.value.evidence == (line,)


def test_a_python_without_constraints_is_told_which_have(tmp_path: Path) -> None:
    for minor in ("3.9", "3.11", "3.10"):
        (tmp_path / f"ml-env-py{minor}.txt").touch()

    with pytest.raises(ConfigError, match=r"3\.14.*3\.9, 3\.10, 3\.11$"):
        load_pins("3.14", tmp_path)


@pytest.mark.parametrize("minor", pinned_pythons())
def test_each_constraints_file_pins_all_that_is_asked_for_and_no_cuda_of_torchs(minor: str) -> None:
    pins = load_pins(minor)

    for requirement in (*REQUIREMENTS, *SGLANG_GROUP, *FLASHINFER_GROUP, TORCH, "pip"):
        name = name_of(requirement)
        exact = requirement.partition("==")[2]
        assert pins.versions[name] == (exact or pins.versions[name])
    cuda = {name for name in pins.versions if name.startswith(("nvidia-", "cuda-"))}
    assert cuda == {"nvidia-ml-py", "nvidia-cuda-runtime-cu12"}


def test_the_groups_share_nothing_and_leave_nothing_out() -> None:
    pins = load_pins("3.11")
    groups = [pins.libraries, pins.group(SGLANG_GROUP), pins.group(FLASHINFER_GROUP)]

    together = [name_of(pin) for group in groups for pin in group]

    assert sorted([*together, "pip", "torch"]) == sorted(pins.versions)
