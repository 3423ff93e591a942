"""The fakes of fp4-opaque against FlashInfer's own shape code, case by case.

FlashInfer's Python runs as it is, on CPU tensors, with its kernel library replaced by a recorder
that zeroes what it is given to write. That reference knows nothing of the fakes.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

workspace = tempfile.mkdtemp()
ninja = Path(workspace, "ninja")
ninja.write_text("#!/bin/sh\nexit 0\n")
ninja.chmod(0o700)
os.environ["FLASHINFER_WORKSPACE_BASE"] = workspace
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "12.0a"
os.environ["PATH"] = f"{workspace}:{os.environ['PATH']}"

import torch  # type: ignore[import-not-found]  # noqa: E402
import tvm_ffi  # type: ignore[import-not-found]  # noqa: E402

torch.version.cuda = "12.9"
torch.cuda.get_device_capability = lambda device=None: (12, 0)
torch.cuda.current_device = lambda: 0
torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor

calls: list[tuple[Any, ...]] = []


class Recorder:
    """A kernel library that writes zeros and remembers what it was called with."""

    def __getattr__(self, name: str) -> Any:
        def kernel(*arguments: Any) -> None:
            calls.append((name, *arguments))
            for argument in arguments:
                if isinstance(argument, torch.Tensor) and argument.dtype == torch.uint8:
                    argument.zero_()

        return kernel


tvm_ffi.load_module = lambda *args, **kwargs: Recorder()

# What the product runs on a GPU, made to run here as well: this file's, not the product's.
gpu_implementations: dict[str, Any] = {}
define_implementation = torch.library.Library.impl


def noted(library: Any, name: Any, function: Any, key: str = "", **words: Any) -> Any:
    if key == "CUDA" and library.ns == "sglang_remote":
        gpu_implementations[name] = function
    return define_implementation(library, name, function, key, **words)


torch.library.Library.impl = noted

import flashinfer  # type: ignore[import-not-found]  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # type: ignore  # noqa: E402

operators = torch.ops.sglang_remote

#: What FlashInfer asks of the tensor's device, which here is the CPU.
ANSWERS = {
    "get_compute_capability": lambda device: (12, 0),
    "device_support_pdl": lambda device: True,
    "_check_block_scale_quantization_support": lambda *arguments: None,
}
for loaded in [module for name, module in sys.modules.items() if name.startswith("flashinfer")]:
    for question in ANSWERS.keys() & vars(loaded).keys():
        setattr(loaded, question, ANSWERS[question])


def original(name: str) -> Any:
    return getattr(flashinfer, name).__wrapped__


def layouts(name: str) -> list[dict[str, Any]]:
    """The keywords with which a function lays the scale out, as its users write them."""
    if name == "fp4_quantize":
        return [
            {"is_sf_swizzled_layout": swizzled, "is_sf_8x4_layout": eight, "sf_vec_size": vector}
            for swizzled, eight, vector in itertools.product((True, False), (True, False), (16, 32))
        ]
    from flashinfer import SfLayout

    if name == "nvfp4_quantize":
        return [{"sfLayout": layout, "sf_vec_size": v} for layout in SfLayout for v in (16, 32)]
    if "sfLayout" in inspect.signature(original(name)).parameters:
        return [{"sfLayout": layout} for layout in SfLayout]
    return [{}]


def tensors(m: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """One matrix, row-major, column-major both ways round, and as a batch."""
    return {
        "row-major": torch.zeros(m, k, dtype=dtype),
        "column-major": torch.zeros(m, k, dtype=dtype).t(),
        "column-major, M last": torch.zeros(k, m, dtype=dtype).t(),
        "batch": torch.zeros(2, m, k, dtype=dtype),
        "batch, column-major": torch.zeros(2, m, k, dtype=dtype).transpose(-2, -1),
    }


def described(tensors: Any) -> list[Any]:
    return [[list(t.shape), list(t.stride()), str(t.dtype), t.device.type] for t in tensors]


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return described(function(*args, **kwargs))
    except (AssertionError, RuntimeError, NotImplementedError, ZeroDivisionError, IndexError) as e:
        return f"refused: {type(e).__name__}"


def plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in arguments.items()}


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Every function, layout and orientation for the rows, columns and types asked for."""
    wrong, cases, refused = [], 0, 0
    dtypes = [getattr(torch, name) for name in request["dtypes"]]
    for name, m, k, dtype in itertools.product(
        ("fp4_quantize", "nvfp4_quantize", "mxfp4_quantize"), request["m"], request["k"], dtypes
    ):
        function, operator = original(name), getattr(operators, name).default
        scales: list[tuple[Any, ...]] = [()] if name == "mxfp4_quantize" else [(torch.ones(1),)]
        if name == "fp4_quantize":
            scales.append((None,))
        for (kind, x), arguments, scale in itertools.product(
            tensors(m, k, dtype).items(), layouts(name), scales
        ):
            own = outcome(function, x, *scale, **arguments)
            with FakeTensorMode():
                fakes = [
                    None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
                    for t in (x, *scale)
                ]
                faked = outcome(operator, *fakes, **plain(arguments))
            cases += 1
            if isinstance(own, str):
                refused += 1
                # Without values there is no largest one, which only the kernel's caller minds.
                same = isinstance(faked, str) or (name == "mxfp4_quantize" and x.numel() == 0)
            else:
                same = own == faked
            if not same:
                case = f"{name} M={m} K={k} {kind} {dtype} {plain(arguments)} scale={len(scale)}"
                wrong.append({"case": case, "flashinfer": own, "fake": faked})
    return {"cases": cases, "refused": refused, "wrong": wrong[:20]}
