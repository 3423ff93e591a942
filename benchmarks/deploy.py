"""A deploy by this tool and by others, over links of several lengths.

    python -m benchmarks.deploy [--rtt 0,20,100] [--rounds 3] [--peers by-hand,pyinfra,ours]
        [--json FILE] [--markdown]

Each peer does the same job (see `benchmarks.job`) on the same host, a sshd on loopback behind a
proxy that delays every byte, in turns; after each run files and server are looked at. Printed are
medians of the seconds that came on top of the server's own 3 s. What the job costs on the wire is
counted in a pass of its own. Ctrl-C prints what there is.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.job import SERVER_S
from benchmarks.peers import UNCHANGED, Peer
from benchmarks.peers.ansible import Ansible, AnsiblePipelining
from benchmarks.peers.by_hand import ByHand, ControlMaster
from benchmarks.peers.fabric import Fabric
from benchmarks.peers.one_exec import OneExec
from benchmarks.peers.ours import Ours, OursFastDial
from benchmarks.peers.pyinfra import Pyinfra
from benchmarks.rig import Cost, Target

PEERS: dict[str, Callable[[Target, Path], Peer]] = {
    "by-hand": ByHand,
    "control-master": ControlMaster,
    "ansible": Ansible,
    "ansible-pipelining": AnsiblePipelining,
    "pyinfra": Pyinfra,
    "fabric": Fabric,
    "one-exec": OneExec,
    "ours": Ours,
    "ours-fast-dial": OursFastDial,
}
COUNTED_AT_S = 0.02
CACHE = Path("~/.cache/sglang-remote-benchmarks").expanduser()


@dataclass(frozen=True)
class Run:
    """One run: its seconds on top of the server's own, and the client's CPU seconds."""

    peer: str
    row: str
    rtt_ms: int
    added_s: float
    cpu_s: float


@dataclass(frozen=True)
class Counts:
    """What a row costs on the wire."""

    peer: str
    row: str
    cost: Cost


def timed(peer: Peer, row: str, rtt_ms: int, target: Target) -> Run:
    """Do the job once.

    Raises:
        RuntimeError: it failed, or left something else than the job wants.
    """
    peer.prepare(row)
    with target.at(rtt_ms / 1000):
        used, began = _children_cpu_s(), time.perf_counter()
        peer.do()
        took_s = time.perf_counter() - began
    if not peer.right(row):
        raise RuntimeError(f"{peer.name}, {row}: the host is not as it should be")
    own_s = 0.0 if row == UNCHANGED else SERVER_S
    return Run(peer.name, row, rtt_ms, took_s - own_s, _children_cpu_s() - used)


def counted(peer: Peer, row: str, target: Target) -> Counts:
    peer.prepare(row)
    with target.at(COUNTED_AT_S), target.counted() as cost:
        peer.do()
    return Counts(peer.name, row, cost[0])


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(
    runs: Sequence[Run], counts: Sequence[Counts], peers: Sequence[Peer], rtts: Sequence[int]
) -> list[list[str]]:
    """A line a peer and row: medians, ratios to ours, counts."""
    medians: dict[tuple[str, str, int], float] = {}
    for key in {(run.peer, run.row, run.rtt_ms) for run in runs}:
        medians[key] = statistics.median(
            run.added_s for run in runs if (run.peer, run.row, run.rtt_ms) == key
        )
    wire = {(each.peer, each.row): each.cost for each in counts}
    lines = [
        [
            "way",
            "situation",
            *(f"{rtt} ms" for rtt in rtts),
            *(f"× ours, {rtt} ms" for rtt in rtts),
            *("connections", "sessions", "packets", "round trips", "KB sent", "CPU s"),
        ]
    ]
    for row in dict.fromkeys(row for peer in peers for row in peer.rows):
        for peer in peers:
            if row not in peer.rows:
                continue
            ours = [medians.get(("ours", row, rtt)) for rtt in rtts]
            taken = [medians.get((peer.name, row, rtt)) for rtt in rtts]
            cost = wire.get((peer.name, row))
            cpu = [run.cpu_s for run in runs if (run.peer, run.row) == (peer.name, row)]
            lines.append(
                [
                    peer.command,
                    row,
                    *("–" if each is None else f"{each:.2f}" for each in taken),
                    *(
                        "–" if mine is None or each is None else f"{each / mine:.1f}"
                        for each, mine in zip(taken, ours, strict=True)
                    ),
                    *(
                        ["–"] * 5
                        if cost is None
                        else [str(number) for number in vars(cost).values()]
                    ),
                    f"{statistics.median(cpu):.2f}" if cpu else "–",
                ]
            )
    return lines


def printed(lines: Sequence[Sequence[str]], *, markdown: bool) -> str:
    if markdown:
        head, *rest = lines
        rule = ["---"] * len(head)
        return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rest))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt", default="0,20,100", help="round-trip times in ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--patches", type=int, default=5, help="patched files (default 5)")
    parser.add_argument("--json", type=Path, help="write every single run there")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where peers are installed")
    asked = parser.parse_args()
    rtts = [int(word) for word in asked.rtt.split(",")]
    runs: list[Run] = []
    counts: list[Counts] = []
    with tempfile.TemporaryDirectory(prefix="deploy-") as folder:
        target = Target(Path(folder) / "t", asked.patches)
        peers = [PEERS[name](target, asked.cache) for name in asked.peers.split(",")]
        try:
            measure(target, peers, rtts, asked.rounds, runs, counts)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        finally:
            for peer in peers:
                peer.close()
            target.close()
            if asked.json:
                asked.json.write_text(
                    json.dumps({"runs": [*map(asdict, runs)], "counts": [*map(asdict, counts)]})
                )
    print(
        f"added seconds, medians of up to {asked.rounds} rounds; sshd on loopback behind a delay"
        f" proxy; {asked.patches} patched files; counted at {COUNTED_AT_S * 1000:.0f} ms\n"
    )
    print(printed(table(runs, counts, peers, rtts), markdown=asked.markdown))
    return 0


def measure(
    target: Target,
    peers: Sequence[Peer],
    rtts: Sequence[int],
    rounds: int,
    runs: list[Run],
    counts: list[Counts],
) -> None:
    """Fill both lists; peers take turns, so that what else the machine does falls on all."""
    for peer in peers:
        for row in peer.rows:
            counts.append(counted(peer, row, target))
            print(f"counted  {peer.name:20}{row:26}{counts[-1].cost}", file=sys.stderr)
    for number in range(rounds):
        for rtt_ms in rtts:
            for peer in peers:
                for row in peer.rows:
                    run = timed(peer, row, rtt_ms, target)
                    runs.append(run)
                    print(
                        f"round {number + 1}  {peer.name:20}{row:26}{rtt_ms:4} ms"
                        f"{run.added_s:8.2f} s  CPU {run.cpu_s:.2f} s",
                        file=sys.stderr,
                    )


if __name__ == "__main__":
    sys.exit(main())
