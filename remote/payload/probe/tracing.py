"""One function traced as piecewise CUDA graphs would, and what came of it, as plain values.

What the values mean is decided in `remote/core/trace_report.py`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import samples
from .stand_ins import Hardware, Kernels

Record = dict[str, Any]

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_MESSAGE_CHARACTERS = 6000
#: How Dynamo heads an error of the traced code itself.
_CALLS_OWN_ERROR = re.compile(r"Observed exception|Data-dependent|.* when making fake tensor call")
#: Keywords that name a torch type.
_TYPE_KEYWORDS = ("out_dtype",)
#: What a patch's function carries (`sglang_remote_hook.MARK`, `sglang_remote_fp4_ops`).
_PATCH_MARK = "__sglang_remote_patch__"
_OPERATOR_MARK = "__sglang_remote_operator__"


class Tracer:
    """Traces functions one after another in this process."""

    def __init__(self, hardware: Hardware, kernels: Kernels) -> None:
        self._hardware = hardware
        self._kernels = kernels

    def trace(self, op: str) -> Record:
        """The record of one function, by its full name."""
        began = time.monotonic()
        record: Record = {"op": op, "patch": None, "operator": None}
        try:
            function = _resolve(op)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            record["import_error"] = _described(error)
            return record
        record["patch"] = getattr(function, _PATCH_MARK, None)
        record["operator"] = getattr(function, _OPERATOR_MARK, None)
        name = op.rpartition(".")[2]
        chosen = samples.sample(name, function)
        record["arguments_known"] = samples.known(name)
        self._hardware.assume(chosen.capability)
        try:
            record |= self._traced(function, chosen)
            if "error" in record and not _in_the_way(record["error"]):
                record["called"] = self._called(function, chosen)
        except Exception as error:
            record["scanner_error"] = _described(error)
        finally:
            self._hardware.assume(None)
        record["seconds"] = round(time.monotonic() - began, 2)
        return record

    def _traced(self, function: Callable[..., Any], chosen: samples.Sample) -> Record:
        import torch  # type: ignore[import-not-found]

        graphs: list[list[str]] = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(_nodes(graph))
            return graph.forward

        def entry(positional: list[Any], keywords: dict[str, Any]) -> Any:
            return function(*positional, **keywords)

        torch._dynamo.reset()
        with _fake_tensors() as make:
            positional, keywords = _arguments(function, chosen, make)
            compiled = torch.compile(entry, fullgraph=True, backend=backend)
            try:
                compiled(positional, keywords)
            except Exception as error:
                return {"graphs": graphs, "error": _described(error)}
        return {"graphs": graphs}

    def _called(self, function: Callable[..., Any], chosen: samples.Sample) -> Record:
        """The same call without tracing: does it get as far as the kernels?"""
        with _no_modules_kept(), _fake_tensors() as make:
            positional, keywords = _arguments(function, chosen, make)
            before = self._kernels.called
            try:
                function(*positional, **keywords)
            except Exception as error:
                return {"kernels": self._kernels.called - before, "error": _described(error)}
        return {"kernels": self._kernels.called - before}


def _in_the_way(error: Record) -> bool:
    """Whether Dynamo met something that it can't trace, rather than an error of the call's own."""
    refused = error["type"] == "torch._dynamo.exc.Unsupported"
    return refused and not _CALLS_OWN_ERROR.match(error["message"])


def _resolve(op: str) -> Callable[..., Any]:
    module, _, name = op.rpartition(".")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@contextmanager
def _fake_tensors() -> Iterator[samples.Make]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode  # type: ignore[import-not-found]

    with FakeTensorMode(allow_non_fake_inputs=True):

        def make(*shape: Any) -> Any:
            kind = shape[-1] if isinstance(shape[-1], str) else "bfloat16"
            sizes = [size for size in shape if not isinstance(size, str)]
            return torch.empty(sizes, dtype=getattr(torch, kind), device="cuda")

        yield make


@contextmanager
def _no_modules_kept() -> Iterator[None]:
    """Forget the kernel modules that a call registers: a server's first trace finds none."""
    from flashinfer.jit import core  # type: ignore[import-not-found]

    registry = getattr(core, "jit_spec_registry", None)
    tables = [getattr(registry, name, {}) for name in ("_specs", "_creation_times")]
    before = [set(table) for table in tables]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            for name in set(table) - kept:
                del table[name]


def _arguments(
    function: Callable[..., Any], chosen: samples.Sample, make: samples.Make
) -> samples.Arguments:
    import torch

    taken = inspect.signature(function).parameters
    keywords = {}
    for name, value in chosen.keywords.items():
        if name in _TYPE_KEYWORDS:
            value = getattr(torch, value)
        elif isinstance(value, tuple):
            kind, *sizes = value
            value = make(*sizes, kind)
        if name in taken:
            keywords[name] = value
    return chosen.arguments(make), keywords


def _nodes(graph: Any) -> list[str]:
    """What the graph calls, unpacking of results left out."""
    called = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    names = [node.target if isinstance(node.target, str) else str(node.target) for node in called]
    return [name for name in names if "getitem" not in name]


def _described(error: BaseException) -> Record:
    text = str(error)
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": text[:_MESSAGE_CHARACTERS],
        "frames": _frames(text.partition("from user code:")[2]),
    }


def _frames(text: str) -> list[Record]:
    """The frames of Dynamo's report, outermost first, each with its line of source.

    ``flashinfer`` is the file from the package's name on, None outside of it.
    """
    import flashinfer  # type: ignore[import-not-found]

    above = os.path.dirname(os.path.dirname(flashinfer.__file__))
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match:
            source = lines[number + 1].strip() if number + 1 < len(lines) else ""
            inside = match["file"].startswith(os.path.join(above, "flashinfer", ""))
            found.append(
                {
                    **match.groupdict(),
                    "line": int(match["line"]),
                    "source": source,
                    "flashinfer": os.path.relpath(match["file"], above) if inside else None,
                }
            )
    return found
