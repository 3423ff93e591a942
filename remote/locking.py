"""The host for one task at a time: the lock, who it is taken from, and starts others wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from remote import host_lock
from remote.core.host_facts import RunState
from remote.display import moment
from remote.errors import ConfigError, Locked
from remote.host import Request
from remote.session import Session


@contextmanager
def held(
    session: Session,
    task: str,
    message: str = "",
    then: Sequence[Request] = (),
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the host for the block, under this task's name; ``message`` is shown to who waits.

    ``then`` is what the block begins with; it shares the lock's flight. ``meanwhile`` is done while
    the host thinks.

    With ``--break-lock`` a lock that another task holds is taken from it, once that is confirmed.

    Raises:
        Locked: another task holds it.
    """
    host, settings = session.host, session.host_settings
    message = session.scrubber.text(message)
    try:
        host.ahead([host_lock.lock_request(settings, task, message), *then])
        if meanwhile is not None:
            meanwhile()
        abandoned = host_lock.take_lock(host, settings, task, message)
    except Locked:
        if not session.break_lock:
            raise
        _break(session)
        abandoned = host_lock.take_lock(host, settings, task, message)
    with host_lock.releasing_lock(host):
        if abandoned is not None:
            session.display.say(f"an interrupted task had left its lock: {abandoned}")
            session.record.event("lock_taken_over", task=task, holder=abandoned)
        yield


def _break(session: Session) -> None:
    """End whoever holds the host, once somebody has confirmed it."""
    host, settings = session.host, session.host_settings
    found = host.call("lock.look", state=settings.state)
    if found["holder"] is None:
        return
    holder = str(found["holder"])
    session.display.warn(f"{settings.name} is held by {holder}")
    confirm(session, "end that task and take the host?", "nothing was taken")
    host.call("lock.break", state=settings.state, note=found["note"])
    session.record.event("break_lock", holder=holder)
    session.display.warn("that task was ended and its lock is broken")


def confirm(session: Session, question: str, otherwise: str) -> None:
    """Ask, unless ``--yes`` has answered.

    Raises:
        ConfigError: the answer is no, or nobody could be asked.
    """
    if not session.confirmed and not session.display.confirm(question):
        raise ConfigError(
            f"not confirmed; {otherwise}",
            host=session.host_settings.name,
            hint="--yes says so without being asked",
        )


def respect_starts(session: Session, runs: Iterable[RunState]) -> None:
    """Leave alone a server that somebody else waits for.

    The lock is given back once a server is on its way, so a start in progress stands for whoever
    made it: nothing is stopped or patched under it, unless ``--break-lock`` says so.

    Raises:
        Locked: one of the runs is still starting, and another user or machine started it.
    """
    name, me = session.host_settings.name, host_lock.whoami()
    for run in runs:
        theirs = {key: run.record.get(key) for key in me}
        if run.state != "starting" or theirs == me or None in theirs.values():
            continue
        whose = f"{run.record.get('profile', '?')} by {theirs['user']} on {theirs['client']}"
        since = moment(float(run.record["started_at"]))
        note = f": {run.record['note']}" if run.record.get("note") else ""
        told = f"run {run.run}, {whose}, since {since}{note}"
        if not session.break_lock:
            raise Locked(
                "somebody else's server is still starting on this host",
                host=name,
                evidence=[told],
                hint=f"inv wait --run {run.run} waits for it; --break-lock goes ahead all the same",
            )
        session.display.warn(f"still starting: {told}")
        confirm(session, "go ahead all the same?", "nothing was touched")
        session.record.event("break_lock", run.run, holder=told)


def respect_benches(
    session: Session, runs: Iterable[RunState], measured: Mapping[str, str]
) -> None:
    """Leave alone a server that is being measured, by whomever: its points would be lost.

    Args:
        measured: who measures which run, as the host was read under the lock.

    Raises:
        Locked: one of the runs is being measured, and ``--break-lock`` does not say to go ahead.
    """
    for run in runs:
        who = measured.get(run.run)
        if run.server_pid is None or who is None:
            continue
        message = f"run {run.run} is being measured"
        if not session.break_lock:
            raise Locked(
                message,
                host=session.host_settings.name,
                evidence=[who],
                hint=f"inv wait --run {run.run} waits for it and collects it; --break-lock, or inv"
                " stop, ends it",
            )
        session.display.warn(f"{message}: {who}")
        confirm(session, "end that bench?", "nothing was touched")
        session.record.event("break_lock", run.run, holder=who)
