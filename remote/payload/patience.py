"""Regular expressions with a limit: some try endlessly, and hold all else up meanwhile."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .refusal import Refused

#: Seconds for one search over some lines; an honest pattern takes milliseconds.
_LIMIT_S = 5.0


class TooSlow(Refused):
    """The pattern was given up."""

    def __init__(self) -> None:
        super().__init__(
            "ConfigError",
            f"the pattern of --grep was given up after {_LIMIT_S:.0f} s in a few lines",
            hint="one that repeats a repetition, like (a+)+, tries endlessly: write it simpler",
        )


def matching(pattern: re.Pattern[bytes], lines: Sequence[bytes]) -> list[bytes]:
    """The lines that the pattern is found in. For the main thread only.

    Raises:
        TooSlow: it takes too long.
    """
    with _limited():
        return [line for line in lines if pattern.search(line)]


def matches(pattern: re.Pattern[str], line: str) -> bool:
    """Whether the pattern is found in the line; as `matching`."""
    with _limited():
        return pattern.search(line) is not None


@contextmanager
def _limited() -> Iterator[None]:
    def give_up(number: int, frame: object) -> None:
        raise TooSlow

    # The matcher looks for signals from time to time, and nothing else ends it.
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
