"""The flight against a host that takes it, refuses each of its steps, or breaks off: Paramiko's own
server, over a pair of sockets.
"""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
import pytest
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    AUTH_FAILED,
    AUTH_PARTIALLY_SUCCESSFUL,
    AUTH_SUCCESSFUL,
    DEFAULT_WINDOW_SIZE,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from remote import errors, fast_dial
from remote.fast_dial import FLIGHT_BYTES, Flight, Refused

KEY = paramiko.ECDSAKey.generate()


class Host(paramiko.ServerInterface):
    """A server that lets everybody in and runs nothing; what it was asked to run is kept."""

    first_channel = 0
    window_bytes = DEFAULT_WINDOW_SIZE

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.transport: Any = None

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.asked.append(command)
        return True


class LetsNobodyIn(Host):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_FAILED


class WantsMoreThanAKey(Host):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_PARTIALLY_SUCCESSFUL


class OpensNothing(Host):
    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED


class CountsOtherwise(Host):
    first_channel = 7


class TakesLittle(Host):
    window_bytes = FLIGHT_BYTES // 2


class RunsNothing(Host):
    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return False


class BreaksOffAtTheLogin(Host):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        raise EOFError


class BreaksOffAtTheSession(Host):
    def check_channel_request(self, kind: str, chanid: int) -> int:
        raise EOFError


class BreaksOffAtTheCommand(Host):
    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        raise EOFError


class SaysNothing(Host):
    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.over.wait(30)
        return AUTH_SUCCESSFUL


class Client(paramiko.Transport):
    """As `remote.connecting` has it."""

    said = ""


@contextmanager
def met(host: Host) -> Iterator[Client]:
    """A connection whose keys have been exchanged."""
    ours, theirs = socket.socketpair()
    host.transport = paramiko.Transport(theirs)
    host.transport.add_server_key(KEY)
    host.transport._channel_counter = host.first_channel
    host.transport.default_window_size = host.window_bytes
    host.transport.start_server(threading.Event(), host)
    transport = Client(ours)
    transport.start_client(timeout=30)
    try:
        yield transport
    finally:
        transport.close()
        host.transport.close()


def flight(data: bytes, limit_s: float = 30.0) -> Flight:
    return Flight("true", data, window_bytes=1 << 20, limit_s=limit_s, host="gpu")


def test_what_is_sent_arrives_once_and_in_order() -> None:
    host, first, then = Host(), bytes(range(256)) * (FLIGHT_BYTES // 256), b"-" * (3 << 20)
    with met(host) as transport:
        made = flight(first)
        made.send(transport, "me", KEY)
        assert made.channel is not None
        assert made.channel.out_window_size == host.window_bytes - len(first)
        sending = threading.Thread(target=made.channel.sendall, args=(then,), daemon=True)
        sending.start()
        theirs = host.transport.accept(30)
        came = b""
        while len(came) < len(first) + len(then):
            came += theirs.recv(1 << 20)
        assert came == first + then
        sending.join(30)
        theirs.sendall(b"and back")
        assert made.channel.recv(100) == b"and back"
    assert host.asked == [b"true"]


@pytest.mark.parametrize(
    "kind", [LetsNobodyIn, WantsMoreThanAKey, OpensNothing, CountsOtherwise, RunsNothing]
)
def test_where_a_step_is_refused_nothing_is_begun(kind: Callable[[], Host]) -> None:
    host = kind()
    with met(host) as transport:
        made = flight(b"data")
        with pytest.raises(Refused):
            made.send(transport, "me", KEY)
    assert made.channel is None
    assert not host.asked


@pytest.mark.parametrize(
    "kind", [BreaksOffAtTheLogin, BreaksOffAtTheSession, BreaksOffAtTheCommand]
)
def test_a_connection_that_breaks_under_the_flight_is_lost(kind: Callable[[], Host]) -> None:
    with met(kind()) as transport:
        with pytest.raises(errors.ConnectionLost) as caught:
            flight(b"data").send(transport, "me", KEY)
        assert not transport.is_active()
    assert "run the task again" in (caught.value.hint or "")


def test_a_host_that_never_answers_is_lost() -> None:
    host = SaysNothing()
    with met(host) as transport:
        with pytest.raises(errors.ConnectionLost) as caught:
            flight(b"data", limit_s=0.2).send(transport, "me", KEY)
        host.over.set()
    assert "no answer" in caught.value.message


def test_a_host_that_takes_less_than_was_sent_is_lost() -> None:
    host = TakesLittle()
    with met(host) as transport, pytest.raises(errors.ConnectionLost) as caught:
        flight(b"-" * FLIGHT_BYTES, limit_s=0.2).send(transport, "me", KEY)
    assert "takes no input" in caught.value.message


def test_a_key_that_cannot_sign_is_refused_before_anything_goes() -> None:
    host = Host()
    with met(host) as transport, pytest.raises(Refused):
        flight(b"data").send(transport, "me", paramiko.ECDSAKey(data=KEY.asbytes()))
    assert not host.asked


def test_a_host_that_takes_its_leave_before_the_login_has_begun_nothing() -> None:
    with met(BreaksOffAtTheLogin()) as transport:
        transport.said = "Too many authentication failures"
        with pytest.raises(Refused):
            flight(b"data").send(transport, "me", KEY)


@pytest.mark.parametrize(
    ("version", "suits"),
    [
        ("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3", True),
        ("SSH-2.0-AsyncSSH_2.24.1", False),
        ("SSH-2.0-dropbear_2022.83", False),
    ],
)
def test_only_openssh_is_known_well_enough(version: str, suits: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = Client(ours)
        transport.remote_version = version
        assert flight(b"").suits(transport) is suits


def test_paramiko_is_as_it_was_in_5_1() -> None:
    """What the flight reaches for inside it; where a newer one differs, read it again."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = paramiko.Transport(ours)
        made = [transport, paramiko.Channel(0), AuthHandler(transport)]
        assert {type(each) for each in made} == set(fast_dial.HOOKS)
        for each in made:
            for hook in fast_dial.HOOKS[type(each)]:
                name, method, _ = hook.partition("(")
                said = f"Paramiko {paramiko.__version__}: {type(each).__name__}.{hook}"
                assert hasattr(each, name), said
                if method:
                    signature = inspect.signature(getattr(type(each), name))
                    assert f"{name}{signature}" == hook, said
