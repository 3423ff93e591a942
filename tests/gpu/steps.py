"""The steps, in order: serve, measure, compare; the trap; faults; overheads; everything back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu import faults, logs
from gpu.results import Step
from gpu.settings import MODELS
from gpu.work import Work, failed_run, read_json

TRAP = "sglang/fp4-mlp"
OPAQUE = "flashinfer/fp4-opaque"


@dataclass(frozen=True)
class Made:
    """A step: what does it, and about how long that takes on a GPU, seconds."""

    do: Callable[[Work, Step], None]
    seconds: float


def install(work: Work, step: Step) -> None:
    work.place.install(step)
    work.configure()
    status = work.tool.inv("status")
    step.equal("inv status", status.status, 0)
    work.facts["versions"] = status.data.get("versions", {})
    work.facts["gpus"] = status.data.get("gpus")
    step.figure("GPUs", work.facts["gpus"])
    step.figure("versions", work.facts["versions"])
    work.facts["memory_before"] = work.memory()
    step.figure("GPU memory before, MiB", work.facts["memory_before"])


def model(work: Work, step: Step) -> None:
    shapes = {
        name: ",".join(str(number) for number in vars(each).values())
        for name, each in work.shapes().items()
    }
    words = [f"{name}={numbers}" for name, numbers in shapes.items()]
    told = read_json(work.there("model_maker.py", MODELS, *words))
    work.facts["models"] = told["root"]
    work.configure()
    for name in shapes:
        step.check(name, name in told, told.get(name, "missing"), shapes[name])
    done = work.tool.inv("doctor")
    step.equal("inv doctor", done.status, 0)
    for line in done.data.get("lines", []):
        if line["level"] != "ok":
            step.figure(f"doctor: {line['check']}", f"{line['level']}: {line['text']}"[:300])


def baseline(work: Work, step: Step) -> None:
    serve(work, step, "baseline", prefill=False)


def piecewise(work: Work, step: Step) -> None:
    serve(work, step, "piecewise", prefill=True)


def serve(work: Work, step: Step, profile: str, *, prefill: bool) -> str | None:
    task = work.deploy(profile)
    run = work.ready(step, task, profile)
    if run is None:
        return None
    work.facts[f"run_{profile}"] = run
    work.graphs(step, run, prefill=prefill)
    for intent in (task.data.get("plan") or {}).get("decisions", []):
        if intent["intent"] == "piecewise_cuda_graph":
            step.figure("piecewise in the plan", " ".join(intent["flags"]) or intent["reason"])
    left = (task.data.get("plan") or {}).get("patches_left_out")
    if left:
        step.figure("patches left out", left)
    step.figure("tokens generated", work.there("generate.py", str(work.facts["port"])).strip())
    return run


def bench_baseline(work: Work, step: Step) -> None:
    measure(work, step, "baseline")


def bench_piecewise(work: Work, step: Step) -> None:
    measure(work, step, "piecewise")


def measure(work: Work, step: Step, profile: str) -> None:
    task = work.deploy(profile)
    if work.ready(step, task, profile) is None:
        return
    run = str(task.data["run"])
    work.facts[f"run_{profile}"] = run
    begun = f"bench_{profile}"
    words = ["--resume"] if work.facts.get(begun) == run else work.asked.bench_words
    work.facts[begun] = run
    work.results.write()
    done = work.tool.inv("bench", "--run", run, *words)
    step.check("exit code", done.status == 0, done.status, 0)
    # An error has the same under its own key.
    told = done.data.get("error") or done.data
    points = told.get("points", [])
    levels = len(work.asked.levels.split(","))
    step.equal("points", len(points), levels * work.asked.repeats)
    step.equal("invalid points", told.get("invalid"), [])
    if done.status != 0:
        step.figure("said", done.prose[-800:])
    for point in points:
        figures = point.get("metrics", point)
        kept = ("output_throughput", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
        shown = {key: round(figures[key], 2) for key in kept if key in figures}
        step.figure(f"level {point['level']}, repeat {point['repeat']}", shown)
    step.figure("bench took, s", round(done.seconds, 1))


def compare(work: Work, step: Step) -> None:
    runs = [work.facts.get(f"run_{profile}") for profile in ("baseline", "piecewise")]
    if None in runs:
        step.check("both were measured", False, runs, "two runs")
        return
    done = work.tool.inv("compare", str(runs[1]), "--baseline", str(runs[0]))
    step.equal("exit code", done.status, 0)
    told = done.data.get("error") or done.data
    step.figure("verdict", told.get("verdict") or done.prose[-300:])
    step.figure("output", json.dumps(told.get("output"))[:600])
    (work.results.path.parent / "compare.txt").write_text(done.prose + "\n", "utf-8")


def report(work: Work, step: Step) -> None:
    runs = [work.facts.get(f"run_{profile}") for profile in ("baseline", "piecewise")]
    page = work.results.path.parent / "report.html"
    known = ",".join(str(run) for run in runs if run)
    done = work.tool.inv("report", "--runs", known, "--output", str(page))
    step.equal("exit code", done.status, 0)
    size = page.stat().st_size if page.exists() else 0
    step.check("page", size > 0, f"{size} bytes", "a page")
    if done.status != 0:
        step.figure("said", done.prose[-400:])


def trap(work: Work, step: Step) -> None:
    """The call bare: the start must die in the capture."""
    diff = work.tool.inv("patch.diff", TRAP)
    step.equal("the set fits the installed SGLang", diff.status, 0)
    if work.asked.cpu:
        step.needs_gpu("without fp4-opaque the start crashes")
        return
    task = work.deploy("piecewise", "--patch", TRAP)
    work.failed_as(step, task, "fp4-trap", 10, "dynamo_host_call")
    work.all_ranks_failed(step, task)
    note_verdict(work, step, "trap", task.said("error on"), work.log(failed_run(task) or ""))


def note_verdict(work: Work, step: Step, name: str, told_at: float | None, log: str) -> None:
    """Seconds from the deciding line in the log to the verdict on the screen."""
    line = "Piecewise CUDA Graph failed with error"
    crashed = logs.at(log, line) or logs.at(log, "Scheduler hit an exception")
    if told_at is not None and crashed is not None:
        seconds = round(told_at - crashed, 1)
        work.facts[f"verdict_{name}_s"] = seconds
        step.figure("crash line to verdict, s (the log's clock has whole seconds)", seconds)


def trap_patched(work: Work, step: Step) -> None:
    """The same call through the operator: ready, and it serves."""
    if work.asked.cpu:
        step.needs_gpu("with fp4-opaque the same model serves")
        return
    task = work.deploy("piecewise", "--patch", TRAP, "--patch", OPAQUE)
    run = work.ready(step, task, "fp4-opaque")
    if run is None:
        return
    proofs = task.data.get("proofs", [])
    step.check("proofs", all(each["proven"] for each in proofs), len(proofs), 2)
    work.graphs(step, run, prefill=True)
    step.figure("tokens generated", work.there("generate.py", str(work.facts["port"])).strip())


def opaque(work: Work, step: Step) -> None:
    """The operator itself: shapes, capture, values where the GPU converts, and its cost."""
    stopped = work.tool.inv("stop")
    step.equal("inv stop", stopped.status, 0)
    if work.asked.cpu:
        step.needs_gpu("fp4-opaque against the bare call")
        return
    applied = work.tool.inv("patch.apply", OPAQUE)
    step.equal("inv patch.apply", applied.status, 0)
    try:
        told = read_json(work.there("fp4_opaque.py", env=True))
    except (RuntimeError, ValueError) as failed:
        step.check("fp4_opaque.py", False, str(failed)[-600:], "nothing wrong")
        return
    step.equal("wrong", told.pop("wrong"), [])
    for name, value in told.items():
        step.figure(name, value)


def overheads(work: Work, step: Step) -> None:
    """What was measured on the way, in one place."""
    for name, value in work.facts.items():
        if name.startswith("start_"):
            step.figure(f"{name.removeprefix('start_')}: seconds", value)
        elif name.startswith("verdict_"):
            step.figure(f"{name}: crash line to verdict", value)


def restored(work: Work, step: Step) -> None:
    """Nothing is left: no process, no patch, no memory."""
    step.equal("inv stop", work.tool.inv("stop").status, 0)
    back = work.tool.inv("rollback-patch")
    step.equal("inv rollback-patch", back.status, 0)
    status = work.tool.inv("status")
    step.equal("patches applied", (status.data.get("patches") or {}).get("applied"), [])
    alive = [run["run"] for run in status.data.get("runs", []) if run.get("processes")]
    step.equal("runs alive", alive, [])
    time.sleep(1)
    work.memory_back(step)


STEPS: Mapping[str, Made] = {
    "install": Made(install, 60),
    "model": Made(model, 60),
    "baseline": Made(baseline, 150),
    "bench-baseline": Made(bench_baseline, 120),
    "piecewise": Made(piecewise, 80),
    "bench-piecewise": Made(bench_piecewise, 120),
    "compare": Made(compare, 10),
    "report": Made(report, 15),
    "trap": Made(trap, 120),
    "trap-patched": Made(trap_patched, 120),
    "opaque": Made(opaque, 90),
    **{name: Made(do, seconds) for name, (do, seconds) in faults.FAULTS.items()},
    "overheads": Made(overheads, 1),
    "restored": Made(restored, 15),
}
