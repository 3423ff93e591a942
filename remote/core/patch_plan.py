"""Wanted patch sets × files as found → what to write, or why not.

A file's state is judged by hash against the journal that the tool keeps on the host: the original
before the first change, and what the tool last wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from remote.core import unified_diff
from remote.errors import PatchRefused


class FileState(Enum):
    """What a file that a patch set needs was found to be."""

    ORIGINAL = "original"
    PATCHED = "patched"
    ALTERED = "patched but altered"
    UNEXPECTED = "unexpected"
    HALF_APPLIED = "half applied"
    MISSING = "missing"


@dataclass(frozen=True)
class Entry:
    """The journal's note on one changed file; a hash of None means that there was no file."""

    original: str | None
    current: str | None
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """A file as it is on the host.

    ``recorded`` is the hash that the wheel's RECORD gives (None: it names no such file, as with an
    editable install). ``base`` is what a plan starts from: the saved original of a file that the
    tool changed, otherwise the bytes that stand there (None: no file). ``in_site``: it lies in
    site-packages, where RECORD files name all that packages bring.
    """

    path: str
    sha256: str | None
    recorded: str | None = None
    entry: Entry | None = None
    base: bytes | None = None
    in_transaction: bool = False
    in_site: bool = False

    @property
    def reinstalled(self) -> bool:
        """Whether pip put another file in place of the patched one, or none: the journal is stale.

        `payload/patches.py` judges by the same rule where it undoes and saves.
        """
        entry = self.entry
        if entry is None or self.sha256 in (entry.current, entry.original):
            return False
        if self.sha256 is None:
            return self.in_site and self.recorded is None
        return self.recorded is not None and (
            self.sha256 == self.recorded or self.recorded != entry.original
        )

    @property
    def original(self) -> str | None:
        """The hash of what the file is without this tool; None where it would not be there."""
        return self.entry.original if self.entry and not self.reinstalled else self.sha256


@dataclass(frozen=True)
class FileEdit:
    """One file of a patch set: its path on the host, and what to do with it.

    Exactly one of ``diff`` (change what is there) and ``content`` (a file of our own) is given.
    ``known`` are the originals that the set was made for; empty: any that the diff applies to.
    """

    path: str
    diff: unified_diff.FileDiff | None = None
    content: bytes | None = None
    known: frozenset[str] = frozenset()

    @property
    def makes(self) -> bool:
        """Whether it makes a file rather than changing one."""
        return self.diff.creates if self.diff is not None else self.content is not None


@dataclass(frozen=True)
class WantedSet:
    """A patch set with its paths resolved on one host."""

    name: str
    edits: tuple[FileEdit, ...]


@dataclass(frozen=True)
class Step:
    """One file to write (or, with ``after`` None, to remove).

    Hashes of what stands there now, will stand there, and stood there before this tool came.
    ``base`` is what the content was made from, and is on the host.
    """

    path: str
    before: str | None
    after: str | None
    original: str | None
    content: bytes | None
    sets: tuple[str, ...]
    base: bytes | None = None


def sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def state(found: Found, known: frozenset[str] = frozenset()) -> FileState:
    """The state of one file.

    Args:
        known: the originals that the patch set was made for; empty takes any for original.
    """
    entry = found.entry
    if found.in_transaction:
        return FileState.HALF_APPLIED
    if entry is None:
        if found.sha256 is None:
            return FileState.MISSING
        return FileState.ORIGINAL if found.sha256 in _known(found, known) else FileState.UNEXPECTED
    if found.sha256 == entry.current:
        return FileState.PATCHED
    if found.sha256 == entry.original:
        return FileState.ORIGINAL
    if found.sha256 is None:
        return FileState.MISSING
    if found.reinstalled:
        return FileState.ORIGINAL if found.sha256 in _known(found, known) else FileState.UNEXPECTED
    return FileState.ALTERED


def plan(
    wanted: Sequence[WantedSet], found: Mapping[str, Found], *, over_edits: bool = False
) -> tuple[Step, ...]:
    """The writes that bring every file to what the wanted sets make of its original.

    Sets stack in their order. Files that the journal knows and no wanted set touches go back to
    their originals. Nothing to do gives no steps.

    Args:
        over_edits: a patched file that was edited by hand afterwards may be written over; the
            host keeps what stood there.

    Raises:
        PatchRefused: a file was altered by somebody else, isn't a version that the set knows, or
            a hunk doesn't apply.
    """
    targets: dict[str, bytes | None] = {}
    sets: dict[str, tuple[str, ...]] = {}
    for patch in wanted:
        for edit in patch.edits:
            file = found[edit.path]
            if not over_edits:
                _refuse_altered(file)
            _refuse_foreign(file, edit, patch.name)
            base = targets.get(edit.path, file.base)
            if base is None and edit.diff is not None and not edit.diff.creates:
                raise PatchRefused(f"{patch.name} needs {file.path}, which is not there")
            targets[edit.path] = edited(base, edit)
            sets[edit.path] = (*sets.get(edit.path, ()), patch.name)
    for path, file in found.items():
        if file.entry is not None and path not in targets:
            if not over_edits:
                _refuse_altered(file)
            targets[path] = file.base if file.original is not None else None
    steps = []
    for path, content in targets.items():
        file, after, names = found[path], sha256(content), sets.get(path, ())
        known = file.entry.sets if file.entry else ()
        if file.sha256 != after or known != names:
            hashes = (file.sha256, after, file.original)
            steps.append(Step(path, *hashes, content, names, file.base))
    return tuple(steps)


def edited(base: bytes | None, edit: FileEdit) -> bytes | None:
    """What the edit makes of a file (None: no file).

    Raises:
        PatchRefused: a hunk doesn't apply.
    """
    if edit.diff is None:
        return edit.content
    result = unified_diff.apply(base or b"", edit.diff)
    return None if edit.diff.removes else result


def _refuse_foreign(file: Found, edit: FileEdit, name: str) -> None:
    if edit.content is not None:
        if file.entry is None and file.sha256 not in (None, sha256(edit.content)):
            raise PatchRefused(
                f"{name} brings a file that is there already: {file.path}",
                evidence=[f"found sha256 {file.sha256}"],
                hint="this host's journal doesn't know it: another state folder of this tool left"
                " it, or it is somebody's own; move it away if it may go",
            )
        return
    original = file.original
    known = _known(file, edit.known)
    if original not in known:
        raise PatchRefused(
            f"{name} does not know this {file.path}",
            evidence=[
                f"found sha256 {original}",
                *(f"known sha256 {each}" for each in sorted(filter(None, known))),
            ],
            hint="edited by hand or patched by something else: inv patch.author keeps the edit as a"
            " patch set; reinstalling the package with pip brings its original back",
        )


def _known(file: Found, known: frozenset[str]) -> frozenset[str | None]:
    """The hashes that count as the file's original.

    Those that the set names; without any, what the wheel's RECORD gives; without that (an editable
    install), whatever stands there.
    """
    if known:
        return frozenset(known)
    return frozenset({file.recorded or file.original})


def _refuse_altered(file: Found) -> None:
    entry = file.entry
    if entry and not file.reinstalled and file.sha256 not in (entry.current, entry.original):
        raise PatchRefused(
            f"{file.path} was changed after this tool patched it",
            evidence=[
                f"original sha256 {entry.original}",
                f"patched  sha256 {entry.current}",
                f"found    sha256 {file.sha256 or 'no file'}",
            ],
            hint="somebody edited it, and this tool won't overwrite that: inv patch.author keeps"
            " the edit as a patch set; reinstalling the package with pip drops it",
        )
