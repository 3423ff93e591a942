"""Answers of a host that are long and seldom change, kept here so that they travel once.

A request says which answers it knows by their tags; the host sends the tag alone where its answer
is one of those. Nothing is ever taken for an answer that the host did not just confirm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote.host import Answer, Request
from remote.payload import frames
from remote.private_file import write_whole

#: What is asked so: a parser's flags, and the files that a patch starts from.
WORTH_IT = frozenset({"facts.parser", "patches.look"})

#: Of each request the last so many answers: a host goes to and fro between patched and not.
_KEPT = 4
#: A shorter answer fits the packet that would say it is the same.
_WORTH_BYTES = 1024


class Remembered:
    """The answers of one host, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Answer, bytes]] = {}

    def tags(self, request: Request) -> list[str]:
        """Those of the answers to that request which can be given again; newest first."""
        found = []
        for path in self._files(request):
            with suppress(OSError, frames.BrokenStream, ValueError):
                ((body, data),) = frames.Splitter().feed(path.read_bytes())
                if frames.tag(body, data) == path.name:
                    self._known[path.name] = body, data
                    found.append(path.name)
        return found

    def answer(self, tag: str) -> tuple[Answer, bytes]:
        """The answer of that tag, which `tags` has given."""
        return self._known[tag]

    def keep(self, request: Request, body: Mapping[str, Any], data: bytes) -> None:
        """Keep an answer that came in full; not being able to costs time and nothing else."""
        packed = frames.pack(body, data, compress=True)
        if len(packed) < _WORTH_BYTES:
            return
        with suppress(OSError):
            home = self._home(request)
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(home / frames.tag(body, data), packed)
            for path in self._files(request)[_KEPT:]:
                path.unlink()

    def _files(self, request: Request) -> list[Path]:
        with suppress(OSError):
            found = [(path.stat().st_mtime_ns, path) for path in self._home(request).iterdir()]
            return [path for _, path in sorted(found, reverse=True)]
        return []

    def _home(self, request: Request) -> Path:
        asked = json.dumps([request.function, dict(request.params)], sort_keys=True).encode()
        return self._folder / hashlib.sha256(asked + request.data).hexdigest()[:32]
