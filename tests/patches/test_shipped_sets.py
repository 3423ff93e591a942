"""The shipped sets: what their manifests say is what they bring and what comes of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from patches.patched_venvs import (
    ALL_VERSIONS,
    PROJECT,
    SETS,
    VERSIONS,
    MakeVenv,
    PatchedVenv,
    hook_files,
)

from remote import patch_sets
from remote.core import trace_report, unified_diff
from remote.core.trace_report import OpTrace, Outcome

NAMES = sorted(path.parent.name for path in SETS.glob("*/manifest.yaml"))


def load(name: str) -> patch_sets.PatchSet:
    return patch_sets.load(f"flashinfer/{name}", [PROJECT / "templates"])


def test_the_story_is_whole_and_ends_with_what_works() -> None:
    told = sorted((load(name).step, name, load(name).verdict) for name in NAMES)

    assert told == [
        ("A", "cuda-version", "fails"),
        ("B", "preload", "fails"),
        ("D", "compiler-disable", "fails"),
        ("D2", "allow-in-graph", "fails"),
        ("E", "fp4-opaque", "works"),
    ]
    assert all(load(name).outcome for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cuda-version"])
def test_a_hook_brings_all_of_its_files_and_the_pth_last(name: str) -> None:
    patch = load(name)

    assert sorted(patch.files) == sorted(path.name for path in hook_files(name))
    *_, last = patch.files
    assert patch.files[last] == f"import {last.removesuffix('.pth')}\n".encode()
    assert {name for name in patch.files if name.endswith(".pth")} == {last}
    assert patch.switch == "SGLANG_REMOTE_PATCHES_OFF"


def test_files_that_sets_share_are_the_same() -> None:
    contents: dict[str, set[bytes]] = {}
    for name in NAMES:
        for file, content in load(name).files.items():
            contents.setdefault(file, set()).add(content)

    assert {file: len(found) for file, found in contents.items() if len(found) > 1} == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_set_fits_and_the_edit_applies_exactly(
    wheel: Callable[[str], Path], version: str
) -> None:
    assert [load(name).unfit(version) for name in NAMES] == [None] * len(NAMES)
    with zipfile.ZipFile(wheel(version)) as archive:
        for diff in load("cuda-version").diffs:
            edited = unified_diff.apply(archive.read(diff.path), diff)
            compile(edited, diff.path, "exec")
            assert b"return Version(torch.version.cuda)" in edited


def test_profiles_want_fp4_opaque_where_sglang_leaves_the_call_bare() -> None:
    patch = load("fp4-opaque")

    assert [patch.unwanted(v) for v in ("0.5.8", "0.5.9", "0.5.10.post1", "0.5.11")] == [None] * 4
    assert "operator of its own" in str(patch.unwanted("0.5.12"))
    assert "operator of its own" in str(patch.unwanted("0.5.23"))
    assert patch.unfit("0.5.2") and patch.unfit("0.8.0")
    assert [patch.unfit(version) for version in ALL_VERSIONS] == [None] * len(ALL_VERSIONS)


def edit_cuda_version(venv: PatchedVenv) -> None:
    """Apply the one set that is a diff, to a copy of the package."""
    package = venv.site / "flashinfer"
    source = package.resolve()
    package.unlink()
    shutil.copytree(source, package)
    for diff in load("cuda-version").diffs:
        path = venv.site / diff.path
        path.write_bytes(unified_diff.apply(path.read_bytes(), diff))


def traced(venv: PatchedVenv) -> OpTrace:
    answer = venv.scan({"mode": "trace", "ops": ["flashinfer.fp4_quantize"]})
    return trace_report.classified(answer["ops"][0])


@pytest.mark.parametrize(
    ("sets", "step", "function", "message"),
    [
        (("cuda-version",), "B", "register", "`now`"),
        (("cuda-version", "preload"), "C", "is_aot", "posix.stat"),
        (("preload",), "A", "get_cuda_version", "_thread.allocate_lock"),
        (("compiler-disable",), "D", None, "torch.compiler.disable"),
        (("allow-in-graph",), "D2", None, "Cannot access data pointer"),
    ],
)
def test_each_failed_attempt_ends_where_its_manifest_says(
    make_venv: MakeVenv, sets: tuple[str, ...], step: str, function: str | None, message: str
) -> None:
    venv = make_venv("0.6.3", *(name for name in sets if name != "cuda-version"))
    if "cuda-version" in sets:
        edit_cuda_version(venv)
    found = traced(venv)

    assert (found.outcome, found.step) == (Outcome.TRAP, step)
    assert (found.at.function if found.at else None) == function
    assert message in found.reason


def test_with_all_the_others_there_fp4_opaque_still_frees_the_call(make_venv: MakeVenv) -> None:
    venv = make_venv("0.6.3", "preload", "compiler-disable", "allow-in-graph", "fp4-opaque")
    edit_cuda_version(venv)
    found = traced(venv)

    assert (found.outcome, found.patch) == (Outcome.TRACES, "fp4-opaque")
    assert found.nodes == ("sglang_remote.fp4_quantize.default",)


@pytest.mark.parametrize("options", [("-E",), ("-I",)])
def test_real_spawned_processes_have_the_patch_and_pip_does_not_undo_it(
    make_venv: MakeVenv,
    wheel: Callable[[str], Path],
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    venv = make_venv(None, "fp4-opaque")
    # Another version than torch's venv has, so that which one answers can be seen.
    pip = [sys.executable, "-m", "pip", "--python", str(venv.python)]
    for _ in range(2):
        done = subprocess.run(
            [*pip, "install", "-q", "--no-deps", "--force-reinstall", str(wheel("0.6.8.post1"))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing as m\n"
        "def child(queue):\n"
        "    import flashinfer\n"
        "    f = flashinfer.fp4_quantize\n"
        "    queue.put((flashinfer.__version__, f.__sglang_remote_patch__))\n"
        "if __name__ == '__main__':\n"
        "    context = m.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start(); print(*queue.get()); process.join()\n"
    )
    done = venv.run(*options, "-W", "ignore", str(script))

    assert done.stdout.split() == ["0.6.8.post1", "fp4-opaque"], done.stderr[-2000:]
    assert "sglang-remote: patch fp4-opaque acts on flashinfer 0.6.8.post1" in done.stderr
