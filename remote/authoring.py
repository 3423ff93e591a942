"""Edits made by hand on a host, turned into a patch set that can be applied and taken back."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote import locking, patch_sets, patch_work, patching, venv
from remote.core import patch_plan, unified_diff
from remote.core.host_facts import HostFacts
from remote.core.patch_plan import Found
from remote.errors import ConfigError, PatchRefused, ToolError
from remote.patch_sets import PatchSet
from remote.patching import PatchView
from remote.session import Session

#: Looked at first where no distribution is named, and last: its files are many.
_FIRST, _LAST = "flashinfer-python", "torch"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


@dataclass(frozen=True)
class Edited:
    """A file that was edited by hand.

    Attributes:
        path: on the host; ``name`` is what a diff calls it.
        stacked: this tool had patched it before it was edited.
        original: its bytes before anybody changed it (None: no such file, or ``stacked``).
        content: its bytes now (None: removed).
    """

    path: str
    name: str
    stacked: bool
    original: bytes | None
    content: bytes | None


@dataclass(frozen=True)
class Edits:
    """What was edited in one distribution; ``left_out`` by path with the reason."""

    distribution: str
    files: tuple[Edited, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """One file of the new set: from ``before``, what this tool or the package left, to now."""

    file: Edited
    original: bytes | None
    before: bytes | None
    sets: tuple[str, ...]


def author(
    session: Session, name: str, distribution: str | None = None, summary: str | None = None
) -> dict[str, Any]:
    """Make a patch set of what was edited in a distribution; on the host it counts as applied.

    Args:
        name: ``package/name``, or the name alone.
        distribution: default: the first one that has edited files.

    Raises:
        ConfigError: the name is taken or none, or nothing was edited.
        PatchRefused: an original is not to be had, or an edit can't be told from a patch.
    """
    host, settings, display = session.host, session.host_settings, session.display
    with display.working("looking for edited files"):
        facts = venv.survey(host, settings)
        edits = _first_edited(session, facts, distribution)
        full = _full_name(name, edits.distribution, patch_sets.names(session.folders))
        seen = patching.view(host, settings)
        if seen.interrupted:
            raise PatchRefused(
                "a patch was interrupted on this host",
                host=settings.name,
                hint="inv rollback-patch, or inv patch.apply NAME, ends it; then author",
            )
        changes = _changes(session, facts, seen, edits)
        patch, diff = _made(full, summary, edits.distribution, facts, seen, changes)
    with locking.held(session, f"patch.author {name}"):
        folder = patch_sets.write(session.folders[0], patch, diff)
        try:
            _adopt(session, changes, seen, full)
        except ToolError:
            shutil.rmtree(folder)
            raise
    for change in changes:
        display.good(f"{full} has the edits of {change.file.path}")
    for line in _shown(edits.left_out):
        display.warn(line)
    if patch.stands_on:
        display.say(f"it stands on {', '.join(patch.stands_on)}: apply that first")
    display.say(f"written to {folder}")
    display.say("on this host it counts as applied: inv rollback-patch returns the originals")
    return {
        "patch": full,
        "folder": str(folder),
        "distribution": edits.distribution,
        "versions": patch.versions,
        "stands_on": list(patch.stands_on),
        "files": [
            {
                "path": change.file.path,
                "original_sha256": patch_plan.sha256(change.original),
                "sha256": patch_plan.sha256(change.file.content),
            }
            for change in changes
        ],
        "left_out": dict(edits.left_out),
    }


def _first_edited(session: Session, facts: HostFacts, wanted: str | None) -> Edits:
    known = sorted(facts.distributions, key=lambda name: (name != _FIRST, name == _LAST, name))
    if wanted is not None and wanted not in known:
        raise ConfigError(
            f"{wanted!r} is none of the packages that can be patched",
            host=session.host_settings.name,
            evidence=[f"{each} {facts.version(each)}" for each in known],
        )
    left_out: dict[str, str] = {}
    looked_at = [wanted] if wanted else known
    for name in looked_at:
        session.display.tell(f"comparing {name} with what was installed")
        found = _read(session, facts, name)
        if found.files:
            return found
        left_out.update(found.left_out)
    raise ConfigError(
        f"nothing was edited by hand in {', '.join(looked_at) or 'any known package'}",
        host=session.host_settings.name,
        evidence=_shown(left_out),
        hint="edit files of the package on the host first; what patch sets did is no edit",
    )


def _shown(left_out: Mapping[str, str], most: int = 10) -> list[str]:
    lines = [f"left out: {path} ({reason})" for path, reason in left_out.items()]
    more = len(lines) - most
    return [*lines[:most], f"left out: {more} more"] if more > 0 else lines


def _read(session: Session, facts: HostFacts, distribution: str) -> Edits:
    installed = facts.distributions[distribution]
    piece = session.host.fetch(
        "authoring.read",
        state=session.host_settings.state,
        python=facts.python,
        site=facts.site_packages,
        distribution=distribution,
        version=installed["version"],
        folder=installed["folder"],
        editable=installed["editable"],
    )
    position = 0

    def taken(size: int | None) -> bytes | None:
        nonlocal position
        if size is None:
            return None
        position += size
        return piece.data[position - size : position]

    files = tuple(
        Edited(
            row["path"], row["name"], row["stacked"], taken(row["original"]), taken(row["edited"])
        )
        for row in piece.body["files"]
    )
    left_out = {row["path"]: row["reason"] for row in piece.body["left_out"]}
    return Edits(distribution, tuple(files), left_out)


def _full_name(name: str, distribution: str, taken: Sequence[str]) -> str:
    package, slash, last = name.rpartition("/")
    if not slash:
        package = distribution.removesuffix("-python")
    fits = _NAME.match(package) and _NAME.match(last) and not last.endswith((".diff", ".patch"))
    if not fits or package == patch_sets.USER:
        raise ConfigError(
            f"{name!r} is no name for a patch set",
            hint="letters, digits, dots, dashes and underscores: NAME, or PACKAGE/NAME",
        )
    full = f"{package}/{last}"
    if full in taken:
        raise ConfigError(f"there is a patch set {full} already", hint="choose another name")
    return full


def _changes(
    session: Session, facts: HostFacts, seen: PatchView, edits: Edits
) -> tuple[Change, ...]:
    """Each file with what it was before the edit; needs the applied sets only where they matter."""
    changes = []
    for file in edits.files:
        if not file.stacked:
            changes.append(Change(file, file.original, file.original, ()))
            continue
        found = seen.found[file.path]
        assert found.entry is not None
        if found.base is None or file.content is None:
            made_by = ", ".join(found.entry.sets)
            raise PatchRefused(
                f"{file.path} is the work of {made_by}, and was"
                f" {'edited' if file.content is not None else 'removed'} since",
                host=session.host_settings.name,
                hint="change the set itself; inv rollback-patch takes it back and keeps what"
                " stands there under patches/originals",
            )
        before = _left_by_us(session, facts, seen, found)
        changes.append(Change(file, found.base, before, found.entry.sets))
    return tuple(changes)


def _left_by_us(session: Session, facts: HostFacts, seen: PatchView, found: Found) -> bytes:
    """What the applied sets made of a file, before somebody edited it."""
    assert found.entry is not None
    names = [name for name in seen.applied if name in found.entry.sets]
    sets = patch_work.definitions(session, names)
    covered = patching.view(session.host, session.host_settings, sets)
    content = found.base
    for patch in sets:
        for edit in patching.resolved(patch, facts, covered).edits:
            if edit.path == found.path:
                content = patch_plan.edited(content, edit)
    if content is None or patch_plan.sha256(content) != found.entry.current:
        raise PatchRefused(
            f"what {', '.join(names)} left in {found.path} can't be told any more",
            host=session.host_settings.name,
            evidence=[f"it left sha256 {found.entry.current}"],
            hint="the set was changed since it was applied: author from the machine that applied"
            " it, or roll back and edit anew",
        )
    return content


def _made(
    name: str,
    summary: str | None,
    distribution: str,
    facts: HostFacts,
    seen: PatchView,
    changes: Sequence[Change],
) -> tuple[PatchSet, bytes]:
    """The set and its diff, proven: applied to what was there it gives what is there."""
    version = facts.version(distribution)
    parts = []
    for change in changes:
        part = unified_diff.written(change.before, change.file.content, change.file.name)
        _prove(part, change)
        parts.append(part)
    diff = b"".join(parts)
    on = {each for change in changes for each in change.sets}
    count = "one file" if len(changes) == 1 else f"{len(changes)} files"
    patch = PatchSet(
        name=name,
        summary=summary or f"edits made by hand in {count} of {distribution} {version}",
        why="",
        step="",
        verdict="",
        outcome="",
        distribution=distribution,
        versions=f"=={version}",
        upstream="",
        diffs=tuple(unified_diff.parse(diff, name)),
        known={
            change.file.name: frozenset({patch_plan.sha256(change.original) or ""})
            for change in changes
            if change.original is not None
        },
        stands_on=tuple(each for each in seen.applied if each in on),
    )
    return patch, diff


def _prove(part: bytes, change: Change) -> None:
    (parsed,) = unified_diff.parse(part, change.file.path)
    result = unified_diff.apply(change.before or b"", parsed)
    if parsed.path != change.file.name or result != (change.file.content or b""):
        raise PatchRefused(
            f"no unified diff can hold the edit of {change.file.path}",
            hint="its name has blanks or tabs at an end: rename it",
        )


def _adopt(session: Session, changes: Sequence[Change], seen: PatchView, name: str) -> None:
    steps = []
    data = b""
    for change in changes:
        saved = change.original is None or bool(change.sets)
        steps.append(
            {
                "path": change.file.path,
                "edited": patch_plan.sha256(change.file.content),
                "original": patch_plan.sha256(change.original),
                "bytes": None if saved else len(change.original or b""),
                "sets": [*change.sets, name],
            }
        )
        data += b"" if saved else change.original or b""
    session.host.call(
        "authoring.adopt",
        data=data,
        state=session.host_settings.state,
        steps=steps,
        sets=[*seen.applied, name],
    )
