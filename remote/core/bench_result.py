"""One measured point: what `sglang.bench_serving` wrote, its figures, and whether they count."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.core.bench_plan import BenchPlan, Job
from remote.core.gpu_samples import GPUReading
from remote.core.log_events import ServingStep

#: Figures by the name that is kept, and the client's own name for them.
METRICS: Mapping[str, str] = {
    "output_throughput": "output_throughput",
    "total_throughput": "total_throughput",
    "input_throughput": "input_throughput",
    "request_throughput": "request_throughput",
    "concurrency": "concurrency",
    "duration_s": "duration",
    **{
        f"{name}_{kept}_ms": f"{own}_{theirs}_ms"
        for name, theirs in (
            ("ttft", "ttft"),
            ("tpot", "tpot"),
            ("itl", "itl"),
            ("e2e", "e2e_latency"),
        )
        for kept, own in (("mean", "mean"), ("p50", "median"), ("p99", "p99"))
    },
}
#: Without these there is nothing to compare. The sum of both throughputs is ours to make.
_NEEDED = ("output_throughput", "duration_s", "concurrency", "ttft_p99_ms", "e2e_mean_ms")

#: Achieved concurrency may be so much of what is possible before it counts as far from asked.
_CONCURRENCY_SHARE = 0.8
#: Of the measured time, what the client itself may spend before the first request and after the
#: last one; it weighs only where a whole point takes seconds.
_CLIENT_S = 0.5
_QUOTED_ERRORS = 3
_QUOTED_CHARACTERS = 200

_EMPTIED = re.compile(rb"Cache (?:not )?flushed")


@dataclass(frozen=True)
class Point:
    """One row of points.jsonl: a level's one repeat, valid or not.

    Throughputs in tokens (requests) per second, latencies in ms, times in seconds since the epoch
    by the host's clock.
    """

    bench: str
    run: str
    level: int
    repeat: int
    seed: int
    input_len: int
    output_len: int
    prompts: int
    valid: bool
    reasons: tuple[str, ...]
    completed: int
    failed: int
    metrics: Mapping[str, float]
    gpu: Mapping[str, Any] | None
    gpu_note: str
    server: Mapping[str, Any] | None
    started_at: float
    ended_at: float
    source: Mapping[str, Any]

    @property
    def key(self) -> tuple[int, int]:
        """Level and repeat: what a bench holds once."""
        return self.level, self.repeat

    def as_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "run": self.run,
            "level": self.level,
            "repeat": self.repeat,
            "seed": self.seed,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "prompts": self.prompts,
            "valid": self.valid,
            "reasons": list(self.reasons),
            "completed": self.completed,
            "failed": self.failed,
            "metrics": dict(self.metrics),
            "gpu": None if self.gpu is None else dict(self.gpu),
            "gpu_note": self.gpu_note,
            "server": None if self.server is None else dict(self.server),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "source": dict(self.source),
        }

    @property
    def origin(self) -> str:
        """File and line that the figures come from, below the folder of the runs."""
        folder = self.source.get("run", self.run)
        return f"{folder}/{self.source.get('file', '?')}:{self.source.get('line', '?')}"

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Point:
        """From `as_dict`, also after a trip through JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(
                bench=str(known["bench"]),
                run=str(known["run"]),
                level=int(known["level"]),
                repeat=int(known["repeat"]),
                seed=int(known["seed"]),
                input_len=int(known["input_len"]),
                output_len=int(known["output_len"]),
                prompts=int(known["prompts"]),
                valid=bool(known["valid"]),
                reasons=tuple(str(reason) for reason in known["reasons"]),
                completed=int(known["completed"]),
                failed=int(known["failed"]),
                metrics={str(k): float(v) for k, v in known["metrics"].items()},
                gpu=known["gpu"],
                gpu_note=str(known["gpu_note"]),
                server=known["server"],
                started_at=float(known["started_at"]),
                ended_at=float(known["ended_at"]),
                source=dict(known["source"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no point of a bench: {error!r}") from error


@dataclass(frozen=True)
class Result:
    """What the client wrote, read.

    Attributes:
        content: its keys and values, JSON's own values only; empty where it can't be read.
        server_info: what the server told of itself, 24 KB, the same at each point.
        problem: why it can't be used; None where it can.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    server_info: Mapping[str, Any] | None = None
    problem: str | None = None

    @property
    def line(self) -> bytes:
        """The result as strict JSON in one line, without what the server told."""
        return json.dumps(self.content, allow_nan=False).encode() + b"\n"


def read_result(raw: bytes) -> Result:
    """The client's result: the last line of its file, for it appends.

    Its JSON is not strict (``Infinity`` for a request rate without bound): what is no finite number
    becomes null.
    """
    lines = [(number, line) for number, line in enumerate(raw.split(b"\n"), 1) if line.strip()]
    if not lines:
        return Result(problem="bench_serving wrote no result")
    number, line = lines[-1]
    try:
        content = json.loads(line, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return Result(
            problem=f"the result of bench_serving is no JSON (line {number}, {len(line)} bytes):"
            " cut off or damaged"
        )
    if not isinstance(content, dict):
        return Result(problem=f"the result of bench_serving is no JSON object (line {number})")
    info = content.pop("server_info", None)
    return Result(content, info if isinstance(info, dict) else None)


def _no_number(name: str) -> None:
    """``Infinity``, ``-Infinity`` and ``NaN``."""


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def metrics_of(content: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are there; one that is missing or no number is left out."""
    found = {}
    for name, theirs in METRICS.items():
        value = content.get(theirs)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = float(value)
    if "total_throughput" not in found and {"input_throughput", "output_throughput"} <= set(found):
        found["total_throughput"] = found["input_throughput"] + found["output_throughput"]
    return found


def judge(
    plan: BenchPlan,
    job: Job,
    run: str,
    told: Mapping[str, Any],
    result: Result,
    gpu: GPUReading,
    steps: bytes,
) -> Point:
    """The row of a point, through the validity gate.

    Args:
        run: the server that was measured.
        told: what the host wrote down of the point: ``started_at``, ``ended_at``, and as
            ``troubles`` what went wrong there.
        steps: the step lines of the server's log during the point.
    """
    metrics = metrics_of(result.content)
    completed = _count(result.content.get("completed"))
    failed = max(0, job.prompts - completed)
    reasons = [str(trouble) for trouble in told.get("troubles", ())]
    if result.problem is not None:
        # That the client wrote nothing needs no saying where it is known why.
        reasons += [] if reasons else [result.problem]
    else:
        reasons += _against_result(plan, job, result.content, metrics, completed)
    reasons += gpu.against
    server = step_figures(steps)
    reasons += _beside(job, server)
    return Point(
        bench=plan.bench,
        run=run,
        level=job.level,
        repeat=job.repeat,
        seed=job.seed,
        input_len=plan.input_len,
        output_len=plan.output_len,
        prompts=job.prompts,
        valid=not reasons,
        reasons=tuple(reasons),
        completed=completed,
        failed=failed,
        metrics=metrics,
        gpu=gpu.figures,
        gpu_note=gpu.note,
        server=server,
        started_at=float(told.get("started_at", 0.0)),
        ended_at=float(told.get("ended_at", 0.0)),
        # The folder of the run that the bench began on; its server may have been replaced since.
        source={
            "run": plan.run,
            "file": f"bench/{plan.bench}/raw/{job.name}.jsonl",
            "line": 1,
        },
    )


#: How far above the level the server's own count may be on average: a health check is a request.
_BESIDE = 1.05


def _beside(job: Job, server: Mapping[str, Any] | None) -> list[str]:
    """Whether somebody else's requests ran beside the point's."""
    mean = (server or {}).get("running_mean", 0.0)
    if mean <= _BESIDE * job.level:
        return []
    return [
        f"the server ran {mean:g} requests at once on average, and {job.level} were asked for:"
        " somebody else used it"
    ]


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _against_result(
    plan: BenchPlan,
    job: Job,
    content: Mapping[str, Any],
    metrics: Mapping[str, float],
    completed: int,
) -> list[str]:
    lacking = [METRICS[name] for name in _NEEDED if name not in metrics]
    if lacking:
        return [f"the result of bench_serving lacks {', '.join(lacking)}"]
    reasons = []
    if completed < job.prompts:
        said = _errors(content)
        reasons.append(f"{job.prompts - completed} of {job.prompts} requests failed{said}")
    reasons += _outputs(plan.output_len, content)
    if completed == job.prompts:
        reasons += _concurrency(job, metrics)
    return reasons


def _errors(content: Mapping[str, Any]) -> str:
    """The most frequent errors of requests, the last line of each."""
    counts: dict[str, int] = {}
    for error in _list(content, "errors"):
        lines = str(error or "").strip().splitlines()
        if lines:
            counts[lines[-1]] = counts.get(lines[-1], 0) + 1
    usual = sorted(counts, key=lambda text: -counts[text])[:_QUOTED_ERRORS]
    quoted = "; ".join(f"{counts[text]} x {text[:_QUOTED_CHARACTERS]}" for text in usual)
    return f": {quoted}" if quoted else ""


def _outputs(asked: int, content: Mapping[str, Any]) -> list[str]:
    """Requests that succeeded and yet made fewer tokens than asked.

    The client counts a stream without any text as the length it asked for; that no first token
    ever came (``ttfts`` 0) tells.
    """
    lengths, errors = _list(content, "output_lens"), _list(content, "errors")
    if not lengths:
        return ["the result of bench_serving lacks output_lens: short outputs would go unseen"]
    firsts = _list(content, "ttfts") or [1.0] * len(lengths)
    errors = errors or [""] * len(lengths)
    well = [
        (length, first)
        for length, first, error in zip(lengths, firsts, errors, strict=False)
        if not error and isinstance(length, int)
    ]
    empty = sum(1 for length, first in well if length == 0 or not first)
    short = [length for length, first in well if first and 0 < length < asked]
    reasons = []
    if empty:
        reasons.append(f"{empty} of {len(lengths)} outputs are empty")
    if short:
        reasons.append(
            f"{len(short)} of {len(lengths)} outputs are short: {min(short)} tokens instead of"
            f" {asked}"
        )
    return reasons


def _list(content: Mapping[str, Any], name: str) -> list[Any]:
    value = content.get(name)
    return value if isinstance(value, list) else []


def _concurrency(job: Job, metrics: Mapping[str, float]) -> list[str]:
    """Whether the achieved concurrency is far from asked; see `possible_concurrency`."""
    possible = possible_concurrency(job, metrics)
    achieved = metrics["concurrency"]
    if achieved >= _CONCURRENCY_SHARE * possible:
        return []
    return [
        f"achieved concurrency {achieved:.1f} is far from {job.level}:"
        f" {possible:.1f} was possible with {job.prompts} prompts"
    ]


def possible_concurrency(job: Job, metrics: Mapping[str, float]) -> float:
    """The mean number of requests in flight that a client without any stall reaches at least.

    It keeps ``c`` requests in flight until the prompts run out; then they thin out for as long as
    the slowest takes. With ``S`` the sum of all latencies, the whole takes at most
    ``S / c + longest * (c - 1) / c`` (the bound on list scheduling), and the mean concurrency is
    ``S`` over that. The longest latency is taken as the 99th percentile, at most three means. At
    the default of five prompts for each request in flight that is 0.83 of asked; with equal
    latencies it is usually more. A moment of the client's own is allowed for.
    """
    mean_s = metrics["e2e_mean_ms"] / 1000
    total_s = mean_s * job.prompts
    if total_s <= 0:
        return 0.0
    flight = min(job.level, job.prompts)
    longest_s = min(max(metrics.get("e2e_p99_ms", 0.0) / 1000, mean_s), 3 * mean_s)
    whole_s = total_s / flight + longest_s * (flight - 1) / flight
    return total_s / (whole_s + _CLIENT_S)


def step_figures(steps: bytes) -> dict[str, Any] | None:
    """What the server's own step lines say; None where it printed none.

    SGLang prints every 40th decode step by default: a short point may have few.
    """
    lines = steps.split(b"\n")
    decodes = [ServingStep(0, line) for line in lines if b"] Decode batch" in line]
    prefills = sum(1 for line in lines if b"] Prefill batch" in line)
    if not decodes and not prefills:
        return None
    figures: dict[str, Any] = {
        "decode_lines": len(decodes),
        "prefill_lines": prefills,
        "cached_share": round(cached_share(steps), 3),
    }
    if decodes:
        for name, values in (
            ("running", [float(step.running) for step in decodes]),
            ("queued", [float(step.queued) for step in decodes]),
            ("tokens_per_s", [step.tokens_per_s for step in decodes]),
            ("token_usage", [step.token_usage for step in decodes]),
        ):
            figures[f"{name}_mean"] = round(sum(values) / len(values), 3)
            figures[f"{name}_max"] = round(max(values), 3)
    return figures


def cached_share(steps: bytes) -> float:
    """The share of input tokens that the server found in its cache, 0 to 1.

    Counted from the last emptying of the cache on: before it, the client warms up with one prompt
    again and again. No reason against a point: the client's prompts run through the vocabulary
    from random places, and a small one makes them meet; the same seeds make them meet alike.
    """
    parts = _EMPTIED.split(steps)
    found, computed = (
        sum(map(int, re.findall(name + rb": (\d+)", parts[-1])))
        for name in (rb"#cached-token", rb"#new-token")
    )
    return found / (found + computed) if found else 0.0


def step_window(steps: bytes) -> tuple[str, str] | None:
    """When the server logged its first and its last step, by its own clock's text."""
    stamps = [stamp for line in steps.split(b"\n") if (stamp := ServingStep(0, line).stamp)]
    return (min(stamps), max(stamps)) if stamps else None


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Points by level and repeat, as data."""
    return [point.as_dict() for point in sorted(points, key=lambda point: point.key)]
