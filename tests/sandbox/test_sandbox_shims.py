"""The stand-ins, imported as the sandbox's Python would."""

from __future__ import annotations

import subprocess
import sys

from remote.sandbox.steps import SHIMS


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SHIMS)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_kernel_imports_at_any_depth_and_says_what_it_lacks_when_called() -> None:
    said = python(
        "from sgl_kernel import rmsnorm\n"
        "from sgl_kernel.scalar_type import scalar_types\n"
        "import sgl_kernel.a.b\n"
        "for kernel in (rmsnorm, scalar_types.uint4b8, sgl_kernel.a.b.c):\n"
        "    try: kernel(1, x=2)\n"
        "    except NotImplementedError as error: print(error)\n"
    )

    lacking = "is a CUDA kernel, and this host has no GPU"
    assert said.splitlines() == [
        f"sgl_kernel.rmsnorm {lacking}",
        f"sgl_kernel.scalar_type.scalar_types.uint4b8 {lacking}",
        f"sgl_kernel.a.b.c {lacking}",
    ]


def test_names_that_introspection_asks_for_are_not_made_up() -> None:
    said = python(
        "import inspect, sgl_kernel\n"
        "print(hasattr(sgl_kernel, '__wrapped__'), hasattr(sgl_kernel.x, '__torch_function__'))\n"
        "print(inspect.unwrap(sgl_kernel.x))\n"
    )

    assert said.splitlines() == ["False False", "<sgl_kernel.x: needs a GPU>"]


def test_the_hook_imports_nothing_heavy_at_start() -> None:
    said = python(
        "before = set(sys.modules)\nimport sandbox_shims\nprint(sorted(set(sys.modules) - before))"
    )

    assert said.strip() == "['sandbox_shims']"


def test_the_operators_that_torchvision_lacks_are_declared_just_before_it_looks() -> None:
    said = python(
        "import types, sandbox_shims\n"
        "torch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "torch.ops = types.SimpleNamespace(torchvision=types.SimpleNamespace(qnms=1))\n"
        "torch.library = types.SimpleNamespace(define=lambda name, schema: print(name))\n"
        "sys.modules['torchvision'] = vision = types.ModuleType('torchvision')\n"
        "vision.__path__ = []\n"
        "print('start')\n"
        "for _ in range(2):\n"
        "    try: import torchvision._meta_registrations\n"
        "    except ImportError: print('looked')\n"
    )

    assert said.split() == ["start", "torchvision::nms", "looked", "looked"]
