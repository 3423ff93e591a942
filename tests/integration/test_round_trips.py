"""What each task costs on the wire: connections, sessions, round trips and segments, counted.

Seconds differ from machine to machine, these don't: whoever adds a round trip sees it fail here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
from counting_proxy import CountingProxy
from fault_lab import FaultLab
from patch_lab import ANSWER
from rig import Client, OpenSSH

#: Long enough that what is sent in one go is one flight on a machine that does other work too.
DELAY_S = 0.02

DEPLOY = ("deploy", "plain", "--add-patch", ANSWER)


@dataclass(frozen=True)
class Cost:
    """What a task costs, or may cost.

    Attributes:
        sessions: commands that sshd started.
        round_trips: see `counting_proxy.Counted`.
        packets: segments with data, both ways. Two that are written at once may travel as one, so
            a limit is a little above what is seen; those of the other three are exact.
    """

    connections: int
    sessions: int
    round_trips: int
    packets: int


#: The most that a task may cost. Lower one when the task has learnt to do with less.
LIMITS = {
    "first contact": Cost(1, 1, 12, 84),
    "deploy": Cost(1, 1, 11, 33),
    "deploy, nothing changed": Cost(1, 1, 10, 28),
    "status": Cost(1, 1, 9, 25),
    "logs --tail": Cost(1, 1, 9, 27),
    "pull, nothing new": Cost(1, 1, 16, 60),
    "stop": Cost(1, 1, 11, 30),
}


class Wire:
    """A host behind the proxy and a client of it."""

    def __init__(self, folder: Path, sshd: OpenSSH, proxy: CountingProxy) -> None:
        self.lab = FaultLab(folder, sshd, proxy)
        settings = {"templates": str(self.lab.patches.templates)}
        self._client = Client(folder / "project", {"lab": self.lab.entry()}, settings)
        self.sshd, self.proxy = sshd, proxy

    def inv(self, *words: str) -> Cost:
        """Run a task, which must end well; what it cost."""
        before, sessions = self.proxy.counted(), self.sshd.sessions()
        done = self._client.inv(*words)
        assert done.status == 0, done.output
        spent = self.proxy.settle().since(before)
        return Cost(
            spent.connections,
            self.sshd.sessions() - sessions,
            spent.round_trips,
            spent.data_packets,
        )


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("wire")
    sshd = OpenSSH(folder / "sshd")
    sshd.start()
    with CountingProxy(sshd.port, DELAY_S) as proxy:
        made = Wire(folder / "host", sshd, proxy)
        yield made
        made.lab.close()
    sshd.stop()


@pytest.fixture(scope="module")
def costs(wire: Wire) -> dict[str, Cost]:
    """Each task in turn, from a host that has never been seen to one that serves and stops."""
    found = {"first contact": wire.inv(*DEPLOY)}
    wire.inv("stop")
    wire.inv("rollback-patch")
    # What the host's interpreters answer is known there by now; the files are gone.
    found["deploy"] = wire.inv(*DEPLOY)
    found["deploy, nothing changed"] = wire.inv(*DEPLOY)
    found["status"] = wire.inv("status")
    found["logs --tail"] = wire.inv("logs", "--tail", "5")
    wire.inv("pull")
    found["pull, nothing new"] = wire.inv("pull")
    found["stop"] = wire.inv("stop")
    return found


@pytest.mark.parametrize("task", LIMITS)
def test_a_task_costs_no_more_than_it_needs(costs: dict[str, Cost], task: str) -> None:
    cost, limit = costs[task], LIMITS[task]
    over = [
        f"{name}: {found}, at most {most}"
        for name, found, most in zip(
            Cost.__dataclass_fields__, astuple(cost), astuple(limit), strict=True
        )
        if found > most
    ]
    assert not over, f"inv {task}: {'; '.join(over)}"


def test_one_more_question_is_one_more_round_trip(wire: Wire) -> None:
    """What the limits rest on."""
    with wire.lab.session() as session:
        session.host.call("runs.ids", state=wire.lab.state)
        found = [wire.proxy.counted().round_trips]
        for _ in range(3):
            session.host.call("runs.ids", state=wire.lab.state)
            found.append(wire.proxy.counted().round_trips)
    assert found == [found[0] + more for more in range(4)]
