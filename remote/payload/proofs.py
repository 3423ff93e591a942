"""Proofs of patches that were made once, by all that they depend on."""

from __future__ import annotations

from typing import Any

from . import cache

_KIND = "proof"


def require(state: str, keys: list[str]) -> dict[str, Any]:
    """Which of these proofs are kept; where one is missing, what was sent behind this waits."""
    known = [cache.load(state, _KIND, key) is not None for key in keys]
    return {"known": known, "holds": not all(known)}


def keep(state: str, key: str, proof: dict[str, Any]) -> dict[str, Any]:
    """Keep one for the next time."""
    return cache.keep(state, _KIND, key, proof)
