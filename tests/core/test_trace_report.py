"""Records of real traces → the four outcomes, the step, the line, and the set that frees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote.core import trace_report
from remote.core.trace_report import Outcome, classified

CASES = Path(__file__).parents[1] / "cases" / "trace_report"


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("A", "flashinfer/jit/cpp_ext.py:69 in get_cuda_version"),
        ("B", "flashinfer/jit/core.py:170 in register"),
        ("C", "flashinfer/jit/core.py:260 in is_aot"),
        ("D", None),
        ("D2", None),
    ],
)
def test_the_known_steps_are_traps_with_their_innermost_flashinfer_line(
    step: str, line: str | None
) -> None:
    found = classified(case(f"step-{step}"))

    assert (found.outcome, found.step) == (Outcome.TRAP, step)
    assert (str(found.at) if found.at else None) == line
    assert found.freed_by == "fp4-opaque"


def test_reasons_are_a_line_of_what_was_met() -> None:
    assert [classified(case(f"step-{step}")).reason for step in ("A", "B", "C", "D", "D2")] == [
        "Dynamo can't trace the builtin `_thread.allocate_lock.`",
        "Dynamo can't trace method `now` of class `type`",
        "Dynamo can't trace the builtin `posix.stat.`",
        "Skip calling function `<function fp4_quantize>` since it was wrapped with"
        " `torch.compiler.disable` (reason: None)",
        "run on fake tensors, it raised RuntimeError: Cannot access data pointer of Tensor",
    ]


def test_a_graph_with_the_patch_operator_traces() -> None:
    found = classified(case("step-E"))

    assert (found.outcome, found.patch, found.step) == (Outcome.TRACES, "fp4-opaque", None)
    assert found.nodes == ("sglang_remote.fp4_quantize.default",)
    assert found.freed_by is None


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("module-missing", Outcome.NOT_CALLABLE, "No module named 'cutlass'"),
        ("cpu-build", Outcome.NOT_CALLABLE, "not linked with support for cuda"),
        ("guessed-arguments", Outcome.SCANNER_ERROR, "the arguments don't fit, which were guessed"),
        ("other-trap", Outcome.TRAP, "logging.Logger methods are not supported"),
    ],
)
def test_what_is_no_known_step_is_told_apart(name: str, outcome: Outcome, reason: str) -> None:
    found = classified(case(name))

    assert found.outcome is outcome
    assert reason in found.reason
    assert (found.step, found.freed_by) == (None, None)


def test_a_line_is_named_for_a_trap_that_is_no_known_step() -> None:
    assert str(classified(case("other-trap")).at) == (
        "flashinfer/jit/cubin_loader.py:173 in load_cubin"
    )


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ([], "no graph: Dynamo did not run"),
        ([["sglang_remote.fp4_quantize.default"], ["add"]], "2 graphs where one was expected"),
        ([[]], "the graph calls nothing"),
        ([["add"]], "wanted one node sglang_remote.fp4_quantize, found add"),
        (
            [["sglang_remote.fp4_quantize.default"] * 2],
            "wanted one node sglang_remote.fp4_quantize, found"
            " sglang_remote.fp4_quantize.default, sglang_remote.fp4_quantize.default",
        ),
    ],
)
def test_anything_but_one_graph_with_the_expected_node_is_the_scanners_error(
    graphs: list[list[str]], reason: str
) -> None:
    found = classified({**case("step-E"), "graphs": graphs})

    assert (found.outcome, found.reason, found.nodes) == (Outcome.SCANNER_ERROR, reason, ())


def test_an_error_that_is_not_dynamos_is_no_trap() -> None:
    error = {**case("step-D2")["error"], "type": "builtins.RuntimeError", "frames": []}
    found = classified({**case("step-D2"), "error": error})

    assert found.outcome is Outcome.SCANNER_ERROR
    assert found.reason.startswith("Dynamo did not run: RuntimeError")


def test_a_set_that_is_there_already_frees_nothing() -> None:
    found = classified({**case("step-A"), "patch": "fp4-opaque"})

    assert (found.outcome, found.freed_by) == (Outcome.TRAP, None)


def test_what_older_torch_says_of_a_kernel_on_fake_tensors_reads_the_same() -> None:
    message = (
        "Dynamo failed to run FX node with fake tensors: call_function <function fp4_quantize at"
        " 0x7f1ed5276fc0>(*(FakeTensor(..., device='cuda:0', size=(64, 1024)),), **{}): got"
        ' RuntimeError("Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor).'
        " If you're using torch.compile, please wrap the kernel\")"
    )
    error = {"type": "torch._dynamo.exc.TorchRuntimeError", "message": message, "frames": []}
    found = classified({"op": "flashinfer.fp4_quantize", "graphs": [], "error": error})

    assert (found.outcome, found.step) == (Outcome.TRAP, "D2")
    assert found.reason == (
        "run on fake tensors, it raised RuntimeError: Cannot access data pointer of Tensor"
    )


def test_a_call_that_only_dynamo_refuses_is_a_trap_also_without_a_known_reason() -> None:
    error = {"type": "torch._dynamo.exc.InternalTorchDynamoError", "message": "x", "frames": []}
    record = {"op": "flashinfer.f", "graphs": [], "error": error, "called": {"kernels": 0}}

    assert classified(record).outcome is Outcome.TRAP


def test_a_call_that_reached_a_kernel_had_the_right_arguments() -> None:
    error = {"type": "torch._dynamo.exc.Unsupported", "message": "Observed x", "frames": []}
    own = {"type": "builtins.TypeError", "message": "None has no size", "frames": []}
    record = {"op": "flashinfer.f", "graphs": [], "error": error}

    reached = classified({**record, "called": {"kernels": 1, "error": own}})
    refused = classified({**record, "called": {"kernels": 0, "error": own}})

    assert (reached.outcome, refused.outcome) == (Outcome.TRAP, Outcome.SCANNER_ERROR)


def test_what_the_gpu_cannot_do_is_no_trap_where_the_arguments_were_chosen() -> None:
    error = {"type": "torch._dynamo.exc.Unsupported", "message": "Observed x", "frames": []}
    own = {"type": "builtins.ValueError", "message": "only supported on SM100", "frames": []}
    record = {"op": "f.g", "graphs": [], "error": error, "called": {"kernels": 0, "error": own}}

    chosen = classified({**record, "arguments_known": True})
    guessed = classified({**record, "arguments_known": False})

    assert (chosen.outcome, guessed.outcome) == (Outcome.NOT_CALLABLE, Outcome.SCANNER_ERROR)


def test_a_failure_of_the_scanner_itself_is_nothing_else() -> None:
    note = {"type": "builtins.KeyError", "message": "'x'", "frames": []}
    found = classified({"op": "flashinfer.fp4_quantize", "scanner_error": note})

    assert (found.outcome, found.reason) == (Outcome.SCANNER_ERROR, "KeyError: 'x'")
    assert found.freed_by is None


def test_a_report_names_where_sglang_calls_each_trap_bare() -> None:
    report = trace_report.read(case("scan-0.5.9"))

    assert (report.sglang, report.flashinfer) == ("0.5.9", "0.6.3")
    assert (report.device, report.assumed) == ("SM120", True)
    assert [(op.op, op.step) for op in report.traps] == [
        ("flashinfer.fp4_quantize", "A"),
        ("flashinfer.fused_moe.fused_topk_deepseek", "B"),
        ("flashinfer.gemm.fp8_blockscale_gemm_sm90", "A"),
        ("flashinfer.gemm.gemm_fp8_nt_groupwise", None),
        ("flashinfer.norm.layernorm", "B"),
    ]
    (site,) = report.calls("flashinfer.fp4_quantize")
    assert (site.file, site.function) == (
        "layers/quantization/modelopt_quant.py",
        "ModelOptFp4LinearMethod.apply",
    )
    assert report.as_dict()["ops"][0]["called_from"] == [
        "layers/quantization/modelopt_quant.py:1290"
    ]
    json.dumps(report.as_dict())


def test_proofs_say_imported_ours_and_what_it_traces_to() -> None:
    missing = {
        "op": "flashinfer.mxfp4_quantize",
        "patch": None,
        "import_error": {"type": "builtins.AttributeError", "message": "none", "frames": []},
    }
    answer = {"ops": [case("step-E"), case("step-A"), case("step-D"), missing]}
    ours, bare, other, absent = trace_report.proofs(answer, "fp4-opaque")

    assert (ours.imported, ours.ours, ours.trace.outcome) == (True, True, Outcome.TRACES)
    assert (bare.imported, bare.ours, bare.trace.step) == (True, False, "A")
    assert (other.imported, other.ours, other.trace.patch) == (True, False, "compiler-disable")
    assert (absent.imported, absent.ours) == (False, False)
    json.dumps([proof.as_dict() for proof in (ours, absent)])
