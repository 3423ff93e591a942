"""This payload's own code, kept on the host so that it travels once.

It is kept compiled, under the hash of what was sent and the interpreter's kind of bytecode, in a
file that only this user can write; `remote/agent.py` starts it from there.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import marshal
import os
from collections.abc import Mapping
from typing import Any

from .files import expand, private_dir, write
from .refusal import Refused

#: Where less is free, runs need it more.
_ROOM_BYTES = 64 * 1024 * 1024

#: So many are kept: colleagues may use other versions of this tool.
_KEPT = 4


class OwnCode:
    """What this process was started from, to be kept once there is a state folder.

    Args:
        state: the state folder, as the settings have it.
        name: the file's name in its cache.
        parts: sources and compiled modules; None where they came from that file.
    """

    def __init__(self, state: str, name: str, parts: Mapping[str, Any] | None) -> None:
        self._state = state
        self._name = name
        self._parts = parts

    def keep(self) -> None:
        """Write it down where it isn't yet. A host without a state folder is left without one."""
        state = expand(self._state)
        if self._parts is None or not os.path.isdir(state):
            return
        info = os.statvfs(state)
        if info.f_bavail * info.f_frsize < _ROOM_BYTES:
            return
        body = marshal.dumps(dict(self._parts))
        # Not being able to costs time, and nothing else.
        with contextlib.suppress(OSError, Refused):
            folder = private_dir(os.path.join(private_dir(state), "cache"))
            write(os.path.join(folder, self._name), hashlib.sha256(body).digest() + body)
            _forget_older(folder)
        self._parts = None


def _forget_older(folder: str) -> None:
    kept = glob.glob(os.path.join(glob.escape(folder), "agent-*"))
    for path in sorted(kept, key=os.path.getmtime)[:-_KEPT]:
        os.unlink(path)
