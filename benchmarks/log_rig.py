"""A run's log on a host behind a link of any length, and OpenSSH's own way to it."""

from __future__ import annotations

import getpass
import pickle  # nosec B403: to this process's own children
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests"))

from counting_proxy import CountingProxy  # noqa: E402
from fault_lab import FaultLab  # noqa: E402
from rig import OpenSSH  # noqa: E402

MIB = 1024 * 1024


class LogRig:
    """A server that serves, its log, and the link to both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sshd = OpenSSH(folder / "sshd", options=("MaxStartups 100", "MaxSessions 100"))
        self.sshd.start()
        self.proxy = CountingProxy(self.sshd.port)
        self.lab = FaultLab(folder / "host", self.sshd, self.proxy)
        self.run = self.lab.serve()
        self.log = self.lab.log(self.run)
        (folder / "settings").write_bytes(pickle.dumps(self.lab.settings))

    @contextmanager
    def at(self, rtt_ms: int) -> Iterator[None]:
        """A link with that round-trip time, for connections made in the block."""
        self.proxy.delay_s = rtt_ms / 2000
        try:
            yield
        finally:
            self.proxy.delay_s = 0.0

    @property
    def ssh(self) -> list[str]:
        """OpenSSH's client with all that it needs, but for where to."""
        known = self.lab.settings.known_hosts
        options = (f"UserKnownHostsFile={known}", "IdentitiesOnly=yes", "BatchMode=yes")
        words = ["ssh", "-F", "none", "-p", str(self.proxy.port), "-i", str(self.sshd.identity)]
        return [*words, *(word for option in options for word in ("-o", option))]

    @property
    def where(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    def child(self, what: str, *words: str) -> list[str]:
        """This tool in a process of its own; see `benchmarks.log_child`."""
        return self.child_of(self.run, what, *words)

    def child_of(self, run: str, what: str, *words: str) -> list[str]:
        """The same for another run of this host."""
        told = [what, str(self.folder / "settings"), run, *words]
        return [sys.executable, "-m", "benchmarks.log_child", *told]

    def close(self) -> None:
        self.lab.close()
        self.proxy.close()
        self.sshd.stop()


@contextmanager
def log_rig() -> Iterator[LogRig]:
    with tempfile.TemporaryDirectory(prefix="sglang-remote-") as folder:
        rig = LogRig(Path(folder))
        try:
            yield rig
        finally:
            rig.close()


def serving_log(size: int) -> Iterator[bytes]:
    """Blocks of a log as a serving process writes it, with figures that differ (seeded)."""
    figures = random.Random(1)
    written, second = 0, 0
    while written < size:
        lines = []
        for _ in range(2000):
            second += figures.random() < 0.2
            stamp = f"[2026-11-{1 + second // 86400 % 28:02d} {second // 3600 % 24:02d}:"
            stamp += f"{second // 60 % 60:02d}:{second % 60:02d}"
            kind = figures.random()
            port, rank = figures.randrange(30000, 60000), figures.randrange(8)
            tokens, share = figures.randrange(1, 90000), figures.random()
            if kind < 0.5:
                lines.append(
                    f"{stamp} TP{rank}] Decode batch, #running-req: {port % 64}, #token: {tokens},"
                    f" token usage: {share:.2f}, cuda graph: True, gen throughput (token/s):"
                    f" {share * 2000:.2f}, #queue-req: {port % 3}, "
                )
            elif kind < 0.7:
                lines.append(
                    f"{stamp} TP{rank}] Prefill batch, #new-seq: 1, #new-token: {tokens % 4096},"
                    f" #cached-token: {tokens % 512}, token usage: {share:.2f}, #running-req:"
                    f" {port % 64}, #queue-req: 0, "
                )
            else:
                lines.append(
                    f'{stamp}] INFO:     10.0.{port % 256}.{rank}:{port} - "POST'
                    ' /v1/chat/completions HTTP/1.1" 200 OK'
                )
        block = ("\n".join(lines) + "\n").encode()
        written += len(block)
        yield block


class Peer(NamedTuple):
    """One way of doing it; `once` does it and says how many seconds it took."""

    name: str
    once: Callable[[], float]


def in_turns(peers: Sequence[Peer], rounds: int) -> dict[str, float]:
    """The median of each; in turns, so that what else the machine does falls on all of them."""
    taken: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            taken[peer.name].append(peer.once())
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n")
    for row in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def cpu_s(pid: int) -> float:
    """Seconds on a CPU that a process has had, all its threads, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def descendant(root: int, word: str) -> int:
    """The process below another one whose command line has that word."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                told = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(told[1])
    for pid in sorted(parents, reverse=True):
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    raise ProcessLookupError(word)


def done(command: Sequence[str]) -> None:
    """Run a command to its end, its output thrown away.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=PROJECT)
