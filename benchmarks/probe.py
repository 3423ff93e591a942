"""What the patches cost a process that never imports FlashInfer, and how long a scan takes.

    python -m benchmarks.probe [--python .sandbox/home/ml-env/bin/python]

Works in a venv of its own that takes the packages of the interpreter named; exits 1 where a budget
is missed: 20 ms of start-up with all sets there, 15 s for 24 functions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from remote import probe
from remote.core import trace_report
from remote.core.trace_report import Outcome
from remote.payload import probing

PROJECT = Path(__file__).parents[1]
START_BUDGET_MS = 20.0
SCAN_BUDGET_S = 15.0
SCANNED = 24
STARTS = 40


def venv_beside(python: Path, folder: Path) -> tuple[Path, Path]:
    """A venv with the other one's packages; its interpreter and its folder of packages."""
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    told = subprocess.run([python, "-I", "-c", show], capture_output=True, text=True, check=True)
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "other-venv.pth").write_text(told.stdout)
    return folder / "bin" / "python", site


def start_ms(python: Path) -> float:
    """Milliseconds from start to end of an interpreter that does nothing."""
    began = time.perf_counter()
    subprocess.run([python, "-c", "pass"], env={"PATH": os.defpath}, check=True)
    return (time.perf_counter() - began) * 1000


def measured(bare: Path, hooked: Path) -> bool:
    """Measure both, print, and say whether the budgets hold."""
    # In turns, so that what else the machine does falls on both.
    pairs = [(start_ms(bare), start_ms(hooked)) for _ in range(STARTS)]
    without, within = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"start-up: {without:.1f} ms bare, {within:.1f} ms with all sets,"
        f" {within - without:.1f} ms more (budget {START_BUDGET_MS:.0f} ms)"
    )
    env = {"PATH": os.defpath, "CUDA_HOME": "/usr/local/cuda"}
    every = probing.run(probe.script(), str(bare), env, {"mode": "scan", "every": True})
    found = trace_report.read(every["answer"])
    # Those that are traced cost; what can't be imported costs nothing.
    traced = [op.op for op in found.ops if op.outcome is not Outcome.NOT_CALLABLE][:SCANNED]
    began = time.perf_counter()
    again = probing.run(probe.script(), str(bare), env, {"mode": "trace", "ops": traced})
    took = time.perf_counter() - began
    slowest = max(again["answer"]["ops"], key=lambda record: record["seconds"])
    print(
        f"scan: {len(traced)} functions in {took:.1f} s, the interpreter's start and imports"
        f" included (budget {SCAN_BUDGET_S:.0f} s for {SCANNED}); slowest {slowest['op']},"
        f" {slowest['seconds']} s"
    )
    return within - without < START_BUDGET_MS and took < SCAN_BUDGET_S


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    default = PROJECT / ".sandbox" / "home" / "ml-env" / "bin" / "python"
    arguments.add_argument("--python", type=Path, default=default)
    python = arguments.parse_args().python
    with tempfile.TemporaryDirectory() as folder:
        bare, _ = venv_beside(python, Path(folder, "bare"))
        hooked, site = venv_beside(python, Path(folder, "hooked"))
        for path in (PROJECT / "templates" / "patches" / "flashinfer").glob("*/*.p*"):
            (site / path.name).write_bytes(path.read_bytes())
        return 0 if measured(bare, hooked) else 1


if __name__ == "__main__":
    sys.exit(main())
