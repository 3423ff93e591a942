"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], limit: int = 2) -> tuple[str, ...]:
    """Known names close to ``name``, best first; case and ``_`` against ``-`` don't count.

    A known name of which ``name`` is the beginning (``tp`` of ``tp-size``) is close too.
    """
    plain = {_plain(candidate): candidate for candidate in sorted(known)}
    wanted = _plain(name)
    if not wanted:
        return ()
    close = get_close_matches(wanted, plain, n=limit, cutoff=0.6)
    begun = [candidate for candidate in plain if candidate.startswith(wanted + "-")]
    ordered = dict.fromkeys([*close, *sorted(begun, key=len)])
    return tuple(plain[match] for match in ordered)[:limit]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``"; did you mean a or b?"``, or nothing where no known name is close."""
    found = nearest(name, known)
    if not found:
        return ""
    return f"; did you mean {' or '.join(prefix + match for match in found)}?"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
