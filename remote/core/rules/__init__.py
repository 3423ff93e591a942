"""The signature base: kinds of failure as data, one module per family.

To add a kind, write a ``Rule`` in its family's module, give it a place in ``RULES``, and put a
log that shows it under ``tests/cases/diagnosis``.
"""

from __future__ import annotations

from remote.core.rules import (
    arguments,
    communication,
    graphs,
    host,
    installation,
    kernels,
    memory,
    serving,
    weights,
)
from remote.core.rules.model import Confidence, Rule, Sign, Where

__all__ = [
    "BY_KIND",
    "INSUFFICIENT",
    "RULES",
    "UNCLASSIFIED",
    "Confidence",
    "Rule",
    "Sign",
    "Where",
]

_BAD_CLI, _PATH, _TRANSFORMERS = arguments.RULES

#: In order of precedence: what lies deeper, or explains more, comes first.
RULES: tuple[Rule, ...] = (
    _BAD_CLI,
    installation.DRIVER,
    installation.ABI,
    installation.CUDA_LIBRARY,
    installation.GATE,
    _TRANSFORMERS,
    installation.PYTHON,
    _PATH,
    installation.ARCHITECTURE,
    weights.DIVISIBILITY,
    weights.MISMATCH,
    communication.PORT,
    kernels.HARDWARE,
    memory.OCCUPIED,
    communication.DEVICES,
    communication.P2P,
    communication.NCCL,
    host.DISK,
    kernels.JIT,
    kernels.IMAGE,
    kernels.COMBINATION,
    kernels.SHARED_MEMORY,
    graphs.FP4_TRAP,
    graphs.NO_META,
    graphs.HOST_CALL,
    graphs.CAPTURE_FAULT,
    memory.CAPTURE_OOM,
    memory.KV_POOL,
    memory.LEAK,
    memory.SERVING_OOM,
    weights.WEIGHT_OOM,
    kernels.DEVICE_ASSERT,
    kernels.ILLEGAL_ACCESS,
    serving.GRAMMAR,
    serving.WARM_UP,
    communication.TIMEOUT,
    communication.HANG,
    serving.WATCHDOG,
    serving.HEALTH,
    host.KILLED,
    memory.HOST_OOM,
    kernels.NATIVE,
    graphs.CAPTURE_FAILED,
    kernels.REFUSED_ARGUMENTS,
)

INSUFFICIENT = Rule(
    kind="insufficient_evidence",
    cause=(
        "Only consequences of a failure are in this log; its cause was printed elsewhere, or not"
        " at all."
    ),
    advice=(
        "fetch what is missing: the log of every node and rank, and the kernel's messages:"
        " `inv pull`",
        "`inv run 'dmesg -T | tail -50'` tells of killed processes and GPU errors (Xid)",
    ),
)
UNCLASSIFIED = Rule(
    kind="unclassified",
    cause="No kind of failure known here fits: {what}.",
    advice=("read the traceback quoted; `inv pull` brings the whole evidence",),
)

BY_KIND = {
    rule.kind: rule
    for rule in (
        *reversed(RULES),
        installation.SWALLOWED,
        kernels.JIT_HANG,
        kernels.SLOW,
        host.STOPPED,
        INSUFFICIENT,
        UNCLASSIFIED,
    )
}
