"""Ending servers: what this tool started, or one that somebody else did, named and confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remote import locking, server, venv
from remote.config import HostSettings
from remote.core import host_facts
from remote.core.shell import masked
from remote.errors import ConfigError
from remote.session import Session


def stop(session: Session, run: str | None) -> dict[str, Any]:
    """End every process of a run (or of all that live) and wait for its memory."""
    host, settings, display = session.host, session.host_settings, session.display
    strays: list[str] = []
    then = [venv.survey_request(settings)] if run is None else []
    with locking.held(session, "stop", then=then), display.working("stopping"):
        if run is not None:
            found = [server.look(host, settings, run)]
        else:
            facts = venv.survey(host, settings)
            found = [each for each in facts.runs if each.alive]
            strays = told(facts.strays, settings)
        session.record.seen(*found)
        locking.respect_starts(session, found)
        done = []
        for each in (each for each in found if each.alive):
            done.append(server.stop(host, settings, each, session.clock, display.tell))
            session.record.stopped(each.run, "inv stop", processes=done[-1].processes)
    for stopped in done:
        how = " (some had to be killed)" if stopped.killed else ""
        display.good(
            f"run {stopped.run} is stopped: {stopped.processes} processes gone after"
            f" {stopped.waited_s:.1f} s{how}"
        )
    if not done:
        display.say("nothing of this tool is running")
    for stray in strays:
        display.warn(stray)
    return {
        "strays": strays,
        "stopped": [
            {"run": each.run, "processes": each.processes, "waited_s": round(each.waited_s, 1)}
            for each in done
        ],
    }


def told(strays: Mapping[str, Sequence[int]], settings: HostSettings) -> list[str]:
    """What to say of processes whose runs the state folder doesn't know."""
    return [
        f"run {run}, which {settings.state} doesn't know (another's, or it was moved), has"
        f" {len(pids)} processes: {', '.join(map(str, pids[:8]))}"
        for run, pids in strays.items()
    ]


def stop_foreign(session: Session, pid: int, confirmed: bool) -> dict[str, Any]:
    """End a server on the port that this tool did not start.

    Raises:
        ConfigError: the pid doesn't hold the port, or nobody confirmed.
    """
    host, settings, display = session.host, session.host_settings, session.display
    owner = host_facts.holder(host.call("facts.port_owner", port=settings.port)["owner"])
    if owner is None or owner.pid != pid:
        raise ConfigError(
            f"pid {pid} does not hold port {settings.port}",
            host=settings.name,
            evidence=[str(owner)] if owner else [f"nobody listens on port {settings.port}"],
        )
    display.say(f"port {settings.port} is held by {owner}")
    if not confirmed and not display.confirm(f"end pid {pid}?"):
        raise ConfigError("not confirmed; nothing was ended", hint="--yes ends it without asking")
    with locking.held(session, f"stop --pid {pid}"), display.working("stopping"):
        server.stop_foreign(host, settings, owner, display.tell)
        session.record.event("stop", pid=pid, command=masked(owner.command))
    display.good(f"pid {pid} is gone")
    return {"stopped_pid": pid, "command": masked(owner.command)}
