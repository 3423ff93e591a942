"""fp4-opaque on real FlashInfer versions: the trap without it, one right node with it."""

from __future__ import annotations

from typing import Any

import pytest
from patches.patched_venvs import VERSIONS, MakeVenv

from remote.core import trace_report
from remote.core.trace_report import Outcome

NAMES = ("fp4_quantize", "nvfp4_quantize", "mxfp4_quantize")
SYMBOLS = [f"flashinfer.{name}" for name in NAMES]


def traces(answer: dict[str, Any]) -> list[trace_report.OpTrace]:
    return [trace_report.classified(record) for record in answer["ops"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_bare_functions_trap_where_the_cuda_version_is_asked(
    make_venv: MakeVenv, version: str
) -> None:
    found = traces(make_venv(version).scan({"mode": "trace", "ops": SYMBOLS}))

    assert [trace.outcome for trace in found] == [Outcome.TRAP] * 3
    assert [trace.step for trace in found] == ["A"] * 3
    assert {trace.at.file for trace in found if trace.at} == {"flashinfer/jit/cpp_ext.py"}
    assert [trace.freed_by for trace in found] == ["fp4-opaque"] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_patched_functions_trace_to_one_node_each(make_venv: MakeVenv, version: str) -> None:
    answer = make_venv(version, "fp4-opaque").scan({"mode": "trace", "ops": SYMBOLS})
    proofs = trace_report.proofs(answer, "fp4-opaque")

    assert [(proof.imported, proof.ours) for proof in proofs] == [(True, True)] * 3
    assert [proof.trace.outcome for proof in proofs] == [Outcome.TRACES] * 3
    assert [proof.trace.nodes for proof in proofs] == [
        (f"sglang_remote.{name}.default",) for name in NAMES
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_fakes_are_what_flashinfer_makes(make_venv: MakeVenv, version: str) -> None:
    found = make_venv(version, "fp4-opaque").worker(
        "tracing",
        {
            "compare": {
                "m": [0, 1, 127, 128, 129],
                "k": [32, 96, 160, 7168],
                "dtypes": ["bfloat16"],
            },
            "graphs": [2, 3, 127, 128, 129, 1000],
            "opcheck": [[2, 128], [129, 64], [128, 256]],
        },
    )

    assert found["compare"]["wrong"] == []
    assert found["compare"]["cases"] > 2000
    assert found["compare"]["refused"] < found["compare"]["cases"] / 2
    assert found["graphs"] == dict.fromkeys(NAMES, 1)
    assert found["opcheck"] == []


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
def test_the_other_input_types_give_the_same_shapes(make_venv: MakeVenv, dtype: str) -> None:
    found = make_venv("0.6.3", "fp4-opaque").worker(
        "tracing", {"compare": {"m": [0, 1, 129], "k": [96, 128], "dtypes": [dtype]}}
    )

    assert found["compare"]["wrong"] == []
    assert found["compare"]["refused"] < found["compare"]["cases"]


def test_newer_keywords_reach_the_kernel_and_what_is_not_described_stays_a_trap(
    make_venv: MakeVenv,
) -> None:
    recipe = {"e4m3_max": 256, "err_mode": "MSE"}
    found = make_venv("0.7.4", "fp4-opaque").worker(
        "tracing",
        {
            "keywords": [
                ["fp4_quantize", {"nvfp4_4over6": recipe}],
                ["fp4_quantize", {"nvfp4_4over6": None, "batch_invariant": True}],
                ["nvfp4_quantize", {"sfLayout": "layout_8x4", "enable_pdl": False}],
                ["mxfp4_quantize", {"backend": "cuda"}],
                ["nvfp4_quantize", {"do_shuffle": True}],
                ["nvfp4_quantize", {"backend": "cute-dsl"}],
                ["fp4_quantize", {"no_such_keyword": 1}],
            ],
            "kernel_arguments": [
                ["fp4_quantize", {"sf_vec_size": 32, "sf_use_ue8m0": True, "enable_pdl": False}],
                ["fp4_quantize", {"nvfp4_4over6": 7, "enable_pdl": False}],
            ],
        },
    )

    # 7 is FlashInfer's own number for that recipe: on, at most 256, by squared error.
    assert found["keywords"][:4] == [
        [["sglang_remote.fp4_quantize.default", {"nvfp4_4over6": 7}]],
        [["sglang_remote.fp4_quantize.default", {"nvfp4_4over6": 0, "batch_invariant": True}]],
        [["sglang_remote.nvfp4_quantize.default", {"sfLayout": 1, "enable_pdl": False}]],
        [["sglang_remote.mxfp4_quantize.default", {"backend": "cuda"}]],
    ]
    for refused in found["keywords"][4:]:
        assert isinstance(refused, str), refused
    assert found["kernel_arguments"] == [
        # sf_vec_size, ue8m0, swizzled, 8x4, scale inversed, pdl, recipe
        ["fp4_quantize", [32, True, True, False, False, False, 0]],
        ["fp4_quantize", [16, False, True, False, False, False, 7]],
    ]
