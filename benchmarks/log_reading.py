"""How fast logs are read on one core, and that memory does not grow with them.

    python -m benchmarks.log_reading [MEGABYTES]

Targets: 100 MB/s for serving logs, 20 MB/s for floods of crash lines.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from remote.core.log_lines import Collapser
from remote.core.reading import LogReading
from remote.core.server_log import LogReader

_CASES = Path(__file__).parents[1] / "tests" / "cases"
_CHUNK = 1 << 20


def _samples() -> dict[str, bytes]:
    served = (_CASES / "server_log/real/piecewise.log").read_bytes()
    crash = (_CASES / "server_log/real/fp4-trap-fi063.log").read_bytes()
    asserts = (_CASES / "diagnosis/recon/sgl-1279.txt").read_bytes()
    lines = served.split(b"\n")
    routine = [line for line in lines if b" batch, " in line or b"POST" in line]
    steps = [line for line in lines if b" batch, " in line]
    return {
        "serving": b"\n".join(routine) + b"\n",
        "serving, steps only": b"\n".join(steps) + b"\n",
        "tracebacks": crash,
        "device assertions": asserts,
    }


def _chunks(sample: bytes, megabytes: int) -> Iterator[bytes]:
    block = sample * max(1, _CHUNK // len(sample))
    for _ in range(max(1, megabytes * 1_000_000 // len(block))):
        yield block


def _speed(feed: Callable[[bytes], object], sample: bytes, megabytes: int) -> float:
    chunks = list(_chunks(sample, min(megabytes, 50)))
    started = time.perf_counter()
    for chunk in chunks:
        feed(chunk)
    return sum(map(len, chunks)) / (time.perf_counter() - started) / 1e6


def _growth(sample: bytes) -> float:
    """Megabytes held after forty chunks beyond those held after ten."""
    tracemalloc.start()
    reading = LogReading()
    held = []
    for chunk in list(_chunks(sample, 1)) * 40:
        reading.feed(chunk)
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return (held[-1] - held[9]) / 1e6


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(
        f"{'MB/s on one core':22}{'LogReader':>12}{'LogReading':>12}{'Collapser':>12}{'growth':>12}"
    )
    for name, sample in _samples().items():
        speeds = [
            _speed(reader.feed, sample, megabytes)
            for reader in (LogReader(), LogReading(), Collapser())
        ]
        told = "".join(f"{speed:12.0f}" for speed in speeds)
        print(f"{name:22}{told}{_growth(sample):9.1f} MB")


if __name__ == "__main__":
    main()
