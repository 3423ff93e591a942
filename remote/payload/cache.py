"""Answers that take long to get, kept on the host under the state folder.

A key holds everything that the answer depends on, so that nothing ever needs to be thrown away.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .files import private_dir, sha256, state_dir, write


def _path(state: str, kind: str, key: str) -> str:
    folder = private_dir(os.path.join(state_dir(state), "cache"))
    return os.path.join(folder, f"{kind}-{sha256(key.encode())[:32]}.json")


def load(state: str, kind: str, key: str) -> dict[str, Any] | None:
    """What was kept; None where nothing was, or it can't be read."""
    try:
        with open(_path(state, kind, key), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def keep(state: str, kind: str, key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Keep it for the next time."""
    write(_path(state, kind, key), json.dumps(value).encode())
    return {}
