"""The trace scanner in a real venv: each of its four outcomes provoked, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patches.patched_venvs import MakeVenv

from remote.core import trace_report
from remote.core.trace_report import Outcome

TRACES = "flashinfer.fp4_quantize"
TRAP = "flashinfer.norm.layernorm"
NOT_CALLABLE = "flashinfer.cute_dsl.blockscaled_gemm.grouped_gemm_nt_masked"
GUESSED = "flashinfer.mm_fp4"
ALL = [TRACES, TRAP, NOT_CALLABLE, GUESSED, "flashinfer.no_such_function"]

#: Switches Dynamo off in a way that no variable shows.
OFF = """
import sglang_remote_hook as hook

def off(module):
    module.disable = True

hook.on_import("off", ("torch._dynamo.config",), off)
"""


def outcomes(answer: dict[str, Any]) -> dict[str, Outcome]:
    return {o.op: o.outcome for o in map(trace_report.classified, answer["ops"])}


def test_four_outcomes_whatever_variables_switch_dynamo_off(
    make_venv: MakeVenv, tmp_path: Path
) -> None:
    variables = {
        "TORCHDYNAMO_DISABLE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_SUPPRESS_ERRORS": "1",
        "TORCH_COMPILE_OVERRIDE_BACKENDS": ">0:eager",
    }
    home = tmp_path / "home"
    home.mkdir()
    answer = make_venv("0.6.3", "fp4-opaque").scan(
        {"mode": "trace", "ops": ALL}, HOME=str(home), **variables
    )

    assert answer["stripped"] == sorted(variables)
    assert outcomes(answer) == {
        TRACES: Outcome.TRACES,
        TRAP: Outcome.TRAP,
        NOT_CALLABLE: Outcome.NOT_CALLABLE,
        GUESSED: Outcome.SCANNER_ERROR,
        "flashinfer.no_such_function": Outcome.NOT_CALLABLE,
    }
    # FlashInfer's cache would stand there.
    assert list(home.rglob("*flashinfer*")) == []


def test_without_dynamo_nothing_traces(make_venv: MakeVenv) -> None:
    venv = make_venv("0.6.3", "fp4-opaque")
    (venv.site / "zz_off.py").write_text(OFF)
    (venv.site / "zz_off.pth").write_text("import zz_off\n")
    answer = venv.scan({"mode": "trace", "ops": [TRACES]})
    (found,) = (trace_report.classified(record) for record in answer["ops"])

    assert (found.outcome, found.patch) == (Outcome.SCANNER_ERROR, "fp4-opaque")
    assert "Dynamo did not run" in found.reason


def test_the_switch_that_a_server_runs_with_is_seen(make_venv: MakeVenv) -> None:
    venv = make_venv("0.6.3", "fp4-opaque")
    answer = venv.scan({"mode": "trace", "ops": [TRACES]}, SGLANG_REMOTE_PATCHES_OFF="fp4-opaque")
    (found,) = trace_report.proofs(answer, "fp4-opaque")

    assert (found.imported, found.ours, found.trace.step) == (True, False, "A")


def test_the_bare_calls_of_the_installed_sglang(make_venv: MakeVenv) -> None:
    report = trace_report.read(make_venv("0.6.3").scan({"mode": "scan"}))

    assert report.sglang == "0.5.9"
    assert {op.op: op.outcome for op in report.ops} == dict.fromkeys(
        (
            "flashinfer.fp4_quantize",
            "flashinfer.fused_moe.fused_topk_deepseek",
            "flashinfer.gemm.fp8_blockscale_gemm_sm90",
            "flashinfer.gemm.gemm_fp8_nt_groupwise",
            "flashinfer.norm.layernorm",
        ),
        Outcome.TRAP,
    )
    (fp4,) = (op for op in report.ops if op.op == "flashinfer.fp4_quantize")
    assert (fp4.step, fp4.freed_by) == ("A", "fp4-opaque")
    assert report.calls(fp4.op)[0].function == "ModelOptFp4LinearMethod.apply"


def test_a_flashinfer_that_cannot_be_imported_is_said(make_venv: MakeVenv) -> None:
    venv = make_venv(None)
    (venv.site / "flashinfer").mkdir()
    (venv.site / "flashinfer" / "__init__.py").write_text("import no_such_library\n")
    answer = venv.scan({"mode": "trace", "ops": [TRACES]})

    assert answer["error"] == "ModuleNotFoundError: No module named 'no_such_library'"
    assert answer["ops"] == []
