"""How a first deploy by this tool grows with patched files, hosts and round-trip time.

    python -m benchmarks.deploy_growth [--rtt 0,20,100,300] [--patches 5,50,200] [--hosts 1,4,8]
        [--markdown]

Each patch's diff is some 7 KB. Hosts are deployed to one after another, as `for` in a shell does,
and all at once, as `&` does; each has an sshd of its own, and all share this machine's cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.deploy import CACHE, COUNTED_AT_S, counted, printed, timed
from benchmarks.job import SERVER_S
from benchmarks.peers import FIRST, UNCHANGED
from benchmarks.peers.ours import Ours
from benchmarks.rig import Target

HOSTS_AT_MS = 20


@contextmanager
def host(patches: int) -> Iterator[tuple[Target, Ours]]:
    """A host that has been deployed to before, and this tool's project for it."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        target = Target(Path(folder) / "t", patches)
        try:
            ours = Ours(target, CACHE)
            ours.prepare(FIRST)
            yield target, ours
        finally:
            target.close()


def by_files(patches: int, rtts: Sequence[int], rounds: int) -> list[str]:
    """A line: added seconds of first runs and of runs with nothing changed, and bytes sent."""
    with host(patches) as (target, ours):
        cost = counted(ours, FIRST, target).cost
        cells = [str(patches)]
        for row in (FIRST, UNCHANGED):
            for rtt in rtts:
                if row == UNCHANGED:
                    ours.prepare(FIRST)
                    ours.do()
                runs = [timed(ours, row, rtt, target) for _ in range(rounds)]
                cells.append(f"{statistics.median(run.added_s for run in runs):.2f}")
    return [*cells, str(cost.round_trips), str(cost.packets), str(cost.sent_kb)]


def by_hosts(count: int) -> list[str]:
    """A line: seconds for all hosts, one after another and at once; the servers' start included."""
    cells = [str(count)]
    with ExitStack() as stack:
        hosts = [stack.enter_context(host(5)) for _ in range(count)]
        for workers in (1, count):
            for _, ours in hosts:
                ours.prepare(FIRST)
            with ExitStack() as far, ThreadPoolExecutor(workers) as pool:
                for target, _ in hosts:
                    far.enter_context(target.at(HOSTS_AT_MS / 1000))
                began = time.perf_counter()
                list(pool.map(lambda each: each[1].do(), hosts))
                cells.append(f"{time.perf_counter() - began:.1f}")
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt", default="0,20,100,300", help="round-trip times in ms")
    parser.add_argument("--patches", default="5,50,200", help="patched files")
    parser.add_argument("--hosts", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    rtts, files, counts = (
        [int(word) for word in text.split(",")] for text in (asked.rtt, asked.patches, asked.hosts)
    )
    head = [
        "patched files",
        *(f"first, {rtt} ms" for rtt in rtts),
        *(f"nothing changed, {rtt} ms" for rtt in rtts),
        *("round trips", "packets", "KB sent"),
    ]
    lines = [head, *(by_files(number, rtts, asked.rounds) for number in files)]
    print(
        f"added seconds, medians of {asked.rounds}; counted at {COUNTED_AT_S * 1000:.0f} ms\n\n"
        f"{printed(lines, markdown=asked.markdown)}\n\n"
        f"seconds for all hosts at {HOSTS_AT_MS} ms, each server's own {SERVER_S:.0f} s included\n"
    )
    lines = [["hosts", "one after another", "at once"], *(by_hosts(number) for number in counts)]
    print(printed(lines, markdown=asked.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
