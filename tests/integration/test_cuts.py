"""Connections that are cut, reset and frozen over a real sshd, at random moments (seeded).

A hundred of each task: `python -m tests.fault_cuts --cuts 100`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_cuts import Cuts
from fault_lab import FaultLab, impatient
from fault_proxy import Fault, FaultProxy, Kind, Towards
from hosts import eventually
from rig import Client, Done, OpenSSH

from remote.errors import SSHError
from remote.payload import procs, runs

CUTS = 20


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSSH]:
    server = OpenSSH(
        tmp_path_factory.mktemp("cuts") / "sshd", options=("MaxStartups 100", "MaxSessions 100")
    )
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("task", ["deploy", "logs", "bench", "patch", "pull"])
def test_cut_at_random_moments_nothing_is_half_and_the_next_call_carries_on(
    tmp_path: Path, sshd: OpenSSH, task: str
) -> None:
    faults = [fault for fault, _ in Cuts(tmp_path, sshd, task, seed=6).run(CUTS)]
    assert len(faults) == CUTS
    assert {fault.kind for fault in faults} == set(Kind)


def test_a_link_that_freezes_while_it_is_opened_is_given_up(tmp_path: Path, sshd: OpenSSH) -> None:
    """At any byte of handshake, login, session and start."""

    def carried() -> int:
        proxy = FaultProxy(sshd.port)
        lab = FaultLab(tmp_path / "whole", sshd, proxy)
        with lab.session() as session:
            session.host.call("runs.ids", state=lab.state)
        proxy.close()
        return proxy.carried(Towards.CLIENT)

    def frozen(after: int) -> str:
        proxy = FaultProxy(sshd.port)
        proxy.spoil([Fault(Kind.FREEZE, Towards.CLIENT, after)])
        lab = FaultLab(tmp_path / str(after), sshd, proxy)
        with lab.session() as session, pytest.raises(SSHError) as lost:
            session.host.call("runs.ids", state=lab.state)
        proxy.close()
        return lost.value.message

    whole = carried()
    with impatient(), ThreadPoolExecutor(8) as pool:
        said = list(pool.map(frozen, range(1, whole, whole // 16), timeout=120))
    assert len(said) >= 16
    assert any("no sign of life" in message for message in said)
    assert any("no SSH server answers" in message for message in said)
    assert not [message for message in said if "does not speak SSH" in message]


TASKS = {
    "deploy": ("deploy", "plain"),
    "logs": ("logs", "--follow"),
    "bench": ("bench", "--concurrency", "1,4", "--prompts", "8", "--repeats", "1"),
    "patch": ("patch.apply", "mine/answer"),
    "pull": ("pull",),
}


def test_a_link_that_freezes_and_stays_so_ends_every_task_by_itself(
    tmp_path: Path, sshd: OpenSSH
) -> None:
    def frozen(name: str) -> tuple[Done, Done]:
        proxy = FaultProxy(sshd.port)
        lab = FaultLab(tmp_path / name, sshd, proxy)
        ssh = {"redial_s": 2, "connect_timeout_s": 3}
        client = Client(
            tmp_path / name / "project",
            {"gpu": lab.entry()},
            {"ssh": ssh, "templates": str(lab.patches.templates)},
        )
        try:
            run = None if name in ("deploy", "patch") else lab.serve()
            with lab.session() as session:
                session.host.call("runs.ids", state=lab.state)
            begun = proxy.carried(Towards.CLIENT)
            proxy.spoil([Fault(Kind.FREEZE, Towards.CLIENT, begun + 400, stays=True)])
            lost = client.inv(*TASKS[name])
            assert proxy.struck == 1
            proxy.heal()
            lab.let_go()
            if run is not None:  # what runs there goes on
                assert runs.server_process(lab.state, run) is not None
                assert procs.members(run)
            if name != "logs":
                return lost, client.inv(*TASKS[name])
            follow = client.start(*TASKS[name])
            assert follow.stdout is not None and follow.stdout.readline()
            lab.close()
            stdout, stderr = follow.communicate(timeout=60)
            return lost, Done(follow.returncode, stdout, stderr)
        finally:
            lab.close()
            proxy.close()

    with ThreadPoolExecutor(len(TASKS)) as pool:
        ends = dict(zip(TASKS, pool.map(frozen, TASKS), strict=True))
    for name, (lost, again) in ends.items():
        assert lost.status == 255, (name, lost.output)
        assert "no sign of life for 15 s" in lost.stderr, (name, lost.stderr)
        assert "hint:" in lost.stderr
        assert again.status == 0, (name, again.output)


def test_a_slow_and_narrow_link_carries_everything(tmp_path: Path, sshd: OpenSSH) -> None:
    proxy = FaultProxy(sshd.port, delay_s=0.1, bytes_per_s=200_000)
    lab = FaultLab(tmp_path / "lab", sshd, proxy)
    client = Client(
        tmp_path / "project", {"gpu": lab.entry()}, {"templates": str(lab.patches.templates)}
    )
    try:
        deployed = client.inv("deploy", "plain", "--add-patch", "mine/answer")
        assert deployed.status == 0, deployed.output
        (run,) = runs.ids(lab.state)
        wanted = [f"line {number}" for number in range(500)]
        with lab.log(run).open("a") as file:
            file.write("\n".join(wanted) + "\n")
        shown = client.inv("logs", "--tail", "500")
        assert shown.status == 0 and shown.stdout.splitlines() == wanted
        rolled = client.inv("rollback-patch")
        assert rolled.status == 0, rolled.output
        eventually(lambda: procs.members(run))
        assert client.inv("stop").status == 0
    finally:
        lab.close()
        proxy.close()
