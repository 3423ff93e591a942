"""Intents to flags, over the live parsers of five SGLang versions, and the check after a start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from remote import config, profile
from remote.core import server_args
from remote.core.defaults import DEFAULTS
from remote.core.flag_table import FlagSpec, InstalledParser
from remote.core.flags import (
    Decision,
    FlagPlan,
    ServerAddress,
    check_intent,
    flag_lines,
    plan,
)
from remote.core.intents import FlagValue, Want
from remote.core.layers import Sourced
from remote.core.log_events import GraphLines
from remote.errors import PreflightFailed

CASES = Path(__file__).parent.parent / "cases"
PARSER_FLAGS = Path(config.__file__).parent / "payload" / "parser_flags.py"
VERSIONS = ("0.5.8", "0.5.9", "0.5.12", "0.5.15.post1", "0.5.23")
SERVER = ServerAddress(model="M", bind="127.0.0.1", port=30000)
NO_GPU = (
    "tensor_parallel",
    "expert_parallel",
    "quantization",
    "attention_backend",
    "moe_runner",
    "fp4_gemm_backend",
    "cuda_graph",
    "piecewise_cuda_graph",
    "mscclpp",
    "single_batch_overlap",
)
GPU_HOST: Mapping[str, object] = {}
CPU_HOST: Mapping[str, object] = {
    "flags": {"device": "cpu", "attention-backend": "torch_native"},
    "unavailable": dict.fromkeys(NO_GPU, "needs a GPU"),
}


def parser(version: str) -> InstalledParser:
    text = (CASES / "flags" / f"{version}.json").read_text(encoding="utf-8")
    return InstalledParser.from_answer(json.loads(text))


def planned(
    version: str,
    wants: Mapping[str, Want] | None = None,
    flags: Mapping[str, FlagValue] | None = None,
    unavailable: Mapping[str, str] | None = None,
) -> FlagPlan:
    return plan(
        {name: Sourced(want, "profile p") for name, want in (wants or {}).items()},
        {name: Sourced(flag, "--set") for name, flag in (flags or {}).items()},
        parser(version),
        unavailable or {},
        SERVER,
    )


def told(made: FlagPlan) -> str:
    """The command line behind model, host and port."""
    words = list(made.argv)
    assert words[:6] == ["--model-path", "M", "--host", "127.0.0.1", "--port", "30000"]
    return " ".join(words[6:])


def decision(made: FlagPlan, intent: str) -> Decision:
    (found,) = [each for each in made.decisions if each.intent == intent]
    return found


def refusals(
    version: str, flags: Mapping[str, FlagValue], wants: Mapping[str, Want] | None = None
) -> list[str]:
    with pytest.raises(PreflightFailed) as caught:
        planned(version, wants, flags)
    assert caught.value.exit_code == 14
    return list(caught.value.evidence)


SHIPPED = [
    line.split("\t")
    for line in (CASES / "flags" / "shipped.tsv").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize(("name", "version", "kind", "expected"), SHIPPED)
def test_shipped_profiles_word_for_word(name: str, version: str, kind: str, expected: str) -> None:
    entry = {"address": "a", "venv": "/v", "model": "M", "port": 30000}
    differences = {"gpu": GPU_HOST, "cpu": CPU_HOST}[kind]
    bench = config.load(DEFAULTS, Path()).bench
    host = config.host_from("box", {**entry, **differences}, bench)
    asked = profile.load(name, (config.TEMPLATES,), host)
    made = plan(asked.want, asked.flags, parser(version), host.unavailable, SERVER)
    assert told(made) == expected


def test_every_shipped_profile_is_tried_on_every_version_and_both_hosts() -> None:
    names = profile.names((config.TEMPLATES,))
    tried = {(name, version, kind) for name, version, kind, _ in SHIPPED}
    assert tried == {(n, v, k) for n in names for v in VERSIONS for k in ("gpu", "cpu")}


@pytest.mark.parametrize(
    ("version", "on", "off"),
    [
        ("0.5.8", "--enable-piecewise-cuda-graph", ""),
        ("0.5.9", "--enable-piecewise-cuda-graph", ""),
        ("0.5.12", "", "--disable-piecewise-cuda-graph"),
        (
            "0.5.15.post1",
            "--cuda-graph-backend-prefill tc_piecewise",
            "--cuda-graph-backend-prefill disabled",
        ),
        (
            "0.5.23",
            "--cuda-graph-backend-prefill breakable",
            "--cuda-graph-backend-prefill disabled",
        ),
    ],
)
def test_piecewise_graphs_are_said_in_each_versions_way(version: str, on: str, off: str) -> None:
    assert told(planned(version, {"piecewise_cuda_graph": True})) == on
    assert told(planned(version, {"piecewise_cuda_graph": False})) == off


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.9", "--disable-cuda-graph"),
        ("0.5.12", "--disable-cuda-graph --disable-piecewise-cuda-graph"),
        (
            "0.5.23",
            "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled",
        ),
    ],
)
def test_no_cuda_graph_means_neither_decodes_nor_prefills(version: str, expected: str) -> None:
    made = planned(version, {"cuda_graph": False, "max_decode_batch": 64})
    assert told(made) == expected
    assert decision(made, "max_decode_batch").reason == "cuda_graph is off"


def test_piecewise_without_cuda_graphs_is_off_and_says_why() -> None:
    made = planned("0.5.12", {"cuda_graph": False, "piecewise_cuda_graph": True})
    piecewise = decision(made, "piecewise_cuda_graph")
    assert (piecewise.wanted, piecewise.planned) == (True, False)
    assert (piecewise.as_wanted, piecewise.reason) == (False, "cuda_graph is off")


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.12", "--cuda-graph-max-bs 64"),
        ("0.5.15.post1", "--cuda-graph-max-bs-decode 64"),
        ("0.5.23", "--cuda-graph-max-bs-decode 64"),
    ],
)
def test_the_deprecated_spelling_is_left_where_the_new_one_exists(version: str, flag: str) -> None:
    assert told(planned(version, {"max_decode_batch": 64})) == flag


def test_what_a_host_cannot_do_is_off_with_its_reason() -> None:
    wants: Mapping[str, Want] = {"tensor_parallel": 8, "mscclpp": True}
    made = planned("0.5.9", wants, unavailable=dict.fromkeys([*wants, "cuda_graph"], "needs a GPU"))
    assert told(made) == "--disable-cuda-graph"
    assert [each.reason for each in made.decisions] == ["needs a GPU"] * 3
    assert decision(made, "cuda_graph").wanted is None


def test_a_want_that_is_off_leaves_the_choice_to_sglang() -> None:
    assert told(planned("0.5.9", {"quantization": False, "tensor_parallel": False})) == ""


def test_a_raw_flag_goes_before_the_intent_it_speaks_about() -> None:
    made = planned(
        "0.5.15.post1",
        {"piecewise_cuda_graph": True, "tensor_parallel": 8},
        {"cuda-graph-backend-prefill": "breakable", "tensor-parallel-size": "4"},
    )
    assert told(made) == "--cuda-graph-backend-prefill breakable --tensor-parallel-size 4"
    assert decision(made, "tensor_parallel").reason == "left to --tensor-parallel-size (--set)"


def test_false_leaves_a_raw_flag_out() -> None:
    assert told(planned("0.5.9", flags={"sleep-on-idle": False, "trust-remote-code": True})) == (
        "--trust-remote-code"
    )


def test_everything_the_parser_would_refuse_comes_at_once() -> None:
    assert refusals(
        "0.5.12",
        wants={"kv_cache_dtype": "fp8_e4m"},
        flags={
            "max-runing-requests": "16",
            "tp": "8",
            "watchdog-timeout": "soon",
            "context-length": "1.5k5",
            "load-format": "dumy",
            "schedule-policy": "xyz",
            "sleep-on-idle": "yes",
            "served-model-name": True,
            "enable-piecewise-cuda-graph": True,
        },
    ) == [
        "kv_cache_dtype: fp8_e4m: --kv-cache-dtype: 'fp8_e4m' is not offered; "
        "did you mean fp8_e4m3? (profile p)",
        "--max-runing-requests: unknown; did you mean --max-running-requests? (--set)",
        "--tp: unknown; did you mean --tp-size? (--set)",
        "--watchdog-timeout: 'soon' is no float (--set)",
        "--context-length: '1.5k5' is no human_readable_int (--set)",
        "--load-format: 'dumy' is not offered; did you mean dummy? (--set)",
        "--schedule-policy: 'xyz' is not offered; it offers dfs-weight, fcfs, lof, lpm, "
        "priority, random, routing-key (--set)",
        "--sleep-on-idle: takes no value, only true or false (--set)",
        "--served-model-name: wants a value (--set)",
        "--enable-piecewise-cuda-graph: is accepted and ignored from 0.5.10 on: "
        "say want.piecewise_cuda_graph instead (--set)",
    ]


def test_an_intent_without_any_flag_is_refused() -> None:
    old = InstalledParser("0.4.0", {})
    with pytest.raises(PreflightFailed) as caught:
        plan({"mscclpp": Sourced(True, "profile p")}, {}, old, {}, SERVER, host="gpu")
    assert caught.value.host == "gpu"
    assert list(caught.value.evidence) == [
        "mscclpp: on: SGLang 0.4.0 has no --enable-mscclpp (profile p)"
    ]


def test_a_value_that_looks_like_a_flag_stays_a_value() -> None:
    made = planned("0.5.9", flags={"served-model-name": "--port", "cuda-graph-bs": ("1", "2")})
    assert flag_lines(made.argv)[-2:] == [
        ["--served-model-name=--port"],
        ["--cuda-graph-bs", "1", "2"],
    ]
    assert refusals("0.5.9", flags={"lora-paths": ("a", "--b")}) == [
        "--lora-paths: '--b' in a list would be taken for a flag (--set)"
    ]


#: Prints while it is imported, as SGLang's own imports do.
NOISY_SGLANG = """
import os
print("INFO: kernels not found")
os.system("echo from a child")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--kv-cache-dtype", choices=["fp8_e5m2", "auto"], default="auto")
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--rate", type=float, default=float("inf"))
"""


def asked_of_the_host(site: Path) -> InstalledParser:
    """What the payload prints where ``site`` holds the packages, read as the deploy reads it."""
    done = subprocess.run(
        [sys.executable, "-s", str(PARSER_FLAGS)],
        capture_output=True,
        check=True,
        env={"PYTHONPATH": str(site)},
    )
    (line,) = done.stdout.splitlines()
    return InstalledParser.from_answer(json.loads(line))


def fake_sglang(site: Path, source: str) -> None:
    package = site / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "server_args.py").write_text(source, encoding="utf-8")
    (site / "sglang-9.8.7.dist-info").mkdir()
    (site / "sglang-9.8.7.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 9.8.7\n", encoding="utf-8"
    )


def test_the_hosts_own_parser_is_read_through_its_noise(tmp_path: Path) -> None:
    fake_sglang(tmp_path, NOISY_SGLANG)
    installed = asked_of_the_host(tmp_path)
    assert installed.release == (9, 8, 7)
    assert set(installed.flags) == {
        "tp-size",
        "tensor-parallel-size",
        "enable-metrics",
        "kv-cache-dtype",
        "cuda-graph-bs",
        "rate",
    }
    assert installed.flags["tp-size"] == FlagSpec("tp-size", "int", 1, (), several=False)
    assert installed.flags["kv-cache-dtype"].choices == ("auto", "fp8_e5m2")
    assert installed.flags["cuda-graph-bs"].several
    assert not installed.flags["enable-metrics"].takes_value
    made = plan({"tensor_parallel": Sourced(8, "profile p")}, {}, installed, {}, SERVER)
    assert told(made) == "--tp-size 8"
    with pytest.raises(PreflightFailed) as caught:
        plan({}, {"rate": Sourced(("1", "2"), "--set")}, installed, {}, SERVER)
    assert list(caught.value.evidence) == ["--rate: takes one value, not 2 (--set)"]


@pytest.mark.parametrize(
    ("source", "first", "cause"),
    [
        (
            "try:\n    import no_such_torch\nexcept ImportError as e:\n"
            "    raise RuntimeError('no kernels') from e",
            "RuntimeError: no kernels",
            "ModuleNotFoundError: No module named 'no_such_torch'",
        ),
        ("raise SystemExit(3)", "SystemExit: 3", "SystemExit: 3"),
    ],
)
def test_an_sglang_that_does_not_import_gives_its_error_and_the_cause(
    tmp_path: Path, source: str, first: str, cause: str
) -> None:
    fake_sglang(tmp_path, source)
    with pytest.raises(PreflightFailed) as caught:
        asked_of_the_host(tmp_path)
    assert (caught.value.evidence[0], caught.value.evidence[-1]) == (first, cause)


def test_a_venv_without_sglang_says_so(tmp_path: Path) -> None:
    with pytest.raises(PreflightFailed) as caught:
        asked_of_the_host(tmp_path)
    assert caught.value.evidence == ("ModuleNotFoundError: No module named 'sglang'",)


def reported(case: str) -> Mapping[str, object]:
    text = (CASES / "server_args" / f"{case}.log").read_text(encoding="utf-8")
    arguments = server_args.parse(text)
    assert arguments is not None
    return arguments


def mismatched(
    version: str, wants: Mapping[str, Want], case: str, captured: GraphLines
) -> list[str]:
    made = planned(version, wants)
    return [str(mismatch) for mismatch in check_intent(made.decisions, reported(case), captured)]


def test_a_real_start_with_piecewise_graphs_is_as_wanted() -> None:
    both = GraphLines(decode=True, prefill=True)
    wants: Mapping[str, Want] = {"piecewise_cuda_graph": True, "cuda_graph": True}
    assert mismatched("0.5.12", wants, "h200-piecewise-0.5.12", both) == []


def test_a_server_that_switched_piecewise_graphs_off_by_itself_is_found_out() -> None:
    neither = GraphLines(decode=False, prefill=False)
    assert mismatched(
        "0.5.12", {"piecewise_cuda_graph": True}, "h200-graphs-off-0.5.12", neither
    ) == [
        "piecewise_cuda_graph: wanted on, but the server has "
        "disable_piecewise_cuda_graph=True, captured.prefill=False"
    ]


def test_a_flag_that_was_taken_but_captured_nothing_is_found_out() -> None:
    decode_only = GraphLines(decode=True, prefill=False)
    assert mismatched(
        "0.5.12", {"piecewise_cuda_graph": True}, "h200-piecewise-0.5.12", decode_only
    ) == ["piecewise_cuda_graph: wanted on, but the server has captured.prefill=False"]


def test_the_nested_graph_configuration_of_0_5_23_is_read() -> None:
    neither = GraphLines(decode=False, prefill=False)
    off: Mapping[str, Want] = {"cuda_graph": False, "piecewise_cuda_graph": False}
    assert mismatched("0.5.23", off, "cpu-0.5.23", neither) == []
    assert mismatched("0.5.23", {"piecewise_cuda_graph": True}, "cpu-0.5.23", neither) == [
        "piecewise_cuda_graph: wanted on, but the server has "
        "cuda_graph_config.prefill.backend=disabled, captured.prefill=False"
    ]


def test_another_backend_than_the_one_planned_is_found_out() -> None:
    made = planned("0.5.15.post1", {"piecewise_cuda_graph": True})
    lines = GraphLines(decode=True, prefill=True, prefill_backend="breakable")
    (mismatch,) = check_intent(made.decisions, {}, lines)
    assert mismatch.found == "captured.prefill_backend=breakable"


def test_values_and_switches_are_checked_too() -> None:
    neither = GraphLines(decode=False, prefill=False)
    wants: Mapping[str, Want] = {"tensor_parallel": 2, "metrics": True, "kv_cache_dtype": "auto"}
    assert mismatched("0.5.9", wants, "cpu-tp2-0.5.9", neither) == []
    assert mismatched(
        "0.5.9", {"tensor_parallel": 8, "quantization": "modelopt_fp4"}, "cpu-0.5.9", neither
    ) == [
        "tensor_parallel: wanted 8, but the server has tp_size=1",
        "quantization: wanted modelopt_fp4, but the server has quantization=None",
    ]
