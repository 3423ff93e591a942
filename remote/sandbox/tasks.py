"""The embedded host's own tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from remote import config
from remote.display import Display
from remote.errors import ConfigError
from remote.sandbox.control import Sandbox
from remote.session import embedded_host


def _sandbox(raw: Mapping[str, object], project: Path) -> Sandbox:
    return Sandbox(config.load(raw, project).sandbox_folder)


def up(raw: Mapping[str, object], project: Path, display: Display) -> dict[str, Any]:
    """Set it up and start it."""
    host = embedded_host(config.load(raw, project), display, set_up=True)
    display.good(f"the embedded host is up: {host.address}")
    return {"address": str(host.address), "venv": host.venv, "model": host.model}


def status(raw: Mapping[str, object], project: Path, display: Display) -> dict[str, Any]:
    """Look at it."""
    found = _sandbox(raw, project).status()
    display.say(f"{found.folder}: {found.disk_bytes / 1e9:.2f} GB")
    display.table(("step", "done"), [(step.name, step.at or "no") for step in found.steps])
    if found.ssh_pid is not None:
        display.say(f"SSH server: pid {found.ssh_pid}, port {found.ssh_port}")
    else:
        display.say("SSH server: not running")
    if found.leftovers:
        display.say(f"{len(found.leftovers)} processes started through it are running")
    return {**asdict(found), "folder": str(found.folder), "installed": found.installed}


def down(raw: Mapping[str, object], project: Path, display: Display) -> dict[str, Any]:
    """Stop its SSH server."""
    done = _sandbox(raw, project).down()
    if done.stopped_pid is None:
        display.say("its SSH server was not running")
    else:
        display.good(f"its SSH server is stopped (pid {done.stopped_pid})")
    if done.leftovers:
        display.warn(
            f"{len(done.leftovers)} processes started through it go on; inv stop would end a server"
        )
    return asdict(done)


def reset(
    raw: Mapping[str, object], project: Path, display: Display, confirmed: bool
) -> dict[str, Any]:
    """Remove it."""
    sandbox = _sandbox(raw, project)
    if not confirmed and not display.confirm(f"remove {sandbox.folder} and all in it?"):
        raise ConfigError(
            "not confirmed; nothing was removed", hint="--yes removes it without asking"
        )
    freed = sandbox.reset()
    display.good(f"{sandbox.folder} is gone: {freed / 1e9:.2f} GB freed")
    return {"folder": str(sandbox.folder), "freed_bytes": freed}


def lock(raw: Mapping[str, object], project: Path, display: Display) -> dict[str, Any]:
    """Refresh the pins."""
    from remote.sandbox.lock import lock_constraints

    with display.working("resolving packages"):
        written = lock_constraints(detail=display.tell)
    display.good(f"wrote {written}")
    return {"written": str(written)}
