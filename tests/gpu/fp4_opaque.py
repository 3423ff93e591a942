"""fp4-opaque on a real GPU, in a venv that has the set; see the README beside this.

Traces, runs and captures the three functions, compares the fakes with what the kernels return, and
runs torch's own check of operators. One line of JSON; exit status 1 where anything is wrong. The
first call builds FlashInfer's kernels. Values mean something where the GPU converts to FP4 (SM100,
SM120); shapes everywhere.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import torch  # type: ignore[import-not-found]
from torch._subclasses.fake_tensor import FakeTensorMode  # type: ignore[import-not-found]

torch.cuda.init()

import flashinfer  # type: ignore[import-not-found]  # noqa: E402

NAMES = ("fp4_quantize", "nvfp4_quantize", "mxfp4_quantize")
operators = torch.ops.sglang_remote
wrong: list[str] = []
found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def inputs(name: str, m: int, k: int) -> list[Any]:
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    scale = torch.full((1,), 448.0, device="cuda")
    return [x] if name == "mxfp4_quantize" else [x, scale]


def described(tensors: Any) -> list[Any]:
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def kernels_loaded() -> bool:
    module = sys.modules[flashinfer.fp4_quantize.__wrapped__.__module__]
    return bool(module.get_fp4_quantization_module.cache_info().currsize)


class Traced(Exception):
    """A trace is done; nothing was run yet."""


def stop(graph: Any, examples: Any) -> Any:
    raise Traced


def trace_loads_the_kernels() -> None:
    began = time.monotonic()
    try:
        torch.compile(flashinfer.fp4_quantize, fullgraph=True, backend=stop)(
            *inputs("fp4_quantize", 128, 256)
        )
    except Exception as error:
        if "Traced" not in f"{type(error)} {error}":
            wrong.append(f"trace: {error}"[:500])
    found["kernels_loaded_by_the_trace"] = kernels_loaded()
    found["load_s"] = round(time.monotonic() - began, 1)
    if not kernels_loaded():
        wrong.append("the trace did not load the kernels")
    torch._dynamo.reset()


def fakes_are_what_the_kernels_return() -> None:
    layouts = [
        {"is_sf_swizzled_layout": swizzled, "is_sf_8x4_layout": eight, "sf_vec_size": vector}
        for swizzled, eight, vector in itertools.product((True, False), (True, False), (16, 32))
    ]
    cases = 0
    for m, k, words in itertools.product((1, 127, 128, 129), (64, 128, 7168), layouts):
        x, scale = inputs("fp4_quantize", m, k)
        words = {**words, "sf_use_ue8m0": words["sf_vec_size"] == 32}
        # The same matrix, column-major: what is along the rows now lies along the columns.
        for given in (x, x.t()):
            real = described(operators.fp4_quantize(given, scale, **words))
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(t) for t in (given, scale)]
                faked = described(operators.fp4_quantize(*fakes, **words))
            cases += 1
            if real != faked:
                wrong.append(f"M={m} K={k} {given.stride()} {words}: {real} fake {faked}")
    found["shapes_compared"] = cases


def values_are_what_the_kernels_return() -> None:
    capability = torch.cuda.get_device_capability()
    found["capability"] = list(capability)
    if capability < (10, 0):
        found["values"] = "not compared: this GPU has no FP4 conversion"
        return
    before = len(wrong)
    for m, k in itertools.product((1, 127, 128, 1000), (64, 128, 7168)):
        x, scale = inputs("fp4_quantize", m, k)
        # A linear layout has no padding, which kernels leave unwritten.
        words = {"is_sf_swizzled_layout": False}
        bare = flashinfer.fp4_quantize.__wrapped__(x, scale, **words)
        through = operators.fp4_quantize(x, scale, **words)
        if not all(torch.equal(one, other) for one, other in zip(bare, through, strict=True)):
            wrong.append(f"M={m} K={k}: other values than the bare call's")
    found["values"] = "as the bare call's" if len(wrong) == before else "see wrong"


def compiled_and_captured() -> None:
    for name in NAMES:
        function = getattr(flashinfer, name)
        graphs: list[Any] = []

        def backend(graph: Any, examples: Any, made: list[Any] = graphs) -> Any:
            made.append(graph)
            return graph.forward

        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
        for m in (2, 127, 128, 129, 1000):
            arguments = inputs(name, m, 256)
            bare, through = function.__wrapped__(*arguments), compiled(*arguments)
            if described(bare) != described(through):
                wrong.append(f"{name} M={m}: {described(through)}, bare {described(bare)}")
        if len(graphs) != 1:
            wrong.append(f"{name}: {len(graphs)} graphs")
        arguments = inputs(name, 128, 256)
        capture = torch.cuda.CUDAGraph()
        with torch.cuda.graph(capture):
            compiled(*arguments)
        capture.replay()
        torch.cuda.synchronize()
        # The check runs the kernel twice and compares; what a kernel leaves unwritten (padding, and
        # on SM90 everything) must be the same both times.
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            torch.library.opcheck(getattr(operators, name).default, tuple(arguments))
        except Exception as error:
            wrong.append(f"opcheck {name}: {error}"[:800])
        finally:
            torch.use_deterministic_algorithms(False)
    found["captured"] = list(NAMES)


def cost() -> None:
    x, scale = inputs("fp4_quantize", 128, 7168)
    through = operators.fp4_quantize
    bare, public = flashinfer.fp4_quantize.__wrapped__, flashinfer.fp4_quantize
    for label, call in (("bare", bare), ("public", public), ("operator", through)):
        for _ in range(200):
            call(x, scale)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(2000):
            call(x, scale)
        torch.cuda.synchronize()
        found[f"{label}_us"] = round((time.perf_counter() - began) / 2000 * 1e6, 1)


if __name__ == "__main__":
    trace_loads_the_kernels()
    fakes_are_what_the_kernels_return()
    values_are_what_the_kernels_return()
    compiled_and_captured()
    cost()
    found["flashinfer"], found["wrong"] = flashinfer.__version__, wrong
    print(json.dumps(found, default=str), flush=True)
    os._exit(1 if wrong else 0)
