"""A bench client that does as the test says: `fake_bench.py PLAY -m sglang.bench_serving …`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def option(name: str) -> str:
    return sys.argv[sys.argv.index(f"--{name}") + 1]


LEVEL, PROMPTS = int(option("max-concurrency")), int(option("num-prompts"))
OUTPUT = Path(option("output-file"))
#: One of a kind for each point.
NAME = OUTPUT.stem


def content(**changed: Any) -> str:
    """The line that a clean point leaves."""
    length = int(option("random-output-len"))
    made: dict[str, Any] = {
        "request_rate": float("inf"),
        "server_info": {"version": "0.5.9", "api_key": "s3cret-key"},
        "duration": 20.0,
        "completed": PROMPTS,
        "request_throughput": 1.0,
        "input_throughput": 8.0,
        "output_throughput": 100.0 * LEVEL,
        "total_throughput": 108.0 * LEVEL,
        "concurrency": float(LEVEL),
        **{
            f"{kind}_{name}_ms": 20000.0 * LEVEL / PROMPTS
            for kind in ("mean", "median", "p99")
            for name in ("e2e_latency", "ttft", "tpot", "itl")
        },
        "output_lens": [length] * PROMPTS,
        "ttfts": [0.1] * PROMPTS,
        "itls": [[0.1] * length] * PROMPTS,
        "generated_texts": ["said"] * PROMPTS,
        "errors": [""] * PROMPTS,
    }
    return json.dumps({**made, **changed}) + "\n"


def result(**changed: Any) -> None:
    OUTPUT.write_text(content(**changed))


def seen(folder: str) -> None:
    """Leave this process's environment and words for the test."""
    kept = {"env": dict(os.environ), "argv": sys.argv}
    (Path(folder) / f"{NAME}.json").write_text(json.dumps(kept))


def bar(done: int) -> None:
    sys.stderr.write(f"\r 12%|#2   | {done}/{PROMPTS} [00:03<00:22,  2.44it/s]")
    sys.stderr.flush()


def hold(path: str) -> None:
    """Wait until that file is there."""
    while not Path(path).exists():
        time.sleep(0.02)


def fail(status: int, text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.exit(status)


exec(Path(sys.argv[1]).read_text())  # noqa: S102
