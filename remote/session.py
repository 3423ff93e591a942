"""One task's surroundings: settings, the chosen host, the clock, the display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from remote import config
from remote.clock import Clock, SystemClock
from remote.config import HostSettings, Settings
from remote.core.scrubbing import Scrubber
from remote.display import Display
from remote.errors import ConfigError
from remote.host import Host
from remote.recording import Recorder
from remote.remembered import Remembered
from remote.ssh import SSHHost
from remote.store import LocalRun

if TYPE_CHECKING:
    from remote.sandbox.setup import Progress


@dataclass(frozen=True)
class Session:
    """What a task works with.

    Attributes:
        break_lock: take the host from a task, or from a start, of somebody else.
        confirmed: what would be asked before a destructive step has been answered with yes.
    """

    settings: Settings
    host_settings: HostSettings
    host: Host
    clock: Clock
    display: Display
    scrubber: Scrubber = field(default_factory=Scrubber)
    break_lock: bool = False
    confirmed: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where templates, profiles and patch sets are looked for."""
        return self.settings.template_folders

    def local(self, run: str) -> LocalRun:
        """The run's folder here."""
        return LocalRun(self.settings.runs, run, self.scrubber)

    @cached_property
    def record(self) -> Recorder:
        """Where the task writes down what it does."""
        name = self.host_settings.name
        return Recorder(self.settings.runs, name, self.display, self.scrubber, self.clock)


@contextmanager
def opened(
    raw: Mapping[str, object],
    project: Path,
    host: str | None,
    display: Display,
    *,
    set_up: bool = False,
    break_lock: bool = False,
    yes: bool = False,
) -> Iterator[Session]:
    """A session with the named host, or the one that the settings choose.

    Args:
        raw: what Invoke merged.
        set_up: set the embedded host up where it isn't yet; otherwise it must be there.
        break_lock, yes: as the session has them.

    Raises:
        ConfigError: the settings are wrong, or there is no such host.
    """
    settings = config.load(raw, project)
    name = settings.pick(host)
    if name == config.SANDBOX:
        chosen = embedded_host(settings, display, set_up)
    else:
        chosen = settings.hosts[name]
    connection = SSHHost(chosen, settings.ssh, Remembered(settings.cache / name))
    try:
        scrubber = Scrubber(settings.secrets)
        display.scrub = scrubber.text
        clock = SystemClock()
        yield Session(settings, chosen, connection, clock, display, scrubber, break_lock, yes)
    finally:
        connection.close()


def embedded_host(settings: Settings, display: Display, set_up: bool) -> HostSettings:
    """The embedded host, up, as a host like any other.

    Raises:
        ConfigError: it isn't set up and ``set_up`` does not ask for it.
    """
    from remote.sandbox.control import Sandbox  # nobody else needs it

    sandbox = Sandbox(settings.sandbox_folder)
    if sandbox.status().installed:
        entry = sandbox.up(lambda progress: None, display.confirm)
    elif set_up:
        with display.working("setting the embedded host up"):
            entry = sandbox.up(_Report(display), display.confirm)
    else:
        raise ConfigError(
            "the embedded host is not set up yet",
            hint="inv deploy PROFILE sets it up, or: inv sandbox.up",
        )
    return config.host_from(config.SANDBOX, entry.host, settings.bench, settings.secrets)


class _Report:
    """Shows the set-up step by step: a line a step, and on a terminal what it does right now."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._step: tuple[int, str] | None = None

    def __call__(self, progress: Progress) -> None:
        if progress.step == 0:
            self._display.say(progress.detail)
        elif (progress.step, progress.name) != self._step:
            self._step = (progress.step, progress.name)
            self._display.say(f"step {progress.step} of {progress.of}: {progress.name}")
        else:
            self._display.bar(progress.detail[:100], progress.step - 1, progress.of)
