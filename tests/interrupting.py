"""A host's agent stopped in the middle of what it does, at every step that it takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import Venv, eventually

_AGENT = Path(__file__).with_name("interrupted_agent.py")


class Interrupting:
    """Makes a venv's python run the agent so that it can be stopped; see `interrupted_agent.py`."""

    def __init__(self, venv: Venv, control: Path) -> None:
        control.mkdir(parents=True)
        self._control = control
        self.python = venv.folder / "bin" / "python"
        ordinary = self.python.read_text().splitlines(keepends=True)
        ordinary.insert(
            1,
            'if [ "$1 $2 $3" = "-I -S -c" ]; then\n'
            f'  exec {sys.executable} -I -S {_AGENT} {control} "$4"\n'
            "fi\n",
        )
        self.python.write_text("".join(ordinary))
        os.mkfifo(control / "go")

    def kill_before(self, step: int) -> None:
        """The next agent to start is killed before that step (from 1)."""
        self._order(step, "kill")

    def wait_before(self, step: int) -> None:
        """The next agent to start waits before that step; see `waiting`."""
        self._order(step, "wait")

    def taken(self) -> int:
        """How many steps the agent under orders has taken."""
        noted = self._control / "steps"
        return int(noted.read_text() or 0) if noted.exists() else 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block runs while the agent waits; afterwards it goes on."""
        eventually(self._opened)
        try:
            yield
        finally:
            os.close(self._pipe)

    def _opened(self) -> bool:
        try:
            self._pipe = os.open(self._control / "go", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads
            return False
        return True

    def _order(self, step: int, what: str) -> None:
        (self._control / "steps").unlink(missing_ok=True)
        draft = self._control / "draft"
        draft.write_text(f"{step} {what}")
        draft.replace(self._control / "orders")

    def countermand(self) -> None:
        """Take back orders that no agent has got."""
        (self._control / "orders").unlink(missing_ok=True)
