"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

#: Below this likeness (0 to 1) a name is another name, not a slip.
_CLOSE = 0.6
#: A second name this much less like than the first would only distract.
_BESIDE = 0.1


def nearest(name: str, known: Iterable[str], limit: int = 2) -> tuple[str, ...]:
    """Known names close to ``name``, best first; case and ``_`` against ``-`` don't count.

    A known name of which ``name`` is the beginning (``tp`` of ``tp-size``) is close too.
    """
    wanted = _plain(name)
    if not wanted:
        return ()
    scored = [(_likeness(wanted, _plain(candidate)), candidate) for candidate in known]
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    close = [(likeness, candidate) for likeness, candidate in scored if likeness >= _CLOSE]
    return tuple(match for likeness, match in close[:limit] if likeness >= close[0][0] - _BESIDE)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``"; did you mean a or b?"``, or nothing where no known name is close."""
    found = nearest(name, known)
    if not found:
        return ""
    return f"; did you mean {' or '.join(prefix + match for match in found)}?"


def _likeness(wanted: str, candidate: str) -> float:
    ratio = SequenceMatcher(None, wanted, candidate).ratio()
    return max(ratio, _CLOSE) if candidate.startswith(wanted + "-") else ratio


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
