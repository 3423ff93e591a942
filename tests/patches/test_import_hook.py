"""How a hook acts on import: with a small FlashInfer, in real interpreters without torch."""

from __future__ import annotations

import shutil
import subprocess
import venv as venvs
from collections.abc import Callable
from pathlib import Path

import pytest
from patches.patched_venvs import SETS, PatchedVenv, hook_files

PATCH = """
import sglang_remote_hook as hook

def act(module):
    if "BREAK" in hook.os.environ:
        raise ValueError("no such thing")
    original = module.f
    def ours():
        return "patched " + original()
    hook.rebind(original, ours)
    hook.tell("{name}")

hook.on_import("{name}", ("flashinfer.deep",), act)
"""
FLASHINFER = {
    "__init__.py": "from .version import __version__\nfrom .early import g\nfrom .deep import f\n",
    "version.py": "__version__ = '0.6.3'\n",
    "early.py": "def g():\n    from .deep import f\n    return f()\n",
    "deep.py": "def f():\n    return 'original'\n",
    "late.py": "from flashinfer import f\n",
}
CALL = "import flashinfer, flashinfer.late as late; print(flashinfer.f(), flashinfer.g(), late.f())"

Make = Callable[..., PatchedVenv]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A venv with the small FlashInfer and hooks of the given names."""

    def made(*names: str) -> PatchedVenv:
        folder = tmp_path / f"venv{len(list(tmp_path.iterdir()))}"
        venvs.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python3.*/site-packages")
        (site / "flashinfer").mkdir()
        for file, text in FLASHINFER.items():
            (site / "flashinfer" / file).write_text(text)
        shutil.copyfile(
            SETS / "fp4-opaque" / "sglang_remote_hook.py", site / "sglang_remote_hook.py"
        )
        for name in names:
            module = f"sglang_remote_{name}"
            (site / f"{module}.py").write_text(PATCH.replace("{name}", name))
            (site / f"{module}.pth").write_text(f"import {module}\n")
        return PatchedVenv(folder / "bin" / "python", site)

    return made


@pytest.mark.parametrize("options", [(), ("-E",), ("-I",), ("-B", "-O")])
def test_every_name_of_the_function_is_the_patch_and_the_log_says_so(
    make: Make, options: tuple[str, ...]
) -> None:
    done = make("one").run(*options, "-c", CALL)

    assert done.stdout.split() == ["patched", "original"] * 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("sglang-remote: patch one acts on flashinfer 0.6.3 (pid ")


def test_a_process_without_flashinfer_says_nothing_and_imports_nothing_more(make: Make) -> None:
    plain = make().run("-c", "import sys; print(*sorted(sys.modules))")
    hooked = make("one").run("-c", "import sys; print(*sorted(sys.modules))")

    assert set(hooked.stdout.split()) - set(plain.stdout.split()) == {
        "sglang_remote_hook",
        "sglang_remote_one",
    }
    assert hooked.stderr == ""


def test_spawned_processes_are_patched_and_say_so(make: Make, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing as m\n"
        "def child(queue):\n"
        "    import flashinfer\n"
        "    queue.put(flashinfer.f())\n"
        "if __name__ == '__main__':\n"
        "    context = m.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    two = [context.Process(target=child, args=(queue,)) for _ in range(2)]\n"
        "    [p.start() for p in two]; print(queue.get(), queue.get()); [p.join() for p in two]\n"
    )
    done = make("one").run(str(script))

    assert done.stdout.split() == ["patched", "original"] * 2
    assert len({line.rpartition("(pid ")[2] for line in done.stderr.splitlines()}) == 2


@pytest.mark.parametrize("off", ["one", "all", "other, one"])
def test_the_switch_turns_a_patch_off(make: Make, off: str) -> None:
    done = make("one").run("-c", CALL, env={"SGLANG_REMOTE_PATCHES_OFF": off})

    assert done.stdout.split() == ["original"] * 3
    assert done.stderr == ""


def test_the_switch_leaves_the_others_on(make: Make) -> None:
    done = make("one", "two").run("-c", CALL, env={"SGLANG_REMOTE_PATCHES_OFF": "one"})

    assert done.stdout.split() == ["patched", "original"] * 3
    assert "patch two acts" in done.stderr


def test_two_patches_stack(make: Make) -> None:
    done = make("one", "two").run("-c", "import flashinfer; print(flashinfer.f())")

    assert done.stdout.split() == ["patched", "patched", "original"]


def test_a_patch_that_fails_is_one_line_and_leaves_flashinfer_as_it_was(make: Make) -> None:
    done = make("one").run("-c", CALL, env={"BREAK": "1"})

    assert done.stdout.split() == ["original"] * 3
    (line,) = done.stderr.splitlines()
    assert "patch one failed, flashinfer.deep is as it was: ValueError('no such thing')" in line


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_a_process_without_standard_error_works_all_the_same(make: Make, closed: str) -> None:
    venv = make("one")
    command = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, str(venv.python), CALL], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.split()) == (0, ["patched", "original"] * 3)


def test_a_package_of_folders_alone_is_imported_as_it_is(make: Make) -> None:
    venv = make("one")
    (venv.site / "flashinfer" / "deep.py").unlink()
    (venv.site / "flashinfer" / "deep").mkdir()
    (venv.site / "flashinfer" / "__init__.py").write_text("")
    done = venv.run("-c", "import flashinfer.deep; print(flashinfer.deep.__path__ is not None)")

    assert done.stdout.split() == ["True"]


OTHER_HOOK = """
import sys

class Other:
    def find_spec(self, name, path=None, target=None):
        if name != "flashinfer.deep":
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    load = spec.loader.exec_module
                    def exec_module(module):
                        load(module)
                        module.other_was_here = True
                    spec.loader.exec_module = exec_module
                    return spec

sys.meta_path.insert(0, Other())
"""


@pytest.mark.parametrize("other", ["aaa_other", "zzz_other"])
def test_another_hook_on_the_same_module_works_before_and_after(make: Make, other: str) -> None:
    venv = make("one")
    (venv.site / f"{other}.py").write_text(OTHER_HOOK)
    (venv.site / f"{other}.pth").write_text(f"import {other}\n")
    asked = "import flashinfer; print(flashinfer.deep.other_was_here, flashinfer.f())"
    done = venv.run("-c", asked)

    assert done.stdout.split() == ["True", "patched", "original"]


def test_source_data_and_reload_work_as_without_a_hook(make: Make) -> None:
    done = make("one").run(
        "-c",
        "import flashinfer, inspect, importlib, importlib.resources as r\n"
        "deep = flashinfer.deep\n"
        "print(type(deep.__spec__.loader).__name__, 'original' in inspect.getsource(deep),\n"
        "      (r.files('flashinfer') / 'deep.py').is_file(), deep.__spec__.cached is not None)\n"
        "print(importlib.reload(deep).f())",
    )

    assert done.stdout.splitlines() == ["SourceFileLoader True True True", "patched original"]


def test_a_missing_flashinfer_is_the_usual_import_error(make: Make) -> None:
    venv = make("one")
    shutil.rmtree(venv.site / "flashinfer")
    done = venv.run("-c", "import flashinfer.deep")

    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'flashinfer'"


def test_the_shipped_sets_do_nothing_where_no_flashinfer_is_imported(make: Make) -> None:
    venv = make()
    shipped = sorted(path.parent.name for path in SETS.glob("*/*.pth"))
    for name in shipped:
        for path in hook_files(name):
            shutil.copyfile(path, venv.site / path.name)
    done = venv.run("-c", "import sys; print('torch' in sys.modules, len(sys.modules))")

    assert shipped == ["allow-in-graph", "compiler-disable", "fp4-opaque", "preload"]
    assert done.stdout.split()[0] == "False"
    assert done.stderr == ""
