"""Other ways to do the job of `benchmarks.deploy`, each installed in a venv of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from benchmarks.rig import Target

FIRST, UNCHANGED, UNCACHED = "first run", "nothing changed", "first run, nothing cached"


class Peer(Protocol):
    """One way to do the job.

    ``command`` is what a user would type; ``rows`` are the situations it is measured in.
    """

    name: str
    command: str
    rows: tuple[str, ...]

    def prepare(self, row: str) -> None:
        """Bring host and client into the situation; not measured, and not over a slow link."""

    def do(self) -> None:
        """The job, from the start of the client to the server's being ready."""

    def right(self, row: str) -> bool:
        """Whether everything is as the job wants it."""

    def close(self) -> None:
        """End what it keeps running, connections that stay open for the next time among it."""


class Scripted:
    """A peer that runs one command in an empty environment, and leaves all in `Target.run`."""

    rows: tuple[str, ...] = (FIRST, UNCHANGED)

    def __init__(self, target: Target, name: str, command: str, words: list[str]) -> None:
        self.target, self.name, self.command = target, name, command
        self._words = words
        self._folder = target.folder / name
        self._folder.mkdir()
        self._before: list[int] = []
        self.env: dict[str, str] = {}

    def prepare(self, row: str) -> None:
        if row == FIRST:
            self.close()
            self.target.end_servers()
            self.target.original_files()
            self.target.old_server()
        self._before = self.target.servers()

    def do(self) -> None:
        run(self._words, self._folder, self.env)

    def right(self, row: str) -> bool:
        now = self.target.servers()
        same = now == self._before
        return (
            self.target.files.holds(self.target.venv.site)
            and self.target.serves()
            and len(now) == 1
            and same == (row == UNCHANGED)
        )

    def close(self) -> None:
        pass

    def write(self, name: str, content: str) -> Path:
        """A file that the peer needs, in its own folder."""
        path = self._folder / name
        path.write_text(content)
        return path


def run(words: list[str], folder: Path, env: dict[str, str]) -> None:
    """Run a peer.

    Raises:
        RuntimeError: it failed; its output is in the message.
    """
    done = subprocess.run(
        words,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")


def installed(cache: Path, name: str, requirement: str, program: str) -> Path:
    """A program in a venv of its own, made at the first use and kept in the cache."""
    found = cache / name / "bin" / program
    if not found.exists():
        print(f"installing {requirement} in {cache / name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(cache / name)], check=True)
        pip = [str(cache / name / "bin" / "python"), "-m", "pip", "install", "-q", requirement]
        subprocess.run(pip, check=True)
    return found


def close_masters(folder: Path) -> None:
    """End the OpenSSH clients that hold a connection open for others, by their sockets."""
    for socket in folder.glob("*"):
        if socket.is_socket():
            words = ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "there"]
            subprocess.run(words, capture_output=True, check=False)
