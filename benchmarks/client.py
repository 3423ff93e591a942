"""What the tool costs here before it does anything: `python -m benchmarks.client [--pairs 20]`.

`inv --list`, `inv --help deploy` and shell completion against what Invoke itself costs
(`import invoke.main`, the aim: below 1.3 times that), and the imports of a deploy against those of
Fabric. Each is run in turn with what it is held against; printed are medians and the median of the
ratios, pair by pair. A deploy's whole CPU is a column of `benchmarks.deploy`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
INV = [sys.executable, "-m", "invoke"]
INVOKE_ALONE = [sys.executable, "-c", "import invoke.main"]
FABRIC_ALONE = [sys.executable, "-c", "import fabric"]
DEPLOY_IMPORTS = "import invoke.main, tasks, remote.display, remote.experiment, remote.overview"

#: Each row's name, what is run, and what it is held against.
ROWS = (
    ("inv --list", [*INV, "--list"], "import invoke.main", INVOKE_ALONE),
    ("inv --help deploy", [*INV, "--help", "deploy"], "import invoke.main", INVOKE_ALONE),
    ("completion", [*INV, "--complete", "--", "inv depl"], "import invoke.main", INVOKE_ALONE),
    (
        "imports of a deploy",
        [sys.executable, "-c", DEPLOY_IMPORTS],
        "import fabric",
        FABRIC_ALONE,
    ),
)


def run(command: list[str]) -> tuple[float, float]:
    """One whole process: seconds of wall time, and of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs (default 20)")
    pairs = parser.parse_args().pairs
    # Whoever measures wants bytecode written, as any user has it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'':20} {'ms':>6} {'CPU ms':>7}   {'against':20} {'ms':>6} {'ratio':>6}")
    for name, command, against, other in ROWS:
        run(command)
        measured = [(run(command), run(other)) for _ in range(pairs)]
        ours, cpu, theirs, ratio = (
            statistics.median(column)
            for column in zip(*((a[0], a[1], b[0], a[0] / b[0]) for a, b in measured), strict=True)
        )
        print(
            f"{name:20} {ours * 1000:6.0f} {cpu * 1000:7.0f}   {against:20} {theirs * 1000:6.0f}"
            f" {ratio:6.2f}"
        )


if __name__ == "__main__":
    main()
