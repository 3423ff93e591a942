"""The command that leads to a host: `ProxyCommand`, its streams as a socket."""

from __future__ import annotations

import os
import socket
import subprocess


class ProxyCommand:
    """A command of the user's, run as OpenSSH runs it; what it complains of is shown.

    Args:
        line: for the user's shell, its tokens replaced.
    """

    def __init__(self, line: str) -> None:
        self._line = line
        self._process: subprocess.Popen[bytes] | None = None

    def dial(self) -> socket.socket:
        """Start it (anew); its standard streams."""
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {self._line}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
            )
        return ours

    def failed(self) -> int | None:
        """Its exit status, where it ended by itself and not well."""
        if self._process is None:
            return None
        try:
            return self._process.wait(0.5) or None
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
