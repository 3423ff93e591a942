"""What the trace scanner found on a host → per function: traces, trap, not callable, or unknown.

The four are never mixed up. A function traces only where Dynamo handed over one graph with the
node that was expected. A trap is what Dynamo met on a call that works otherwise. What this build of
torch or FlashInfer can't call at all is neither, and whatever else went wrong is the scanner's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

#: The shipped sets after which a function traces, by the function's name.
FREES: Mapping[str, str] = {
    "fp4_quantize": "fp4-opaque",
    "nvfp4_quantize": "fp4-opaque",
    "mxfp4_quantize": "fp4-opaque",
}


class Outcome(Enum):
    """What came of tracing one function."""

    TRACES = "traces"
    TRAP = "trap"
    NOT_CALLABLE = "not callable in this build"
    SCANNER_ERROR = "scanner error"


@dataclass(frozen=True)
class Line:
    """A line of source that a trace stopped at; ``file`` is relative to site-packages."""

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Site:
    """A call in SGLang's source, and what keeps Dynamo away from it (``bare``: nothing)."""

    op: str
    file: str
    line: int
    function: str
    place: str

    @property
    def bare(self) -> bool:
        return self.place == "bare"


@dataclass(frozen=True)
class OpTrace:
    """One function: the outcome, why, and for a trap where and which known step it is.

    ``patch`` is the set whose function has taken the name, ``freed_by`` the one that would free
    it, ``nodes`` what the graph calls.
    """

    op: str
    outcome: Outcome
    reason: str
    step: str | None = None
    at: Line | None = None
    nodes: tuple[str, ...] = ()
    patch: str | None = None
    freed_by: str | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The stable shape of ``--json``."""
        return {
            "op": self.op,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "step": self.step,
            "at": vars(self.at) if self.at else None,
            "nodes": list(self.nodes),
            "patch": self.patch,
            "freed_by": self.freed_by,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class ProbeReport:
    """All that one probe found.

    ``device`` names the GPU that was answered for, ``assumed`` where the host has none;
    ``stripped`` are variables of the server's environment under which nothing would have been
    traced.
    """

    flashinfer: str | None
    sglang: str | None
    torch: str | None
    device: str
    assumed: bool
    stripped: tuple[str, ...]
    sites: tuple[Site, ...]
    ops: tuple[OpTrace, ...]
    seconds: float

    @property
    def traps(self) -> tuple[OpTrace, ...]:
        return tuple(op for op in self.ops if op.outcome is Outcome.TRAP)

    def calls(self, op: str) -> tuple[Site, ...]:
        """Where SGLang calls it bare."""
        return tuple(site for site in self.sites if site.op == op and site.bare)

    def as_dict(self) -> dict[str, Any]:
        """The stable shape of ``--json``."""
        return {
            "flashinfer": self.flashinfer,
            "sglang": self.sglang,
            "torch": self.torch,
            "device": self.device,
            "device_assumed": self.assumed,
            "stripped": list(self.stripped),
            "ops": [
                {
                    **op.as_dict(),
                    "called_from": [f"{site.file}:{site.line}" for site in self.calls(op.op)],
                }
                for op in self.ops
            ],
            "sites": [vars(site) for site in self.sites],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class SymbolProof:
    """One symbol of a patch: is it the patch's own now, and what it traces to."""

    symbol: str
    ours: bool
    trace: OpTrace

    @property
    def imported(self) -> bool:
        return self.trace.outcome is not Outcome.NOT_CALLABLE or self.trace.patch is not None

    def as_dict(self) -> dict[str, Any]:
        """The stable shape of ``--json``."""
        return {
            "symbol": self.symbol,
            "imported": self.imported,
            "ours": self.ours,
            "trace": self.trace.as_dict(),
        }


def read(answer: Mapping[str, Any], frees: Mapping[str, str] = FREES) -> ProbeReport:
    """The report, from the answer of `payload/probe/main.py`."""
    versions, device = answer["versions"], answer["device"]
    architecture = "SM" + "".join(str(part) for part in device["capability"])
    return ProbeReport(
        flashinfer=versions["flashinfer-python"],
        sglang=versions["sglang"],
        torch=versions["torch"],
        device=f"{device['name']} ({architecture})" if device["seen"] else architecture,
        assumed=not device["seen"],
        stripped=tuple(answer["stripped"]),
        sites=tuple(Site(**site) for site in answer["sites"]),
        ops=tuple(classified(record, frees) for record in answer["ops"]),
        seconds=answer["seconds"],
    )


def proofs(answer: Mapping[str, Any], patch: str) -> tuple[SymbolProof, ...]:
    """What an answer to named functions says of each; ``patch`` is whose they should be."""
    traces = [classified(record) for record in answer["ops"]]
    return tuple(SymbolProof(trace.op, trace.patch == patch, trace) for trace in traces)


def classified(record: Mapping[str, Any], frees: Mapping[str, str] = FREES) -> OpTrace:
    """One function's outcome, from its record (`payload/probe/tracing.py`)."""
    outcome, reason = _outcome(record)
    trapped = outcome is Outcome.TRAP
    error: Mapping[str, Any] = record["error"] if trapped else {}
    graphs = record.get("graphs") or []
    return OpTrace(
        op=record["op"],
        outcome=outcome,
        reason=reason,
        step=step(error) if trapped else None,
        at=_innermost(error) if trapped else None,
        nodes=tuple(graphs[0]) if outcome is Outcome.TRACES else (),
        patch=record.get("patch"),
        freed_by=_freed_by(record, frees) if trapped else None,
        seconds=record.get("seconds", 0.0),
    )


def _freed_by(record: Mapping[str, Any], frees: Mapping[str, str]) -> str | None:
    """The set that would free the function; none that it is patched with already."""
    patch = frees.get(record["op"].rpartition(".")[2])
    return None if patch == record.get("patch") else patch


def step(error: Mapping[str, Any]) -> str | None:
    """Which known step of the chain A to D2 a Dynamo error is; None where it is another.

    A: the CUDA version is asked of a subprocess. B: a kernel module is registered with the time.
    C: a prebuilt library is looked for. C2: a loaded kernel is called. D: a disabled function.
    D2: a kernel asks a fake tensor for its memory.
    """
    message = str(error["message"])
    frames = [frame["function"] for frame in error["frames"] if frame["flashinfer"]]
    innermost = frames[-1] if frames else None
    if {"get_cuda_version", "get_cuda_path"} & set(frames):
        return "A"
    if innermost == "register":
        return "B"
    if innermost == "is_aot":
        return "C"
    if "`__call__` of class `Function`" in message:
        return "C2"
    if re.match(r"Skip (calling|inlining) `torch\.compiler\.disable", message):
        return "D"
    if "Cannot access data pointer of Tensor" in message:
        return "D2"
    return None


#: What says that a call can't be made here, whatever its arguments.
_NOT_IN_THIS_BUILD = re.compile(
    r"not linked with support for cuda|not compiled with CUDA|No module named|not available"
    r"|cannot import name|Failed to get checksums",
    re.IGNORECASE,
)
_NOT_ON_THIS_GPU = re.compile(
    r"support(s|ed)?\b.*\b(SM|sm_|GPU|compute capability|arch)|Invalid backend", re.IGNORECASE
)
_NOT_RUN = "Dynamo did not run"
#: How Dynamo quotes what a call on fake tensors raised.
_RAISED_INSIDE = re.compile(r"got (?P<type>\w+)\((['\"])(?P<message>.+?)(?: \(e\.g\.|\\n|\2\))")
_BUILD_ERRORS = ("ImportError", "ModuleNotFoundError", "BackendSupportedError")


def _outcome(record: Mapping[str, Any]) -> tuple[Outcome, str]:
    if "scanner_error" in record:
        return Outcome.SCANNER_ERROR, _brief(record["scanner_error"])
    if "import_error" in record:
        return Outcome.NOT_CALLABLE, _brief(record["import_error"])
    error = record.get("error")
    if error is None:
        return _traced(record)
    # Without Dynamo the call runs on the fake tensors, and its kernel refuses them.
    if not error["type"].startswith("torch._dynamo.") and not error["frames"]:
        return Outcome.SCANNER_ERROR, f"{_NOT_RUN}: {_brief(error)}"
    if step(error) is not None:
        return Outcome.TRAP, _explained(error)
    called = record.get("called")
    if called is None:
        if _innermost(error) is None:
            return Outcome.SCANNER_ERROR, f"no line of FlashInfer in it: {_explained(error)}"
        return Outcome.TRAP, _explained(error)
    own = called.get("error")
    if own is None or called["kernels"]:
        return Outcome.TRAP, _explained(error)
    known = record.get("arguments_known")
    refuses = own["type"].endswith(_BUILD_ERRORS) or _NOT_IN_THIS_BUILD.search(own["message"])
    # Guessed arguments may ask for what the hardware can't do; chosen ones don't.
    if refuses or (known and _NOT_ON_THIS_GPU.search(own["message"])):
        return Outcome.NOT_CALLABLE, _brief(own)
    chosen = "" if known else ", which were guessed"
    return Outcome.SCANNER_ERROR, f"the arguments don't fit{chosen}: {_brief(own)}"


def _traced(record: Mapping[str, Any]) -> tuple[Outcome, str]:
    graphs: Sequence[Sequence[str]] = record["graphs"]
    operator = record.get("operator")
    if not graphs:
        return Outcome.SCANNER_ERROR, f"no graph: {_NOT_RUN}"
    if len(graphs) > 1:
        return Outcome.SCANNER_ERROR, f"{len(graphs)} graphs where one was expected"
    nodes = graphs[0]
    if not nodes:
        return Outcome.SCANNER_ERROR, "the graph calls nothing"
    if operator is not None:
        ours = [node for node in nodes if node in (operator, f"{operator}.default")]
        if len(ours) != 1 or len(nodes) != 1:
            return Outcome.SCANNER_ERROR, f"wanted one node {operator}, found {', '.join(nodes)}"
    return Outcome.TRACES, ", ".join(nodes)


def _innermost(error: Mapping[str, Any]) -> Line | None:
    """The last frame in FlashInfer."""
    for frame in reversed(error["frames"]):
        if frame["flashinfer"] is not None:
            return Line(frame["flashinfer"], frame["line"], frame["function"], frame["source"])
    return None


def _brief(error: Mapping[str, Any]) -> str:
    name = error["type"].rpartition(".")[2]
    lines = str(error["message"]).strip().splitlines()
    return f"{name}: {lines[0]}" if lines else name


def _explained(error: Mapping[str, Any]) -> str:
    """What Dynamo met, in a line: its explanation where it gives one, else its head line."""
    lines = str(error["message"]).strip().splitlines()
    about = next((x for x in lines if x.strip().startswith("Explanation:")), "")
    about = about.partition("Explanation:")[2].strip().partition(" This function is")[0]
    head = lines[0] if lines else str(error["type"])
    # Up to torch 2.10 it stands in the head line.
    raised = _RAISED_INSIDE.search(about) or _RAISED_INSIDE.search(head)
    if raised:
        return f"run on fake tensors, it raised {raised['type']}: {raised['message']}"
    about = re.sub(r" at 0x[0-9a-f]+", "", about)
    return about.replace("does not know how to trace", "can't trace")[:300] or head
