"""Fast dial: login, session, command and its first input in one flight behind the key exchange.

A host reads its connection in order, so no step needs to wait until the one before it is answered:
one round trip instead of five. Where the host refuses a step, none behind it is begun, and the
caller dials anew and asks for one after the other. A connection that is lost after the flight is
told as lost: the command may run.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NoReturn

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import cMSG_CHANNEL_DATA, cMSG_CHANNEL_OPEN, cMSG_CHANNEL_REQUEST

from remote import errors

#: The most that is sent before the host has said how much it takes. OpenSSH takes 2 MiB from where
#: the command runs, but hands what came during the login from process to process in one message of
#: a bounded size.
FLIGHT_BYTES = 64 * 1024

#: Every SSH server with its channels takes packets of that size (RFC 4253, 6.1).
_PACKET_BYTES = 16 * 1024

#: The number that OpenSSH gives to the first channel of a connection.
_FIRST_CHANNEL = 0

#: What is reached for inside Paramiko, where it promises nothing: methods and attributes as 5.1 has
#: them.
HOOKS: dict[type, tuple[str, ...]] = {
    AuthHandler: (
        "_request_auth(self)",
        "_parse_service_accept(self, m)",
        "_parse_userauth_failure(self, m)",
    ),
    paramiko.Transport: (
        *("_next_channel(self)", "_send_user_message(self, data)"),
        *("_channels", "auth_handler", "channel_events", "channels_seen"),
        *("default_max_packet_size", "lock", "remote_version"),
    ),
    paramiko.Channel: (
        *("_set_transport(self, transport)", "_set_window(self, window_size, max_packet_size)"),
        *("active", "chanid", "closed", "eof_sent", "event", "event_ready", "in_max_packet_size"),
        *("in_window_size", "lock", "out_buffer_cv", "out_window_size", "remote_chanid"),
    ),
}


class Refused(Exception):
    """The host did not take the flight, and has begun nothing of it."""


class Flight:
    """A command and its first input, to be sent once over one connection.

    Args:
        command: a line for the login shell.
        data: the input; `FLIGHT_BYTES` at most.
        window_bytes: what may be under way to us.
        limit_s: how long each answer may take.
        host: its name, for errors.

    Attributes:
        channel: the session, when the command runs.
    """

    def __init__(
        self, command: str, data: bytes, *, window_bytes: int, limit_s: float, host: str
    ) -> None:
        self.channel: paramiko.Channel | None = None
        self._command, self._data = command, data
        self._window_bytes, self._limit_s = window_bytes, limit_s
        self._host = host

    def suits(self, transport: Any) -> bool:
        """Whether it is certain how the host counts its channels and what it takes unasked."""
        return "OpenSSH" in transport.remote_version

    def send(self, transport: Any, user: str, key: paramiko.PKey) -> None:
        """Log in and start the command; the host's key has been verified by now.

        Raises:
            Refused: nothing was begun.
            ConnectionLost: it is not known what was.
        """
        channel, opened = self._prepared(transport)
        transport.auth_handler = login = _Login(transport)
        try:
            login.auth_publickey(user, key, login.answered)
        except Exception as error:  # a key that can't sign, a connection that ended: no more is out
            raise Refused(str(error)) from error
        # Where the connection breaks meanwhile, what has come from the host decides.
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._go_on(transport, channel)
        self._wait(transport, login.answered)
        if not login.authenticated:
            # A host that takes its leave with a word has not let us in before.
            self._refused_or_lost(transport, login.refused or bool(transport.said))
        self._wait(transport, opened)
        if not channel.active:
            # One that was refused is struck off; where the connection broke it is closed as well.
            self._refused_or_lost(transport, not channel.closed)
        if channel.remote_chanid != _FIRST_CHANNEL:
            raise Refused(f"the session is channel {channel.remote_chanid}")
        self._wait(transport, channel.event)
        if not channel.event_ready:
            # Only a channel that the host itself has ended is taken leave of.
            self._refused_or_lost(transport, bool(channel.eof_sent))
        self._settle(transport, channel)
        self.channel = channel

    def _prepared(self, transport: Any) -> tuple[Any, threading.Event]:
        """A session that Paramiko waits for; it sets the event when the host has answered."""
        opened = threading.Event()
        with transport.lock:
            number = transport._next_channel()
            channel: Any = paramiko.Channel(number)
            transport._channels.put(number, channel)
            transport.channel_events[number] = opened
            transport.channels_seen[number] = True
            channel._set_transport(transport)
            channel._set_window(self._window_bytes, transport.default_max_packet_size)
        return channel, opened

    def _go_on(self, transport: Any, channel: Any) -> None:
        """Send what stands behind the login."""
        window = channel.in_window_size, channel.in_max_packet_size
        packets = [
            _message(cMSG_CHANNEL_OPEN, "session", channel.chanid, *window),
            _message(cMSG_CHANNEL_REQUEST, _FIRST_CHANNEL, "exec", True, self._command),
        ]
        for at in range(0, len(self._data), _PACKET_BYTES):
            chunk = self._data[at : at + _PACKET_BYTES]
            packets.append(_message(cMSG_CHANNEL_DATA, _FIRST_CHANNEL, chunk))
        for packet in packets:
            transport._send_user_message(packet)

    def _settle(self, transport: Any, channel: Any) -> None:
        """Take what was sent unasked off what the host takes."""

        def granted() -> bool:
            return bool(channel.closed or channel.out_window_size >= len(self._data))

        with channel.lock:
            in_time = channel.out_buffer_cv.wait_for(granted, self._limit_s)
            if in_time and not channel.closed:
                channel.out_window_size -= len(self._data)
        if not in_time:
            self._lost(transport, TimeoutError("the host takes no input"))

    def _wait(self, transport: Any, event: threading.Event) -> None:
        if not event.wait(self._limit_s):
            self._lost(transport, TimeoutError(f"no answer for {self._limit_s:.0f} s"))

    def _refused_or_lost(self, transport: Any, refused: bool) -> NoReturn:
        if refused:
            raise Refused
        self._lost(transport, EOFError("it was closed"))

    def _lost(self, transport: Any, error: Exception) -> NoReturn:
        transport.close()
        raise errors.ConnectionLost(
            f"the connection was lost while a session was opened: {error}",
            host=self._host,
            hint="what was begun on the host goes on; run the task again, or inv wait",
        ) from error


class _Login(AuthHandler):
    """Paramiko's login, which doesn't wait for the service before it asks to be let in."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.answered = threading.Event()
        self.refused = False

    def _request_auth(self) -> None:
        parent: Any = super()
        parent._request_auth()
        # It sends the request to be let in when it hears this from the host.
        parent._parse_service_accept(paramiko.Message(_message(b"", "ssh-userauth").asbytes()))

    def _parse_service_accept(self, m: paramiko.Message) -> None:
        """The host says so; the request is on its way."""

    def _parse_userauth_failure(self, m: paramiko.Message) -> None:
        self.refused = True
        parent: Any = super()
        parent._parse_userauth_failure(m)


def _message(kind: bytes, *fields: str | bytes | bool | int) -> paramiko.Message:
    """A packet, its fields as SSH writes them (RFC 4251, 5)."""
    made = paramiko.Message()
    made.add_bytes(kind)
    made.add(*fields)
    return made
