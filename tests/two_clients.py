"""Two people deploy, bench, patch and roll back against each other: `python -m tests.two_clients`.

In every round one wins at least, who loses is told whom it met and exits 15, and nothing is lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

from fault_lab import FaultLab
from patch_lab import ANSWER, CORE, VERSIONS, edited
from rig import OpenSSH

from remote import benching, experiment, patch_work
from remote.benching import BenchOptions
from remote.core.bench_plan import Asked
from remote.errors import Locked, ToolError
from remote.experiment import DeployOptions
from remote.ledger import Ledger
from remote.payload import bench_folder, lock, procs, runs
from remote.planning import PatchChoice
from remote.session import Session

PEOPLE = ("ann", "bob")
CONTENT = {False: VERSIONS["0.6.3"][CORE], True: edited(VERSIONS["0.6.3"][CORE], CORE, [ANSWER])}
ONE_POINT = Asked(concurrency="2", input_len="8", output_len="4", prompts="8", repeats="1")


def deploy(session: Session) -> str:
    """Start anew, patched; the run."""
    choice = PatchChoice(added=(ANSWER,))
    options = DeployOptions(patches=choice, restart=True, bundle=False)
    return str(experiment.deploy_profile(session, "plain", options)["run"])


def bench(session: Session) -> str:
    """One point of the newest run; the bench."""
    report = benching.run_bench(
        session, None, BenchOptions(ONE_POINT, bundle=False), session.record.point
    )
    (point,) = report["points"]
    assert point["valid"], point
    return str(point["bench"])


def rollback(session: Session) -> str:
    patch_work.rollback(session, None)
    return "rolled back"


def apply(session: Session) -> str:
    patch_work.apply(session, ANSWER)
    return "applied"


TASKS = (deploy, bench, rollback, apply)


@contextmanager
def people() -> Iterator[None]:
    """Each thread is the person that it is named after."""

    def whoami() -> dict[str, str]:
        name = threading.current_thread().name
        return {"user": name, "client": f"{name}'s desk"}

    with patch("remote.host_lock.whoami", whoami), patch("remote.recording.whoami", whoami):
        yield


class Contest:
    """The two on one host; ``won`` are the answers of each one's tasks that came to their end."""

    def __init__(self, folder: Path, sshd: OpenSSH, seed: int) -> None:
        self.lab = FaultLab(folder, sshd)
        self.won: dict[str, list[tuple[str, str]]] = {name: [] for name in PEOPLE}
        self.ends: Counter[str] = Counter()
        self._random = random.Random(seed)

    def fight(self, rounds: int) -> None:
        with people(), ThreadPoolExecutor(1, "check") as checker:
            self._in_turn("ann", 0)
            for _ in range(rounds):
                start = threading.Barrier(2)
                chosen = [self._random.randrange(len(TASKS)) for _ in PEOPLE]
                found: list[bool | BaseException] = []
                threads = [
                    threading.Thread(target=self._kept, args=(found, start, name, task), name=name)
                    for name, task in zip(PEOPLE, chosen, strict=True)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(120)
                    assert not thread.is_alive()
                for each in found:
                    if isinstance(each, BaseException):
                        raise each
                assert any(found), [TASKS[task].__name__ for task in chosen]
                checker.submit(self.check).result()

    def _kept(
        self, found: list[bool | BaseException], start: threading.Barrier, name: str, task: int
    ) -> None:
        try:
            start.wait()
            found.append(self._in_turn(name, task))
        except BaseException as error:
            found.append(error)

    def _in_turn(self, name: str, number: int) -> bool:
        """Whether the task came to its end, or was told that the other one stands in its way."""
        task = TASKS[number]
        with self.lab.session(client=name) as session:
            try:
                answer = task(session)
            except Locked as refusal:
                assert refusal.exit_code == 15 and refusal.evidence and refusal.hint
                self.ends[f"{task.__name__} refused"] += 1
                return False
            except ToolError as error:
                # The other one replaces the server: there is nothing to measure.
                assert task is bench, error
                assert "serv" in error.message, error
                self.ends["bench without a server"] += 1
                return False
        self.won[name].append((task.__name__, answer))
        self.ends[f"{task.__name__} done"] += 1
        return True

    def check(self) -> None:
        """Nothing is half done on the host, and each one's ledger has what it won."""
        state = self.lab.state
        assert lock.look(state)["holder"] is None
        assert len(self.lab.living()) <= 1
        assert {path.name for path in (Path(state) / "runs").iterdir()} == set(runs.ids(state))
        with self.lab.session(client="checker") as session:
            report = patch_work.verify(session)
        assert report["holds"] and not report["interrupted"]
        applied = bool(report["applied"])
        assert self.lab.patches.path(CORE).read_bytes() == CONTENT[applied]
        for run in runs.ids(state):
            for begun in bench_folder.ids(state, run):
                assert not procs.marked(bench_folder.BENCH_VARIABLE, begun)
                points = bench_folder.points(bench_folder.folder(state, run, begun))
                assert [point["state"] for point in points] == ["done"]
        for name in PEOPLE:
            self._check_ledger(name)

    def _check_ledger(self, name: str) -> None:
        ledger = Ledger(self.lab.folder / name / "runs")
        outcomes = {row.id: row.outcome for row in ledger.runs()}
        measured = {point["bench"] for point in ledger.points()}
        happened = Counter(event.what for event in ledger.events() if "error" not in event.details)
        for task, answer in self.won[name]:
            if task == "deploy":
                assert outcomes[answer] in ("ready", "stopped"), (answer, outcomes[answer])
            elif task == "bench":
                assert answer in measured
        tasks = Counter(task for task, _ in self.won[name])
        assert happened["rollback"] == tasks["rollback"]
        assert happened["patch"] == tasks["apply"]
        assert happened["deploy"] == tasks["deploy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sshd = OpenSSH(Path(folder) / "sshd")
        sshd.start()
        contest = Contest(Path(folder) / "lab", sshd, told.seed)
        try:
            contest.fight(told.rounds)
            for what, count in sorted(contest.ends.items()):
                print(f"{count:4} {what}")
        finally:
            contest.lab.close()
            sshd.stop()


if __name__ == "__main__":
    main()
