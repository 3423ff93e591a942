"""How soon a crash is known, and what a follow costs that hears nothing.

    python -m benchmarks.follow [--rtt 0,20,100] [--lines 20] [--ends 3] [--silence 30]

Measured is from the moment a line is written, and from the server's death, until this tool's client
has read it and knows what it means, against `ssh host tail -F` until its client prints the line;
above half a round trip, which nothing can save. Then the CPU time of the program on the host while
nothing happens, beside that of `tail -F`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.log_rig import (
    PROJECT,
    LogRig,
    cpu_s,
    descendant,
    log_rig,
    table,
)
from remote.payload import procs, runs

FATAL = b"[2026-11-29 12:00:00 TP0] Scheduler hit an exception: it failed\n"
#: What a follow asks of itself when nothing has happened for a while: measured after that.
_SETTLED_S = 15.0


@contextmanager
def reading(command: list[str]) -> Iterator[IO[bytes]]:
    """A process's output, line by line as it comes; the process is ended with the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT, bufsize=0)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def write(rig: LogRig, line: bytes) -> float:
    """Put a line into the log as the server does; when."""
    with rig.log.open("ab", buffering=0) as file:
        at = time.monotonic()
        file.write(line)
    return at


def word(output: IO[bytes], wanted: bytes) -> list[bytes]:
    """The next line of output that begins with a word, as words."""
    for line in output:
        if line.startswith(wanted):
            return line.split()
    raise RuntimeError("the follow has ended")


def ours(rig: LogRig, lines: int) -> list[float]:
    """Seconds from each line until the client knows that the server can't serve any more."""
    offset = str(rig.log.stat().st_size)
    with reading(rig.child("follow", offset)) as output:
        word(output, b"tick")
        taken = []
        for _ in range(lines):
            time.sleep(0.05)
            at = write(rig, FATAL)
            taken.append(float(word(output, b"line")[1]) - at)
        return taken


def tail(rig: LogRig, lines: int) -> list[float]:
    """The same until OpenSSH's client prints it."""
    command = [*rig.ssh, rig.where, f"echo ready; exec tail -n 0 -F {rig.log}"]
    with reading(command) as output:
        word(output, b"ready")
        time.sleep(0.3 + 2 * rig.proxy.delay_s)
        taken = []
        for _ in range(lines):
            time.sleep(0.05)
            at = write(rig, FATAL)
            word(output, b"[")
            taken.append(time.monotonic() - at)
        return taken


def death(rig: LogRig) -> float:
    """Seconds from a server's death until the client knows."""
    run = rig.lab.start("say('up'); wait()")
    with reading(rig.child_of(run, "follow", "0")) as output:
        word(output, b"tick")
        pid = runs.written_pid(rig.lab.state, run)
        process = procs.find(pid) if pid is not None else None
        assert process is not None
        at = time.monotonic()
        procs.send(process, signal.SIGKILL)
        return float(word(output, b"gone")[1]) - at


def idle_percent(rig: LogRig, silence_s: float) -> tuple[float, float]:
    """Percent of a core that the host's end uses while nothing happens: ours, and tail -F's."""
    offset = str(rig.log.stat().st_size)
    command = [*rig.ssh, rig.where, f"echo ready; exec tail -n 0 -F {rig.log}"]
    assert rig.sshd.process is not None
    with reading(rig.child("follow", offset)) as follow, reading(command) as output:
        word(follow, b"tick")
        word(output, b"ready")
        time.sleep(_SETTLED_S)
        pids = [descendant(rig.sshd.process.pid, name) for name in ("-I", "-F")]
        began, before = time.monotonic(), [cpu_s(pid) for pid in pids]
        time.sleep(silence_s)
        took_s = time.monotonic() - began
        used = [cpu_s(pid) - had for pid, had in zip(pids, before, strict=True)]
        return 100 * used[0] / took_s, 100 * used[1] / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", default="0,20,100", help="round-trip times in ms")
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--ends", type=int, default=3, help="servers that are killed")
    parser.add_argument("--silence", type=float, default=30.0, help="seconds")
    told = parser.parse_args()
    rows = []
    with log_rig() as rig:
        for rtt_ms in map(int, told.rtt.split(",")):
            with rig.at(rtt_ms):
                found = {"ours": ours(rig, told.lines), "tail -F": tail(rig, told.lines)}
                found["death"] = [death(rig) for _ in range(told.ends)]
            half = rtt_ms / 2
            middle = {name: statistics.median(each) * 1000 for name, each in found.items()}
            row = [f"{each:.1f} (+{each - half:.1f})" for each in middle.values()]
            rows.append([str(rtt_ms), *row, f"{middle['ours'] / middle['tail -F']:.2f}"])
        percent = idle_percent(rig, told.silence)
    columns = ["RTT, ms", "ours, ms", "ssh tail -F, ms", "death known, ms", "ours / tail"]
    table("From line to knowledge (above half a round trip)", columns, rows)
    print(f"\nIdle: {percent[0]:.3f}% of a core, tail -F {percent[1]:.3f}%")


if __name__ == "__main__":
    main()
