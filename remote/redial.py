"""Dialling again after a lost connection, for as long as the host's settings allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from remote.clock import Clock
from remote.errors import ConnectionLost, HostKeyRefused, SSHError
from remote.host import Host

_PAUSE_S = 1.0

T = TypeVar("T")


class Redial:
    """Between a loss and the first sign that the connection is there again.

    Whatever uses it calls `lost` with the error and tries again, and `back` when something came.
    """

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._loss: ConnectionLost | None = None
        self._lost_at = 0.0

    def lost(self, error: SSHError) -> bool:
        """Close what is left and wait a moment; whether this is news, not one more failed dial.

        Raises:
            SSHError: the error itself, where dialling again does not mend it: it is no loss, or the
                host has another key now.
            ConnectionLost: dialling has failed for too long; it names the loss and the last try.
        """
        now = self._clock.monotonic_s()
        first = self._loss is None
        if self._loss is None:
            if not isinstance(error, ConnectionLost):
                raise error
            self._loss, self._lost_at = error, now
        elif isinstance(error, HostKeyRefused):
            raise error
        elif now - self._lost_at > self._host.redial_s:
            raise _for_good(self._loss, error, now - self._lost_at) from error
        self._host.close()
        self._clock.sleep(_PAUSE_S)
        return first

    def back(self) -> float | None:
        """Seconds without a connection, the first time something comes after a loss."""
        if self._loss is None:
            return None
        self._loss = None
        return self._clock.monotonic_s() - self._lost_at


def _for_good(loss: ConnectionLost, last: SSHError, away_s: float) -> ConnectionLost:
    return ConnectionLost(
        f"{loss.message}; dialled again for {away_s:.0f} s, in vain: {last.message}",
        host=loss.host,
        evidence=[*loss.evidence, *last.evidence],
        hint=last.hint or loss.hint,
        details={**loss.details, **last.details},
    )


def through_losses(host: Host, clock: Clock, task: Callable[[], T]) -> T:
    """What the task gives, begun again where its connection is lost; twice must do what once does.

    Raises:
        SSHError: dialling has failed for too long.
    """
    redial = Redial(host, clock)
    while True:
        try:
            return task()
        except SSHError as error:
            redial.lost(error)
