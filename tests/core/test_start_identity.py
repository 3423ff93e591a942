"""Two starts are the same start where script, environment and patches are, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remote.core.host_facts import GPU, HostFacts
from remote.core.start_identity import (
    differences,
    fingerprint,
    identity,
    normal_script,
    script_identity,
    unseen,
)

RUN, OTHER = "20261129-201530-piecewise-3f2a", "20261130-080000-piecewise-9b01"
FOLDER = f"/root/.sglang-remote/runs/{RUN}"
SCRIPT = f"cd -- {FOLDER}\nexport SGLANG_REMOTE_RUN={RUN}\nexec python -m x\n"
FACTS = HostFacts(
    hostname="box",
    user="root",
    python="/v/bin/python",
    python_version="3.12.3",
    identity="0" * 64,
    site_packages="/v/lib",
    roots=("/v/lib",),
    distributions={
        "torch": {"version": "2.9.1"},
        "sglang": {"version": "0.5.9", "commit": "abc123"},
    },
    gpus=tuple(GPU(n, "NVIDIA H200", f"u{n}", 1, 0, "580.95", "9.0") for n in range(2)),
    gpu_processes=(),
    no_gpus_because=None,
    cuda_home="/usr/local/cuda",
    nvcc=True,
    port_owner=None,
    state_free_bytes=None,
    model_path="m",
    model_missing=False,
    runs=(),
    measured={},
    strays={},
    raw={"cuda": {"version": "12.8.1"}},
)
PATCHES = {"flashinfer/fp4-opaque": "aa" * 32, "flashinfer/preload": "bb" * 32}


def of(script: str = SCRIPT, run: str = RUN, host: str = "gpu", **changed: Any) -> str:
    patches = changed.pop("patches", PATCHES)
    made = fingerprint(replace(FACTS, **changed), patches)
    return identity(host, script_identity(script, run), made)


def test_another_run_of_the_same_is_the_same() -> None:
    assert of() == of(SCRIPT.replace(RUN, OTHER), OTHER)


@pytest.mark.parametrize(
    "changed",
    [
        {"script": SCRIPT.replace("-m x", "-m x --tp-size 2")},
        {"host": "other"},
        {"gpus": FACTS.gpus[:1]},
        {"gpus": tuple(replace(gpu, driver="590.1") for gpu in FACTS.gpus)},
        {"raw": {"cuda": {"version": "13.0"}}},
        {"distributions": {**FACTS.distributions, "torch": {"version": "2.10"}}},
        {"distributions": {**FACTS.distributions, "sglang": {"version": "0.5.9", "commit": "d"}}},
        {"identity": "1" * 64},
        {"python_version": "3.12.4"},
        {"patches": {}},
        {"patches": {**PATCHES, "flashinfer/preload": "cc" * 32}},
        {"patches": dict(reversed(PATCHES.items()))},
    ],
)
def test_what_differs_at_all_is_another_start(changed: dict[str, Any]) -> None:
    assert of(**changed) != of()


def test_a_machine_that_is_known_by_another_name_to_itself_is_the_same() -> None:
    assert of(hostname="pod-7f3", runs=(), state_free_bytes=5) == of()


def test_edits_in_a_checkout_are_said_to_be_unseen() -> None:
    assert unseen(FACTS) == ""
    edited = {**FACTS.distributions, "sglang": {"version": "0.5.9", "editable": "/src/sglang"}}
    assert "last commit of sglang" in unseen(replace(FACTS, distributions=edited))


def test_differences_are_named_one_by_one() -> None:
    was = fingerprint(FACTS, PATCHES)
    now = fingerprint(
        replace(FACTS, gpus=(), distributions={"torch": {"version": "2.10"}}),
        {"flashinfer/preload": "cc" * 32},
    )
    told = [str(each) for each in differences(was, now)]
    assert told == [
        "driver: 580.95 → none",
        "GPUs: 2 × NVIDIA H200 → none",
        "sglang: 0.5.9 → none",
        "sglang commit: abc123 → none",
        "torch: 2.9.1 → 2.10",
        f"patch flashinfer/fp4-opaque: {'a' * 12} → none",
        f"patch flashinfer/preload: {'b' * 12} → {'c' * 12}",
    ]
    assert differences(was, was) == ()


def test_patches_in_another_order_are_a_difference() -> None:
    was = fingerprint(FACTS, PATCHES)
    (only,) = differences(was, fingerprint(FACTS, dict(reversed(PATCHES.items()))))
    assert only.what == "order of patches"


def test_a_script_for_comparison_names_neither_run_nor_folder() -> None:
    text = normal_script(SCRIPT, RUN, FOLDER)
    assert text.startswith("cd -- <run folder>\n") and "SGLANG_REMOTE_RUN=<run>" in text
