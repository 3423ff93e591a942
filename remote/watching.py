"""`inv watch`: a serving process as it works, until it dies, hangs or nobody watches any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remote import diagnosing, server
from remote.clock import Clock
from remote.config import HostSettings
from remote.core.budgets import Budgets
from remote.core.heartbeat import AlarmKind, Beat, Heartbeat
from remote.core.log_events import FatalLine, Ready, ServingStep
from remote.core.phases import Phase
from remote.core.server_log import LogReader
from remote.core.serving import ServingMeter
from remote.display import ServingView, duration
from remote.errors import ToolError
from remote.experiment import pick_run
from remote.host import Host
from remote.server import Follower, LinkNews, Outcome, Verdict
from remote.session import Session

#: A serving process that logs no step for so long is asked for a generation, and has so long to
#: answer it.
QUIET_S = 10.0
_ANSWER_S = 20.0

News = ServingStep | FatalLine | Beat | LinkNews


def watch(
    session: Session, run: str | None, seconds: float | None, *, bundle: bool = True
) -> dict[str, Any]:
    """Show tokens per second, queue and usage until the server is over, or the time is.

    Raises:
        ServerCrashed: it died, or one of its ranks did.
        ServerHung: a rank is stopped, or a generation is not answered.
        ToolError: the run is not serving.
    """
    host, settings, display = session.host, session.host_settings, session.display
    found = diagnosing.awake(session, pick_run(session, run))
    if found.state in ("crashed", "dying"):
        raise diagnosing.gone(session, found)
    if found.state not in ("ready", "hung"):  # what hung may have been let go on
        raise ToolError(
            f"run {found.run} is not serving: {found.state}",
            host=settings.name,
            hint=f"inv wait --run {found.run} follows a start; inv diagnose says why one ended",
        )
    display.say(f"run {found.run} is ready, up for {duration(found.uptime_s)}; Ctrl-C ends this")
    clock = session.clock
    meter = ServingMeter(clock.monotonic_s())
    with ServingView(display, found.run) as view:

        def tell(news: News) -> None:
            if isinstance(news, LinkNews):
                display.warn(str(news))
            elif isinstance(news, FatalLine):
                # The verdict itself waits for the traceback behind this line.
                display.say(f"crashed: {server.fatal_words(news)}: {news.text}")
            elif isinstance(news, ServingStep):
                meter.step(clock.monotonic_s(), news)
            else:
                view.show(meter.load(clock.monotonic_s()), news)

        verdict = until_over(host, settings, found.run, clock, found.log_bytes, seconds, tell)
    if verdict.outcome not in (Outcome.READY, Outcome.STOPPED):
        diagnosing.pull(session, found.run)
        diagnosing.conclude(session, found.run, verdict, bundle=bundle, clear=False)
    display.say(f"run {found.run}: {verdict.reason}")
    load = meter.load(clock.monotonic_s())
    return {"run": found.run, "outcome": verdict.outcome.value, "load": load.as_dict()}


def until_over(
    host: Host,
    settings: HostSettings,
    run: str,
    clock: Clock,
    offset: int,
    seconds: float | None,
    watch: Callable[[News], None],
) -> Verdict:
    """Follow a serving process until it dies, hangs, is stopped, or the time is up.

    A server that logs no step may be idle: then a generation is asked for, and one that is not
    answered while no step is logged tells that it hangs.

    Args:
        offset: from where on the log is read.
        seconds: how long to watch; None: without end.
        watch: told steps, signs of life, and what ends it.
    """
    reader = LogReader()
    began = clock.monotonic_s()
    heart = Heartbeat(Budgets(), began)
    follower = Follower(host, settings, run, clock)
    follower.offset = offset
    quiet_since = asked_at = began
    asking = False

    def verdict(outcome: Outcome, reason: str, **more: Any) -> Verdict:
        elapsed_s = clock.monotonic_s() - began
        # The log is read from the middle: what it does not say, the watch knows.
        state = replace(reader.state, phase=Phase.SERVING, ready=reader.state.ready or Ready(0, ""))
        roster, lost = dict(heart.roster), dict(heart.lost)
        return Verdict(outcome, reason, elapsed_s, state, roster=roster, lost=lost, **more)

    while True:
        probe = None
        if asking:
            probe = {
                "address": server.local_address(settings),
                "port": settings.port,
                "timeout_s": _ANSWER_S,
            }
        for piece in follower.pieces(probe):
            now = clock.monotonic_s()
            if isinstance(piece, LinkNews):
                heart.resume(now)
                watch(piece)
                continue
            if "log" in piece.body:
                # Only a step is progress: the port's own lines go on while the scheduler hangs.
                for event in reader.feed(piece.data):
                    if isinstance(event, ServingStep):
                        quiet_since = now
                    if isinstance(event, (ServingStep, FatalLine)):
                        watch(event)
                heart.log(now, Phase.SERVING)
            elif "restarted" in piece.body:
                reader = LogReader()
            elif "tick" in piece.body:
                beat = Beat.from_tick(piece.body["tick"])
                heart.beat(now, beat)
                watch(beat)
            elif "lost" in piece.body:
                heart.lose(piece.body["lost"])
            elif "probe" in piece.body:
                asking, found = False, piece.body["probe"]
                if not found["ok"] and quiet_since <= asked_at:
                    why = f"a generation is not answered: {found['why']}"
                    return verdict(Outcome.HUNG, why)
                quiet_since = max(quiet_since, now)
            elif "gone" in piece.body:
                reader.finish()
                state = replace(reader.state, ready=reader.state.ready or Ready(0, ""))
                return server.ended(verdict, state, piece.body)
            fatal = reader.state.fatal
            if fatal is not None:
                clock.sleep(server.LAST_WORDS_S)
                told = {"line": fatal.text, "line_number": None}
                return verdict(Outcome.DIED_AFTER_READY, server.fatal_words(fatal), **told)
            alarm = heart.alarm(now)
            if alarm is not None:
                missing = alarm.kind is AlarmKind.MISSING
                outcome = Outcome.DIED_AFTER_READY if missing else Outcome.HUNG
                return verdict(outcome, alarm.reason)
            if seconds is not None and now - began >= seconds:
                return verdict(Outcome.READY, "still serving")
            if not asking and now - quiet_since >= QUIET_S:
                asking, asked_at = True, now
                break
