"""fp4-opaque in one process: shapes, graphs, the keywords that travel, what the kernel gets.

Traces fake CUDA tensors; where the operator must run, it runs on the CPU, as `shapes` makes it.
The request names questions (functions here) with their arguments; each is a key of the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import shapes  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from torch._subclasses.fake_tensor import FakeTensorMode  # type: ignore[import-not-found]

flashinfer = shapes.flashinfer


def traced(function: Any, *args: Any, dynamic: bool = False) -> list[Any]:
    made = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    for one in args:
        compiled(*one)
    return made


def called(graph: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (str(node.target), {k: v for k, v in node.kwargs.items() if not hasattr(v, "op")})
        for node in graph.graph.nodes
        if node.op.startswith("call_") and "getitem" not in str(node.target)
    ]


def graphs(rows: list[int]) -> dict[str, int]:
    """How many graphs each function makes of calls with so many rows, one after another."""
    found = {}
    for name in ("fp4_quantize", "nvfp4_quantize", "mxfp4_quantize"):
        function = getattr(flashinfer, name)
        with FakeTensorMode(allow_non_fake_inputs=True):
            scale = () if name == "mxfp4_quantize" else (torch.empty(1, device="cuda"),)
            inputs = [
                (torch.empty(m, 128, dtype=torch.bfloat16, device="cuda"), *scale) for m in rows
            ]
            found[name] = len(traced(lambda *a, f=function: f(*a), *inputs, dynamic=True))
    return found


def keywords(asked: list[list[Any]]) -> list[Any]:
    """The nodes that calls with these keywords trace to; `[name, keywords]` each."""
    found: list[Any] = []
    for name, words in asked:
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.empty(64, 128, dtype=torch.bfloat16, device="cuda")
            scale = () if name == "mxfp4_quantize" else (torch.empty(1, device="cuda"),)
            given = {key: _value(key, value) for key, value in words.items()}
            function = getattr(flashinfer, name)
            try:
                made = traced(lambda *a, f=function, g=given: f(*a, **g), (x, *scale))
                found.append(called(made[0]))
            except Exception as error:
                found.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return found


def _value(key: str, value: Any) -> Any:
    if key == "nvfp4_4over6" and value is not None:
        from flashinfer.quantization import nvfp4_quantization_utils as recipes  # type: ignore

        return recipes.NVFP44Over6Config(**value)
    if key == "sfLayout":
        return flashinfer.SfLayout[value]
    return value


def kernel_arguments(asked: list[list[Any]]) -> list[Any]:
    """What FlashInfer's kernel is called with, tensors left out, when the operator runs."""
    found = []
    for name, words in asked:
        shapes.calls.clear()
        scale = () if name == "mxfp4_quantize" else (torch.ones(1),)
        run = shapes.gpu_implementations[name]
        run(torch.zeros(64, 128, dtype=torch.bfloat16), *scale, **words)
        kernel, *arguments = shapes.calls[-1]
        found.append([kernel, [a for a in arguments if not isinstance(a, torch.Tensor)]])
    return found


def opcheck(sizes: list[list[int]]) -> list[str]:
    """torch's own check of each operator, run on the CPU by FlashInfer's code; what failed."""
    failed = []
    library = torch.library.Library("sglang_remote", "FRAGMENT")
    for name, function in shapes.gpu_implementations.items():
        library.impl(name, function, "CPU")
        operator = getattr(shapes.operators, name).default
        scale = () if name == "mxfp4_quantize" else (torch.ones(1),)
        for m, k in sizes:
            for x in (torch.zeros(m, k), torch.zeros(m, k).t()):
                try:
                    torch.library.opcheck(operator, (x.to(torch.bfloat16), *scale))
                except Exception as error:
                    failed.append(f"{name} {tuple(x.shape)} {x.stride()}: {error}"[:800])
    return failed


def main() -> None:
    request = json.load(sys.stdin)
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    asked = {
        "compare": shapes.compare,
        "graphs": graphs,
        "keywords": keywords,
        "kernel_arguments": kernel_arguments,
        "opcheck": opcheck,
    }
    answer = {question: asked[question](argument) for question, argument in request.items()}
    with os.fdopen(answer_fd, "w") as stream:
        stream.write(json.dumps(answer, default=str) + "\n")


if __name__ == "__main__":
    main()
