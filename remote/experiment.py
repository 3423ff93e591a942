"""What a task does, from the capabilities: deploy, wait, status, stop, roll back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remote import deploy, patching, server, venv
from remote.core import flags, host_facts, server_args
from remote.core.host_facts import RunState
from remote.core.log_lines import collapse
from remote.display import StartWatch, duration, verdict_line
from remote.errors import ConfigError, NotReady, ServerCrashed, ToolError
from remote.plan_view import plan_dict, show_patch_diffs, show_plan
from remote.server import Outcome, Verdict
from remote.session import Session

#: Lines of the log that an error quotes.
_QUOTED_LINES = 15


@dataclass(frozen=True)
class DeployOptions:
    """``timeout_s`` None is the profile's own."""

    sets: tuple[str, ...] = ()
    dry: bool = False
    diff: bool = False
    restart: bool = False
    timeout_s: float | None = None


def deploy_profile(session: Session, name: str, options: DeployOptions) -> dict[str, Any]:
    """Deploy a profile and wait until it serves.

    Returns:
        The run, the plan and the verdict, for ``--json``.

    Raises:
        ServerCrashed: it died, or printed a fatal line.
        NotReady: it was still starting when the time was up; it goes on.
        ToolError: something before the start; nothing is half done.
    """
    host, settings, display = session.host, session.host_settings, session.display

    def planned() -> deploy.Plan:
        return deploy.plan(
            host, settings, session.folders, name, options.sets, session.clock, display.tell
        )

    if options.dry or options.diff:
        with display.working(f"planning {name} for {settings.name}"):
            made = planned()
        show_plan(display, made)
        display.script(made.script)
        show_patch_diffs(display, made)
        display.say("nothing was changed")
        return {"plan": plan_dict(made), "changed": False, "script": made.script}
    with deploy.locked(host, settings, f"deploy {name}"):
        with display.working(f"planning {name} for {settings.name}"):
            for path in patching.recover(host, settings):
                display.warn(f"an interrupted patch was undone: {path}")
            made = planned()
        show_plan(display, made)
        running = None if options.restart else made.unchanged
        if running is None:
            with display.working(f"deploying {name}"):
                deploy.carry_out(host, made, session.local(made.run), session.clock, display.tell)
    run = made.run if running is None else running.run
    if running is not None and running.state == "ready":
        why_not = server.answers(host, settings, run)
        if why_not is not None:
            raise ServerCrashed(
                f"nothing has changed and run {run} is up, but it does not serve: {why_not}",
                host=settings.name,
                hint=f"inv deploy {name} --restart",
            )
        uptime = duration(running.uptime_s)
        display.good(f"nothing has changed: run {run} is ready, up for {uptime} (--restart forces)")
        return {"run": run, "plan": plan_dict(made), "changed": False, "verdict": None}
    if running is not None:
        display.say(f"nothing has changed: run {run} is still starting")
    timeout_s = options.timeout_s or made.profile.ready_timeout_s
    verdict = _follow(session, run, timeout_s)
    _judge(session, run, verdict)
    return {
        "run": run,
        "plan": plan_dict(made),
        "changed": running is None,
        "verdict": verdict.as_dict(),
        "intent_mismatches": _check_intent(session, made.record(), verdict),
    }


def wait(session: Session, run: str | None, timeout_s: float | None) -> dict[str, Any]:
    """Take a start up again: the same display, verdict and exit codes as a deploy's."""
    found = pick_run(session, run)
    if found.state == "ready":
        why_not = server.answers(session.host, session.host_settings, found.run)
        if why_not is not None:
            raise ServerCrashed(
                f"run {found.run} was ready and does not serve now: {why_not}",
                host=session.host_settings.name,
                hint=f"inv logs --run {found.run}",
            )
        session.display.good(f"run {found.run} is ready, up for {duration(found.uptime_s)}")
        return {"run": found.run, "verdict": {"outcome": Outcome.READY.value}}
    if found.state == "stopped":
        raise ToolError(f"run {found.run} was stopped", hint="inv restart starts it again")
    if timeout_s is None:
        allowed = float(found.record.get("ready_timeout_s", 1800))
        timeout_s = max(allowed - (found.uptime_s or 0.0), 1.0)
    verdict = _follow(session, found.run, timeout_s)
    _judge(session, found.run, verdict)
    return {
        "run": found.run,
        "verdict": verdict.as_dict(),
        "intent_mismatches": _check_intent(session, found.record, verdict),
    }


def pick_run(session: Session, run: str | None) -> RunState:
    """The run named, else the host's newest.

    Raises:
        ConfigError: no such run, or none at all.
    """
    host, settings = session.host, session.host_settings
    if run is None:
        ids = host.call("runs.ids", state=settings.state)["ids"]
        if not ids:
            raise ConfigError(
                f"{settings.name} has no runs yet", hint="inv deploy PROFILE starts one"
            )
        run = str(ids[-1])
    return server.look(host, settings, run)


def _follow(session: Session, run: str, timeout_s: float) -> Verdict:
    display = session.display
    try:
        with display.working(f"waiting for run {run}", timeout_s):
            return deploy.follow(
                session.host,
                session.host_settings,
                run,
                session.local(run),
                session.clock,
                timeout_s,
                StartWatch(display),
            )
    except KeyboardInterrupt:
        display.say(f"the server goes on; take its start up again with: inv wait --run {run}")
        raise


def _judge(session: Session, run: str, verdict: Verdict) -> None:
    """Print the verdict; raise what is no success."""
    name = session.host_settings.name
    if verdict.outcome is Outcome.READY:
        session.display.good(f"run {run} is {verdict_line(verdict)}")
        return
    quoted = _quoted(session, run, verdict)
    if verdict.outcome is Outcome.NOT_READY:
        raise NotReady(
            f"run {run} is {verdict.reason}; it goes on",
            host=name,
            evidence=quoted,
            hint=f"inv wait --run {run} waits on; inv stop ends it",
        )
    if verdict.outcome is Outcome.STOPPED:
        raise ToolError(
            f"run {run}: {verdict.reason}", host=name, hint="inv restart starts it again"
        )
    error = ServerCrashed(
        f"run {run} {verdict_line(verdict)}",
        host=name,
        evidence=quoted,
        hint=f"inv logs --run {run} --tail 200; a copy is in {session.local(run).folder}",
    )
    # The verdict comes at once; cleaning up after it may take seconds.
    session.display.error(error)
    with session.display.working("cleaning up"):
        deploy.clear_away(
            session.host, session.host_settings, run, session.clock, session.display.tell
        )
    raise error


def _quoted(session: Session, run: str, verdict: Verdict) -> list[str]:
    """The deciding line with its number, then the log's last lines as far as it was read."""
    quoted = []
    if verdict.line is not None:
        quoted.append(f"line {verdict.line_number}: {verdict.line}")
    quoted.append("the log ends with:")
    with (session.local(run).folder / "server.log").open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - 65536))
        lines = collapse(log.read())
    last = [line for line in lines if line.strip()][-_QUOTED_LINES:]
    return quoted + [line[:400] for line in last if verdict.line is None or line != verdict.line]


def _check_intent(session: Session, record: Mapping[str, Any], verdict: Verdict) -> list[str]:
    """Where the started server does otherwise than planned, by its own words."""
    if verdict.outcome is not Outcome.READY or verdict.state.server_args is None:
        return []
    decisions = [flags.Decision.from_dict(each) for each in record.get("decisions", ())]
    reported = server_args.parse(verdict.state.server_args) or {}
    found = [str(each) for each in flags.check_intent(decisions, reported, verdict.state.graphs)]
    for mismatch in found:
        session.display.warn(f"the server does otherwise: {mismatch}")
    return found


def restart(session: Session, timeout_s: float | None) -> dict[str, Any]:
    """Deploy the newest run's profile again, whatever it is doing."""
    found = pick_run(session, None)
    options = DeployOptions(
        sets=tuple(found.record.get("sets", ())), restart=True, timeout_s=timeout_s
    )
    return deploy_profile(session, str(found.record["profile"]), options)


def stop(session: Session, run: str | None) -> dict[str, Any]:
    """End every process of a run (or of all that live) and wait for its memory."""
    host, settings, display = session.host, session.host_settings, session.display
    with deploy.locked(host, settings, "stop"), display.working("stopping"):
        if run is not None:
            found = [server.look(host, settings, run)]
        else:
            found = [each for each in venv.survey(host, settings).runs if each.alive]
        living = [each for each in found if each.alive]
        done = [server.stop(host, settings, e, session.clock, display.tell) for e in living]
    for stopped in done:
        how = " (some had to be killed)" if stopped.killed else ""
        display.good(
            f"run {stopped.run} is stopped: {stopped.processes} processes gone after"
            f" {stopped.waited_s:.1f} s{how}"
        )
    if not done:
        display.say("nothing of this tool is running")
    return {
        "stopped": [
            {"run": each.run, "processes": each.processes, "waited_s": round(each.waited_s, 1)}
            for each in done
        ]
    }


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
    with deploy.locked(host, settings, f"stop --pid {pid}"), display.working("stopping"):
        server.stop_foreign(host, settings, owner, session.clock, display.tell)
    display.good(f"pid {pid} is gone")
    return {"stopped_pid": pid, "command": list(owner.command)}


def rollback(session: Session) -> dict[str, Any]:
    """Every patched file back to its original bytes, proven by hash."""
    host, settings, display = session.host, session.host_settings, session.display
    with deploy.locked(host, settings, "rollback-patch"), display.working("rolling back"):
        undone = patching.recover(host, settings)
        facts = venv.survey(host, settings)
        seen = patching.view(host, settings, facts.site_packages)
        proofs = patching.rollback(host, settings, facts.site_packages, seen)
    for path in undone:
        display.warn(f"an interrupted patch was undone: {path}")
    for proof in proofs:
        display.good(f"{proof.path} is its original again")
        display.say(f"  sha256 {proof.sha256 or 'no file'}")
        if proof.recorded is not None:
            same = "the same" if proof.recorded == proof.sha256 else f"ANOTHER: {proof.recorded}"
            display.say(f"  the wheel's RECORD has {same}")
    if not proofs:
        display.say("no file is patched")
    running = facts.current
    if proofs and running is not None and running.alive:
        display.warn(f"run {running.run} keeps the patched code in memory until it is restarted")
    return {"undone": undone, "files": [proof.as_dict() for proof in proofs]}


def status(session: Session) -> dict[str, Any]:
    """The host, its newest run, and what is patched."""
    host, settings = session.host, session.host_settings
    facts = venv.survey(host, settings)
    seen = patching.view(host, settings, facts.site_packages)
    current = facts.current
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
        "user": run.record.get("user"),
        "client": run.record.get("client"),
    }
