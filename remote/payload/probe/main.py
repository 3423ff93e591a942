"""Answers one request from standard input with one line of JSON on standard output.

Request: ``{"mode": "scan", "every": false}`` for the calls that the installed SGLang leaves bare
(with ``every``, all of its calls), ``{"mode": "trace", "ops": ["flashinfer.fp4_quantize", …]}`` for
the functions named.

Answer: ``versions``, ``stripped`` (variables that were set), ``device``, ``sites`` (scan), ``ops``
(one record of `tracing.Tracer` each), ``seconds``; or ``error`` where FlashInfer can't be imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from . import call_sites, stand_ins, tracing

_DISTRIBUTIONS = ("flashinfer-python", "sglang", "torch")
#: Traced whatever SGLang calls: the patches are about them.
_ALWAYS = ("flashinfer.fp4_quantize", "flashinfer.nvfp4_quantize", "flashinfer.mxfp4_quantize")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; torch and FlashInfer must not be imported yet."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "stripped": stand_ins.strip(os.environ),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "sites": [],
    }
    ops = list(request.get("ops", ()))
    if request["mode"] == "scan":
        sites = _sites()
        found["sites"] = [vars(site) for site in sites]
        wanted = [s.op for s in sites if request.get("every") or s.place == call_sites.BARE]
        ops = sorted({*wanted, *(_ALWAYS if request.get("every") else ())})
    with stand_ins.workspace(os.environ):
        hardware = stand_ins.Hardware(os.environ)
        found["device"] = vars(hardware.device)
        try:
            kernels = stand_ins.Kernels()
            importlib.import_module("flashinfer")
            stand_ins.download_nothing()
        except Exception as error:
            return {**found, "error": f"{type(error).__name__}: {error}", "ops": []}
        tracer = tracing.Tracer(hardware, kernels)
        found["ops"] = [tracer.trace(op) for op in ops]
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _sites() -> list[call_sites.CallSite]:
    """SGLang's calls; SGLang itself is not imported."""
    spec = importlib.util.find_spec("sglang")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return call_sites.find(Path(places[0])) if places else []


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    # What imports and traces print goes to stderr: stdout is the answer's alone.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    line = json.dumps(answer(json.load(sys.stdin)), default=repr) + "\n"
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(answer_fd, "wb") as stream:
        stream.write(line.encode())
    # Threads that the imports left behind must not keep the caller waiting.
    os._exit(0)
