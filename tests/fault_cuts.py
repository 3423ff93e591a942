"""Cut a task's connection at random moments: `python -m tests.fault_cuts --cuts 100`.

Each time the host must have no half state, the same task given again must carry on, no line of a
log may be lost or doubled, and what runs on the host must be unharmed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_lab import FaultLab, impatient, unless_locked
from fault_proxy import Fault, FaultProxy, Kind, Towards
from hosts import eventually
from patch_lab import ANSWER, CORE, VERSIONS, edited
from rig import OpenSSH

from remote import benching, diagnosing, experiment, inspecting, logs, patch_work
from remote.benching import BenchOptions
from remote.core.bench_plan import Asked
from remote.errors import ConfigError, SSHError, ToolError
from remote.experiment import DeployOptions
from remote.ledger import Ledger
from remote.payload import bench_folder, procs, runs
from remote.planning import PatchChoice
from remote.session import Session

PATCHED = edited(VERSIONS["0.6.3"][CORE], CORE, [ANSWER])


class Errand(ABC):
    """One task on a host of its own, and what must hold whatever becomes of its connection."""

    def __init__(self, lab: FaultLab) -> None:
        self.lab = lab

    def prepare(self) -> None:
        """Bring the host to where the task begins."""
        assert not self.lab.living()

    @abstractmethod
    def work(self, session: Session) -> None:
        """The task."""

    def again(self, session: Session) -> None:
        """The same task by who was cut off."""
        self.work(session)

    @abstractmethod
    def between(self) -> None:
        """What holds when nobody works on the host any more."""

    @abstractmethod
    def done(self, session: Session) -> None:
        """What holds once the task has come to its end."""


class Deploy(Errand):
    """A patch and a start."""

    def work(self, session: Session) -> None:
        options = DeployOptions(patches=PatchChoice(added=(ANSWER,)), bundle=False)
        experiment.deploy_profile(session, "plain", options)

    def between(self) -> None:
        state = self.lab.state
        home = Path(state) / "runs"
        folders = {path.name for path in home.iterdir()} if home.exists() else set()
        assert folders == set(runs.ids(state)), "a run is half made"
        assert len(folders) <= 1
        for run in folders:
            assert runs.server_process(state, run) is not None or not _settled(state, run)
        content = self.lab.patches.path(CORE).read_bytes()
        assert content in (VERSIONS["0.6.3"][CORE], PATCHED)
        assert not folders or content == PATCHED

    def done(self, session: Session) -> None:
        (run,) = runs.ids(self.lab.state)
        assert set(self.lab.living()) == {run}
        assert self.lab.patches.path(CORE).read_bytes() == PATCHED
        assert patch_work.verify(session)["holds"]
        there = runs.look(self.lab.state, run)
        assert there["outcome"]["outcome"] == "ready"
        local = session.local(run)
        assert local.log_path.read_bytes() == self.lab.log(run).read_bytes()
        row, *earlier = Ledger(session.settings.runs).runs()
        assert (row.id, row.outcome) == (run, "ready")
        # One that was cut before the host had it stands as begun until it is missed there.
        assert {each.outcome for each in earlier} <= {"started", "not_started"}


def _settled(state: str, run: str) -> bool:
    """Whether a run's start script has come as far as its server."""
    return runs.written_pid(state, run) is not None


LINES = [f"line {number} of the log" for number in range(400)]


class Logs(Errand):
    """A log followed while it is written."""

    def prepare(self) -> None:
        self.run = self.lab.start(
            "for number in range(400):\n"
            "    say(f'line {number} of the log')\n"
            "    time.sleep(0.001)\n"
        )

    def work(self, session: Session) -> None:
        self.seen: list[str] = []
        for line in logs.lines(
            session.host,
            session.host_settings,
            self.run,
            logs.Selection(),
            follow=True,
            clock=session.clock,
            tell=lambda text: None,
        ):
            self.seen.append(line)

    def between(self) -> None:
        assert self.seen == LINES[: len(self.seen)]
        eventually(lambda: runs.exit_status(self.lab.state, self.run) == 0)

    def done(self, session: Session) -> None:
        assert self.seen == LINES


class Pull(Errand):
    """A log of some MiB."""

    def prepare(self) -> None:
        self.run = self.lab.serve()
        with self.lab.log(self.run).open("ab") as file:
            for number in range(20000):
                file.write(f"{number} {random.Random(number).getrandbits(256):x}\n".encode())

    def work(self, session: Session) -> None:
        diagnosing.pull(session, self.run)

    def between(self) -> None:
        assert set(self.lab.living()) == {self.run}
        kept = self.lab.folder / "client" / "runs" / self.run / "server.log"
        if kept.exists():
            assert self.lab.log(self.run).read_bytes().startswith(kept.read_bytes())

    def done(self, session: Session) -> None:
        kept = session.local(self.run).log_path
        assert kept.read_bytes() == self.lab.log(self.run).read_bytes()


class Evidence(Pull):
    """The log with everything that is told of the processes: some seconds each time."""

    def work(self, session: Session) -> None:
        inspecting.pull(session, self.run)


class Patch(Errand):
    """A set applied."""

    def work(self, session: Session) -> None:
        patch_work.apply(session, ANSWER)

    def between(self) -> None:
        content = self.lab.patches.path(CORE).read_bytes()
        assert content in (VERSIONS["0.6.3"][CORE], PATCHED)

    def done(self, session: Session) -> None:
        assert patch_work.verify(session)["holds"]
        assert self.lab.patches.path(CORE).read_bytes() == PATCHED


class Bench(Errand):
    """Two points measured."""

    def prepare(self) -> None:
        self.run = self.lab.serve()
        self.pid = runs.written_pid(self.lab.state, self.run)
        self.lab.venv.measure("time.sleep(0.1); result()")

    def work(self, session: Session) -> None:
        asked = Asked(concurrency="1,4", input_len="8", output_len="4", prompts="8", repeats="1")
        self._measure(session, BenchOptions(asked, bundle=False))

    def again(self, session: Session) -> None:
        try:
            self._measure(session, BenchOptions(resume=True, bundle=False))
        except ConfigError as error:
            assert "was begun" in error.message
            self.work(session)

    def _measure(self, session: Session, options: BenchOptions) -> None:
        self.report = benching.run_bench(session, self.run, options)

    def between(self) -> None:
        assert runs.written_pid(self.lab.state, self.run) == self.pid
        assert set(self.lab.living()) == {self.run}
        assert len(bench_folder.ids(self.lab.state, self.run)) <= 1

    def done(self, session: Session) -> None:
        self.between()
        points = [(point["level"], point["valid"]) for point in self.report["points"]]
        assert points == [(1, True), (4, True)], self.report
        rows = Path(self.report["folder"], "points.jsonl").read_text().splitlines()
        assert sorted(json.loads(row)["level"] for row in rows) == [1, 4]
        (bench,) = bench_folder.ids(self.lab.state, self.run)
        assert not procs.marked(bench_folder.BENCH_VARIABLE, bench)


ERRANDS: dict[str, type[Errand]] = {
    "deploy": Deploy,
    "logs": Logs,
    "bench": Bench,
    "patch": Patch,
    "pull": Pull,
    "evidence": Evidence,
}


class Cuts:
    """Faults of one kind of errand, each on a host of its own behind the same sshd."""

    def __init__(self, folder: Path, sshd: OpenSSH, name: str, seed: int) -> None:
        self._folder, self._sshd, self._name = folder, sshd, name
        self._random = random.Random(f"{seed} {name}")

    def run(self, count: int) -> Iterator[tuple[Fault, bool]]:
        """Each fault, and whether the task got over it by itself.

        Raises:
            AssertionError: with the fault in its notes.
        """
        with impatient():
            start, whole = self._sizes()
            for number in range(count):
                fault = self._fault(number, start, whole)
                try:
                    yield fault, self._one(number, fault)
                except (AssertionError, ToolError) as error:
                    raise AssertionError(f"{self._name}, {number}: {fault}: {error!r}") from error

    def _fault(self, number: int, start: dict[Towards, int], whole: dict[Towards, int]) -> Fault:
        kind = Kind.FREEZE if number % 10 == 9 else (Kind.CUT, Kind.RESET)[number % 2]
        towards = self._random.choice(list(Towards))
        # Most bytes are the handshake and the agent itself; most moments are not.
        low, high = (1, start[towards]) if number % 4 == 0 else (start[towards], whole[towards])
        return Fault(kind, towards, self._random.randint(low, max(low, high - 1)))

    def _sizes(self) -> tuple[dict[Towards, int], dict[Towards, int]]:
        """Bytes each way until the agent answers, and of the whole task."""
        found = []
        for whole in (False, True):
            proxy = FaultProxy(self._sshd.port)
            lab = FaultLab(self._folder / f"whole-{whole}", self._sshd, proxy)
            errand = ERRANDS[self._name](lab)
            with lab.session() as session:
                if whole:
                    errand.prepare()
                    errand.work(session)
                else:
                    session.host.call("runs.ids", state=lab.state)
                found.append({towards: proxy.carried(towards) for towards in Towards})
                if whole:
                    errand.between()
                    errand.done(session)
            lab.close()
            proxy.close()
        return found[0], found[1]

    def _one(self, number: int, fault: Fault) -> bool:
        proxy = FaultProxy(self._sshd.port, delay_s=self._random.choice((0.0, 0.0, 0.01)))
        lab = FaultLab(self._folder / str(number), self._sshd, proxy)
        errand = ERRANDS[self._name](lab)
        try:
            errand.prepare()
            proxy.spoil([fault])
            with lab.session() as session:
                alone = True
                try:
                    errand.work(session)
                except SSHError as error:
                    assert error.exit_code == 255 and error.hint
                    alone = False
            proxy.heal()
            lab.let_go()
            errand.between()
            with lab.session() as session:
                if not alone:
                    unless_locked(lambda: errand.again(session))
                errand.done(session)
            return alone
        finally:
            lab.close()
            proxy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=100, help="of each task (default 100)")
    parser.add_argument("--task", choices=list(ERRANDS), action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sshd = OpenSSH(Path(folder) / "sshd")
        sshd.start()
        try:
            for name in told.task or ERRANDS:
                began = time.monotonic()
                cuts = Cuts(Path(folder) / name, sshd, name, told.seed)
                alone = [by_itself for _, by_itself in cuts.run(told.cuts)]
                print(
                    f"{name}: {len(alone)} cuts, {sum(alone)} got over by itself,"
                    f" {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        finally:
            sshd.stop()


if __name__ == "__main__":
    main()
