"""What the rest of the tool asks of a host, whatever carries it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

#: What a payload function answers: JSON values only.
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """One message of a streaming payload function: JSON values and, beside them, bytes."""

    body: Answer
    data: bytes = b""


@dataclass(frozen=True)
class Request:
    """What is asked of a payload function; ``data`` travels beside the parameters, as it is."""

    function: str
    params: Mapping[str, Any]
    data: bytes = b""

    def of(self, host: Host) -> Answer:
        """The host's answer."""
        return host.call(self.function, self.data, **self.params)

    def fetched(self, host: Host) -> Piece:
        """The host's answer and the bytes beside it."""
        return host.fetch(self.function, **self.params)

    def streamed(self, host: Host) -> AbstractContextManager[Iterator[Piece]]:
        """The host's messages, as `Host.stream` gives them."""
        return host.stream(self.function, **self.params)


@dataclass(frozen=True)
class Link:
    """How a host is reached, in words: where to, how we proved who we are, and how it did.

    ``accepts_new_keys``: a host key that is not on record is taken and recorded.
    """

    address: str
    login: str
    host_key: str
    accepts_new_keys: bool = False


class Host(Protocol):
    """A machine reached over one connection.

    ``call`` and ``stream`` run a function of ``remote/payload`` in the host's venv, all of them
    in one remote process over one session: a call costs one round trip.
    """

    @property
    def name(self) -> str:
        """The name it has in the settings."""
        ...

    @property
    def redial_s(self) -> float:
        """Seconds for which a lost connection is dialled again."""
        ...

    def link(self) -> Link:
        """How it is reached; connects where that has not been done yet."""
        ...

    def ahead(self, requests: Sequence[Request]) -> None:
        """Send what is going to be asked next, in this order, in one flight.

        Each `call`, `fetch` or `stream` that then asks the same takes the answer that is on its
        way. The host begins one only while the client is there, nothing before it was refused or
        answered that it ``holds`` the rest up, and nothing else has been asked meanwhile; what was
        sent ahead and not begun by then is never done.
        """
        ...

    def call(self, function: str, data: bytes = b"", **params: Any) -> Answer:
        """Run one payload function to its end.

        ``data`` travels beside the parameters, as it is.

        Raises:
            ToolError: what the function refused, with its own exit code.
            ConnectionLost: the link died; the function may or may not have run.
        """
        ...

    def fetch(self, function: str, **params: Any) -> Piece:
        """As `call`, for a function that answers with bytes beside its JSON."""
        ...

    def stream(self, function: str, **params: Any) -> AbstractContextManager[Iterator[Piece]]:
        """Run one payload function and take its messages as they come.

        Leaving the block early makes the function stop.
        """
        ...

    def interact(self, command: Sequence[str]) -> int:
        """Run a command, every word quoted, on this process's own streams; returns its status.

        With a terminal on both sides it gets one there; otherwise bytes pass unchanged.
        """
        ...

    def tunnel(self, local_port: int, remote_port: int) -> AbstractContextManager[int]:
        """Forward a loopback port here to one there, while the block lasts.

        Yields the local port, which is chosen where 0 was asked for.
        """
        ...

    def close(self) -> None: ...
