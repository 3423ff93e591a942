"""Which frame of a stack matters, and which phase a stack was in."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from remote.core.phases import Phase
from remote.core.stacks import Stack, StackKind
from remote.core.tracebacks import Frame, RaisedException, Traceback, package_path

#: Functions that only pass an error on.
_PASSES_ON = frozenset(
    {
        "CUDART_CHECK",
        "NCCL_CHECK",
        "__torch_function__",
        "check_call",
        "raise_error_or_warn",
        "raise_for_status",
    }
)
_STDLIB = re.compile(
    r"^(?:/usr/\S*/python3[\d.]*/|/\S*/lib/python3[\d.]*/)(?!.*-packages/)|^<frozen"
)
_TORCH = re.compile(r"(?:^|/)torch/(?!.*inductor/runtime)")

#: Tried in this order: a frame anywhere in the stack that tells the phase.
_PHASE_OF_FRAME = (
    # A batch that is replayed or run goes through the graph runner too; it captures nothing.
    (r":event_loop_\w+|:run_event_loop|:run_batch$|graph\w*\.py:replay\w*$", Phase.SERVING),
    (r":prepare_server_args|:from_cli_args|server_args\.py:__post_init__", Phase.ARGUMENTS),
    (r"piecewise_cuda_graph|prefill_\w*graph|:init_piecewise", Phase.PREFILL_CAPTURE),
    (r"cuda_graph_runner|init_(?:cuda|device)_graphs|cuda_graph_backend", Phase.DECODE_CAPTURE),
    (r":init_memory_pool|kv_cache_configurator|kv_cache_mixin", Phase.KV_POOL),
    (r"model_loader/|:load_model$|:load_weights|:_initialize_model", Phase.WEIGHTS),
    (
        r":init_torch_distributed|:initialize_model_parallel|:init_distributed_env",
        Phase.DISTRIBUTED,
    ),
    (r":_execute_server_warmup", Phase.WARM_UP),
    (r":process_batch_result|:exposed_step", Phase.SERVING),
    (r":get_config$", Phase.ARGUMENTS),
)


def places(traceback: Traceback) -> list[str]:
    """``package/path.py:function`` of every frame, traced user code included."""
    return [
        frame.where
        for block in traceback.chain
        for frame in (*block.frames, *(block.dynamo.user_frames if block.dynamo else ()))
    ]


def phase_of(traceback: Traceback) -> Phase | None:
    """The phase that the stack was in, where its frames tell."""
    outer = _outer(traceback)
    frames = [frame.where for frame in outer.frames]
    if frames and frames[-1].endswith(":<module>") and outer.type in _IMPORT_ERRORS:
        return Phase.IMPORT
    for pattern, phase in _PHASE_OF_FRAME:
        if any(re.search(pattern, frame) for frame in frames):
            return phase
    return None


_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


def _outer(traceback: Traceback) -> RaisedException:
    """The exception raised through most of the program; of equal ones the last printed."""
    return max(reversed(traceback.chain), key=lambda block: len(block.frames))


def culprit(block: RaisedException) -> str:
    """Where it was raised: the innermost frame that is no messenger and not the standard library.

    ``path:function``, or the path alone for a module's own code; empty without frames.
    """
    frames = block.frames
    if block.dynamo is not None and block.dynamo.user_frames:
        frames = block.dynamo.user_frames
    own = [frame for frame in frames if not _STDLIB.match(frame.path)]
    telling = [
        frame
        for frame in own
        if frame.function not in _PASSES_ON and not frame.path.endswith("torch/_ops.py")
    ]
    beyond_torch = [frame for frame in telling if not _TORCH.search(package_path(frame.path))]
    for choice in (beyond_torch, telling, own, frames):
        if choice:
            return choice[-1].where.removesuffix(":<module>")
    return ""


@dataclass(frozen=True)
class Stood:
    """Where a rank's main thread stood when py-spy looked.

    Attributes:
        where: ``path:function`` of the innermost frame that says something.
        waits: for its GPU, or for other ranks: it is not what they wait for.
    """

    where: str
    waits: bool


#: Libraries that a thread is in while it waits for the GPU or for other ranks.
_WAITING_LIBRARY = re.compile(r"lib(?:cuda|cudart|cublas|cudnn|nccl|gloo|torch_cuda)\w*\.so")
_WAITING_FUNCTION = re.compile(
    r"(?:^|\.|_)(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|synchronize"
    r"|recv_requests|wait_tensor)(?:$|_|\.)"
)
#: Frames of Python looked at, innermost first: further out everybody is in some event loop.
_NEAREST = 4


def stood(stacks: Sequence[Stack]) -> dict[str, Stood]:
    """Where each rank stood, by py-spy's dumps; of several dumps the first, as it was then."""
    found: dict[str, Stood] = {}
    for stack in stacks:
        if stack.kind is StackKind.PY_SPY and stack.thread == "MainThread" and stack.frames:
            found.setdefault(stack.rank, _stood(stack.frames))
    return found


def _stood(frames: Sequence[Frame]) -> Stood:
    python = [frame for frame in frames if frame.line]
    telling = [frame for frame in python if not _of_python(frame)] or python
    native = takewhile(lambda frame: not frame.line, frames)
    waits = any(_WAITING_LIBRARY.search(frame.path) for frame in native) or any(
        _WAITING_FUNCTION.search(frame.function) for frame in telling[:_NEAREST]
    )
    return Stood((telling or list(frames))[0].where, waits)


def _of_python(frame: Frame) -> bool:
    """Whether it is the standard library's: py-spy prints that by its path from there."""
    if frame.path.startswith(("/", "<")):
        return bool(_STDLIB.match(frame.path))
    return frame.path.split("/")[0].removesuffix(".py") in sys.stdlib_module_names


def stuck_in(stacks: Sequence[Stack]) -> str:
    """Where a process stood, by a dump of its stacks: of several the one the others wait for."""
    ranks = sorted(stood(stacks).values(), key=lambda each: each.waits)
    if ranks:
        return ranks[0].where
    for stack in stacks:
        for frame in stack.frames if stack.kind is StackKind.NATIVE else ():
            if frame.line:
                return frame.where
    return ""
