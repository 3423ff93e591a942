"""A folder of runs as benches leave it: rows, raw results, answers, and the ledger over them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote.bench_store import LocalBench
from remote.core.bench_plan import BenchPlan
from remote.core.bench_result import Point
from remote.core.phases import Phase
from remote.core.run_record import Ending, RunRow
from remote.ledger import Ledger

LEVELS = (1, 16)
BENCH = "20261129-210000-ab12"


class MeasuredPast:
    """Adds runs to a project's `runs/`, as tasks would have."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.runs = project / "runs"
        self.ledger = Ledger(self.runs)
        self.raw: dict[str, object] = {"runs": str(self.runs)}
        self._at = 1_764_450_000.0

    def start(self, run: str, profile: str, ending: Ending | None = None, **more: Any) -> str:
        """A start with its folder; ready unless said otherwise."""
        self._at += 600
        values = {
            "fingerprint": {"sglang": "0.5.9", "gpus": ["NVIDIA H200"], "patches": {}},
            **more,
        }
        folder = self.runs / run
        folder.mkdir(parents=True)
        (folder / "launch.sh").write_text(f"#!/bin/bash\nexec python # {profile}\n")
        (folder / "plan.json").write_text(json.dumps({"run": run, "profile": profile}))
        row = RunRow(run, self._at, "gpu", profile, folder=str(folder), **values)
        self.ledger.note_start(row)
        self.ledger.note_ending(run, ending or Ending("ready", seconds=95.0))
        self.ledger.note_phases("gpu", profile, run, {Phase.WEIGHTS: 60.5}, self._at + 95)
        return run

    def measure(
        self,
        run: str,
        speed: float = 1.0,
        *,
        repeats: int = 5,
        levels: Sequence[int] = LEVELS,
        invalid: Mapping[tuple[int, int], str] | None = None,
        **plan: Any,
    ) -> LocalBench:
        """A bench of the run: 1% noise around figures times ``speed``."""
        bench = LocalBench(self.runs, run, BENCH)
        made = bench_plan(run, levels, repeats, **plan)
        bench.keep_plan(made)
        dice = random.Random(run)
        for job in made.jobs:
            figures = {
                "output_throughput": 100.0 * job.level * speed * dice.gauss(1, 0.01),
                "total_throughput": 200.0 * job.level * speed * dice.gauss(1, 0.01),
                "ttft_p99_ms": 50.0 * job.level / speed * dice.gauss(1, 0.01),
                "tpot_p99_ms": 5.0 / speed * dice.gauss(1, 0.01),
            }
            why = (invalid or {}).get((job.level, job.repeat))
            raw = f"raw/{job.name}.jsonl"
            bench.write(raw, json.dumps(figures).encode() + b"\n")
            point = Point(
                bench=BENCH,
                run=run,
                level=job.level,
                repeat=job.repeat,
                seed=job.seed,
                input_len=made.input_len,
                output_len=made.output_len,
                prompts=job.prompts,
                valid=why is None,
                reasons=() if why is None else (why,),
                completed=job.prompts,
                failed=0,
                metrics=figures,
                gpu=None,
                gpu_note="",
                server=None,
                started_at=self._at,
                ended_at=self._at + 30,
                source={"run": run, "file": f"bench/{BENCH}/{raw}", "line": 1},
            )
            assert bench.append(point)
            self.ledger.note_point(point)
        return bench

    def answer(self, run: str, shift: float = 0.0) -> None:
        """What the run said to the fixed prompts, its log-probabilities shifted."""
        said = [
            {"text": "a b c d", "tokens": [n, 2, 3, 4], "logprobs": [-1.0 - shift] * 4}
            for n in range(4)
        ]
        told = {"run": run, "prompts": list("abcd"), "repetitions": [said] * 3, "questions": []}
        (self.runs / run / "quality.json").write_text(json.dumps(told))


def bench_plan(run: str, levels: Sequence[int], repeats: int, **changed: Any) -> BenchPlan:
    """A plan of those levels."""
    values: dict[str, Any] = {
        "bench": BENCH,
        "run": run,
        "host": "gpu",
        "profile": "baseline",
        "levels": tuple(levels),
        "input_len": 1024,
        "output_len": 256,
        "repeats": repeats,
        "prompts": {level: max(64, 5 * level) for level in levels},
        "seeds": tuple(range(1, repeats + 1)),
        "range_ratio": 1.0,
        "warm_up": True,
        "flush_cache": True,
        "quick": False,
        "sglang": "0.5.9",
        "argv": (),
        "tokenizer": "/models/glm",
        "model": "/models/glm",
        "made_at": 1.0,
        "gpus": 8,
    }
    return BenchPlan(**{**values, **changed})
