"""`inv diagnose` and `inv pull`: why a run, or any log, went wrong; and its evidence, again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remote import diagnosing
from remote.core.reading import Reading, read_log
from remote.core.several_logs import diagnose_together
from remote.core.verdict import Diagnosis, Outcome
from remote.display import Display
from remote.errors import ConfigError
from remote.experiment import pick_run
from remote.session import Session

_STDIN = "-"


def diagnose(session: Session, run: str | None) -> dict[str, Any]:
    """The newest run of the host, or the one named, as it stands now."""
    found = diagnosing.awake(session, pick_run(session, run))
    with session.display.working(f"reading the log of {found.run}"):
        diagnosing.pull(session, found.run)
        diagnosis = diagnosing.reexamine(session, found).diagnosis
    session.display.say(f"run {found.run}: {found.state}")
    return _shown(session.display, diagnosis)


def diagnose_files(display: Display, files: Sequence[str], run: str = "") -> dict[str, Any]:
    """Logs from anywhere, one a rank or node; ``-`` is standard input.

    Raises:
        ConfigError: a file can't be read, or is named twice; or a run is named beside them.
    """
    if run:
        raise ConfigError("--run and --log exclude each other", hint="one diagnosis, one source")
    if not all(files):
        raise ConfigError("--log wants a file, or - for standard input")
    if len(set(files)) < len(files):
        raise ConfigError("the same log is named twice")
    readings = {name: _read(name) for name in files}
    return _shown(display, diagnose_together(readings))


def _read(name: str) -> Reading:
    if name == _STDIN:
        return read_log(iter(lambda: sys.stdin.buffer.read(1024 * 1024), b""))
    try:
        return diagnosing.read_file(Path(name).expanduser())
    except OSError as error:
        raise ConfigError(
            f"the log {name} can't be read: {error.strerror}",
            hint="--log wants a file here; a run's log is read with --run ID",
        ) from error


def _shown(display: Display, diagnosis: Diagnosis) -> dict[str, Any]:
    """Print a diagnosis for a person; as data for ``--json``."""
    outcome = diagnosis.outcome.value.replace("_", " ")
    if diagnosis.outcome is Outcome.UNKNOWN and diagnosis.kind is None:
        display.warn("this is no server's log")
    elif diagnosis.kind is None:
        phase = f", in phase {diagnosis.phase.value}" if diagnosis.phase else ""
        display.good(f"{outcome}{phase}: nothing failed in what was read")
    else:
        display.say(f"{outcome}:")
    for line in diagnosing.described(diagnosis):
        display.say(f"  {line}")
    others = {rank: role.value for rank, role in diagnosis.ranks.items() if rank}
    if len(others) > 1:
        display.say("  ranks: " + ", ".join(f"{rank} {role}" for rank, role in others.items()))
    for advice in diagnosis.advice:
        display.say(f"next: {advice}")
    for other in diagnosis.alternatives:
        display.say(f"not {other.kind}: {other.why_not}")
    return diagnosis.as_dict()


def pull(session: Session, run: str | None) -> dict[str, Any]:
    """Bring the log's new bytes and the evidence as it is now into the run's folder."""
    display = session.display
    found = diagnosing.awake(session, pick_run(session, run))
    with display.working(f"pulling run {found.run}"):
        fresh = diagnosing.pull(session, found.run)
        findings = diagnosing.reexamine(session, found)
        archive = diagnosing.take_evidence(session, found.run, findings)
    local = session.local(found.run)
    display.good(f"{fresh} new bytes of the log; all of it in {local.folder}")
    return {
        "run": found.run,
        "folder": str(local.folder),
        "log_bytes": found.log_bytes,
        "new_bytes": fresh,
        "archive": None if archive is None else str(archive),
    }
