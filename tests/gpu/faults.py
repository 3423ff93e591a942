"""Faults for real, each a step: the right kind and exit code, and the memory back afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from gpu.results import Step
from gpu.tool import Task
from gpu.work import Work, failed_run

#: Faults need no graphs: a start without them takes half the time.
BARE = ("--set", "cuda_graph=off", "--no-bundle")


def stopped(work: Work, step: Step) -> None:
    """End what is left, and look at the memory."""
    step.equal("inv stop", work.tool.inv("stop").status, 0)
    work.memory_back(step)


def kv_pool(work: Work, step: Step) -> None:
    if work.asked.cpu:
        step.needs_gpu("a KV pool that is too small")
        return
    task = work.deploy("baseline", *BARE, "--set", "mem-fraction-static=0.008")
    work.failed_as(step, task, "kv-too-small", 10, "kv_pool_no_memory")
    work.all_ranks_failed(step, task)
    stopped(work, step)


def weights(work: Work, step: Step) -> None:
    if work.asked.cpu:
        step.needs_gpu("weights that are too large")
        return
    task = work.deploy("baseline", *BARE, host="too-large")
    work.failed_as(step, task, "weights-oom", 10, "weight_load_oom")
    stopped(work, step)


def no_nvcc(work: Work, step: Step) -> None:
    if work.asked.cpu:
        step.needs_gpu("FlashInfer attention without nvcc")
        return
    task = work.deploy("baseline", *BARE, host="no-nvcc")
    work.failed_as(step, task, "flashinfer-no-nvcc", 10, "cuda_lib_missing")
    stopped(work, step)


def served(work: Work, step: Step) -> str | None:
    """A server without graphs, to be hurt."""
    task = work.deploy("baseline", *BARE)
    if not step.equal("a server to hurt", task.status, 0):
        step.figure("said", task.prose[-600:])
        return None
    return str(task.data["run"])


def hurt(work: Work, step: Step, name: str, code: int, kind: str) -> Task | None:
    """Send the last rank a signal while `inv watch` looks; the watch as it ended."""
    run = served(work, step)
    if run is None:
        return None
    watch = work.tool.start("watch", "--no-bundle")
    if not watch.until_said("is ready", work.tool.deadline):
        step.check("inv watch", False, watch.prose[-300:], "is ready")
        return None
    told = json.loads(work.there("signaller.py", run, work.last_rank, name).splitlines()[-1])
    watch.wait(min(work.tool.deadline, time.time() + 120))
    label = "rank-killed" if name == "SIGKILL" else "rank-stopped"
    work.failed_as(step, watch, label, code, kind)
    if work.asked.tp > 1:
        step.equal("the rank named", watch.diagnosis.get("first_rank"), work.last_rank)
    for title, times in told["left"].items():
        step.figure(f"{title}: seconds to its end", times)
    said = watch.said("error on")
    if said is not None:
        seconds = round(said - told["at"], 1)
        work.facts[f"verdict_{label}_s"] = seconds
        step.figure("signal to verdict, s", seconds)
    return watch


def rank_killed(work: Work, step: Step) -> None:
    hurt(work, step, "SIGKILL", 10, "process_killed")
    stopped(work, step)


def rank_stopped(work: Work, step: Step) -> None:
    watch = hurt(work, step, "SIGSTOP", 11, "rank_stopped")
    run = None if watch is None else failed_run(watch)
    if run is not None:
        work.there("signaller.py", run, work.last_rank, "SIGCONT")
        again = work.tool.inv("watch", "--seconds", "3", "--no-bundle")
        step.equal("let go on, it serves", again.status, 0)
    stopped(work, step)


def port_held(work: Work, step: Step) -> None:
    """Somebody else's server is there before: refused, nothing touched."""
    step.equal("inv stop", work.tool.inv("stop").status, 0)
    pid = work.there("holder.py", str(work.facts["port"]), "60").split()[-1]
    task = work.deploy("baseline", *BARE)
    step.equal("exit code", task.status, 14)
    step.check("the holder is named", f"pid {pid}" in task.prose, task.prose[-300:], f"pid {pid}")
    ended = work.tool.inv("stop", "--pid", pid, "--yes")
    step.equal("inv stop --pid", ended.status, 0)


def port_taken(work: Work, step: Step) -> None:
    """Somebody takes the port while the server starts: a crash, told at once."""
    task = work.tool.start("deploy", "baseline", *BARE)
    holder = ""
    if task.until_said("waiting for run", work.tool.deadline):
        holder = work.there("holder.py", str(work.facts["port"]), "200").split()[-1]
    task.wait(work.tool.deadline)
    if holder:
        work.tool.inv("run", f"kill {holder}")
    work.failed_as(step, task, "port-taken", 10, "port_in_use")
    stopped(work, step)


FAULTS: Mapping[str, tuple[Callable[[Work, Step], None], float]] = {
    "fault-kv-pool": (kv_pool, 45),
    "fault-weights": (weights, 45),
    "fault-no-nvcc": (no_nvcc, 60),
    "fault-rank-killed": (rank_killed, 60),
    "fault-rank-stopped": (rank_stopped, 60),
    "fault-port-held": (port_held, 15),
    "fault-port-taken": (port_taken, 60),
}
