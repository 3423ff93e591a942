"""`inv restore`: the host as it was before this tool, and the proof of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from remote import locking, patch_work, patching, server, venv
from remote.core import checks
from remote.core.checks import Level, Line
from remote.core.host_facts import HostFacts
from remote.core.patch_plan import FileState, Found
from remote.core.patch_plan import state as state_of
from remote.core.shell import masked
from remote.errors import PatchRefused, ToolError
from remote.host import Answer
from remote.patching import PatchView
from remote.session import Session

_GRACE_S = 15.0
_MIB = 2**20


def restore(session: Session) -> dict[str, Any]:
    """Stop all runs, roll back all patches, remove the tool's folder; then prove all three.

    A host that has nothing of this tool is only proven to be so.

    Raises:
        PatchRefused: a file that was patched is neither what this tool left there nor anything
            whose origin can be proven; nothing was touched.
        ConfigError: nobody confirmed it.
        ToolError: a proof does not hold.
    """
    host, settings, display = session.host, session.host_settings, session.display
    found = host.call("restore.look", state=settings.state)
    _refuse_strange(session, found)
    if not found["there"]:
        display.say(f"{settings.name} has no folder of this tool ({settings.state})")
        facts = venv.survey(host, settings)
        return _proven(session, found, facts, {}, stopped=[])
    with session.record.doing("restore") as told, locking.held(session, "restore"):
        facts = venv.survey(host, settings)
        locking.respect_starts(session, facts.runs)
        _refuse_unproven(session, patching.view(host, settings))
        alive = [run for run in facts.runs if run.alive]
        _confirm(session, found, facts, [run.run for run in alive])
        with display.working("restoring the host"):
            for run in alive:
                server.stop(host, settings, run, session.clock, display.tell)
                session.record.stopped(run.run, "inv restore")
            ids = {"known_runs": found["runs"], "benches": found["benches"]}
            with host.stream("restore.end", grace_s=_GRACE_S, **ids) as messages:
                for message in messages:
                    display.tell(f"ending {message.body['alive']} more processes")
            expected = _rolled_back(session, facts)
            display.tell(f"removing {settings.state}")
            host.call("restore.remove", state=settings.state)
        told |= {"stopped": [run.run for run in alive], "files": list(expected)}
        return _proven(session, found, facts, expected, stopped=[run.run for run in alive])


def _refuse_strange(session: Session, found: Answer) -> None:
    if found["strange"]:
        settings = session.host_settings
        raise ToolError(
            f"{settings.state} holds what this tool did not put there; nothing was touched",
            host=settings.name,
            evidence=found["strange"],
            hint="move it elsewhere, then run inv restore again",
        )


def _refuse_unproven(session: Session, seen: PatchView) -> None:
    """Refuse where a file's way back to its original can't be proven.

    Raises:
        PatchRefused: it names every such file.
    """
    unproven = [file for file in seen.found.values() if not _provable(file)]
    if unproven:
        raise PatchRefused(
            "what was patched was changed since by somebody else; nothing was touched",
            host=session.host_settings.name,
            evidence=[
                f"{file.path}: sha256 {file.sha256 or 'no file'},"
                f" original {file.original or 'no file'}, RECORD {file.recorded or 'nothing'}"
                for file in unproven
            ],
            hint="inv patch.author NAME keeps the edits as a patch set; inv rollback-patch puts the"
            " originals back over them; or reinstall the package with pip; then inv restore",
        )


def _provable(file: Found) -> bool:
    entry = file.entry
    if entry is None or file.in_transaction:
        return True  # not ours, or judged again where the interrupted patch is undone
    if state_of(file) is FileState.PATCHED or file.sha256 == entry.original:
        return True
    return file.reinstalled and file.sha256 == file.recorded


def _confirm(session: Session, found: Answer, facts: HostFacts, alive: list[str]) -> None:
    settings, display = session.host_settings, session.display
    seen = patching.view(session.host, settings)
    display.say(f"inv restore takes everything of this tool from {settings.name}:")
    display.say(f"  stops {', '.join(alive) or 'nothing: no run lives'}")
    display.say(f"  rolls back {', '.join(seen.applied) or 'nothing: no patch is applied'}")
    display.say(
        f"  removes {settings.state}: logs and records of {len(found['runs'])} runs, saved"
        f" originals and edited versions, {found['bytes'] / _MIB:.1f} MiB; what was pulled stays"
    )
    locking.confirm(session, "do that?", "nothing was touched")


def _rolled_back(session: Session, facts: HostFacts) -> dict[str, str | None]:
    """Take every patch back; the hash that each file must have now."""
    host, settings, display = session.host, session.host_settings, session.display
    patch_work.recover(session)
    seen = patching.view(host, settings)
    _refuse_unproven(session, seen)
    expected = {path: file.original for path, file in seen.found.items() if file.entry is not None}
    display.tell(f"rolling back {len(expected)} files")
    patching.take_back(host, settings, patching.plan([], [], facts, seen))
    return expected


def _proven(
    session: Session,
    before: Answer,
    facts: HostFacts,
    expected: Mapping[str, str | None],
    *,
    stopped: list[str],
) -> dict[str, Any]:
    """Read everything anew and say it, proof by proof.

    Raises:
        ToolError: one does not hold.
    """
    host, settings, display = session.host, session.host_settings, session.display
    found = host.call(
        "restore.prove",
        state=settings.state,
        known_runs=before["runs"],
        benches=before["benches"],
        expected=dict(expected),
        site=facts.site_packages,
    )
    packages = patching.integrity(host, facts)
    lines = proofs(found, settings.state, len(before["runs"]))
    for line in lines:
        display.judged(line.level.value, f"{line.check}: {line.text}")
        for quoted in line.evidence:
            display.say(f"           {quoted}")
    for package in packages:
        # What differs here and was never in the journal is not this tool's doing.
        (display.warn if package.different else display.say)(str(package))
    report = {
        "stopped": stopped,
        "files": found["files"],
        "proofs": [line.as_dict() for line in lines],
        "packages": [asdict(package) for package in packages],
        "holds": all(line.level is Level.OK for line in lines),
    }
    broken = [line for line in lines if line.level is Level.FAILURE]
    if broken:
        raise ToolError(
            "the host is not as it was before",
            host=settings.name,
            evidence=[text for line in broken for text in (line.text, *line.evidence)],
            hint="mend what is named, then run inv restore again: it goes on where it stopped",
            details={"restore": report},
        )
    display.good(f"{settings.name} has nothing of this tool any more")
    return report


def proofs(found: Answer, state: str, runs: int) -> list[Line]:
    """Each proof as a line, from the answer of `payload/restore.prove`."""
    wrong = [row for row in found["files"] if row["sha256"] != row["expected"]]
    alive = [
        f"pid {each['pid']}, run {each['run']}: {' '.join(masked(each['command']))[:200]}"
        for each in found["processes"]
    ]
    return [
        _files(found["files"], wrong),
        checks.failure("processes", f"{len(alive)} still live", None, *alive)
        if alive
        else checks.ok("processes", f"none of {runs} runs and their benches is alive"),
        checks.failure("left over", "files of this tool are still there", None, *found["leftovers"])
        if found["leftovers"]
        else checks.ok("left over", f"nothing: no {state}, no hook, no .pth file"),
    ]


def _files(rows: list[Mapping[str, Any]], wrong: list[Mapping[str, Any]]) -> Line:
    if wrong:
        shown = [
            f"{row['path']}: sha256 {row['sha256'] or 'no file'},"
            f" original {row['expected'] or 'no file'}"
            for row in wrong
        ]
        return checks.failure("files", "not the originals", None, *shown)
    if not rows:
        return checks.ok("files", "none was patched")
    whole = sum(row["recorded"] is not None and row["recorded"] == row["sha256"] for row in rows)
    gone = sum(row["expected"] is None for row in rows)
    text = f"{len(rows)} that were patched are their originals by hash: {whole} as RECORD has them"
    return checks.ok("files", f"{text}, {gone} that were not there are gone")
