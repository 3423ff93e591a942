"""What of `tests/gpu` needs no GPU: results, settings, logs, and what is packed and laid out."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from gpu import bring, logs, settings
from gpu.place import lay_out, site
from gpu.results import DONE, PART, Results, Step, chosen
from gpu.steps import OPAQUE, STEPS, TRAP

from remote import patch_sets
from remote.config import DEFAULTS, host_from, load
from remote.core.intents import FlagValue
from remote.profile import load as load_profile

REAL = Path(__file__).parent / "cases" / "server_log" / "real"
ASKED = settings.Asked(2, False, "1,16", 3, 256, 64)
BASE = {"address": "root@gpu-host", "venv": "/root/ml-env", "model": "theirs", "port": 30000}


def test_results_outlive_the_call(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    step = Step("trap", state=DONE, seconds=61.27)
    step.equal("exit code", 10, 10)
    step.equal("kind", "unclassified", "dynamo_host_call")
    step.needs_gpu("memory")
    results.steps = {"trap": step, "faults": Step("faults", state=PART)}
    results.facts["run_baseline"] = "20261130-010626-baseline-1660"
    results.write()
    again = Results.read(results.path)
    assert again.facts == results.facts
    assert again.steps["trap"].rows == step.rows
    assert again.done("trap")
    assert not again.done("faults")
    assert [(name, row.check) for name, row in again.wrong] == [("trap", "kind")]
    assert "| trap | kind | WRONG | unclassified | dynamo_host_call |" in again.table()
    assert "| trap | exit code | ok | 10 |  |" in again.table()


def test_a_first_call_finds_nothing_done(tmp_path: Path) -> None:
    assert Results.read(tmp_path / "results.json").steps == {}


def test_steps_are_named_singly_or_by_what_they_begin_with() -> None:
    known = list(STEPS)
    assert chosen("", known) == known
    assert chosen("trap,baseline", known) == ["baseline", "trap"]
    assert chosen("fault", known) == [name for name in known if name.startswith("fault-")]
    with pytest.raises(ValueError, match="no step 'trapp'"):
        chosen("trapp", known)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("piecewise", logs.Captured(12, 58, 58.38, 14.59)),
        ("fp4-opaque-fi063", logs.Captured(4, 58, 3.48, 34.83)),
        ("kv-too-small", logs.Captured(0, 0, 0.0, 0.0)),
    ],
)
def test_graphs_by_the_log(name: str, found: logs.Captured) -> None:
    assert logs.captured((REAL / f"{name}.log").read_text()) == found


def test_a_capture_that_did_not_end_is_none() -> None:
    log = (REAL / "fp4-trap-fi063.log").read_text()
    found = logs.captured(log)
    assert (found.decode > 0, found.prefill) == (True, 0)
    assert logs.ranks(log) == ["TP0", "TP1"]
    failed = logs.at(log, "Piecewise CUDA Graph failed with error")
    begun = logs.at(log, "Capture piecewise CUDA graph begin")
    assert failed is not None
    assert begun is not None
    assert 0 <= failed - begun < 60


def test_entries_are_settings_that_the_tool_takes(tmp_path: Path) -> None:
    made = settings.hosts({**BASE, "env": {"A": "b"}}, ASKED, "/models", {"NCCL_NVLS_ENABLE": "0"})
    told = json.loads(json.dumps({"hosts": made, "host": "gpu"}))
    read = load({**DEFAULTS, **told}, tmp_path)
    assert sorted(read.hosts) == ["gpu", "no-nvcc", "too-large"]
    gpu = read.hosts["gpu"]
    assert gpu.overrides.env == {"A": "b", "NCCL_NVLS_ENABLE": "0", "HF_HUB_OFFLINE": "1"}
    assert gpu.model == "/models/served"
    assert read.hosts["too-large"].model == "/models/too-large"
    assert read.hosts["no-nvcc"].cuda_home == "/nowhere/cuda"
    folders = (settings.HERE / "templates", *read.template_folders)
    profile = load_profile("piecewise", folders, gpu)
    flags: dict[str, FlagValue] = {name: each.value for name, each in profile.flags.items()}
    assert flags["load-format"] == "dummy"
    assert not {"reasoning-parser", "tool-call-parser"} & flags.keys()
    assert profile.want["tensor_parallel"].value == 2


def test_a_rehearsal_takes_the_embedded_hosts_own_flags() -> None:
    cpu = settings.Asked(1, True, "1", 1, 16, 8)
    made = settings.entry({**BASE, "flags": {"device": "cpu"}}, cpu, "/models/served", {})
    usual = load(DEFAULTS, Path()).bench
    host = host_from("rehearsal", made, usual)
    assert host.overrides.flags["device"] == "cpu"
    assert host.overrides.want == {}


def test_the_tests_patch_set_is_one() -> None:
    folders = (settings.HERE / "templates", *load(DEFAULTS, Path()).template_folders)
    trap = patch_sets.load(TRAP, folders)
    assert [diff.path for diff in trap.diffs] == ["sglang/srt/models/qwen2.py"]
    assert patch_sets.load(OPAQUE, folders).verdict == "works"


def test_what_the_machine_needs_is_passed_on() -> None:
    there = {"NCCL_NVLS_ENABLE": "0", "HOME": "/root", "LD_LIBRARY_PATH": "/lib64", "PATH": "/bin"}
    assert settings.passed_on(there) == {"NCCL_NVLS_ENABLE": "0", "LD_LIBRARY_PATH": "/lib64"}


def test_heads_and_widths_divide_among_the_ranks() -> None:
    for tp in (1, 2, 4, 8):
        for shape in (settings.shape(tp, cpu=False), settings.too_large(tp)):
            assert shape.heads % tp == 0
            assert shape.kv_heads % tp == 0
            assert shape.hidden % shape.heads == 0
            # A row of the MLP is quantised in groups of 16.
            assert shape.intermediate % (tp * 16) == 0


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ("sglang/version.py", "site/sglang/version.py"),
        ("py_spy-0.4.3.data/scripts/py-spy", "bin/py-spy"),
        ("a-1.data/purelib/a/b.py", "site/a/b.py"),
        ("a/odd.data/b.py", "site/a/odd.data/b.py"),
    ],
)
def test_where_members_of_a_wheel_go(member: str, place: str) -> None:
    assert bring.laid_out(member) == place


def test_what_hopper_never_loads_stays_behind() -> None:
    record = "sgl_kernel/sm100/common_ops.so,sha256=x,1\nsgl_kernel/sm90/common_ops.so,sha256=y,2\n"
    assert bring.kept_rows(record) == "sgl_kernel/sm90/common_ops.so,sha256=y,2\n"


def test_packages_are_laid_out_beside_the_interpreters_own(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "site").mkdir(parents=True)
    (tree / "site" / "sglang_stand_in.py").write_text("ANSWER = 42\n")
    archive = tmp_path / "sglang.tar.xz"
    bring.pack(tree, archive)
    assert tarfile.is_tarfile(archive)
    venv = tmp_path / "venv"
    lay_out(venv, [archive])
    assert (site(venv) / "sglang_stand_in.py").exists()
    script = "import sglang_stand_in, invoke; print(sglang_stand_in.ANSWER)"
    python = str(venv / "bin" / "python")
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
