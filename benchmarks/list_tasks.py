"""`inv --list` against what Invoke itself costs: `python benchmarks/list_tasks.py`.

Runs the two in turn and prints the median of each and of their ratios, pair by pair. The aim is a
ratio below 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
LISTING = [sys.executable, "-m", "invoke", "--list"]
INVOKE_ALONE = [sys.executable, "-c", "import invoke.main"]


def seconds(command: list[str]) -> float:
    """Wall time of one whole process."""
    began = time.perf_counter()
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs (default 20)")
    pairs = parser.parse_args().pairs
    seconds(LISTING)  # writes bytecode
    measured = [(seconds(LISTING), seconds(INVOKE_ALONE)) for _ in range(pairs)]
    listing, alone = (statistics.median(column) for column in zip(*measured, strict=True))
    ratio = statistics.median(a / b for a, b in measured)
    print(f"inv --list           {listing * 1000:6.0f} ms")
    print(f"import invoke.main   {alone * 1000:6.0f} ms")
    print(f"ratio, pair by pair  {ratio:6.2f}   ({pairs} pairs, medians; aim: below 1.3)")


if __name__ == "__main__":
    main()
