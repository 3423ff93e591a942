"""A host over SSH: `remote.host.Host` over a connection that `remote/connecting.py` opens."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fabric
import paramiko

from remote import errors
from remote.agent import DEAD_AFTER_S, Agent
from remote.config import HostSettings, SSHSettings
from remote.connecting import Opened, Route, opened
from remote.core.shell import join
from remote.dialing import taken
from remote.fast_dial import FLIGHT_BYTES, Flight
from remote.host import Answer, Link, Piece, Request
from remote.logins import Keyring
from remote.payload import procs
from remote.remembered import Remembered
from remote.starter import start_command

#: What may be under way to us on the session's channel. Paramiko's 2 MiB let no more than 20 MB/s
#: through at a round trip of 100 ms; much more costs it CPU and memory.
WINDOW_BYTES = 8 * 1024 * 1024

#: A forwarded port is listened on within milliseconds.
_LISTEN_S = 5.0


class SSHHost:
    """`remote.host.Host` over one SSH connection, opened at the first use."""

    def __init__(
        self, settings: HostSettings, ssh: SSHSettings, remembered: Remembered | None = None
    ) -> None:
        self._remembered = remembered
        self._settings = settings
        self._ssh = ssh
        self._opened: Opened | None = None
        self._keyring = Keyring()
        self._closing = contextlib.ExitStack()
        self._agent: Agent | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def redial_s(self) -> float:
        return self._ssh.redial_s

    def link(self) -> Link:
        connection = self._connection()
        assert self._opened is not None
        method = getattr(connection.transport.auth_handler, "auth_method", "unknown method")
        through = f" through {self._settings.address}" if self._opened.indirect else ""
        return Link(
            f"{connection.user}@{connection.host}:{connection.port}{through}",
            f"logged in by {method} ({self._opened.login.used})",
            self._opened.keys.told(),
            self._opened.keys.accepts_new,
        )

    def ahead(self, requests: Sequence[Request]) -> None:
        self._asked().ahead(requests)

    def call(self, function: str, data: bytes = b"", **params: Any) -> Answer:
        return self._asked().call(function, data, params)[0]

    def fetch(self, function: str, **params: Any) -> Piece:
        return Piece(*self._asked().call(function, b"", params))

    def stream(self, function: str, **params: Any) -> AbstractContextManager[Iterator[Piece]]:
        return self._asked().stream(function, params)

    def interact(self, command: Sequence[str]) -> int:
        connection = self._connection()
        line = join(command)
        if sys.stdin.isatty() and sys.stdout.isatty():
            result = connection.run(line, pty=True, warn=True, hide=False)
            return int(result.exited)
        return _pump(connection.transport.open_session(), line)

    @contextmanager
    def tunnel(self, local_port: int, remote_port: int) -> Iterator[int]:
        port = local_port or _free_port()
        with self._connection().forward_local(port, remote_port, remote_host="127.0.0.1"):
            _await_listener(port)
            yield port

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError), _broken_is_oserror():
            self._closing.close()
        self._opened = None

    def _asked(self) -> Agent:
        if self._agent is None:
            venv, state = self._settings.venv, self._settings.state
            self._agent = Agent(_Channel(self._begin), self.name, venv, state, self._remembered)
        return self._agent

    def _begin(self, first: bytes) -> tuple[paramiko.Channel, bytes]:
        """Start the payload with that input; its session, and what of the input is yet to go."""
        try:
            command = start_command(f"{self._settings.venv}/bin/python")
            if self._ssh.fast_dial and self._opened is None:
                flight = Flight(
                    command,
                    first[:FLIGHT_BYTES],
                    window_bytes=WINDOW_BYTES,
                    limit_s=DEAD_AFTER_S,
                    host=self.name,
                )
                self._connection(flight)
                if flight.channel is not None:
                    return flight.channel, first[FLIGHT_BYTES:]
            return self._session(command), first
        except BaseException:
            # Who asks next begins anew.
            self._agent = None
            raise

    def _session(self, command: str) -> paramiko.Channel:
        """A session that runs a command, on a connection that is up or made now."""
        try:
            transport = self._connection().transport
            with _answered(transport):
                channel: paramiko.Channel = transport.open_session(
                    WINDOW_BYTES, timeout=DEAD_AFTER_S
                )
                # Quoted where it is made.
                channel.exec_command(command)  # nosec B601
                return channel
        except paramiko.ChannelException as error:
            raise errors.SSHError(
                f"the host opens no session: {error}",
                host=self.name,
                hint="sshd may allow no more sessions (MaxSessions); close another one",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise errors.ConnectionLost(
                f"the connection was lost while a session was opened: {error}",
                host=self.name,
                hint="nothing was begun on the host; run the task again",
            ) from error

    def _connection(self, flight: Flight | None = None) -> fabric.Connection:
        if self._opened is None:
            settings, ssh = self._settings, self._ssh
            dial = taken(settings.address, settings.ssh_config, ssh.connect_timeout_s)
            route = Route(settings, ssh, self._keyring, self._closing)
            try:
                options = dial.options()
                self._opened = opened(settings.address, options, route, dial, flight)
            except BaseException:
                self._hang_up()
                raise
        return self._opened.connection


@contextmanager
def _broken_is_oserror() -> Iterator[None]:
    """Paramiko's own two ways of saying that the connection broke, as Python's."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise ConnectionResetError(str(error) or "the connection broke") from error


@contextmanager
def _answered(transport: paramiko.Transport) -> Iterator[None]:
    """Close the transport where the block isn't over in time: Paramiko waits without end for the
    answer to some requests.
    """
    timer = threading.Timer(DEAD_AFTER_S, transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Channel:
    """Paramiko's channel as the agent's byte stream; it is opened with the first that is sent.

    Args:
        begin: opens it, once, with these bytes; returns those that are yet to be sent.
    """

    def __init__(self, begin: Callable[[bytes], tuple[paramiko.Channel, bytes]]) -> None:
        self._begin: Callable[[bytes], tuple[paramiko.Channel, bytes]] | None = begin
        self._channel: paramiko.Channel | None = None

    def send(self, data: bytes) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            self._channel, data = begin(data)
        if self._channel is None:
            raise ConnectionError("it was never opened")
        self._channel.settimeout(DEAD_AFTER_S)
        with _broken_is_oserror():
            self._channel.sendall(data)

    def receive(self, timeout_s: float) -> bytes:
        assert self._channel is not None
        self._channel.settimeout(timeout_s)
        with _broken_is_oserror():
            return self._channel.recv(256 * 1024)

    def close(self) -> None:
        """It ends with its connection, which is closed next; a goodbye would be packets only."""

    def ended(self) -> tuple[int | None, bytes]:
        assert self._channel is not None
        known = self._channel.status_event.wait(5)
        stderr = b""
        while self._channel.recv_stderr_ready():
            stderr += self._channel.recv_stderr(65536)
        return (self._channel.recv_exit_status() if known else None), stderr


def _pump(channel: paramiko.Channel, line: str) -> int:
    """Run a command with this process's streams as its own, byte for byte."""
    # Every word of it is quoted by core/shell.py.
    channel.exec_command(line)  # nosec B601

    def stdin() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(0, 65536):
                channel.sendall(chunk)
            channel.shutdown_write()

    def stderr() -> None:
        while chunk := channel.recv_stderr(65536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()

    threading.Thread(target=stdin, daemon=True).start()
    errors_read = threading.Thread(target=stderr)
    errors_read.start()
    while chunk := channel.recv(65536):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    errors_read.join()
    return channel.recv_exit_status()


def _await_listener(port: int) -> None:
    """Return once somebody listens there: Fabric's thread does a moment after it has begun."""
    until = time.monotonic() + _LISTEN_S
    if not Path("/proc/net/tcp").exists():  # nothing tells, but for a connection through it
        time.sleep(_LISTEN_S / 10)
        return
    while not procs.listeners(port)[0] and time.monotonic() < until:
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
