"""What only looks: hosts, profiles, status, logs, and the tunnel."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote import config, diagnosing, logs, patching, profile, server, stopping, venv
from remote.core.host_facts import RunState
from remote.display import Display, duration
from remote.errors import ConfigError, Unreachable
from remote.experiment import pick_run
from remote.session import Session

#: Earlier runs that `inv status` lists, newest first; with --json it has all that were read.
_SHOWN_RUNS = 10

#: Without a word on how much, `inv logs` prints this many lines.
_TAIL = 200


def hosts(raw: Mapping[str, object], project: Path, display: Display) -> list[dict[str, Any]]:
    """The configured hosts and the embedded one; which of them a task without --host takes."""
    settings = config.load(raw, project)
    if settings.default_host:
        settings.pick()  # refuses a host: that there isn't
    known = list(settings.hosts.values())
    default = settings.default_host or (
        config.SANDBOX if not known else known[0].name if len(known) == 1 else None
    )
    rows = [
        {
            "host": host.name,
            "address": str(host.address),
            "venv": host.venv,
            "model": host.model,
            "port": host.port,
            "default": host.name == default,
        }
        for host in known
    ]
    rows.append(
        {
            "host": config.SANDBOX,
            "address": "embedded in this machine",
            "venv": str(settings.sandbox_folder / "home" / "ml-env"),
            "model": "tiny-qwen2",
            "port": None,
            "default": default == config.SANDBOX,
        }
    )
    display.table(
        ("host", "address", "venv", "model", "port", ""),
        [
            (
                r["host"],
                r["address"],
                r["venv"],
                r["model"],
                r["port"],
                "default" if r["default"] else "",
            )
            for r in rows
        ],
    )
    return rows


def profiles(raw: Mapping[str, object], project: Path, display: Display) -> list[dict[str, str]]:
    """The profiles with their descriptions."""
    folders = config.load(raw, project).template_folders
    rows = [
        {"profile": name, "description": _described(name, folders)}
        for name in profile.names(folders)
    ]
    display.table(("profile", "what it is"), [(r["profile"], r["description"]) for r in rows])
    return rows


def status(session: Session) -> dict[str, Any]:
    """The host, its newest run, and what is patched."""
    host, settings = session.host, session.host_settings
    host.ahead([venv.survey_request(settings), patching.look_request(settings)])
    facts = venv.survey(host, settings)
    seen = patching.view(host, settings)
    session.record.seen(*facts.runs, all_of_them=True)
    current = facts.current
    if current is not None:
        current = diagnosing.awake(session, current)
    phase = None
    if current is not None and current.state == "starting":
        phase = server.phase_of(host, settings, current.run).value
    elif current is not None and current.state == "ready":
        phase = "serving"
    return {
        "host": settings.name,
        "address": str(settings.address),
        "hostname": facts.hostname,
        "versions": {name: found["version"] for name, found in facts.distributions.items()},
        "gpus": [gpu.name for gpu in facts.gpus] or facts.no_gpus_because,
        "port": settings.port,
        "port_owner": None if facts.port_owner is None else str(facts.port_owner),
        "run": None if current is None else run_dict(current, phase),
        "runs": [run_dict(each, None) for each in facts.runs],
        "strays": stopping.told(facts.strays, settings),
        "patches": {
            "applied": list(seen.applied),
            "interrupted": seen.interrupted,
            "drifted": [file.path for file in seen.drifted],
        },
    }


def run_dict(run: RunState, phase: str | None) -> dict[str, Any]:
    """A run as `status --json` shows it."""
    return {
        "run": run.run,
        "profile": run.record.get("profile"),
        "state": run.state,
        "phase": phase,
        "pid": run.server_pid,
        "processes": len(run.pids),
        "uptime_s": None if run.uptime_s is None else round(run.uptime_s, 1),
        "exit_status": run.exit_status,
        "outcome": run.outcome,
        "log_bytes": run.log_bytes,
        "note": run.record.get("note", ""),
        "user": run.record.get("user"),
        "client": run.record.get("client"),
    }


def _described(name: str, folders: Sequence[Path]) -> str:
    """A profile's own words, or what is wrong with its file."""
    try:
        return profile.description(name, folders)
    except ConfigError as wrong:
        return f"unusable: {wrong.message}{''.join(f'; {line}' for line in wrong.evidence)}"


def show_status(display: Display, found: Mapping[str, Any]) -> None:
    """`experiment.status` for a person."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found["versions"].items()))
    gpus = found["gpus"]
    display.say(f"{found['host']}: {found['address']} ({found['hostname']})")
    display.say(f"  {versions or 'no known packages in the venv'}")
    display.say(f"  GPUs: {gpus if isinstance(gpus, str) else f'{len(gpus)} × {gpus[0]}'}")
    run = found["run"]
    for stray in found["strays"]:
        display.warn(stray)
    if run is None:
        display.say("  no runs yet; inv deploy PROFILE starts one")
    else:
        up = f", up for {duration(run['uptime_s'])}" if run["uptime_s"] is not None else ""
        phase = f" ({run['phase']})" if run["phase"] else ""
        pid = f", pid {run['pid']} and {run['processes'] - 1} more" if run["pid"] else ""
        display.say(f"  run {run['run']}: profile {run['profile']}, {run['state']}{phase}{pid}{up}")
        if run["note"]:
            display.say(f"    note: {run['note']}")
        if run["outcome"] and run["state"] in ("crashed", "hung"):
            told = run["outcome"]
            why = f" ({told['kind']}: {told['cause']})" if told.get("kind") else ""
            display.say(f"    {told['reason']}{why}")
    earlier = [each for each in found["runs"] if run is None or each["run"] != run["run"]]
    if earlier:
        display.say("  earlier runs:")
        display.table(
            ("", "run", "profile", "state", "note"),
            [
                ("   ", e["run"], e["profile"], e["state"], e["note"])
                for e in earlier[: -_SHOWN_RUNS - 1 : -1]
            ],
        )
    owner = found["port_owner"]
    display.say(f"  port {found['port']}: {owner or 'free'}")
    patches = found["patches"]
    display.say(f"  patches: {', '.join(patches['applied']) or 'none'}")
    if patches["interrupted"]:
        display.warn("a patch was interrupted; the next deploy or rollback-patch undoes it")
    for path in patches["drifted"]:
        display.warn(f"{path} is no longer what this tool left there (reinstalled or edited)")


def print_logs(
    session: Session,
    run: str | None,
    tail: int,
    since: str | None,
    grep: str | None,
    follow: bool,
) -> dict[str, Any]:
    """Print a run's log; as data its lines, or with ``follow`` only where it ended."""
    display = session.display
    lines_wanted: int | None = tail if tail != -1 else None
    if lines_wanted is None and since is None and grep is None:
        lines_wanted = _TAIL
    wanted = logs.selection(lines_wanted, since, grep)
    settings = session.host_settings
    asked = logs.request(settings, run, wanted, follow=follow)
    session.host.ahead([server.look_request(settings, run), asked])
    found = pick_run(session, run)
    if found.rebooted:
        display.warn("the host was rebooted since this run was started; its log ends there")
    kept: list[str] = []
    for line in logs.lines(
        session.host,
        settings,
        found.run,
        wanted,
        follow=follow,
        clock=session.clock,
        tell=display.warn,
        ahead=asked,
    ):
        shown = session.scrubber.text(line)
        if display.as_json and not follow:
            kept.append(shown)
        else:
            display.line(shown, at_once=follow)
    return {"run": found.run, "lines": kept}


def hold_tunnel(session: Session, local_port: int) -> dict[str, Any]:
    """Forward a port here to the server's, until it is interrupted."""
    remote_port = session.host_settings.port
    try:
        with session.host.tunnel(local_port, remote_port) as port:
            url = f"http://127.0.0.1:{port}"
            session.display.json({"url": url, "local_port": port, "remote_port": remote_port})
            session.display.say(
                f"{url} is the server on {session.host_settings.name}; Ctrl-C ends it"
            )
            sys.stdout.flush()
            while True:
                session.clock.sleep(3600)
    except OSError as error:
        raise Unreachable(
            f"port {local_port} here cannot be opened: {error}", hint="try --local-port 0"
        ) from error
