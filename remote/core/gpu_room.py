"""Who holds the GPUs' memory, and whether what is left can hold a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remote.core.checks import Line, Start, failure, ok, warning
from remote.core.host_facts import GPU, HostFacts
from remote.core.shell import masked

_MIB = 2**20
#: What the driver itself keeps on an idle GPU.
_IDLE_MIB = 1024
#: Beside the weights a start needs this much on each GPU.
_START_MIB = 1024
#: SGLang refuses tensor parallelism where one GPU has less than this part of another's free memory.
_BALANCE = 0.9
#: Without the weights' size: a GPU with less of itself free than this holds no server.
_LEAST_FREE = 0.1
_SHOWN = 8


def memory(facts: HostFacts, start: Start) -> Line:
    """What others hold of the GPUs' memory, and whether what is left can hold a start.

    Memory of this tool's own runs is given back before a start, so it counts as free. Where a
    container hides whose memory it is, nothing is held against a run of our own.
    """
    check = "GPU memory"
    if not facts.gpus:
        return ok(check, "no GPU")
    taken = _foreign_mib(facts)
    chosen = [gpu for gpu in facts.gpus if start.visible is None or gpu.index in start.visible]
    chosen = chosen[: start.gpus] if start.gpus else chosen
    if start.gpus and len(chosen) < start.gpus:
        return failure(
            check,
            f"the start takes {start.gpus} GPUs and the host has {len(chosen)} for it",
            "lower tensor_parallel, or look at CUDA_VISIBLE_DEVICES",
        )
    who = _holders(facts)
    if not any(taken.values()):
        text = "free" if not who else "held by this tool's own run only"
        return ok(check, f"{len(facts.gpus)} GPUs {text}")
    worst = max(chosen, key=lambda gpu: taken[gpu.uuid] / max(gpu.memory_mib, 1))
    text = ", ".join(
        f"GPU {gpu.index}: {taken[gpu.uuid] / 1024:.1f} of {gpu.memory_mib / 1024:.0f} GiB"
        for gpu in facts.gpus
        if taken[gpu.uuid]
    )
    text = f"taken by processes that this tool did not start ({text})"
    too_little = _too_little(facts, start, chosen, taken)
    remedy = "end them, or choose others with CUDA_VISIBLE_DEVICES in the host's env"
    if too_little:
        return failure(check, f"{text}; {too_little} (GPU {worst.index})", remedy, *who)
    return warning(check, text, f"the KV pool gets so much smaller: {remedy}", *who)


def _foreign_mib(facts: HostFacts) -> dict[str, int]:
    """By GPU, what is used and not known to be ours; 0 where all of it may be ours."""
    ours = {pid for run in facts.runs for pid in run.pids}
    known = dict.fromkeys((gpu.uuid for gpu in facts.gpus), 0)
    hidden: set[str] = set()
    for process in facts.gpu_processes:
        if process.gpu_uuid not in known:
            continue
        if process.used_mib is None:
            hidden.add(process.gpu_uuid)
        elif process.pid in ours:
            known[process.gpu_uuid] += process.used_mib
    listed = {process.pid for process in facts.gpu_processes}
    blind = bool(ours) and (bool(hidden) or not listed & ours)
    left = {gpu.uuid: max(gpu.used_mib - known[gpu.uuid], 0) for gpu in facts.gpus}
    return {uuid: 0 if blind or mib < _IDLE_MIB else mib for uuid, mib in left.items()}


def _holders(facts: HostFacts) -> list[str]:
    """The foreign processes on the GPUs, each as a person knows it."""
    ours = {pid for run in facts.runs for pid in run.pids}
    index = {gpu.uuid: gpu.index for gpu in facts.gpus}
    found = []
    for process in facts.gpu_processes:
        if process.pid in ours:
            continue
        told = facts.raw.get("gpu_holders", {}).get(str(process.pid))
        name = "a process that can't be seen from here (another container?)"
        if told:
            name = f"of {told['owner']}: {' '.join(masked(told['command']))[:200]}"
        used = "?" if process.used_mib is None else f"{process.used_mib} MiB"
        found.append(f"GPU {index.get(process.gpu_uuid, '?')}: pid {process.pid} {name}, {used}")
    return found[:_SHOWN]


def _too_little(
    facts: HostFacts, start: Start, chosen: Sequence[GPU], taken: Mapping[str, int]
) -> str | None:
    """Why the start can't be held, where that is certain."""
    free = {gpu.uuid: gpu.memory_mib - taken[gpu.uuid] for gpu in chosen if gpu.memory_mib}
    if not free:
        return None
    files = facts.raw["model"].get("files") or {}
    weights = files.get("weight_bytes", 0) if start.weights else 0
    share = weights // _MIB // len(chosen)
    least = min(free.values())
    if share and least < share + _START_MIB:
        return f"{least / 1024:.1f} GiB are left for {share / 1024:.1f} GiB of weights"
    if any(free[gpu.uuid] < gpu.memory_mib * _LEAST_FREE for gpu in chosen if gpu.uuid in free):
        return f"only {least / 1024:.1f} GiB are left"
    if start.balanced and len(free) > 1 and least < max(free.values()) * _BALANCE:
        return "SGLang refuses GPUs of such unlike free memory"
    return None
