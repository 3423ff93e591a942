"""Dialling again after a lost connection, for as long as the host's settings allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from remote.clock import Clock
from remote.errors import ConnectionLost, SSHError
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
        self._lost_at: float | None = None

    def lost(self, error: SSHError) -> bool:
        """Close what is left and wait a moment; whether this is news, not one more failed dial.

        Raises:
            SSHError: the error itself, where the first was no loss (a refused key won't mend
                itself), or where dialling has failed for too long.
        """
        now = self._clock.monotonic_s()
        first = self._lost_at is None
        if self._lost_at is None:
            if not isinstance(error, ConnectionLost):
                raise error
            self._lost_at = now
        elif now - self._lost_at > self._host.redial_s:
            raise error
        self._host.close()
        self._clock.sleep(_PAUSE_S)
        return first

    def back(self) -> float | None:
        """Seconds without a connection, the first time something comes after a loss."""
        if self._lost_at is None:
            return None
        away_s = self._clock.monotonic_s() - self._lost_at
        self._lost_at = None
        return away_s


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
