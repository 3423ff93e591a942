"""Over a real sshd: killed, cut off or raced at every step, files are all before or all after."""

from __future__ import annotations

import getpass
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hosts import eventually
from interrupting import Interrupting
from patch_lab import ANSWER, CORE, HOOK, HOOK_CONTENT, HOOK_FILE, QUANT, VERSIONS, PatchLab, edited
from rig import Client, OpenSSH

from remote import overview, patch_work
from remote.config import Address, SSHSettings
from remote.core.unified_diff import written
from remote.errors import ConnectionLost, Locked, SSHError
from remote.session import Session
from remote.ssh import SSHHost

#: Changes one file, makes one and removes one.
ALL = "mine/all"
MADE = "flashinfer/made.py"
ORIGINALS = VERSIONS["0.6.3"]

Files = dict[str, tuple[bytes, int, int, int]]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSSH]:
    server = OpenSSH(tmp_path_factory.mktemp("kills") / "sshd")
    server.start()
    yield server
    server.stop()


class Reached:
    """A lab's venv behind sshd, with its files before and after the set ``ALL``."""

    def __init__(self, folder: Path, sshd: OpenSSH) -> None:
        self.lab = PatchLab(folder)
        self.interrupting = Interrupting(self.lab.venv, folder / "control")
        self.settings = replace(
            self.lab.settings,
            address=Address("127.0.0.1", getpass.getuser(), sshd.port),
            identity_file=sshd.identity,
            known_hosts=sshd.known_hosts,
            ssh_config="none",
        )
        diff = written(ORIGINALS[CORE], edited(ORIGINALS[CORE], CORE, [ANSWER]), CORE)
        diff += written(None, b"made = True\n", MADE) + written(ORIGINALS[QUANT], None, QUANT)
        self.lab.write_set(ALL, {"delivery": "edit", "edits": ["all.diff"]}, {"all.diff": diff})
        self.lab.path(CORE).chmod(0o640)
        self.lab.path(QUANT).chmod(0o755)
        if os.geteuid() == 0:  # only root can give files away, and must leave them so
            os.chown(self.lab.path(CORE), 12345, 23456)
        self.before = self.lab.files()
        _, *like = self.before[CORE]
        self.after = {**self.before, CORE: (edited(ORIGINALS[CORE], CORE, [ANSWER]), *like)}
        del self.after[QUANT]
        self.after[MADE] = (b"made = True\n", 0o644, os.geteuid(), os.getegid())

    def host(self, port: int | None = None) -> SSHHost:
        """A connection of its own, to sshd or to what stands before it on ``port``."""
        settings = self.settings
        if port is not None:
            settings = replace(settings, address=replace(settings.address, port=port))
            known = f"[127.0.0.1]:{port}"
            hosts = Path(str(settings.known_hosts))
            line = f"{known} {hosts.read_text().split(maxsplit=1)[1]}"
            through = self.lab.folder / f"known-{port}"
            through.write_text(line)
            settings = replace(settings, known_hosts=through)
        return SSHHost(settings, SSHSettings(10.0, False, 5.0, 60.0))

    def session(self, host: SSHHost) -> Session:
        return self.lab.session(host)

    def apply_and_roll_back(self, host: SSHHost) -> None:
        patch_work.apply(self.session(host), ALL)
        patch_work.rollback(self.session(host), None)

    def look(self, session: Session) -> dict[str, Any]:
        """What looks, looks; nothing is left half done without being said to be."""
        status: dict[str, Any] = overview.status(session)["patches"]
        (row,) = [row for row in patch_work.listed(session) if row["patch"] == ALL]
        report = patch_work.verify(session)
        now = self.files()
        if status["interrupted"]:
            assert row["state"] == "half applied" and not report["holds"]
        elif status["applied"]:
            assert now == self.after and row["state"] == "applied" and report["holds"]
        else:
            assert now == self.before and row["state"] == "not applied" and report["holds"]
        return status

    def files(self) -> Files:
        return self.lab.files()

    def mend(self, session: Session, apply_first: bool) -> None:
        """The next task brings the files to where it always brings them."""
        if apply_first:
            patch_work.apply(session, ALL)
            assert self.files() == self.after
            assert patch_work.verify(session)["holds"]
        patch_work.rollback(session, None)
        assert self.files() == self.before
        report = patch_work.verify(session)
        assert report == {"applied": [], "interrupted": False, "files": [], "holds": True}


@pytest.fixture
def reached(tmp_path: Path, sshd: OpenSSH) -> Iterator[Callable[[object], Reached]]:
    """Makes a lab of its own for each step."""
    yield lambda number: Reached(tmp_path / str(number), sshd)


def hold(session: Session) -> None:
    """Take the host's lock as soon as an agent that was left alone has ended."""

    def taken() -> bool:
        with suppress(Locked):
            who = {"task": "a look"}
            session.host.call("lock.take", state=session.host_settings.state, who=who)
            return True
        return False

    eventually(taken)


SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_agent_is_killed_at_every_step(
    reached: Callable[[object], Reached], shard: int
) -> None:
    half_done = 0
    for step in itertools.count(1 + shard, SHARDS):
        case = reached(step)
        case.interrupting.kill_before(step)
        host = case.host()
        killed = True
        with suppress(SSHError):
            case.apply_and_roll_back(host)
            killed = False
        host.close()
        again = case.host()
        half_done += case.look(case.session(again))["interrupted"]
        case.mend(case.session(again), apply_first=bool(step // SHARDS % 2))
        again.close()
        if not killed:
            break
    assert step > 60 and half_done > 5


@pytest.mark.parametrize("first", [2, 5])
def test_the_connection_is_cut_at_any_step_and_the_step_is_carried_to_its_end(
    reached: Callable[[object], Reached], sshd: OpenSSH, first: int
) -> None:
    with ThreadPoolExecutor(1) as pool:
        for step in range(first, 80, 6):
            case = reached(step)
            case.interrupting.wait_before(step)
            host = case.host()
            task = pool.submit(case.apply_and_roll_back, host)
            with case.interrupting.waiting():
                assert sshd.drop() > 0
                with pytest.raises(ConnectionLost):
                    task.result(30)
            host.close()
            again = case.host()
            session = case.session(again)
            # Held until the agent has ended: only then what it left is looked at.
            hold(session)
            assert not case.look(session)["interrupted"]
            case.mend(session, apply_first=True)
            again.close()


class Wire:
    """Forwards a port to sshd and cuts after so many bytes from the client."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.carried = 0

    def carry(self, budget: int) -> None:
        """One connection, until an end closes it or the budget is spent."""
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        back = threading.Thread(target=self._pump, args=(server, client))
        back.start()
        self.carried = 0
        with suppress(OSError):
            while self.carried < budget:
                chunk = client.recv(min(4096, budget - self.carried))
                if not chunk:
                    break
                self.carried += len(chunk)
                server.sendall(chunk)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()
        client.close()
        server.close()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                target.sendall(chunk)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def wire(sshd: OpenSSH) -> Iterator[Wire]:
    made = Wire(sshd.port)
    yield made
    made.close()


def test_the_connection_is_cut_after_any_number_of_bytes(
    reached: Callable[[object], Reached], wire: Wire
) -> None:
    def through(case: Reached, budget: int) -> bool:
        """Whether the task came to its end."""
        host = case.host(wire.port)
        carrying = pool.submit(wire.carry, budget)
        try:
            case.apply_and_roll_back(host)
        except SSHError:
            return False
        finally:
            host.close()
            carrying.result(30)
        return True

    with ThreadPoolExecutor(1) as pool:
        assert through(reached("whole"), 10**9)
        whole = wire.carried
        # Most of the bytes are the agent itself; the requests stand at the end.
        cuts = [whole * part // 8 for part in range(8)] + list(range(whole - 9000, whole, 500))
        ended = []
        for number, budget in enumerate(sorted(cuts)):
            case = reached(number)
            ended.append(through(case, budget))
            again = case.host()
            session = case.session(again)
            hold(session)
            assert not case.look(session)["interrupted"]
            case.mend(session, apply_first=bool(number % 2))
            again.close()
    assert ended.count(False) > 15


def test_two_users_at_once_one_wins_and_the_other_is_told_who(
    reached: Callable[[object], Reached],
) -> None:
    case = reached("both")
    other = case.host()
    with ThreadPoolExecutor(1) as pool:
        for step in range(4, 24):
            case.interrupting.wait_before(step)
            first = case.host()
            task = pool.submit(patch_work.apply, case.session(first), ALL)
            with case.interrupting.waiting():
                for attempt in (
                    partial(patch_work.apply, name=HOOK),
                    partial(patch_work.rollback, name=None),
                ):
                    with pytest.raises(Locked) as refusal:
                        attempt(case.session(other))
                    assert refusal.value.exit_code == 15
                    holder = f"patch.apply {ALL} by {getpass.getuser()}"
                    assert holder in refusal.value.evidence[0]
            task.result(30)
            first.close()
            assert case.files() == case.after
            patch_work.rollback(case.session(other), None)
            assert case.files() == case.before
    patch_work.apply(case.session(other), HOOK)
    assert case.files()[HOOK_FILE][0] == HOOK_CONTENT
    other.close()


def test_two_users_race_and_nothing_is_lost(reached: Callable[[object], Reached]) -> None:
    case = reached("race")
    hosts = case.host(), case.host()
    start = threading.Barrier(2)

    def task(number: int) -> bool:
        """Whether it won."""
        session = case.session(hosts[number])
        start.wait()
        try:
            patch_work.apply(session, (ALL, HOOK)[number])
        except Locked as refusal:
            assert refusal.exit_code == 15
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            tasks: list[Future[bool]] = [pool.submit(task, number) for number in (0, 1)]
            won = [each.result(30) for each in tasks]
            assert any(won)
            session = case.session(hosts[0])
            report = patch_work.verify(session)
            assert report["holds"]
            applied = {name for name, has in zip((ALL, HOOK), won, strict=True) if has}
            assert set(report["applied"]) == applied
            for name in {ALL, HOOK} - applied:
                patch_work.apply(session, name)
            hooked = (HOOK_CONTENT, 0o644, os.geteuid(), os.getegid())
            assert case.files() == {**case.after, HOOK_FILE: hooked}
            patch_work.rollback(session, None)
            assert case.files() == case.before
    for host in hosts:
        host.close()


@pytest.fixture
def typed(tmp_path: Path, sshd: OpenSSH) -> tuple[Reached, Client]:
    """A lab, and a project folder in which a user types tasks."""
    case = Reached(tmp_path / "lab", sshd)
    entry = {
        "address": f"{getpass.getuser()}@127.0.0.1:{sshd.port}",
        "venv": case.settings.venv,
        "model": case.settings.model,
        "port": case.settings.port,
        "state": case.settings.state,
        "identity_file": str(sshd.identity),
        "known_hosts": str(sshd.known_hosts),
        "ssh_config": "none",
    }
    return case, Client(
        tmp_path / "project", {"gpu": entry}, {"templates": str(case.lab.templates)}
    )


@pytest.mark.parametrize("step", [4, 14, 20, 28, 36])
def test_the_client_is_killed(typed: tuple[Reached, Client], step: int) -> None:
    case, client = typed
    case.interrupting.wait_before(step)
    task = client.start("patch.apply", ALL)
    with case.interrupting.waiting():
        locked = client.inv("rollback-patch")
        assert locked.status == 15 and f"patch.apply {ALL} by" in locked.stderr
        task.kill()
        task.communicate(timeout=30)
    host = case.host()
    hold(case.session(host))
    assert not case.look(case.session(host))["interrupted"]
    host.close()
    applied = client.inv("patch.apply", ALL)
    assert applied.status == 0, applied.output
    assert case.files() == case.after
    rolled = client.inv("rollback-patch", "--json")
    assert rolled.status == 0, rolled.output
    assert case.files() == case.before


def test_what_a_user_sees_of_a_patch_that_was_interrupted(typed: tuple[Reached, Client]) -> None:
    case, client = typed
    # The part of the tool that runs there is kept there by then; to keep it takes steps as well.
    assert client.inv("stop").status == 0
    case.interrupting.kill_before(28)
    killed = client.inv("patch.apply", ALL)
    assert killed.status == 255 and "the connection was lost" in killed.stderr
    assert case.files() not in (case.before, case.after)

    status = client.inv("status", "--json")
    assert status.status == 0 and status.json()["patches"]["interrupted"] is True
    listed = client.inv("patch", "--json")
    assert listed.status == 0
    assert {row["patch"]: row["state"] for row in listed.json()}[ALL] == "half applied"
    verified = client.inv("patch.verify", "--json")
    assert verified.status == 13
    assert verified.json()["interrupted"] is True
    assert {Path(row["path"]).name for row in verified.json()["files"]} == {
        "core.py",
        "made.py",
        "quant.py",
    }

    applied = client.inv("patch.apply", ALL)
    assert applied.status == 0 and "an interrupted patch was undone" in applied.output
    assert case.files() == case.after
    verified = client.inv("patch.verify")
    assert verified.status == 0, verified.output
    case.lab.path(CORE).write_bytes(b"# by hand\n")
    verified = client.inv("patch.verify")
    assert verified.status == 13 and "patched but altered" in verified.output
    rolled = client.inv("rollback-patch")
    assert rolled.status == 0 and "the edited version is kept" in rolled.output
    assert case.files() == case.before


def test_authoring_as_a_user_types_it(typed: tuple[Reached, Client]) -> None:
    case, client = typed
    applied = client.inv("patch.apply", ANSWER)
    assert applied.status == 0, applied.output
    by_hand = case.lab.path(CORE).read_bytes().replace(b"12.9", b"13.0")
    case.lab.path(CORE).write_bytes(by_hand)
    made = client.inv("patch.author", "thirteen", "--summary", "CUDA 13", "--json")
    assert made.status == 0, made.output
    assert made.json()["patch"] == "flashinfer/thirteen"
    assert made.json()["stands_on"] == [ANSWER]
    assert Path(made.json()["folder"]) == case.lab.templates / "patches/flashinfer/thirteen"
    assert client.inv("patch.verify").status == 0
    assert client.inv("rollback-patch").status == 0
    assert case.files() == case.before
    again = client.inv("patch.author", "thirteen")
    assert again.status == 2 and "nothing was edited by hand" in again.stderr
