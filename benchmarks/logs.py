"""The last 200 lines of a log of 10 GB: this tool against `ssh host tail -200`.

    python -m benchmarks.logs [--rtt 0,20,100] [--rounds 5] [--gigabytes 10]

Both as a command of its own, connection included, and on a connection that is there (OpenSSH's
ControlMaster). Printed are medians, their ratio, round trips after the handshake, the memory of the
program on the host, and what the tail adds to this one's. The log is sparse but for its last 64 MB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import time
from pathlib import Path

from benchmarks.log_child import LINES, tail
from benchmarks.log_rig import (
    MIB,
    LogRig,
    Peer,
    descendant,
    done,
    in_turns,
    log_rig,
    serving_log,
    table,
)


def over_new_connections(rig: LogRig, rounds: int) -> dict[str, float]:
    def timed(command: list[str]) -> float:
        began = time.perf_counter()
        done(command)
        return time.perf_counter() - began

    by_hand = [*rig.ssh, rig.where, f"tail -{LINES} {rig.log}"]
    peers = [
        Peer("ours", lambda: timed(rig.child("tail"))),
        Peer("ssh tail", lambda: timed(by_hand)),
    ]
    return in_turns(peers, rounds)


def over_open_connections(rig: LogRig, rounds: int, rtt_ms: int) -> tuple[dict[str, float], str]:
    """Seconds of both; and what the tail costs beside: round trips, MiB at either end."""
    socket = Path(rig.folder, f"master-{rtt_ms}")
    master = [*rig.ssh, "-o", "ControlPersist=yes", "-o", f"ControlPath={socket}"]
    done([*master, "-o", "ControlMaster=yes", "-f", "-N", rig.where])
    with rig.lab.session() as session:
        host, settings = session.host, session.host_settings
        host.link()
        before, used = rig.proxy.counted(), _peak_mib()
        assert len(tail(host, settings, rig.run)) == LINES
        trips = rig.proxy.counted().since(before).round_trips
        assert rig.sshd.process is not None
        agent = descendant(rig.sshd.process.pid, "-I")
        there = _high_water_mib(agent)
        here = _peak_mib() - used

        def ours() -> float:
            began = time.perf_counter()
            tail(host, settings, rig.run)
            return time.perf_counter() - began

        def by_hand() -> float:
            began = time.perf_counter()
            subprocess.run(
                [*master, rig.where, f"tail -{LINES} {rig.log}"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            return time.perf_counter() - began

        taken = in_turns([Peer("ours", ours), Peer("ssh tail", by_hand)], rounds)
    done([*master, "-O", "exit", rig.where])
    return taken, f"{trips} round trips, {there:.0f} MiB in all there, {here:.1f} MiB more here"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _high_water_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", default="0,20,100", help="round-trip times in ms")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    told = parser.parse_args()
    rows = []
    with log_rig() as rig:
        with rig.log.open("r+b") as file:
            file.truncate(int(told.gigabytes * 1024) * MIB)
            file.seek(0, 2)
            file.write(b"\n")
            file.writelines(serving_log(64 * MIB))
        for rtt_ms in map(int, told.rtt.split(",")):
            with rig.at(rtt_ms):
                new = over_new_connections(rig, told.rounds)
                opened, cost = over_open_connections(rig, told.rounds, rtt_ms)
            for name, taken, more in (("new", new, ""), ("open", opened, cost)):
                ours, theirs = taken["ours"], taken["ssh tail"]
                seconds = [f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}"]
                rows.append([str(rtt_ms), name, *seconds, more])
    columns = ["RTT, ms", "connection", "ours, s", "ssh tail, s", "ratio", "ours costs"]
    table(f"The last {LINES} lines of {told.gigabytes:g} GB", columns, rows)


if __name__ == "__main__":
    main()
