"""The phases of a start, and the lines that open and close them.

Lines were collected from SGLang 0.5.8 to 0.5.23; where a version renamed one, both names stand in
the same expression.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

#: What SGLang prints once it has warmed up, in all versions.
READY_LINE = "The server is fired up"


class Phase(str, Enum):
    """Where a server is; the order is that of a start, although captures may swap."""

    IMPORT = "import"
    ARGUMENTS = "arguments"
    DISTRIBUTED = "distributed"
    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    DECODE_CAPTURE = "decode_capture"
    PREFILL_CAPTURE = "piecewise"
    JIT_BUILD = "jit_build"
    HTTP = "http"
    WARM_UP = "warm_up"
    READY = "ready"
    SERVING = "serving"

    @property
    def label(self) -> str:
        """A few words for a progress line."""
        return _LABELS[self]

    @property
    def of_the_server(self) -> bool:
        """Whether the server as a whole is in it, rather than each rank by itself."""
        return self in _OF_THE_SERVER


_LABELS = {
    Phase.IMPORT: "importing",
    Phase.ARGUMENTS: "reading arguments",
    Phase.DISTRIBUTED: "connecting ranks",
    Phase.WEIGHTS: "loading weights",
    Phase.KV_POOL: "allocating the KV pool",
    Phase.DECODE_CAPTURE: "capturing decode graphs",
    Phase.PREFILL_CAPTURE: "capturing prefill graphs",
    Phase.JIT_BUILD: "building kernels",
    Phase.HTTP: "opening the port",
    Phase.WARM_UP: "warming up",
    Phase.READY: "ready",
    Phase.SERVING: "serving",
}
_OF_THE_SERVER = frozenset(
    {Phase.IMPORT, Phase.ARGUMENTS, Phase.HTTP, Phase.WARM_UP, Phase.READY, Phase.SERVING}
)


class Milestone(NamedTuple):
    """A line that ends a phase, starts one, or both."""

    pattern: re.Pattern[str]
    ends: Phase | None = None
    starts: Phase | None = None


def _milestone(pattern: str, ends: Phase | None = None, starts: Phase | None = None) -> Milestone:
    return Milestone(re.compile(pattern), ends, starts)


# ``Capture target decode CUDA graph``, ``Capture draft extend CUDA graph``: what runs once per
# decode step counts as decode, speculative verification and drafting included.
_GRAPH = r"(?:cuda|CUDA|cpu|CPU|npu|NPU) ?graph"
_PREFILL = rf"Capture (?:\w+ )?(?:piecewise|prefill) {_GRAPH}"
_DECODE = rf"Capture (?:(?!piecewise|prefill)\w+ ){{0,3}}?{_GRAPH}"
_LOADING_JIT = _milestone(r"(?:flashinfer\.jit: )?Loading JIT ops: ", starts=Phase.JIT_BUILD)
_LOADED_JIT = _milestone(r"(?:flashinfer\.jit: )?Finished loading JIT ops: ", ends=Phase.JIT_BUILD)

#: Milestones by the first four characters of the message, so that other lines cost one look-up.
_MILESTONES: dict[str, tuple[Milestone, ...]] = {
    "Init": (
        _milestone(r"Init (?:torch distributed|parallel) begin", starts=Phase.DISTRIBUTED),
        _milestone(r"Init (?:torch distributed|parallel) ends", ends=Phase.DISTRIBUTED),
    ),
    "Load": (
        _milestone(r"Load weight begin", starts=Phase.WEIGHTS),
        _milestone(r"Load weight end", ends=Phase.WEIGHTS, starts=Phase.KV_POOL),
        _LOADING_JIT,
    ),
    "KV C": (_milestone(r"KV Cache is allocated", starts=Phase.KV_POOL),),
    "Mamb": (_milestone(r"Mamba Cache is allocated", starts=Phase.KV_POOL),),
    "Memo": (_milestone(r"Memory pool end", ends=Phase.KV_POOL),),
    "Capt": (
        _milestone(rf"{_PREFILL} begin", starts=Phase.PREFILL_CAPTURE),
        _milestone(rf"{_PREFILL} end", ends=Phase.PREFILL_CAPTURE),
        _milestone(rf"{_DECODE} begin", starts=Phase.DECODE_CAPTURE),
        _milestone(rf"{_DECODE} end", ends=Phase.DECODE_CAPTURE),
    ),
    "flas": (_LOADING_JIT, _LOADED_JIT),
    "Fini": (_LOADED_JIT,),
    "Flas": (
        _milestone(r"FlashInfer JIT is loading", starts=Phase.JIT_BUILD),
        _milestone(r"FlashInfer autotune completed", ends=Phase.JIT_BUILD),
    ),
    "Runn": (_milestone(r"Running FlashInfer autotune", starts=Phase.JIT_BUILD),),
    "[Aut": (
        _milestone(r"\[Autotuner\]: Autotuning process starts", starts=Phase.JIT_BUILD),
        _milestone(r"\[Autotuner\]: Autotuning process ends", ends=Phase.JIT_BUILD),
    ),
    "Ente": (_milestone(r"Entering DeepGEMM JIT", starts=Phase.JIT_BUILD),),
    "INFO": (
        _milestone(r"INFO: +Started server process", starts=Phase.HTTP),
        _milestone(r"INFO: +Uvicorn running on", ends=Phase.HTTP, starts=Phase.WARM_UP),
    ),
    "The ": (_milestone(READY_LINE, ends=Phase.WARM_UP, starts=Phase.READY),),
}


def milestone(text: str) -> Milestone | None:
    """What the message of a line says about phases, if anything."""
    for candidate in _MILESTONES.get(text[:4], ()):
        if candidate.pattern.match(text):
            return candidate
    return None


_FIGURE = re.compile(
    r"(?P<name>avail[ _]mem|available_[gc]pu_mem|mem usage|[Tt]ime elapsed|elapsed|#tokens"
    r"|K size|V size|KV size|max_total_num_tokens|max_running_requests|context_len"
    r"|chunked_prefill_size)"
    r"[=:] ?(?P<value>-?\d+(?:\.\d+)?)"
)
_FIGURE_NAMES = {
    "avail mem": "available_gb",
    "avail_mem": "available_gb",
    "available_gpu_mem": "available_gb",
    "available_cpu_mem": "available_gb",
    "mem usage": "used_gb",
    "Time elapsed": "elapsed_s",
    "time elapsed": "elapsed_s",
    "elapsed": "elapsed_s",
    "#tokens": "pool_tokens",
    "K size": "k_gb",
    "V size": "v_gb",
    "KV size": "kv_gb",
}


def figures(text: str) -> dict[str, float]:
    """The figures of a line: ``available_gb``, ``used_gb``, ``elapsed_s``, ``pool_tokens``, …"""
    return {
        _FIGURE_NAMES.get(found["name"], found["name"]): float(found["value"])
        for found in _FIGURE.finditer(text)
    }


class Bar(NamedTuple):
    """One drawing of a tqdm progress bar."""

    phase: Phase | None  #: None for a bar of something else, or one still without a description
    done: int
    total: int
    detail: str  #: the description, ``Capturing batches (bs=8 avail_mem=96.06 GB)``
    rest: str  #: what was printed behind the bar, on the same line


#: From the percent sign on; the description stands before it.
_BAR = re.compile(r"%(?: Completed \||\|[^|]*\|) *(?P<done>\d+)/(?P<total>\d+) \[[^\]]*\]\s*")
#: How a bar's description starts → the phase it belongs to.
_BARS = (
    ("Capturing batches", Phase.DECODE_CAPTURE),
    ("Capturing num tokens", Phase.PREFILL_CAPTURE),
    ("Compiling num tokens", Phase.PREFILL_CAPTURE),
    ("Capturing prefill", Phase.PREFILL_CAPTURE),
    ("Loading ", Phase.WEIGHTS),
    ("Multi-thread loading", Phase.WEIGHTS),
    ("DeepGEMM", Phase.JIT_BUILD),
)


def bar(text: str) -> Bar | None:
    """The progress bar that the text starts with, if it is one."""
    found = _BAR.search(text)
    if found is None:
        return None
    detail = text[: found.start()].rstrip("0123456789").rstrip(" :")
    phase = next((phase for start, phase in _BARS if detail.startswith(start)), None)
    return Bar(phase, int(found["done"]), int(found["total"]), detail, text[found.end() :])
