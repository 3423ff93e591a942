"""A report with all there can be in one: runs that served and that failed, points, hostile text."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.core import quality
from remote.core.comparison import compare
from remote.core.report_data import QualityNote, ReportData, ReportRun

LEVELS = (1, 10, 256, 1024)
BASELINE = "20261129-200000-baseline-aa01"
CANDIDATE = "20261129-210000-piecewise-bb02"
CRASHED = "20261129-203000-piecewise-cc03"
HOSTILE = '</script><img src="http://127.0.0.1:9/x" onerror="throw 1">|`$x$`'
#: Tokens/s, ms to the first token and ms a token at each level.
_SERVED = {1: (66.0, 95.0, 15.0), 10: (420.0, 210.0, 22.0), 256: (1180.0, 2600.0, 190.0)} | {
    1024: (1520.0, 9800.0, 610.0)
}
_PHASES = {
    "importing": 11.0,
    "connecting ranks": 9.0,
    "loading weights": 141.0,
    "allocating the KV pool": 3.0,
    "capturing decode graphs": 58.0,
    "capturing prefill graphs": 15.0,
    "warming up": 4.0,
}
_ENVIRONMENT: dict[str, Any] = {
    "driver": "580.95.05",
    "cuda": "12.9",
    "gpus": ["NVIDIA RTX PRO 6000 Blackwell"] * 8,
    "python": "3.12.3",
    "sglang": "0.5.9",
    "flashinfer-python": "0.6.3",
    "torch": "2.9.1",
}
PLAN: dict[str, Any] = {
    "model": "/models/GLM-5-NVFP4",
    "tokenizer": "/models/GLM-5-NVFP4",
    "input_len": 1024,
    "output_len": 1024,
    "range_ratio": 1.0,
    "gpus": 8,
    "flush_cache": True,
    "warm_up": True,
}


@dataclass(frozen=True)
class SamplePoint:
    bench: str
    run: str
    level: int
    repeat: int
    metrics: Mapping[str, float]
    valid: bool = True
    reasons: Sequence[str] = ()

    @property
    def origin(self) -> str:
        return f"{self.run}/bench/{self.bench}/raw/c{self.level}-r{self.repeat}.jsonl:1"


def points(run: str, gain: Mapping[int, float], seed: int) -> tuple[SamplePoint, ...]:
    dice = random.Random(seed)
    found = []
    for level in LEVELS:
        speed, first, each = _SERVED[level]
        faster = 1 + gain.get(level, 0.0)
        for repeat in (1, 2, 3):
            metrics = {
                "output_throughput": speed * faster * dice.gauss(1, 0.01),
                "total_throughput": 1.99 * speed * faster * dice.gauss(1, 0.01),
            }
            for what, value in (("ttft", first), ("tpot", each), ("itl", each), ("e2e", 30 * each)):
                for how, times in (("mean", 0.8), ("p50", 0.75), ("p99", 1.0)):
                    metrics[f"{what}_{how}_ms"] = value * times / faster * dice.gauss(1, 0.015)
            found.append(SamplePoint(f"{run[:15]}-be0c", run, level, repeat, metrics))
    return tuple(found)


def sample() -> ReportData:
    ours = points(BASELINE, {}, 1)
    theirs = points(CANDIDATE, {1: -0.06, 256: 0.09, 1024: 0.12}, 2)
    dead = SamplePoint(
        theirs[0].bench, CANDIDATE, 1024, 4, {}, valid=False, reasons=("3 requests failed",)
    )
    script = "#!/usr/bin/env bash\nexec python -m sglang.launch_server \\\n    --tp-size 8\n"
    runs = (
        ReportRun(
            BASELINE,
            1795982400.0,
            "gpu",
            "baseline",
            "ready",
            note="the reference",
            phases={name: each for name, each in _PHASES.items() if "prefill" not in name},
            environment=_ENVIRONMENT,
            script=script,
            points=ours,
            source=f"{BASELINE}/verdict.json",
        ),
        ReportRun(
            CRASHED,
            1795984200.0,
            "gpu",
            "piecewise",
            "crashed",
            note=f"without the patch {HOSTILE}",
            kind="dynamo_host_call",
            cause="Under piecewise CUDA graphs Dynamo traced into flashinfer.fp4_quantize, which"
            " builds or loads its kernel on the host inside the call.",
            first_rank="TP1",
            minutes_lost=4.2,
            phases=dict(list(_PHASES.items())[:6]),
            environment=_ENVIRONMENT,
            script=f"{script}# {HOSTILE}\n```\n",
            source=f"{CRASHED}/verdict.json",
        ),
        ReportRun(
            CANDIDATE,
            1795986000.0,
            "gpu",
            "piecewise",
            "ready",
            note="prefill in graphs should help at high concurrency",
            phases=_PHASES,
            environment={
                **_ENVIRONMENT,
                "patches": {"flashinfer/fp4-opaque": "9f2c11aa77de001122"},
            },
            patches=("flashinfer/fp4-opaque",),
            script=script.replace("--tp-size 8", "--tp-size 8 --enable-piecewise-cuda-graph"),
            points=(*theirs, dead),
            source=f"{CANDIDATE}/verdict.json",
        ),
    )
    table = compare(ours, [*theirs, dead], PLAN, PLAN, ("baseline", "piecewise"))
    same = quality.Distance(0.004, 0.02, 0.1, 21)
    report = quality.Report(quality.Quality.WITHIN, distance=same, noise=same)
    return ReportData(
        "Piecewise graphs on eight RTX PRO 6000",
        1795989600.0,
        runs,
        (table,),
        (QualityNote(CANDIDATE, report, f"{CANDIDATE}/quality.json"),),
    )
