"""A server's log brought here: this tool against rsync -z, scp and ssh cat.

    python -m benchmarks.pull [--rtt 0,20,100] [--rounds 3] [--megabytes 200]

Each as a process of its own, connection included, in turns; medians, MB of log a second, and how
many times as fast as rsync -z this tool is. Ours takes secrets out of what it writes, too. Then
what is new: 1 MB more, and nothing. The link only delays: it has no slow start and no limit.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from benchmarks.log_rig import LogRig, Peer, done, in_turns, log_rig, serving_log, table
from remote import decoding
from remote.payload import compressing

MB = 1_000_000


def peers(rig: LogRig, *, anew: bool) -> list[Peer]:
    """Those that are installed; ``anew``: nothing is here yet."""
    kept = rig.folder / "kept"

    def timed(name: str, command: list[str], folder: Path) -> Peer:
        def once() -> float:
            if anew:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            done(command)
            return time.perf_counter() - began

        return Peer(name, once)

    found = [timed("ours", rig.child("pull", str(kept / "ours")), kept / "ours")]
    if rsync := shutil.which("rsync"):
        shell = " ".join(rig.ssh)
        words = [rsync, "-z", "-e", shell, "--rsync-path", rsync]
        if not anew:
            words.append("--append")
        words += [f"{rig.where}:{rig.log}", str(kept / "rsync")]
        found.append(timed("rsync -z", words, kept / "rsync"))
    if scp := shutil.which("scp"):
        options = ["-P" if word == "-p" else word for word in rig.ssh[1:]]
        words = [scp, "-q", *options, f"{rig.where}:{rig.log}", str(kept / "scp")]
        found.append(timed("scp", words, kept / "scp"))
    copy = f"{' '.join(rig.ssh)} {rig.where} 'cat {rig.log}' > {kept / 'cat' / 'server.log'}"
    found.append(timed("ssh cat", ["sh", "-c", copy], kept / "cat"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", default="0,20,100", help="round-trip times in ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=200)
    told = parser.parse_args()
    rows, fresh = [], []
    with log_rig() as rig:
        with rig.log.open("ab") as file:
            file.writelines(serving_log(told.megabytes * MB))
        size = rig.log.stat().st_size
        coding = compressing.choose(decoding.readable(), size)
        for rtt_ms in map(int, told.rtt.split(",")):
            with rig.at(rtt_ms):
                taken = in_turns(peers(rig, anew=True), told.rounds)
                ours, rsync = taken["ours"], taken.get("rsync -z")
                row = [f"{seconds:.2f} ({size / seconds / MB:.0f})" for seconds in taken.values()]
                rows.append([str(rtt_ms), *row, f"{rsync / ours:.2f}" if rsync else "–"])
                for what, more in (("1 MB", MB), ("nothing", 0)):
                    small = [p for p in peers(rig, anew=False) if p.name in ("ours", "rsync -z")]
                    seconds: dict[str, list[float]] = {peer.name: [] for peer in small}
                    for _ in range(told.rounds):
                        with rig.log.open("ab") as file:
                            file.writelines(serving_log(more))
                        for peer in small:
                            seconds[peer.name].append(peer.once())
                    middle = [sorted(each)[len(each) // 2] for each in seconds.values()]
                    fresh.append([str(rtt_ms), what, *(f"{each:.2f}" for each in middle)])
            names = list(taken)
    title = f"A log of {size / MB:.0f} MB, seconds (MB/s), ours in {coding}"
    table(title, ["RTT, ms", *names, "rsync / ours"], rows)
    table("What is new of it, seconds", ["RTT, ms", "new", *names[: len(fresh[0]) - 2]], fresh)


if __name__ == "__main__":
    main()
