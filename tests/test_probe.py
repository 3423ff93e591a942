"""The scanner's way to a host and back, and which calls it finds in SGLang's source."""

from __future__ import annotations

import io
import json
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hosts import Venv, host_settings

from remote import probe
from remote.config import HostSettings, Overrides
from remote.core import host_facts
from remote.errors import PreflightFailed
from remote.payload import probing
from remote.payload.probe import call_sites

CASES = Path(__file__).parent / "cases" / "trace_report"


class RecordingHost:
    """Answers `probe.run` with what it was given, and remembers the question."""

    name = "gpu"

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def call(self, function: str, data: bytes = b"", **params: Any) -> dict[str, Any]:
        assert function == "probe.run"
        self.asked = {"data": data, **params}
        return self.answer


@pytest.fixture
def settings(tmp_path: Path, fake_venv: Venv) -> HostSettings:
    return host_settings(tmp_path, fake_venv.folder)


def facts(python: str) -> host_facts.HostFacts:
    found = {"path": python, "version": "3.12.3"}
    empty: dict[str, Any] = {key: {} for key in ("gpus", "cuda", "disk", "model")}
    return host_facts.read(
        {
            **empty,
            "hostname": "h",
            "user": "root",
            "python": found,
            "identity": "i",
            "site_packages": "/venv/site-packages",
            "distributions": {},
            "cuda": {"home": "/usr/local/cuda", "nvcc": False},
            "port": None,
            "disk": {"state": 1},
            "model": {"path": "/m", "local": True, "exists": True},
            "runs": [],
        }
    )


def scan_case() -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((CASES / "scan-0.5.9.json").read_text())
    return answer


def test_a_probe_runs_the_servers_environment_and_reads_the_answer(settings: HostSettings) -> None:
    env = {"TORCHDYNAMO_DISABLE": "1", "SGLANG_REMOTE_PATCHES_OFF": "all", "GONE": None}
    host = RecordingHost({"answer": scan_case(), "stderr": []})
    changed = HostSettings(**{**vars(settings), "overrides": Overrides(env=env)})
    told: list[str] = []
    report = probe.probe(host, changed, facts("/venv/bin/python"), told.append)  # type: ignore[arg-type]

    assert host.asked["python"] == "/venv/bin/python"
    assert host.asked["env"]["SGLANG_REMOTE_PATCHES_OFF"] == "all"
    assert host.asked["env"]["CUDA_HOME"] == settings.cuda_home
    assert "GONE" not in host.asked["env"]
    assert host.asked["request"] == {"mode": "scan", "every": False}
    assert next(trap.op for trap in report.traps) == "flashinfer.fp4_quantize"
    assert len(told) == 1


def test_a_proof_asks_for_exactly_the_symbols(settings: HostSettings) -> None:
    record = json.loads((CASES / "step-E.json").read_text())
    host = RecordingHost({"answer": {"ops": [record]}, "stderr": []})
    (proof,) = probe.prove(
        host,  # type: ignore[arg-type]
        settings,
        facts("/venv/bin/python"),
        ["flashinfer.fp4_quantize"],
        "fp4-opaque",
    )

    assert host.asked["request"] == {"mode": "trace", "ops": ["flashinfer.fp4_quantize"]}
    assert proof.ours


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "exit status 1", "evidence": ["ModuleNotFoundError: No module named 'torch'"]},
        {
            "answer": {"error": "ImportError: libcudart.so.12"},
            "stderr": ["ModuleNotFoundError: No module named 'torch'"],
        },
    ],
)
def test_a_scanner_that_cannot_run_is_no_finding(
    settings: HostSettings, answer: dict[str, Any]
) -> None:
    host = RecordingHost(answer)
    with pytest.raises(PreflightFailed) as raised:
        probe.probe(host, settings, facts("/venv/bin/python"), lambda _: None)  # type: ignore[arg-type]

    assert "No module named 'torch'" in raised.value.evidence[-1]
    assert raised.value.hint and "inv run" in raised.value.hint


def test_the_script_is_the_same_bytes_every_time_and_holds_all_modules() -> None:
    first = probe.script()
    probe.script.cache_clear()

    assert probe.script() == first
    folder = Path(probe.__file__).parent / "payload" / "probe"
    names = set(zipfile.ZipFile(io.BytesIO(first)).namelist())
    assert names == {"__main__.py", *(f"sglang_remote_probe/{p.name}" for p in folder.glob("*.py"))}


def zipped(main: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("__main__.py", textwrap.dedent(main))
    return packed.getvalue()


def test_the_host_runs_it_with_the_environment_given_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_LOGS", "from the caller")
    script = zipped(
        """
        import json, os, sys
        print("noise")
        print(json.dumps({"env": dict(os.environ), "asked": json.load(sys.stdin)}))
        """
    )
    told = probing.run(script, sys.executable, {"A": "b c"}, {"mode": "scan"})["answer"]

    assert told["asked"] == {"mode": "scan"}
    assert told["env"]["A"] == "b c"
    assert "TORCH_LOGS" not in told["env"]


@pytest.mark.parametrize(
    ("main", "error", "evidence"),
    [
        ("import nothing_like_this", "exit status 1", "nothing_like_this"),
        ("print('no JSON')", "exit status 0", ""),
        ("print('[1]')", "exit status 0", ""),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9", ""),
    ],
)
def test_a_script_that_does_not_answer_is_an_error_with_what_it_said(
    main: str, error: str, evidence: str
) -> None:
    told = probing.run(zipped(main), sys.executable, {}, {})

    assert told["error"] == error
    assert evidence in "\n".join(told["evidence"])


def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    told = probing.run(zipped("import time; time.sleep(600)"), sys.executable, {}, {}, 0.2)

    assert told["error"] == "no answer in 0 s"


def sites(tmp_path: Path, files: dict[str, str]) -> dict[str, str]:
    """Each op that is found, with its place."""
    for name, text in files.items():
        path = tmp_path / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return {site.op: site.place for site in call_sites.find(tmp_path)}


def test_calls_are_found_under_every_name_that_an_import_gives(tmp_path: Path) -> None:
    found = sites(
        tmp_path,
        {
            "layers/a.py": """
                import flashinfer
                import flashinfer.norm as norm
                try:
                    from flashinfer import fp4_quantize as quantize
                except ImportError:
                    quantize = None
                alias = quantize

                class Linear:
                    def apply(self, x):
                        from flashinfer.gemm import inside
                        alias(x), flashinfer.sampling.top(x), norm.layernorm(x), inside(x)
                        flashinfer.Wrapper(x), flashinfer.utils.helper(x), other(x)
                """
        },
    )

    assert found == dict.fromkeys(
        (
            "flashinfer.fp4_quantize",
            "flashinfer.sampling.top",
            "flashinfer.norm.layernorm",
            "flashinfer.gemm.inside",
        ),
        call_sites.BARE,
    )


@pytest.mark.parametrize(
    "wrapped",
    [
        "@register_custom_op(fake_impl=fake)\ndef g(x):\n    return f(x)\n",
        "@torch.library.custom_op('a::g', mutates_args=())\ndef g(x):\n    return f(x)\n",
        "@register_split_op()\n@register_custom_op\ndef g(x):\n    return f(x)\n",
        "def _g(x):\n    return f(x)\ng = register_custom_op_from_extern(_g, fake_impl=fake)\n",
        "def _g(x):\n    return f(x)\ndirect_register_custom_op('g', op_func=_g)\n",
    ],
)
def test_a_call_in_an_operator_of_sglangs_is_not_bare(tmp_path: Path, wrapped: str) -> None:
    found = sites(tmp_path, {"layers/a.py": f"from flashinfer import f\n{wrapped}"})

    assert found == {"flashinfer.f": call_sites.OPERATOR}


def test_a_name_that_becomes_an_operator_is_no_call_of_flashinfer(tmp_path: Path) -> None:
    text = "from flashinfer import f\nf = register_custom_op_from_extern(f)\ndef g(x):\n    f(x)\n"

    assert sites(tmp_path, {"layers/a.py": text}) == {}


def test_setting_up_weights_and_sampling_are_outside_of_what_is_compiled(tmp_path: Path) -> None:
    found = sites(
        tmp_path,
        {
            "layers/a.py": """
                from flashinfer import a, b, c
                class Linear:
                    def __init__(self): a()
                    def process_weights_after_loading(self, layer): b()
                    def prepare_it(self): c()
                """,
            "layers/sampler.py": "import flashinfer\ndef go(x): flashinfer.d(x)\n",
        },
    )

    assert found == {
        "flashinfer.a": call_sites.SET_UP,
        "flashinfer.b": call_sites.SET_UP,
        "flashinfer.c": call_sites.SET_UP,
        "flashinfer.d": call_sites.OUTSIDE,
    }


OPERATOR = "@register_custom_op\ndef whole(x): ...\n"


@pytest.mark.parametrize("registered", [True, False])
def test_attention_and_experts_are_kept_out_only_where_sglang_makes_operators_of_them(
    tmp_path: Path, registered: bool
) -> None:
    calls = "import flashinfer\n{}\ndef forward(x): flashinfer.{}(x)\n"
    operator = OPERATOR if registered else ""
    found = sites(
        tmp_path,
        {
            "layers/radix_attention.py": operator,
            "layers/moe/fused_moe_triton/layer.py": calls.format(operator, "experts"),
            "layers/moe/topk.py": calls.format("", "routing"),
            "layers/attention/backend.py": calls.format("", "attention"),
            "layers/quantization/q.py": """
                import flashinfer
                class NvFp4MoEMethod:
                    def apply(self, x): flashinfer.moe(x)
                class NvFp4LinearMethod:
                    def apply(self, x): flashinfer.linear(x)
                """,
        },
    )

    bare, inside = call_sites.BARE, registered
    assert found == {
        "flashinfer.experts": call_sites.EXPERTS if inside else bare,
        "flashinfer.routing": bare,
        "flashinfer.attention": call_sites.ATTENTION if inside else bare,
        "flashinfer.moe": call_sites.EXPERTS if inside else bare,
        "flashinfer.linear": bare,
    }
