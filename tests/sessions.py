"""A task's surroundings on a host without SSH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, new_run

from remote import config, server
from remote.clock import SystemClock
from remote.core.scrubbing import Scrubber
from remote.display import Display, ServingView
from remote.session import Session


def once_watched(patch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do that, once, when `inv watch` shows its first sign of life."""
    shown, left = ServingView.show, [action]

    def show(view: ServingView, *args: Any) -> None:
        shown(view, *args)
        if left:
            left.pop()()

    patch.setattr(ServingView, "show", show)


class Task:
    """A session with the host of a test, and runs started on it."""

    def __init__(self, host: LocalHost, venv: Venv, folder: Path, **settings: object) -> None:
        self.host, self.venv = host, venv
        loaded = config.load({"runs": str(folder / "runs"), **settings}, folder)
        scrubber = Scrubber(loaded.secrets)
        self.session = Session(loaded, host.settings, host, SystemClock(), Display(), scrubber)

    def start(self, play: str) -> str:
        """Start a server that does as told; its run."""
        run = new_run()
        self.venv.play(play)
        script = self.venv.launch_script(self.host.settings.port)
        note = {"profile": "test", "ready_timeout_s": 60}
        server.start_request(self.host.settings, run, script, note).of(self.host)
        return run

    def folder(self, run: str) -> Path:
        """The run's folder on the host."""
        return Path(self.host.settings.state) / "runs" / run

    def local(self, run: str) -> Path:
        """The run's folder here."""
        return self.session.local(run).folder

    def says(self, run: str, word: bytes) -> Callable[[], bool]:
        """Whether the run's log on the host holds the word."""
        return lambda: word in (self.folder(run) / "server.log").read_bytes()
