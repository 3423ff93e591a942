"""The plan of a bench, for the tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remote.core.bench_plan import BenchPlan

RUN, BENCH = "20261129-115900-baseline-1234", "20261129-120000-abcd"

_PLAN = BenchPlan.from_dict(
    {
        "bench": BENCH,
        "run": RUN,
        "host": "lab",
        "profile": "baseline",
        "levels": [1, 4],
        "input_len": 16,
        "output_len": 8,
        "repeats": 2,
        "prompts": {"1": 8, "4": 8},
        "seeds": [1, 2],
        "range_ratio": 1.0,
        "warm_up": True,
        "flush_cache": True,
        "quick": False,
        "sglang": "0.5.9",
        "argv": ["-m", "sglang.bench_serving"],
        "tokenizer": "/m",
        "model": "/m",
        "made_at": 1796000000.0,
    }
)


def bench_plan_with(**changed: Any) -> BenchPlan:
    """Levels 1 and 4 with 8 prompts each and two repeats, but for what is said."""
    return replace(_PLAN, **changed)
