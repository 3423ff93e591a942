"""What a task does from the capabilities: deploy a profile, wait for a start, start it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remote import deploy, diagnosing, host_lock, locking, patching, planning, rendering, server
from remote.core import flags, server_args
from remote.core.budgets import Budgets
from remote.core.host_facts import RunState
from remote.core.run_record import RunRow
from remote.core.shell import MASK
from remote.display import Display, StartWatch, duration, verdict_line
from remote.errors import ConfigError, NotReady, SSHError, ToolError
from remote.plan_view import plan_dict, show_patch_diffs, show_plan, show_proofs
from remote.proving import PatchProof
from remote.server import Outcome, Verdict
from remote.session import Session


@dataclass(frozen=True)
class DeployOptions:
    """What a deploy may be told.

    Attributes:
        timeout_s: None is the profile's own.
        bundle: bring the evidence of a failure.
        note: why it is tried.
        expects: raises where the plan is not what is wanted, before anything is touched.
    """

    sets: tuple[str, ...] = ()
    patches: planning.PatchChoice = field(default_factory=planning.PatchChoice)
    dry: bool = False
    diff: bool = False
    restart: bool = False
    timeout_s: float | None = None
    bundle: bool = True
    note: str = ""
    expects: Callable[[planning.Plan], None] | None = None


def deploy_profile(session: Session, name: str, options: DeployOptions) -> dict[str, Any]:
    """Deploy a profile and wait until it serves.

    Returns:
        The run, the plan and the verdict, for ``--json``.

    Raises:
        ServerCrashed: it died, or printed a fatal line.
        ServerHung: a rank is stopped, or nothing works for longer than the phase may take.
        NotReady: it was still starting when the time was up; it goes on.
        ToolError: something before the start; nothing is half done.
    """
    host, settings, display = session.host, session.host_settings, session.display

    wanted = planning.wish(settings, session.folders, name, options.sets, options.patches)
    reading = planning.reading(settings, wanted)

    def planned() -> planning.Plan:
        made = planning.plan(host, settings, session.folders, wanted, session.clock, display.tell)
        session.scrubber.learn_script(made.script)
        session.scrubber.learn(made.secrets.values)
        made = replace(made, note=session.scrubber.text(options.note))
        if options.expects is not None:
            options.expects(made)
        return made

    if options.dry or options.diff:
        with display.working(f"planning {name} for {settings.name}"):
            host.ahead(reading)
            made = planned()
        show_plan(display, made)
        session.record.tell_earlier(made)
        script = session.scrubber.text(made.script)
        display.script(script)
        show_patch_diffs(display, made)
        display.say("nothing was changed")
        return {"plan": plan_dict(made), "changed": False, "script": script}
    with (
        _TakeUp(display) as going,
        session.record.doing("deploy", profile=name, note=options.note) as told,
        locking.held(
            session,
            f"deploy {name}",
            options.note,
            then=[patching.recover_request(settings), *reading],
            meanwhile=lambda: rendering.prepare(session.folders),
        ),
    ):
        with display.working(f"planning {name} for {settings.name}"):
            for path in patching.recover(host, settings).undone:
                display.warn(f"an interrupted patch was undone: {path}")
            made = planned()
        show_plan(display, made)
        running = None if options.restart else made.unchanged
        run = made.run if running is None else running.run
        told |= {"run": run, "changed": running is None}
        proofs: tuple[PatchProof, ...] = ()
        if running is None:
            locking.respect_starts(session, made.stops)
            locking.respect_benches(session, made.stops, made.facts.measured)
            session.record.tell_earlier(made)
            local = session.local(run)
            going.run = run
            with (
                display.working(f"deploying {name}"),
                session.record.start(made, local.folder),
            ):
                proofs = deploy.carry_out(
                    host, made, local, session.clock, display.tell, start_s(options, made)
                )
                going.started = True
                show_proofs(display, proofs)
        else:
            session.record.seen(running)
            if running.state == "ready":
                host.ahead([host_lock.RELEASE, server.answers_request(settings, run)])
    if running is not None and running.state == "ready":
        why_not = server.answers(host, settings, run)
        if why_not is not None:
            raise _not_serving(session, run, why_not)
        uptime = duration(running.uptime_s)
        display.good(f"nothing has changed: run {run} is ready, up for {uptime} (--restart forces)")
        return {"run": run, "plan": plan_dict(made), "changed": False, "verdict": None}
    if running is not None:
        display.say(f"nothing has changed: run {run} is still starting")
    verdict = _follow(session, run, name, start_s(options, made), whole=running is None)
    _judge(session, run, verdict, options.bundle, whole=running is None)
    return {
        "run": run,
        "plan": plan_dict(made),
        "changed": running is None,
        "verdict": verdict.as_dict(),
        "proofs": [proof.as_dict() for proof in proofs],
        "intent_mismatches": _check_intent(session, made.record(), verdict),
    }


def start_s(options: DeployOptions, made: planning.Plan) -> float:
    """Seconds that the start may take."""
    return options.timeout_s or made.profile.ready_timeout_s


def wait(
    session: Session, run: str | None, timeout_s: float | None, bundle: bool = True
) -> dict[str, Any]:
    """Take a start up again: the same display, verdict and exit codes as a deploy's."""
    found = pick_run(session, run)
    if found.state == "ready":
        why_not = server.answers(session.host, session.host_settings, found.run)
        if why_not is not None:
            raise _not_serving(session, found.run, why_not)
        session.display.good(f"run {found.run} is ready, up for {duration(found.uptime_s)}")
        return {"run": found.run, "verdict": {"outcome": Outcome.READY.value}}
    if found.state == "stopped":
        raise ToolError(f"run {found.run} was stopped", hint="inv restart starts it again")
    if timeout_s is None:
        allowed = float(found.record.get("ready_timeout_s", 1800))
        timeout_s = max(allowed - (found.uptime_s or 0.0), 1.0)
    profile = str(found.record.get("profile", ""))
    verdict = _follow(session, found.run, profile, timeout_s, whole=False)
    _judge(session, found.run, verdict, bundle, whole=False)
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
    found = server.look(session.host, session.host_settings, run)
    session.record.seen(found)
    return found


class _TakeUp:
    """Says how a start is taken up again where Ctrl-C ends the block.

    Attributes:
        run: what has been asked for; empty before that.
        started: it is known to run. What a deploy asks for goes in one flight, and until it is
            answered nobody here knows how far the host has got.
    """

    def __init__(self, display: Display, run: str = "", *, started: bool = False) -> None:
        self._display = display
        self.run, self.started = run, started

    @property
    def how(self) -> str:
        if self.started:
            return f"the server goes on; take its start up again with: inv wait --run {self.run}"
        return f"run {self.run} may be on its way: inv status, inv wait --run {self.run}"

    def __enter__(self) -> _TakeUp:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt and self.run:
            self._display.say(self.how)


def _follow(session: Session, run: str, profile: str, timeout_s: float, *, whole: bool) -> Verdict:
    """Follow a start against the time that earlier ones took; ``whole``: from its beginning."""
    display = session.display
    with _TakeUp(display, run, started=True) as going:
        budgets = Budgets(session.record.phases(profile))
        if not whole:
            diagnosing.learn_secrets(session, run)
        try:
            with display.working(f"waiting for run {run}", timeout_s):
                verdict = deploy.follow(
                    session.host,
                    session.host_settings,
                    run,
                    session.local(run),
                    session.clock,
                    timeout_s,
                    StartWatch(display, budgets),
                    budgets,
                )
        except SSHError as error:
            error.hint = going.how
            raise
    if whole and verdict.outcome is Outcome.READY:
        session.record.note_phases(profile, run, verdict.durations)
    return verdict


def _judge(session: Session, run: str, verdict: Verdict, bundle: bool, *, whole: bool) -> None:
    """Record the verdict and print it; raise what is no success."""
    name = session.host_settings.name
    if verdict.outcome in (Outcome.READY, Outcome.NOT_READY, Outcome.STOPPED):
        session.record.verdict(run, verdict, whole=whole)
    if verdict.outcome is Outcome.READY:
        session.display.good(f"run {run} is {verdict_line(verdict)}")
        settings = session.host_settings
        session.display.say(
            f"it listens on {settings.bind}:{settings.port} of {name}; inv tunnel brings it here"
        )
        return
    if verdict.outcome is Outcome.NOT_READY:
        raise NotReady(
            f"run {run} is {verdict.reason}; it goes on",
            host=name,
            evidence=diagnosing.log_end(session, run),
            hint=f"inv wait --run {run} waits on; inv stop ends it",
        )
    if verdict.outcome is Outcome.STOPPED:
        raise ToolError(
            f"run {run}: {verdict.reason}", host=name, hint="inv restart starts it again"
        )
    diagnosing.conclude(session, run, verdict, bundle=bundle)


def _not_serving(session: Session, run: str, why: str) -> ToolError:
    """A server that was ready and does not serve now, explained."""
    diagnosing.pull(session, run)
    findings = diagnosing.explain(session, run, hung=True)
    seen = findings.diagnosis.outcome.value
    outcome = seen if seen in ("crashed", "died_after_ready") else "hung"
    session.record.diagnosed(run, outcome, findings.diagnosis, reason=why)
    return diagnosing.failure(session, run, f"was ready and does not serve now: {why}", findings)


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


def restart(
    session: Session, timeout_s: float | None, bundle: bool = True, note: str = ""
) -> dict[str, Any]:
    """Deploy the newest run's profile again, whatever it is doing."""
    found = pick_run(session, None)
    row = RunRow.from_record(found.run, session.host_settings.name, 0.0, found.record)
    options = replace(as_before(row), timeout_s=timeout_s, bundle=bundle, note=note)
    return deploy_profile(session, row.profile, options)


def as_before(row: RunRow) -> DeployOptions:
    """What an earlier start was told, for another one.

    Raises:
        ConfigError: it was told a secret.
    """
    hidden = [word for word in row.sets if word.endswith(f"={MASK}")]
    if hidden:
        raise ConfigError(
            f"run {row.id} was given a secret that is not kept",
            evidence=[f"--set {word}" for word in hidden],
            hint=f"inv deploy {row.profile} --restart, with the secret again",
        )
    choice = planning.PatchChoice(
        tuple(row.choice.get("named", ())),
        tuple(row.choice.get("added", ())),
        bool(row.choice.get("bare")),
    )
    return DeployOptions(sets=row.sets, patches=choice, restart=True)
