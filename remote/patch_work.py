"""The patch tasks: list, diff, apply, verify, roll back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from remote import deploy, locking, patch_sets, patching, probe, venv
from remote.core import patch_plan
from remote.core.host_facts import HostFacts
from remote.core.patch_plan import FileState, Found
from remote.core.unified_diff import between
from remote.errors import ConfigError, PatchRefused
from remote.patch_sets import PatchSet
from remote.patching import PatchView
from remote.plan_view import show_proofs
from remote.session import Session


def listed(session: Session) -> list[dict[str, Any]]:
    """Every set × its state on the host."""
    sets = [patch_sets.load(name, session.folders) for name in patch_sets.names(session.folders)]
    facts, seen = _look(session, sets)
    rows = [
        {
            "patch": found.patch.name,
            "state": found.state,
            "delivery": found.patch.delivery,
            "step": found.patch.step,
            "verdict": found.patch.verdict,
            "for": f"{found.patch.distribution} {found.patch.versions}",
            "installed": found.version,
            "why_not": found.unfit or found.patch.unwanted(facts.version("sglang")),
            "summary": found.patch.summary,
            "files": {path: state.value for path, state in found.files.items()},
        }
        for found in patching.states(sets, facts, seen)
    ]
    known = {row["patch"] for row in rows}
    rows += [
        {"patch": name, "state": "applied", "delivery": "edit", "summary": "not known here"}
        for name in seen.applied
        if name not in known
    ]
    session.display.table(
        ("patch", "state", "delivery", "known to", "what it does"),
        [
            (r["patch"], r["state"], r["delivery"], r.get("verdict"), r["summary"])
            for r in sorted(rows, key=lambda row: (str(row.get("step")), row["patch"]))
        ],
    )
    _warn_of_drift(session, seen)
    return rows


def show_diff(session: Session, name: str) -> dict[str, Any]:
    """What applying a set would change, file by file; nothing is changed."""
    patch = patch_sets.load(name, session.folders)
    facts, seen = _look(session, [patch])
    made = patching.plan([], [patch], facts, seen)
    texts = {}
    for edit in patching.resolved(patch, facts, seen).edits:
        steps = [step for step in made.steps if step.path == edit.path]
        base = seen.found[edit.path].base
        after = steps[0].content if steps else base
        texts[edit.path] = between(base or b"", after or b"", edit.path[1:])
        session.display.diff(texts[edit.path] or f"# {edit.path} is patched already\n")
    return {"patch": patch.name, "diffs": texts}


def apply(session: Session, name: str) -> dict[str, Any]:
    """Apply one set on top of those that are applied."""
    host, settings = session.host, session.host_settings
    patch = patch_sets.load(name, session.folders)
    with (
        session.record.doing("patch", patch=patch.name) as told,
        locking.held(session, f"patch.apply {name}"),
        session.display.working(f"applying {patch.name}"),
    ):
        recover(session)
        facts, seen = _look(session, [])
        locking.respect_starts(session, facts.runs)
        others = definitions(session, [each for each in seen.applied if each != patch.name])
        sets = [*others, patch]
        seen = patching.view(host, settings, sets)
        made = patching.plan([], sets, facts, seen)
        warn_of_outcome(session, patch)
        proofs = deploy.apply_patches(
            session.host, settings, facts, made, seen, session.display.tell
        )
        told["files"] = changed = [step.path for step in made.steps]
    for path in changed:
        session.display.good(f"patched {path}")
    show_proofs(session.display, proofs)
    if not changed:
        session.display.say(f"{patch.name} is applied already")
    return {
        "patch": patch.name,
        "changed": changed,
        "proofs": [proof.as_dict() for proof in proofs],
    }


def rollback(session: Session, name: str | None) -> dict[str, Any]:
    """Take back one set, or all: every file that no set needs is its original again, by hash."""
    host, settings, display = session.host, session.host_settings, session.display
    with (
        session.record.doing("rollback", patch=name) as told,
        locking.held(
            session,
            "rollback-patch",
            then=[
                patching.recover_request(settings, over_edits=True),
                venv.survey_request(settings),
                patching.look_request(settings),
            ],
        ),
        display.working("rolling back"),
    ):
        undone = recover(session, over_edits=True)
        facts, seen = _look(session, [])
        locking.respect_starts(session, facts.runs)
        remaining = _remaining(session, seen, name)
        seen = patching.view(host, settings, remaining)
        made = patching.plan([], remaining, facts, seen, over_edits=True)
        for file in seen.drifted:
            _say_what_becomes_of(session, file)
        proofs = patching.take_back(host, settings, made)
        told |= {"files": [proof.path for proof in proofs], "remaining": list(made.names)}
        whole = patching.integrity(host, facts) if made.steps else ()
    for proof in proofs:
        if proof.original is None:
            display.good(f"{proof.path} is gone again")
            continue
        display.good(f"{proof.path} is its original again")
        display.say(f"  sha256 {proof.sha256}")
        if proof.recorded is not None:
            same = "the same" if proof.recorded == proof.sha256 else f"ANOTHER: {proof.recorded}"
            display.say(f"  the wheel's RECORD has {same}")
    for package in whole:
        display.say(str(package))
    if not made.steps:
        display.say("no file is patched")
    running = facts.current
    if made.steps and running is not None and running.alive:
        display.warn(f"run {running.run} keeps the patched code in memory until it is restarted")
    return {
        "undone": undone,
        "remaining": list(made.names),
        "packages": [asdict(package) for package in whole],
        "files": [proof.as_dict() for proof in proofs],
    }


def verify(session: Session) -> dict[str, Any]:
    """Every applied set's files against the journal and the wheel's RECORD; changes nothing.

    ``holds`` is false where a file is not what this tool left there, or half way to it.
    """
    _, seen = _look(session, [])
    rows = []
    for path, file in seen.found.items():
        state = patch_plan.state(file)
        entry = file.entry
        rows.append(
            {
                "path": path,
                "sets": list(entry.sets) if entry else [],
                "state": "reinstalled" if file.reinstalled else state.value,
                "sha256": file.sha256,
                "patched_sha256": entry.current if entry else None,
                "original_sha256": file.original,
                "record_sha256": file.recorded,
                "holds": state is FileState.PATCHED,
            }
        )
    report = {
        "applied": list(seen.applied),
        "interrupted": seen.interrupted,
        "files": rows,
        "holds": not seen.interrupted and all(row["holds"] for row in rows),
    }
    _show_verified(session, report)
    return report


def _show_verified(session: Session, report: Mapping[str, Any]) -> None:
    display = session.display
    display.say(f"applied: {', '.join(report['applied']) or 'none'}")
    for row in report["files"]:
        show = display.good if row["holds"] else display.warn
        show(f"{row['path']}: {row['state']} ({', '.join(row['sets']) or 'no set'})")
        display.say(f"  sha256   {row['sha256'] or 'no file'}")
        if not row["holds"]:
            display.say(f"  patched  {row['patched_sha256'] or 'no file'}")
        same = row["record_sha256"] is not None and row["record_sha256"] == row["original_sha256"]
        recorded = ", as the wheel's RECORD has it" if same else ""
        display.say(f"  original {row['original_sha256'] or 'no file'}{recorded}")
    if report["interrupted"]:
        display.warn("a patch was interrupted; inv rollback-patch undoes it")
    elif not report["holds"]:
        display.warn(
            "inv rollback-patch returns the originals (edited files are kept on the host), inv"
            " patch.author NAME keeps edits as a patch set; then inv patch.apply NAME patches anew"
        )


def _say_what_becomes_of(session: Session, file: Found) -> None:
    if file.reinstalled:
        what = "was reinstalled since: it is the package's own file, and stays"
        if file.sha256 is None:
            what = "went with its package: it stays away"
        elif file.sha256 != file.recorded:
            what = "was reinstalled and then edited: it stays as it is"
        session.display.warn(f"{file.path} {what}")
    elif file.sha256 is not None and file.sha256 != file.original:
        _say_kept(session, file.path, file.sha256)


def _say_kept(session: Session, path: str, sha256: str) -> None:
    session.display.warn(
        f"{path} was edited since; the edited version is kept on the host as"
        f" {session.host_settings.state}/patches/originals/{sha256}"
    )


def warn_of_outcome(session: Session, patch: PatchSet) -> None:
    """Say what is known of a set that is known to fail."""
    if patch.verdict == "fails":
        session.display.warn(f"{patch.name} is known to fail: {patch.outcome.strip()}")


def _remaining(session: Session, seen: PatchView, name: str | None) -> list[PatchSet]:
    if name is None:
        return []
    fitting = [each for each in seen.applied if name in (each, each.partition("/")[2])]
    if len(fitting) != 1:
        raise ConfigError(
            f"{name!r} is not applied",
            host=session.host_settings.name,
            evidence=list(seen.applied) or ["no patch is applied"],
        )
    return definitions(session, [each for each in seen.applied if each != fitting[0]])


def definitions(session: Session, names: Sequence[str]) -> list[PatchSet]:
    """The applied sets as they are known here.

    Raises:
        PatchRefused: one of them is not.
    """
    known = patch_sets.names(session.folders)
    missing = [name for name in names if name not in known]
    if missing:
        raise PatchRefused(
            f"{missing[0]} is applied and its definition is not known here",
            host=session.host_settings.name,
            evidence=missing,
            hint="inv rollback-patch takes all of them back; a diff of your own is named anew with"
            " --patch ./FILE",
        )
    return [patch_sets.load(name, session.folders) for name in names]


def recover(session: Session, *, over_edits: bool = False) -> list[str]:
    """Undo a patch that was interrupted, and say so; the files put back."""
    found = patching.recover(session.host, session.host_settings, over_edits=over_edits)
    for path in found.undone:
        session.display.warn(f"an interrupted patch was undone: {path}")
    for path, sha256 in found.kept.items():
        _say_kept(session, path, sha256)
    return list(found.undone)


def _look(session: Session, sets: Sequence[PatchSet]) -> tuple[HostFacts, PatchView]:
    facts = venv.survey(session.host, session.host_settings)
    return facts, patching.view(session.host, session.host_settings, sets)


def _warn_of_drift(session: Session, seen: PatchView) -> None:
    for file in seen.drifted:
        session.display.warn(
            f"{file.path} is no longer what this tool left there (reinstalled or edited)"
        )


def probed(session: Session, every: bool, fail_on_trap: bool) -> dict[str, Any]:
    """What the installed SGLang calls bare in its compiled region, and whether it traces.

    Raises:
        PatchRefused: a trap was found and ``fail_on_trap`` asks for that.
    """
    host, settings, display = session.host, session.host_settings, session.display
    facts = venv.survey(host, settings)
    venv.require_sglang(facts, settings)
    with display.working("probing"):
        report = probe.probe(host, settings, facts, display.tell, every=every)
    display.say(
        f"SGLang {report.sglang}, FlashInfer {report.flashinfer}, torch {report.torch}, traced for"
        f" {report.device}{' (assumed: this host has no GPU)' if report.assumed else ''}"
    )
    if report.stripped:
        display.say(f"left out of the environment: {', '.join(report.stripped)}")
    display.table(
        ("function", "outcome", "step", "why, and where", "freed by"),
        [
            (
                op.op.removeprefix("flashinfer."),
                op.outcome.value + (f" ({op.patch})" if op.patch else ""),
                op.step,
                f"{op.reason}{f', {op.at}' if op.at else ''}",
                op.freed_by,
            )
            for op in report.ops
        ],
    )
    display.say(f"{len(report.ops)} functions in {report.seconds:.1f} s, {len(report.traps)} traps")
    if report.traps and fail_on_trap:
        raise PatchRefused(
            f"{len(report.traps)} functions can't be traced",
            host=settings.name,
            evidence=[f"{op.op}: {op.reason}" for op in report.traps],
            hint="inv deploy piecewise --patch NAME, with what frees them",
        )
    return report.as_dict()
