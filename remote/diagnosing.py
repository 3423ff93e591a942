"""A failure explained and its evidence brought home: what follows a verdict of crashed or hung."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from remote import deploy, patching, pulling, server, venv
from remote.core.host_facts import RunState
from remote.core.log_lines import collapse
from remote.display import verdict_line
from remote.errors import ServerCrashed, ServerHung, ToolError
from remote.redial import through_losses
from remote.server import Outcome, Verdict
from remote.session import Session

if TYPE_CHECKING:
    from remote.core.reading import Reading
    from remote.core.verdict import Diagnosis

# What only a failure needs (the rules, the bundle) is imported when there is one: every task that
# may fail imports this module.

_CHUNK_BYTES = 1024 * 1024
#: Lines of the log that an error quotes where no cause is known.
_QUOTED_LINES = 15
#: A server that was seen to hang has so long to answer a generation.
_ANSWER_S = 5.0
#: Outcomes that a cause belongs to.
_FAILED = ("crashed", "died_after_ready", "hung")
_VAGUE = (None, "insufficient_evidence", "unclassified")


@dataclass(frozen=True)
class Findings:
    """A cause, and the log it was found in."""

    diagnosis: Diagnosis
    reading: Reading


def read_file(path: Path) -> Reading:
    """A log from a file, in constant memory."""
    from remote.core.reading import read_log

    with path.open("rb") as file:
        return read_log(iter(lambda: file.read(_CHUNK_BYTES), b""))


def explain(
    session: Session,
    run: str,
    roster: Mapping[str, int] | None = None,
    *,
    hung: bool = False,
    lost: Mapping[str, int | None] | None = None,
) -> Findings:
    """The cause, from the copy of the log here and what the host knows right now.

    Args:
        roster: ranks that were seen alive, with their pids.
        hung: a wait saw no sign of work.
        lost: ranks that were seen to end first, with their exit status.
    """
    from remote.core.diagnosis import diagnose
    from remote.core.host_evidence import process_evidence
    from remote.core.verdict import ProcessEvidence

    reading = read_file(session.local(run).log_path)
    logged = {*reading.state.ranks, *(name for name in reading.last_of_rank if name)}
    process = ProcessEvidence(hung=hung)
    try:
        found = session.host.call(
            "evidence.look",
            state=session.host_settings.state,
            run=run,
            known=dict(roster or {}),
        )
        process = process_evidence(found, logged, hung=hung, lost=lost)
    except ToolError as error:  # the log alone must do
        session.display.warn(f"what the host knows is not in this verdict: {error.message}")
    return Findings(_scrubbed(session, diagnose(reading, process)), reading)


def _scrubbed(session: Session, diagnosis: Diagnosis) -> Diagnosis:
    """The same with the secrets and prompts out of what it quotes."""
    scrub = session.scrubber.text
    quotes = tuple(replace(quote, text=scrub(quote.text)) for quote in diagnosis.evidence)
    return replace(diagnosis, cause=scrub(diagnosis.cause), evidence=quotes)


def learn_secrets(session: Session, run: str) -> None:
    """Mask what the run's start script keeps secret, wherever it turns up in what is kept here."""
    script = server.script(session.host, session.host_settings, run)
    session.scrubber.learn_script(script)


def pull(session: Session, run: str) -> int:
    """Bring what is new of the run's log; its bytes."""
    display, settings = session.display, session.host_settings
    fresh = pulling.request(settings, run, session.local(run))
    session.host.ahead([server.script_request(settings, run), fresh])
    learn_secrets(session, run)

    def tell(done: int, size: int) -> None:
        display.bar(f"log of {run}, MiB", done >> 20, size >> 20)

    return pulling.pull_log(session.host, settings, run, session.local(run), session.clock, tell)


def conclude(
    session: Session, run: str, verdict: Verdict, *, bundle: bool, clear: bool = True
) -> NoReturn:
    """Say at once what happened and why; then bring the evidence, clear up, and raise.

    Args:
        clear: end what is left of a crashed server.

    Raises:
        ServerCrashed, ServerHung: always one of them.
    """
    display = session.display
    findings = explain(
        session,
        run,
        verdict.roster,
        hung=verdict.outcome is Outcome.HUNG,
        lost=verdict.lost,
    )
    verdict = _corrected(verdict, findings.diagnosis).scrubbed(session.scrubber.text)
    hung = verdict.outcome is Outcome.HUNG
    error = failure(session, run, verdict_line(verdict), findings, verdict)
    display.error(error)
    session.record.failed(run, verdict, findings.diagnosis)
    _note(session, run, verdict, findings.diagnosis)
    if bundle:
        with display.working("bringing the evidence"):
            take_evidence(session, run, findings)
    if clear and not hung:  # a crashed server can't serve, and holds port and memory
        with display.working("cleaning up"):
            deploy.clear_away(session.host, session.host_settings, run, session.clock, display.tell)
    raise error


def _corrected(verdict: Verdict, diagnosis: Diagnosis) -> Verdict:
    """What seemed to hang has died, where the host tells so."""
    seen = diagnosis.outcome.value
    if verdict.outcome is not Outcome.HUNG or seen not in ("crashed", "died_after_ready"):
        return verdict
    return replace(verdict, outcome=Outcome(seen))


def take_evidence(session: Session, run: str, findings: Findings) -> Path | None:
    """The evidence bundle of a run as it is now; None where it could not be had."""
    host, settings, local = session.host, session.host_settings, session.local(run)
    display = session.display
    from remote import crash

    texts = {}
    if findings.reading.tracebacks:
        texts["tracebacks.txt"] = _tracebacks(findings.reading)
    try:
        crash.gather(
            host, settings, run, local, session.clock, lambda text: display.bar(text, 0, 0)
        )
        texts["patches.json"] = _patches(session)
    except ToolError as error:
        display.warn(f"the evidence is not complete: {error.message}")
    crash.keep(local, texts)
    local.write_json(f"{crash.FOLDER}/diagnosis.json", findings.diagnosis.as_dict())
    try:
        archive = crash.pack(local)
    except OSError as error:
        display.warn(f"no archive of the evidence could be written: {error}")
        return None
    display.say(f"evidence: {archive} ({archive.stat().st_size >> 10} KiB)")
    return archive


def _tracebacks(reading: Reading) -> str:
    parts = []
    for folded in reading.tracebacks:
        first = folded.traceback
        where = f"lines {reading.number(first.first_line)} to {reading.number(first.last_line)}"
        parts.append("\n".join([f"# {folded.summary(reading.world)}, {where}", *first.text, ""]))
    return "\n".join(parts)


def _patches(session: Session) -> str:
    facts = venv.survey(session.host, session.host_settings, ask_gpus=False)
    seen = patching.view(session.host, session.host_settings)
    told = {
        "applied": list(seen.applied),
        "interrupted": seen.interrupted,
        "drifted": [file.path for file in seen.drifted],
        "versions": {name: found["version"] for name, found in facts.distributions.items()},
    }
    return json.dumps(told, indent=1) + "\n"


def _note(session: Session, run: str, verdict: Verdict, diagnosis: Diagnosis) -> None:
    """The diagnosis beside the verdict, here and on the host; a full disk there is no obstacle."""
    session.local(run).write_json("diagnosis.json", diagnosis.as_dict())
    host, settings = session.host, session.host_settings
    with suppress(ToolError):
        through_losses(
            host, session.clock, lambda: server.note(host, settings, run, verdict, diagnosis)
        )


def reexamine(session: Session, found: RunState) -> Findings:
    """A run's cause, from the log's copy here and what is known of it.

    What was found when it failed stands: the processes could be asked then. Where that said
    nothing, or nobody looked, it is found now and written down.
    """
    kept = _kept(found)
    if kept is not None and not found.alive:
        return Findings(kept, read_file(session.local(found.run).log_path))
    findings = explain(session, found.run, hung=found.state == "hung")
    diagnosis = findings.diagnosis
    told = (found.outcome or {}).get("kind")
    # A look must not turn a server that serves into one that does not.
    over = found.state not in ("ready", "starting", "stopped")
    if over and diagnosis.outcome.value in _FAILED and told != diagnosis.kind:
        session.local(found.run).write_json("diagnosis.json", diagnosis.as_dict())
        session.record.diagnosed(found.run, diagnosis.outcome.value, diagnosis)
        with suppress(ToolError):
            server.note_cause(session.host, session.host_settings, found, diagnosis)
    return findings


def _kept(found: RunState) -> Diagnosis | None:
    """What was written down when the run failed, where that names a cause."""
    from remote.core.verdict import Diagnosis

    try:
        kept = Diagnosis.from_dict((found.outcome or {}).get("diagnosis") or {})
    except ValueError:
        return None
    return None if kept.kind in _VAGUE else kept


def awake(session: Session, found: RunState) -> RunState:
    """The run as it is, where it was seen to hang: one that answers now does not any more."""
    host, settings = session.host, session.host_settings
    if found.state != "hung" or server.answers(host, settings, found.run, _ANSWER_S) is not None:
        return found
    server.note_serving(host, settings, found)
    return server.look(host, settings, found.run)


def gone(session: Session, found: RunState) -> ToolError:
    """The error for a run that is over, or about to be, where one that serves was wanted."""
    pull(session, found.run)
    what = "is dying: a part of it is gone" if found.state == "dying" else "has crashed"
    return failure(session, found.run, what, reexamine(session, found))


def failure(
    session: Session, run: str, what: str, findings: Findings, verdict: Verdict | None = None
) -> ToolError:
    """The error that tells a person all of it."""
    diagnosis = findings.diagnosis
    evidence = list(described(diagnosis))
    if diagnosis.kind in _VAGUE:
        if verdict is not None and verdict.line is not None and not diagnosis.evidence:
            evidence.append(f"line {verdict.line_number}: {verdict.line}")
        evidence += log_end(session, run)
    hung = diagnosis.outcome.value if verdict is None else verdict.outcome.value
    kind = ServerHung if hung == Outcome.HUNG.value else ServerCrashed
    hints = [*diagnosis.advice[:3], f"inv logs --run {run} --tail 200; inv diagnose --run {run}"]
    return kind(
        f"run {run} {what}",
        host=session.host_settings.name,
        evidence=[session.scrubber.text(line) for line in evidence],
        hint="\n      ".join(hints),
        details={
            "run": run,
            "verdict": None if verdict is None else verdict.as_dict(),
            "diagnosis": diagnosis.as_dict(),
        },
    )


def described(diagnosis: Diagnosis) -> Iterator[str]:
    """A diagnosis in lines: kind and cause, where and on which ranks, the lines that decide."""
    if diagnosis.kind is None:
        if diagnosis.cause:
            yield diagnosis.cause
        return
    sure = f" ({diagnosis.confidence.value} confidence)" if diagnosis.confidence else ""
    yield f"{diagnosis.kind}{sure}: {diagnosis.cause}"
    where = [
        f"in phase {diagnosis.phase.value}" if diagnosis.phase else "",
        f"raised in {diagnosis.raised_in}" if diagnosis.raised_in else "",
        f"first on {diagnosis.first_rank}" if diagnosis.first_rank else "",
        diagnosis.spread,
    ]
    told = "; ".join(part for part in where if part)
    if told:
        yield told
    for quote in diagnosis.evidence:
        log = f"{quote.log}, " if quote.log else ""
        yield f"{log}line {quote.line}: {quote.text}" if quote.line else quote.text


def log_end(session: Session, run: str) -> list[str]:
    """The last lines of the log's copy here."""
    with session.local(run).log_path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - 65536))
        lines = [line for line in collapse(log.read()) if line.strip()]
    if not lines:
        return ["the log is still empty"]
    return ["the log ends with:", *(line[:400] for line in lines[-_QUOTED_LINES:])]
