"""Which process the SSH server is, and where it listens, as left in ``server.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from remote.sandbox.keys import write_private
from remote.sandbox.process import ProcessId

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ServerRecord:
    """The server last started: it may have ended, and its pid may be another's."""

    process: ProcessId
    port: int

    def write(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> ServerRecord | None:
        """The record, or None where there is none that can be read."""
        try:
            raw = json.loads(path.read_bytes())
            process = raw["process"]
            return cls(
                ProcessId(int(process["pid"]), int(process["start_ticks"]), process["boot_id"]),
                int(raw["port"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
