"""What reading a log costs on the wire once the connection stands: round trips, counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from counting_proxy import Counted, CountingProxy
from fault_lab import FaultLab
from rig import OpenSSH

from remote import diagnosing, overview
from remote.session import Session

#: Long enough that what is sent in one go is one flight on a machine that does other work too.
DELAY_S = 0.02

MIB = 1024 * 1024


class Wire:
    """A run that serves on a host behind the proxy."""

    def __init__(self, lab: FaultLab, proxy: CountingProxy) -> None:
        self.lab, self.proxy = lab, proxy
        self.run = lab.serve()
        self.log = lab.log(self.run)
        with lab.session() as session:  # the payload's code is kept there from now on
            session.host.call("runs.ids", state=lab.state)

    def cost(self, task: Callable[[Session], object]) -> Counted:
        """What a task costs beyond login, and beyond the session where that is open already."""
        with self.lab.session() as session:
            session.host.link()
            before = self.proxy.counted()
            task(session)
            return self.proxy.counted().since(before)

    def kept(self) -> bytes:
        """The copy of the log here."""
        return (self.lab.folder / "client" / "runs" / self.run / "server.log").read_bytes()


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("wire")
    sshd = OpenSSH(folder / "sshd")
    sshd.start()
    with CountingProxy(sshd.port, DELAY_S) as proxy:
        made = Wire(FaultLab(folder / "host", sshd, proxy), proxy)
        yield made
        made.lab.close()
    sshd.stop()


def tail(session: Session) -> object:
    return overview.print_logs(session, None, 200, None, None, follow=False)


def test_the_end_of_a_log_of_ten_gigabytes(wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line {number} {random.Random(number).getrandbits(400):x}" for number in range(500)]
    size = wire.log.stat().st_size
    with wire.log.open("r+b") as file:
        file.truncate(10 * 1024 * MIB)
        file.seek(0, 2)
        file.write(("\n" + "\n".join(lines) + "\n").encode())
    spent = wire.cost(tail)
    assert capsys.readouterr().out.splitlines() == lines[-200:]
    assert spent.round_trips <= 3  # session, command, answer
    assert spent.bytes_in < 64 * 1024
    with wire.log.open("r+b") as file:
        file.truncate(size)


def test_what_is_new_of_a_log(wire: Wire) -> None:
    def pull(session: Session) -> object:
        session.host.call("runs.ids", state=wire.lab.state)
        before = wire.proxy.counted()
        diagnosing.pull(session, wire.run)
        spent.append(wire.proxy.counted().since(before))
        return None

    spent: list[Counted] = []
    wire.cost(pull)
    wire.cost(pull)
    assert spent[-1].round_trips == 1  # with nothing new
    for number in range(3):
        steps = [
            b"[2026-11-29 12:00:%02d] Decode batch, #running-req: %d, gen throughput: %d.1\n"
            % (n % 60, n % 7, random.Random(n + number).getrandbits(12))
            for n in range(MIB // 70)
        ]
        with wire.log.open("ab") as file:
            file.writelines(steps)
        wire.cost(pull)
        assert wire.kept() == wire.log.read_bytes()
        # Compressed it is a fifth; the window leaves no room for a question in between.
        assert spent[-1].bytes_in < MIB / 3
        assert spent[-1].round_trips <= 4
