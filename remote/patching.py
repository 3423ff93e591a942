"""FlashInfer patched on the host, with proof by hash, and taken back byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from remote.config import HostSettings
from remote.core import patch_plan, unified_diff
from remote.core.fields import Fields, Problems
from remote.core.host_facts import HostFacts
from remote.core.nearest import did_you_mean
from remote.core.patch_plan import Entry, FileEdit, FileState, Found, Step, WantedSet
from remote.errors import ConfigError, PatchRefused
from remote.host import Host


@dataclass(frozen=True)
class PatchSet:
    """A folder under `templates/patches/<package>/<name>/`, as its manifest says.

    ``diffs`` change installed files; their paths are relative to site-packages.
    """

    name: str
    summary: str
    why: str
    outcome: str
    distribution: str
    versions: str
    upstream: str
    diffs: tuple[unified_diff.FileDiff, ...]

    def fits(self, version: str | None) -> str | None:
        """Why the set does not fit an installed version; None where it does."""
        if version is None:
            return f"{self.distribution} is not installed"
        try:
            if Version(version) in SpecifierSet(self.versions, prereleases=True):
                return None
        except InvalidVersion:
            return f"{self.distribution} has a version that can't be compared: {version}"
        return f"made for {self.distribution} {self.versions}, installed is {version}"


@dataclass(frozen=True)
class SetState:
    """One set on one host: does it fit, and how its files were found."""

    patch: PatchSet
    version: str | None
    unfit_because: str | None
    files: Mapping[str, FileState]

    @property
    def state(self) -> str:
        """The set's state in a word or two: the worst of its files'."""
        if self.unfit_because is not None:
            return "does not fit"
        for state in (
            FileState.HALF_APPLIED,
            FileState.ALTERED,
            FileState.MISSING,
            FileState.UNEXPECTED,
        ):
            if state in self.files.values():
                return str(state.value)
        return "applied" if FileState.PATCHED in self.files.values() else "not applied"


@dataclass(frozen=True)
class PatchView:
    """The patches of a host as they are now."""

    found: Mapping[str, Found]
    interrupted: bool

    @property
    def applied(self) -> tuple[str, ...]:
        """The sets in effect, in the order in which they stack."""
        names: dict[str, None] = {}
        for file in self.found.values():
            if file.entry is not None and file.sha256 == file.entry.current:
                names.update(dict.fromkeys(file.entry.sets))
        return tuple(names)

    @property
    def drifted(self) -> tuple[Found, ...]:
        """Files that are no longer what this tool left there."""
        return tuple(
            file
            for file in self.found.values()
            if file.entry is not None and file.sha256 != file.entry.current
        )


@dataclass(frozen=True)
class PatchPlan:
    """What a deploy is going to do to installed files."""

    sets: tuple[PatchSet, ...]
    left_out: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes one patched state from another: the sets' names and contents."""
        return tuple(patch.name for patch in self.sets)


@dataclass(frozen=True)
class Proof:
    """A file after a rollback: its hash, the original's, and what the wheel's RECORD says."""

    path: str
    sha256: str | None
    original: str | None
    recorded: str | None

    @property
    def holds(self) -> bool:
        return self.sha256 == self.original

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "sha256": self.sha256,
            "original_sha256": self.original,
            "record_sha256": self.recorded,
            "proven": self.holds,
        }


def names(folders: Sequence[Path]) -> list[str]:
    """The patch sets there are, ``package/name``."""
    found = {
        f"{manifest.parent.parent.name}/{manifest.parent.name}"
        for folder in folders
        for manifest in (folder / "patches").glob("*/*/manifest.yaml")
    }
    return sorted(found)


def load(name: str, folders: Sequence[Path]) -> PatchSet:
    """Read a set; ``name`` is ``package/name``, or the name alone where it is unambiguous.

    Raises:
        ConfigError: no such set, or its manifest or diff is wrong.
    """
    known = names(folders)
    fitting = [full for full in known if name in (full, full.partition("/")[2])]
    if len(fitting) != 1:
        raise ConfigError(
            f"{'several patch sets are' if fitting else 'no patch set is'} called"
            f" {name!r}{'' if fitting else did_you_mean(name, known)}",
            evidence=known,
            hint="inv patch lists them",
        )
    for folder in folders:
        home = folder / "patches" / fitting[0]
        if (home / "manifest.yaml").exists():
            return _read(fitting[0], home)
    raise AssertionError(fitting)


def _read(name: str, home: Path) -> PatchSet:
    import yaml

    path = home / "manifest.yaml"
    problems = Problems()
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML", evidence=str(error).splitlines()) from error
    fields = Fields("", raw, problems)
    diffs: list[unified_diff.FileDiff] = []
    edits = fields.value("edits")
    for number, edit in enumerate(edits if isinstance(edits, list) else []):
        entry = Fields(f"edits[{number}]", edit, problems)
        file = home / entry.text("diff")
        entry.refuse_unknown()
        if file.is_file():
            diffs += unified_diff.parse(file.read_bytes(), str(file))
        else:
            problems.add(f"edits[{number}].diff", f"no such file: {file}")
    delivery = fields.text("delivery")
    if delivery != "edit":
        problems.add("delivery", f"wanted edit, found {delivery!r}")
    patch = PatchSet(
        name=name,
        summary=fields.text("summary"),
        why=fields.text("why", ""),
        outcome=fields.text("outcome", ""),
        distribution=fields.text("distribution"),
        versions=fields.text("versions"),
        upstream=fields.text("upstream", ""),
        diffs=tuple(diffs),
    )
    try:
        SpecifierSet(patch.versions)
    except InvalidSpecifier:
        problems.add("versions", f"wanted a range as '>=0.6.1,<=0.6.3', found {patch.versions!r}")
    fields.refuse_unknown()
    problems.raise_any(str(path))
    return patch


def resolved(patch: PatchSet, site_packages: str) -> WantedSet:
    """The set with its paths on one host."""
    edits = tuple(FileEdit(f"{site_packages}/{diff.path}", diff=diff) for diff in patch.diffs)
    return WantedSet(patch.name, edits)


def view(
    host: Host, settings: HostSettings, site_packages: str | None, paths: Sequence[str] = ()
) -> PatchView:
    """The journal's files and ``paths`` as they are now, with what a plan starts from."""
    piece = host.fetch(
        "patches.look",
        state=settings.state,
        paths=list(paths),
        site=site_packages,
        contents=True,
    )
    journal, pending = piece.body["journal"], piece.body["pending"]
    touched = {step["path"] for step in pending["steps"]} if pending else set()
    found = {}
    position = 0
    for path, row in piece.body["files"].items():
        base: bytes | None = None
        if row["base_bytes"] is not None:
            base = piece.data[position : position + row["base_bytes"]]
            position += row["base_bytes"]
        note = journal.get(path)
        entry = Entry(note["original"], note["current"], tuple(note["sets"])) if note else None
        found[path] = Found(
            path, row["sha256"], row["recorded"], entry, base, in_transaction=path in touched
        )
    return PatchView(found, pending is not None)


def states(sets: Sequence[PatchSet], facts: HostFacts, seen: PatchView) -> tuple[SetState, ...]:
    """Each set × what is on the host; ``seen`` must cover the sets' files."""
    rows = []
    for patch in sets:
        version = facts.version(patch.distribution)
        files = {}
        unfit = patch.fits(version)
        if unfit is None and facts.site_packages:
            for edit in resolved(patch, facts.site_packages).edits:
                file = seen.found[edit.path]
                state = patch_plan.state(file, edit.known)
                ours = file.entry is not None and patch.name in file.entry.sets
                # Patched by another set: for this one the file is as good as original.
                if state is FileState.PATCHED and not ours:
                    state = FileState.ORIGINAL
                files[edit.path] = state
        rows.append(SetState(patch, version, unfit, files))
    return tuple(rows)


def paths(sets: Sequence[PatchSet], facts: HostFacts) -> list[str]:
    """The files on the host that the sets need."""
    if facts.site_packages is None:
        return []
    return [
        edit.path
        for patch in sets
        if patch.fits(facts.version(patch.distribution)) is None
        for edit in resolved(patch, facts.site_packages).edits
    ]


def plan(sets: Sequence[PatchSet], facts: HostFacts, seen: PatchView) -> PatchPlan:
    """What brings the host to exactly these sets, in this order; unfit ones are left out.

    Raises:
        PatchRefused: a file isn't what a set was made for, or somebody changed it.
    """
    fitting: list[PatchSet] = []
    left_out = []
    for patch in sets:
        reason = patch.fits(facts.version(patch.distribution))
        if reason is None:
            fitting.append(patch)
        else:
            left_out.append((patch.name, reason))
    site = facts.site_packages or ""
    steps = patch_plan.plan([resolved(patch, site) for patch in fitting], seen.found)
    return PatchPlan(tuple(fitting), tuple(left_out), steps)


def recover(host: Host, settings: HostSettings) -> list[str]:
    """Undo a patch that was interrupted; the paths that were put back."""
    return list(host.call("patches.recover", state=settings.state)["undone"])


def commit(host: Host, settings: HostSettings, steps: Sequence[Step]) -> None:
    """Make the planned writes, all or none, and check every file's hash afterwards.

    Raises:
        PatchRefused: a file changed since the plan was made; nothing was touched.
    """
    if not steps:
        return
    wire = []
    data = b""
    for step in steps:
        # The host has the original's bytes: they needn't travel.
        saved = step.after is not None and step.after == step.original
        content = b"" if saved or step.content is None else step.content
        wire.append(
            {
                "path": step.path,
                "before": step.before,
                "after": step.after,
                "original": step.original,
                "bytes": None if saved else len(content),
                "sets": list(step.sets),
            }
        )
        data += content
    host.call("patches.commit", data=data, state=settings.state, steps=wire)


def rollback(
    host: Host, settings: HostSettings, site_packages: str | None, seen: PatchView
) -> tuple[Proof, ...]:
    """Every patched file back to its original bytes, and the proof read from the host again.

    Raises:
        PatchRefused: a file was changed by somebody else, or is not its original afterwards.
    """
    steps = patch_plan.plan([], seen.found)
    commit(host, settings, steps)
    changed = [step.path for step in steps]
    after = view(host, settings, site_packages, changed)
    proofs = []
    for step in steps:
        now = after.found[step.path]
        proofs.append(Proof(step.path, now.sha256, step.original, now.recorded))
    wrong = [proof for proof in proofs if not proof.holds]
    if wrong:
        raise PatchRefused(
            "a file is not its original after the rollback",
            host=settings.name,
            evidence=[f"{p.path}: {p.sha256}, original {p.original}" for p in wrong],
            hint="reinstall the package with pip",
        )
    return tuple(proofs)
