"""`inv rerun`: an earlier start once more, exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remote.core.run_record import RunRow
from remote.core.start_identity import differences, normal_script, unseen
from remote.core.unified_diff import between
from remote.errors import ConfigError, PreflightFailed
from remote.experiment import as_before, deploy_profile
from remote.history import script_of
from remote.planning import Plan
from remote.session import Session

_QUOTED_LINES = 40


def rerun(
    session: Session,
    row: RunRow,
    *,
    force: bool,
    note: str,
    timeout_s: float | None,
    bundle: bool = True,
) -> dict[str, Any]:
    """Deploy an earlier start's profile, settings and patches again.

    Args:
        force: also where it would be another start; what differs is only said.

    Raises:
        PreflightFailed: the host is not what it was then.
        ConfigError: profile, template or patch sets here are not what they were then.
    """

    def hold_against(made: Plan) -> None:
        against_then(session, row, made, force=force)

    options = replace(
        as_before(row),
        timeout_s=timeout_s,
        bundle=bundle,
        note=note or f"rerun of {row.id}" + (f": {row.note}" if row.note else ""),
        expects=hold_against,
    )
    return deploy_profile(session, row.profile, options)


def against_then(session: Session, row: RunRow, made: Plan, *, force: bool) -> None:
    """Refuse a plan that is another start than the earlier one, and say in what.

    Raises:
        PreflightFailed, ConfigError: as `rerun`.
    """
    record = made.record()
    differing = differences(row.fingerprint, record["environment_fingerprint"])
    of_host = [str(each) for each in differing if "patch" not in each.what]
    of_client = [str(each) for each in differing if "patch" in each.what]
    if not row.fingerprint:
        of_host, of_client = [], [f"run {row.id} has no record of its environment"]
    if record["script_identity"] != row.script_identity:
        of_client += ["the start script is another:", *_changes(session, row, made)]
    if not (of_host or of_client):
        session.display.good(
            f"this is run {row.id} again: script, environment and patches{unseen(made.facts)}"
        )
        return
    if force:
        for line in (*of_host, *of_client):
            session.display.warn(f"not as in run {row.id}: {line}")
        return
    kind, whose = (PreflightFailed, "the host is") if of_host else (ConfigError, "what is here is")
    raise kind(
        f"{whose} not what it was for run {row.id}; nothing was started",
        host=session.host_settings.name,
        evidence=[*of_host, *of_client],
        hint=f"inv rerun {row.id} --force starts it as it comes out now",
    )


def _changes(session: Session, row: RunRow, made: Plan) -> list[str]:
    """The lines of the script that changed, where the earlier one is kept here."""
    was = script_of(session.settings.runs, row)
    if not was:
        return ["  the earlier one is not kept here"]
    now = normal_script(session.scrubber.text(made.script), made.run)
    lines = between(was.encode(), now.encode(), "launch.sh").splitlines()[2:]
    return [f"  {line}" for line in lines if line[:1] in "+-"][:_QUOTED_LINES]
