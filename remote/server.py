"""The server on the host: start, follow until it is ready or dead, stop; and the verdict."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from remote.clock import Clock, Deadline
from remote.config import HostSettings
from remote.core import host_facts
from remote.core.budgets import Budgets
from remote.core.heartbeat import Alarm, AlarmKind, Beat, Heartbeat
from remote.core.host_facts import RunState
from remote.core.log_events import (
    Event,
    FatalLine,
    FatalReason,
    StartState,
)
from remote.core.phases import READY_LINE, Phase
from remote.core.secret_values import values_in
from remote.core.server_log import LogReader
from remote.core.shell import quote
from remote.errors import SSHError
from remote.host import Host, Piece, Request
from remote.host_lock import whoami
from remote.redial import Redial

if TYPE_CHECKING:
    from remote.core.verdict import Diagnosis

#: Seconds for one readiness check: on a cold server the first request compiles kernels.
_PROBE_S = 300.0

#: Seconds that a server gets to end by itself.
GRACE_S = 15.0

#: After a fatal line its traceback, and the other ranks' own words, get this long to be written.
LAST_WORDS_S = 0.3


#: What a fatal line means.
_FATAL_WORDS = {
    FatalReason.PORT_IN_USE: "the port is taken",
    FatalReason.SCHEDULER_EXCEPTION: "the scheduler hit an exception",
    FatalReason.PROCESS_DIED: "a process of the server died",
    FatalReason.CHILD_FAILED: "a child process failed",
    FatalReason.WARM_UP_FAILED: "the warm-up request failed",
}


class Outcome(str, Enum):
    """How a wait for a server ended."""

    READY = "ready"
    CRASHED = "crashed"
    DIED_AFTER_READY = "died_after_ready"
    HUNG = "hung"
    STOPPED = "stopped"
    NOT_READY = "not_ready"


@dataclass(frozen=True)
class Verdict:
    """The end of a wait.

    ``line`` and ``line_number`` quote the deciding line of the log, where a line decided;
    ``exit_status`` is the shell's (128 + signal), where the process is gone. ``roster`` holds the
    ranks that were seen, with their pids; ``lost`` those that ended first, while the server went
    on, with their exit status; ``durations`` the seconds of each phase left behind;
    ``log_end`` the log's inode and how far it was read.
    """

    outcome: Outcome
    reason: str
    elapsed_s: float
    state: StartState
    line: str | None = None
    line_number: int | None = None
    exit_status: int | None = None
    generated: str | None = None
    roster: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int | None] = field(default_factory=dict)
    durations: Mapping[Phase, float] = field(default_factory=dict)
    log_end: tuple[int, int] = (0, 0)

    def scrubbed(self, scrub: Callable[[str], str]) -> Verdict:
        """The same without the secrets that a line of the log may hold."""
        line = None if self.line is None else scrub(self.line)
        return replace(self, reason=scrub(self.reason), line=line)

    def as_dict(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "elapsed_s": round(self.elapsed_s, 1),
            "phase": self.state.phase.value,
            "line": self.line,
            "line_number": self.line_number,
            "exit_status": self.exit_status,
            "generated": self.generated,
        }


@dataclass(frozen=True)
class LinkNews:
    """The connection was lost just now, or is there again; no byte of the log is lost.

    ``away_s`` is for how long it was gone, None while it is being dialled again.
    """

    away_s: float | None = None

    def __str__(self) -> str:
        if self.away_s is None:
            return "the connection was lost and is being dialled again; the server goes on"
        return f"the connection was lost for {self.away_s:.0f} s and is back"


#: What a wait tells while it lasts.
Watcher = Callable[[Event | Beat | LinkNews, StartState], None]


def look(host: Host, settings: HostSettings, run: str | None) -> RunState:
    """One run, or the newest, as it is now.

    Raises:
        ConfigError: the host has no such run, or none at all.
    """
    return host_facts.run_state(look_request(settings, run).of(host))


def look_request(settings: HostSettings, run: str | None) -> Request:
    """What `look` asks."""
    return Request("runs.look", {"state": settings.state, "run": run})


def script(host: Host, settings: HostSettings, run: str) -> str:
    """The run's start script as it is on the host, and behind it every secret that it reads.

    Those as ``SECRET=…`` words, so that whoever learns what the script keeps secret learns them.
    """
    found = script_request(settings, run).of(host)
    secrets = [f"SECRET={quote(value)}\n" for value in values_in(found["secrets"])]
    return "\n".join([str(found["script"]), *secrets])


def script_request(settings: HostSettings, run: str) -> Request:
    """What `script` asks."""
    return Request("runs.script", {"state": settings.state, "run": run})


def note(
    host: Host,
    settings: HostSettings,
    run: str,
    verdict: Verdict,
    diagnosis: Diagnosis | None = None,
) -> None:
    """Write the verdict down beside the run, on the host.

    Kept with it: the ranks that were seen, so that one that dies later is missed; and the
    diagnosis, for once the processes are gone nobody can ask them again.
    """
    said: dict[str, Any] = {key: verdict.as_dict()[key] for key in ("outcome", "reason", "line")}
    said["ranks"] = dict(verdict.roster)
    if diagnosis is not None:
        said |= _told(diagnosis)
    host.call("runs.note_outcome", state=settings.state, run=run, note=said)


def note_cause(host: Host, settings: HostSettings, run: RunState, diagnosis: Diagnosis) -> None:
    """Write down what a later look found, beside what the last wait did."""
    said = {
        "line": None,
        **(run.outcome or {}),
        "reason": "found later, when it was looked into",
        "outcome": diagnosis.outcome.value,
        **_told(diagnosis),
    }
    host.call("runs.note_outcome", state=settings.state, run=run.run, note=said)


def note_serving(host: Host, settings: HostSettings, run: RunState) -> None:
    """Write down that a run that seemed to hang serves."""
    said = {"outcome": "ready", "reason": "serves again", "line": None}
    said["ranks"] = (run.outcome or {}).get("ranks", {})
    host.call("runs.note_outcome", state=settings.state, run=run.run, note=said)


def _told(diagnosis: Diagnosis) -> dict[str, Any]:
    whole = {**diagnosis.as_dict(), "spread": diagnosis.spread}
    return {"kind": diagnosis.kind, "cause": diagnosis.cause, "diagnosis": whole}


def answers(host: Host, settings: HostSettings, run: str, timeout_s: float = 60.0) -> str | None:
    """Why the run's server does not serve right now; None where it does."""
    found = answers_request(settings, run, timeout_s).of(host)
    return None if found["ok"] else str(found["why"])


def answers_request(settings: HostSettings, run: str, timeout_s: float = 60.0) -> Request:
    """What `answers` asks."""
    return Request("readiness.check", {"run": run, **readiness(settings, timeout_s)})


def phase_of(host: Host, settings: HostSettings, run: str) -> Phase:
    """The phase that a run's log is in now."""
    reader = LogReader()
    with _log_from(host, settings, run, 0) as pieces:
        for piece in pieces:
            reader.feed(piece.data)
    return reader.state.phase


def _log_from(
    host: Host, settings: HostSettings, run: str, start: int
) -> AbstractContextManager[Iterator[Piece]]:
    """A run's log from a byte offset to its present end."""
    return host.stream(
        "log.select",
        state=settings.state,
        run=run,
        start=start,
        tail=None,
        since=None,
        ago_s=None,
        grep=None,
        whole_lines=False,
    )


def local_address(settings: HostSettings) -> str:
    """Where the server answers on its own host."""
    return "127.0.0.1" if settings.bind in ("0.0.0.0", "::", "") else settings.bind


def start_request(
    settings: HostSettings,
    run: str,
    script: bytes,
    record: Mapping[str, Any],
    secrets: Mapping[str, bytes] | None = None,
) -> Request:
    """What starts a run's script, detached from the connection; ``record`` is kept beside it.

    ``secrets`` are files that the script reads; like the script they travel on the session's
    standard input.
    """
    files = dict(secrets or {})
    params = {
        "state": settings.state,
        "run": run,
        "note": dict(record),
        "secrets": [[name, len(content)] for name, content in files.items()],
    }
    return Request("runs.start", params, b"".join([script, *files.values()]))


def readiness(settings: HostSettings, left_s: float, after: str = "") -> dict[str, Any]:
    """How the host checks that the server serves; see `payload/readiness.py`.

    Args:
        left_s: what is left of the time for it.
        after: begin once the log has this text; at once where it is empty.
    """
    check: dict[str, Any] = {
        "address": local_address(settings),
        "port": settings.port,
        "timeout_s": min(_PROBE_S, max(left_s, 1.0)),
    }
    return {**check, "after": after} if after else check


def follow_request(
    settings: HostSettings, run: str, offset: int = 0, probe: Mapping[str, Any] | None = None
) -> Request:
    """What a `Follower` asks."""
    params = {
        "state": settings.state,
        "run": run,
        "offset": offset,
        "probe": dict(probe) if probe else None,
    }
    return Request("follow.follow", params)


class Follower:
    """A run's log from an offset on, whatever happens to the connection.

    A lost connection is dialled again, for as long as the host allows (`ssh.redial_s`), and the
    log is taken up at the byte where it broke off.
    """

    def __init__(self, host: Host, settings: HostSettings, run: str, clock: Clock) -> None:
        self._host = host
        self._settings = settings
        self._run = run
        self._clock = clock
        self.offset = 0
        self.inode = 0

    def pieces(self, probe: Mapping[str, Any] | None = None) -> Iterator[Piece | LinkNews]:
        """What the host says until the server is gone; the messages of `payload/follow.py`."""
        redial = Redial(self._host, self._clock)
        while True:
            try:
                asked = follow_request(self._settings, self._run, self.offset, probe)
                with asked.streamed(self._host) as pieces:
                    for piece in pieces:
                        if (away_s := redial.back()) is not None:
                            yield LinkNews(away_s)
                        if "log" in piece.body:
                            self.offset = int(piece.body["log"]) + len(piece.data)
                            self.inode = int(piece.body["inode"])
                        elif "restarted" in piece.body:
                            self.offset = 0
                        yield piece
                return
            except SSHError as error:
                if redial.lost(error):
                    yield LinkNews()

    def rest(self) -> Iterator[Piece]:
        """What the log has got since, without waiting for more."""
        with _log_from(self._host, self._settings, self._run, self.offset) as pieces:
            for piece in pieces:
                self.offset += len(piece.data)
                yield piece


def until_ready(
    host: Host,
    settings: HostSettings,
    run: str,
    clock: Clock,
    timeout_s: float,
    watch: Watcher,
    keep_log: Callable[[bytes], object],
    budgets: Budgets | None = None,
) -> Verdict:
    """Follow a run from its first byte until it is ready, dead, hung, stopped or out of time.

    Ready is the server's own ready line, then, asked on the host: the port belongs to a process of
    this run, `/health` answers 200, and a generation makes tokens.

    Args:
        watch: told every event and sign of life.
        keep_log: given every byte of the log, in order.
        budgets: what each phase may take before silence means that it hangs.

    Raises:
        SSHError: the connection was lost and dialling again failed too; the server goes on.
    """
    reader = LogReader()
    began = clock.monotonic_s()
    deadline = Deadline.after(clock, timeout_s)
    heart = Heartbeat(budgets or Budgets(), began)
    follower = Follower(host, settings, run, clock)
    probe = readiness(settings, timeout_s, after=READY_LINE)

    def verdict(outcome: Outcome, reason: str, **more: Any) -> Verdict:
        return Verdict(
            outcome,
            reason,
            clock.monotonic_s() - began,
            reader.state,
            roster=dict(heart.roster),
            lost=dict(heart.lost),
            durations=dict(heart.durations),
            log_end=(follower.inode, follower.offset),
            **more,
        )

    def take(data: bytes) -> None:
        keep_log(data)
        for event in reader.feed(data):
            watch(event, reader.state)
        heart.log(clock.monotonic_s(), reader.state.phase)

    while True:
        asking = "after" not in probe
        for piece in follower.pieces(probe):
            if isinstance(piece, LinkNews):
                heart.resume(clock.monotonic_s())
                watch(piece, reader.state)
                # What was asked over the lost connection is asked again, but not what was awaited.
                asking = "after" not in probe
                continue
            if "log" in piece.body:
                asking = asking or "probing" in piece.body
                take(piece.data)
            elif "restarted" in piece.body:
                reader = LogReader()
            elif "tick" in piece.body:
                beat = Beat.from_tick(piece.body["tick"])
                heart.beat(clock.monotonic_s(), beat)
                watch(beat, reader.state)
            elif "lost" in piece.body:
                heart.lose(piece.body["lost"])
            elif "probe" in piece.body:
                found = piece.body["probe"]
                if found["ok"]:
                    heart.roster.update(found["ranks"])
                    return verdict(Outcome.READY, "serving", generated=found["text"])
                if "stranger" in found:
                    return verdict(Outcome.CRASHED, found["why"])
                if found.get("final"):
                    return verdict(Outcome.NOT_READY, f"up, but {found['why']}")
                asking = False  # ask again below
            elif "gone" in piece.body:
                for event in reader.finish():
                    watch(event, reader.state)
                return ended(verdict, reader.state, piece.body)
            fatal = reader.state.fatal
            if fatal is not None:
                clock.sleep(LAST_WORDS_S)
                with suppress(SSHError):  # the verdict stands without them
                    for rest in follower.rest():
                        take(rest.data)
                return _fatal(verdict, fatal, reader.state)
            alarm = heart.alarm(clock.monotonic_s())
            if alarm is not None:
                return verdict(_alarmed(alarm, reader.state), alarm.reason)
            if deadline.passed:
                return verdict(
                    Outcome.NOT_READY,
                    f"not ready after {timeout_s:.0f} s, in phase {reader.state.phase.value}",
                )
            if reader.state.ready is not None and not asking:
                probe = readiness(settings, deadline.left_s)
                break


def _alarmed(alarm: Alarm, state: StartState) -> Outcome:
    if alarm.kind is not AlarmKind.MISSING:
        return Outcome.HUNG
    return Outcome.CRASHED if state.ready is None else Outcome.DIED_AFTER_READY


def _fatal(verdict: Callable[..., Verdict], fatal: FatalLine, state: StartState) -> Verdict:
    outcome = Outcome.CRASHED if state.ready is None else Outcome.DIED_AFTER_READY
    if state.stop_requested is not None:
        outcome = Outcome.STOPPED
    return verdict(outcome, fatal_words(fatal), line=fatal.text, line_number=fatal.line)


def fatal_words(fatal: FatalLine) -> str:
    """What a fatal line says, and on which rank."""
    return _FATAL_WORDS[fatal.reason] + (f" on {fatal.rank}" if fatal.rank else "")


def ended(verdict: Callable[..., Verdict], state: StartState, body: Mapping[str, Any]) -> Verdict:
    """The verdict on a server that is gone, from the last message of a follow."""
    status = body["gone"]
    if body["stop_requested"]:
        who = f" by {body['stopped_by']}" if body.get("stopped_by") else ""
        reason = f"the server was stopped on request{who}"
        return verdict(Outcome.STOPPED, reason, exit_status=status)
    outcome = Outcome.CRASHED if state.ready is None else Outcome.DIED_AFTER_READY
    if state.fatal is not None:
        return verdict(
            outcome,
            "the server died",
            exit_status=status,
            line=state.fatal.text,
            line_number=state.fatal.line,
        )
    reason = f"the server's process is gone ({describe_status(status)})"
    return verdict(outcome, reason, exit_status=status)


def describe_status(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "exit status unknown"
    if status > 128:
        try:
            return f"killed by {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"exit status {status}"


@dataclass(frozen=True)
class Stopped:
    """What a stop did: processes ended, and how long it took."""

    run: str
    processes: int
    waited_s: float
    killed: bool


def stop(
    host: Host,
    settings: HostSettings,
    run: RunState,
    clock: Clock,
    tell: Callable[[str], None],
    grace_s: float = GRACE_S,
) -> Stopped:
    """End every process of a run and wait until they and their GPU memory are gone.

    Raises:
        ToolError: a process doesn't end, or its memory stays.
    """
    began = clock.monotonic_s()
    killed = False
    with stop_request(settings, run, grace_s).streamed(host) as messages:
        for message in messages:
            killed = killed or bool(message.body.get("killing"))
            tell(_progress(message.body))
    return Stopped(run.run, len(run.pids), clock.monotonic_s() - began, killed)


def stop_request(settings: HostSettings, run: RunState, grace_s: float = GRACE_S) -> Request:
    """What `stop` asks."""
    me = whoami()
    params = {
        "state": settings.state,
        "run": run.run,
        "grace_s": grace_s,
        "who": f"{me['user']} on {me['client']}",
    }
    return Request("runs.stop", params)


def stop_foreign(
    host: Host, settings: HostSettings, holder: host_facts.Holder, tell: Callable[[str], None]
) -> None:
    """End a server that this tool did not start, exactly the process that was shown."""
    with host.stream(
        "runs.stop_foreign", pid=holder.pid, start_ticks=holder.start, grace_s=GRACE_S
    ) as messages:
        for message in messages:
            tell(_progress(message.body))


def _progress(body: Mapping[str, Any]) -> str:
    if "gpu_memory_of" in body:
        return f"waiting for GPU memory of {body['gpu_memory_of']} processes"
    how = "killing" if body["killing"] else "waiting for"
    return f"{how} {body['alive']} processes, {body['waited_s']:.0f} s"
