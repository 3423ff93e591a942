"""Login, session, command and first questions in one flight, over a real sshd.

Not over AsyncSSH, the embedded host's server: it ends a connection that speaks to a session before
it has answered that it is open. There, as with every server but OpenSSH, the stock way is taken.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from counting_proxy import Counted, CountingProxy
from fault_lab import FaultLab
from patch_lab import ANSWER
from rig import Client, OpenSSH

from remote import errors
from remote.config import Address, SSHSettings
from remote.ssh import SSHHost

DELAY_S = 0.02


@contextmanager
def behind(folder: Path, *options: str) -> Iterator[FaultLab]:
    """A host of its own whose sshd has these options, behind a counting proxy."""
    sshd = OpenSSH(folder / "sshd", options=options)
    sshd.start()
    try:
        with CountingProxy(sshd.port, DELAY_S) as proxy:
            made = FaultLab(folder / "host", sshd, proxy)
            yield made
            made.close()
    finally:
        sshd.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    with behind(tmp_path_factory.mktemp("fast")) as made:
        yield made


@pytest.fixture
def lab(shared: FaultLab) -> Iterator[FaultLab]:
    """The shared host; a test may change what leads to it."""
    settings = shared.settings
    yield shared
    shared.settings = settings
    shared.sshd.authorize("client_key")


def connection(lab: FaultLab, fast: bool = True) -> SSHHost:
    return SSHHost(lab.settings, SSHSettings(5.0, False, 5.0, 0.0, fast))


def asks(lab: FaultLab, host: SSHHost) -> Counted:
    """Ask one thing over a connection of its own; what it cost."""
    assert isinstance(lab.proxy, CountingProxy)
    before = lab.proxy.counted()
    try:
        assert host.call("runs.ids", state=lab.state) is not None
        assert "logged in by publickey" in host.link().login
    finally:
        host.close()
    return lab.proxy.settle().since(before)


def both(lab: FaultLab) -> tuple[Counted, Counted]:
    """What a question costs on the stock way, and with fast dial."""
    return asks(lab, connection(lab, False)), asks(lab, connection(lab))


def refused(lab: FaultLab, kind: type[errors.ToolError]) -> tuple[str, int]:
    """What is said with fast dial, the same as on the stock way, and how often it was dialled."""
    assert isinstance(lab.proxy, CountingProxy)
    said, dialled = [], []
    for fast in (False, True):
        before = lab.proxy.counted()
        with pytest.raises(kind) as caught:
            asks(lab, connection(lab, fast))
        error = caught.value
        assert type(error) is kind
        said.append((error.message, error.evidence, error.hint))
        dialled.append(lab.proxy.settle().since(before).connections)
    assert said[0] == said[1]
    assert dialled[0] == 1
    return said[1][0], dialled[1]


def test_a_question_is_answered_in_three_round_trips_less(lab: FaultLab) -> None:
    stock, fast = both(lab)
    assert (stock.connections, fast.connections) == (1, 1)
    assert fast.round_trips <= stock.round_trips - 3


KINDS: dict[str, Callable[[], Any]] = {
    "rsa": lambda: paramiko.RSAKey.generate(2048),
    "ecdsa": paramiko.ECDSAKey.generate,
}


def use(lab: FaultLab, path: Path, kind: str, password: str | None = None) -> None:
    """Log in with a new key of that type."""
    key = KINDS[kind]()
    key.write_private_key_file(str(path), password=password)
    authorized = lab.sshd.folder / "authorized_keys"
    authorized.write_text(f"{key.get_name()} {key.get_base64()}\n")
    lab.settings = replace(lab.settings, identity_file=path)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_other_types_fly_too(lab: FaultLab, tmp_path: Path, kind: str) -> None:
    use(lab, tmp_path / "key", kind)
    stock, fast = both(lab)
    assert fast.connections == 1
    assert fast.round_trips <= stock.round_trips - 3


def test_a_flight_leaves_from_a_jump_host_too(lab: FaultLab, tmp_path: Path) -> None:
    ours = lab.settings
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  User {ours.address.user}\n  HostName 127.0.0.1\n  Port {ours.address.port}\n"
        f"  UserKnownHostsFile {ours.known_hosts}\n  IdentityFile {ours.identity_file}\n"
        "Host gpu\n  ProxyJump jump\n"
    )
    lab.settings = replace(ours, address=Address("gpu"), identity_file=None, ssh_config=str(config))
    stock, fast = both(lab)
    assert fast.connections == 2  # one of them from the jump host
    assert fast.round_trips <= stock.round_trips - 3


def test_a_key_with_a_passphrase_flies_once_it_is_unlocked(
    lab: FaultLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def phrase(prompt: str) -> str:
        asked.append(prompt)
        return "a secret"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(getpass, "getpass", phrase)
    use(lab, tmp_path / "key", "rsa", "a secret")
    host = connection(lab)
    stock, fast = asks(lab, host), asks(lab, host)
    assert len(asked) == 1
    assert (stock.connections, fast.connections) == (1, 1)
    assert fast.round_trips <= stock.round_trips - 3


def test_a_key_that_is_refused_is_told_as_on_the_stock_way(lab: FaultLab) -> None:
    lab.sshd.authorize("other_key")
    said, dialled = refused(lab, errors.AuthenticationFailed)
    assert "accepts none of our keys" in said
    assert dialled == 2


@pytest.mark.parametrize(
    ("known", "said"), [("", "is not known"), ("other_key", "has CHANGED")], ids=["new", "changed"]
)
def test_nothing_is_sent_to_a_host_that_is_not_known(
    lab: FaultLab, tmp_path: Path, known: str, said: str
) -> None:
    (tmp_path / "known_hosts").write_text(
        known and f"[127.0.0.1]:{lab.settings.address.port} {lab.sshd.public(known)}"
    )
    lab.settings = replace(lab.settings, known_hosts=tmp_path / "known_hosts")
    before = len(lab.sshd.log.read_text())
    told, dialled = refused(lab, errors.HostKeyRefused)
    assert said in told
    assert dialled == 1
    log = lab.sshd.log.read_text()[before:]
    assert "Connection from" in log
    assert "publickey" not in log and "user" not in log, log


def test_a_host_that_opens_no_session_is_told_as_on_the_stock_way(tmp_path: Path) -> None:
    with behind(tmp_path, "MaxSessions 0") as lab:
        said, dialled = refused(lab, errors.SSHError)
    assert "the host opens no session" in said
    assert dialled == 2


def test_a_host_that_turns_away_at_the_first_mistake(tmp_path: Path) -> None:
    """It takes its leave with a word where it would have said no."""
    with behind(tmp_path, "MaxAuthTries 1") as lab:
        lab.sshd.authorize("other_key")
        _, dialled = refused(lab, errors.AuthenticationFailed)
    assert dialled == 2


def test_a_deploy_from_end_to_end(lab: FaultLab, tmp_path: Path) -> None:
    assert isinstance(lab.proxy, CountingProxy)
    found = {}
    for fast in (False, True):
        settings = {"templates": str(lab.patches.templates), "ssh": {"fast_dial": fast}}
        client = Client(tmp_path / str(fast), {"lab": lab.entry()}, settings)
        for words in (("deploy", "plain", "--add-patch", ANSWER), ("status",), ("stop",)):
            before = lab.proxy.counted()
            done = client.inv(*words)
            assert done.status == 0, done.output
            found[words[0], fast] = lab.proxy.settle().since(before)
        assert client.inv("rollback-patch").status == 0
    assert all(cost.connections == 1 for cost in found.values())
    for task in ("status", "stop"):
        assert found[task, True].round_trips <= found[task, False].round_trips - 3
