"""Installed packages patched on a host, with proof by hash, and taken back byte for byte.

What a set is stands in `remote/patch_sets.py`, what to write is decided in `core/patch_plan.py`,
and `payload/patches.py` writes it; this module carries between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.config import HostSettings
from remote.core import patch_plan
from remote.core.host_facts import HostFacts
from remote.core.patch_plan import Entry, FileEdit, FileState, Found, Step, WantedSet
from remote.errors import PatchRefused
from remote.host import Host, Request
from remote.patch_sets import PatchSet
from remote.payload import delta


@dataclass(frozen=True)
class PatchView:
    """The patches of a host as they are now; ``applied`` in the order in which they stack."""

    found: Mapping[str, Found]
    applied: tuple[str, ...]
    interrupted: bool

    @property
    def drifted(self) -> tuple[Found, ...]:
        """Files that are no longer what this tool left there."""
        return tuple(
            file
            for file in self.found.values()
            if file.entry is not None and file.sha256 != file.entry.current
        )


@dataclass(frozen=True)
class SetState:
    """One set on one host: does it fit, and how its files were found."""

    patch: PatchSet
    version: str | None
    unfit: str | None
    files: Mapping[str, FileState]

    @property
    def state(self) -> str:
        """The set's state in a word or two: the worst of its files'."""
        found = set(self.files.values())
        for bad in (FileState.HALF_APPLIED, FileState.ALTERED, FileState.UNEXPECTED):
            if bad in found:
                return str(bad.value)
        if found == {FileState.PATCHED}:
            return "applied"
        if FileState.PATCHED in found:
            return str(FileState.HALF_APPLIED.value)
        if self.unfit is not None:
            return "does not fit"
        return str(FileState.MISSING.value) if FileState.MISSING in found else "not applied"


@dataclass(frozen=True)
class PatchPlan:
    """What is going to be done to installed files.

    ``left_out`` are sets that don't belong on this host, each with the reason; ``after`` are the
    hashes of all patched files once it is done, by path.
    """

    sets: tuple[PatchSet, ...]
    left_out: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    after: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
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
        """The shape printed with ``--json``."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "original_sha256": self.original,
            "record_sha256": self.recorded,
            "proven": self.holds,
        }


def look_request(
    settings: HostSettings, sets: Sequence[PatchSet] = (), paths: Sequence[str] = ()
) -> Request:
    """What `view` asks."""
    return Request(
        "patches.look",
        {
            "state": settings.state,
            "paths": list(paths),
            "venv": settings.venv,
            "edited": [diff.path for patch in sets for diff in patch.diffs],
            "brought": [name for patch in sets for name in patch.files],
        },
    )


def view(
    host: Host,
    settings: HostSettings,
    sets: Sequence[PatchSet] = (),
    paths: Sequence[str] = (),
) -> PatchView:
    """The journal's files, the sets' own and ``paths`` as they are now, and what a plan starts
    from.
    """
    piece = look_request(settings, sets, paths).fetched(host)
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
            path,
            row["sha256"],
            row["recorded"],
            entry,
            base,
            in_transaction=path in touched,
            in_site=row["in_site"],
        )
    return PatchView(found, tuple(piece.body["applied"]), pending is not None)


def _places(patch: PatchSet, facts: HostFacts) -> list[list[str]]:
    """For each of the set's files, where it may lie; `payload/patches.py` looks there."""
    if facts.site_packages is None:
        return []
    edited = [[f"{root}/{diff.path}" for root in facts.roots] for diff in patch.diffs]
    return edited + [[f"{facts.site_packages}/{name}"] for name in patch.files]


def resolved(patch: PatchSet, facts: HostFacts, seen: PatchView) -> WantedSet:
    """The set with its paths on one host: of the places where a file may lie, where it does."""
    edits = []
    found = [
        ([path for path in places if seen.found[path].sha256 is not None], places, diff)
        for places, diff in zip(_places(patch, facts), patch.diffs, strict=False)
    ]
    # A file that the set makes goes where its other files are.
    root = next((places.index(there[0]) for there, places, _ in found if there), 0)
    for there, places, diff in found:
        known = patch.known.get(diff.path, frozenset())
        edits.append(FileEdit((there or places[root:])[0], diff=diff, known=known))
    for name, content in patch.files.items():
        edits.append(FileEdit(f"{facts.site_packages}/{name}", content=content))
    return WantedSet(patch.name, tuple(edits))


def states(sets: Sequence[PatchSet], facts: HostFacts, seen: PatchView) -> tuple[SetState, ...]:
    """Each set × what is on the host; ``seen`` must cover the sets' files."""
    rows = []
    for patch in sets:
        version = facts.version(patch.distribution) if patch.distribution else None
        files = {}
        for edit in resolved(patch, facts, seen).edits:
            file = seen.found[edit.path]
            ours = file.entry is not None and patch.name in file.entry.sets
            state = patch_plan.state(file, edit.known)
            # Patched by another set only: for this one the file is as good as original.
            if state is FileState.PATCHED and not ours:
                state = FileState.ORIGINAL
            # A file of the set's own is not missing: it isn't there yet.
            if state is FileState.MISSING and edit.makes and not ours:
                state = FileState.ORIGINAL
            files[edit.path] = state
        rows.append(SetState(patch, version, patch.unfit(version), files))
    return tuple(rows)


def plan(
    by_profile: Sequence[PatchSet],
    named: Sequence[PatchSet],
    facts: HostFacts,
    seen: PatchView,
    *,
    over_edits: bool = False,
) -> PatchPlan:
    """What brings the host to exactly these sets, in this order.

    Args:
        by_profile: wanted by a profile: those that don't belong on this host are left out.
        named: wanted by the user: applied wherever their files are what they know.
        over_edits: see `core.patch_plan.plan`.

    Raises:
        PatchRefused: a file isn't what a set was made for, or somebody changed it.
    """
    chosen: list[PatchSet] = []
    left_out = []
    for patch in by_profile:
        reason = _unfit(patch, facts) or patch.unwanted(facts.version("sglang"))
        if reason is None:
            chosen.append(patch)
        else:
            left_out.append((patch.name, reason))
    for patch in named:
        unfit = _unfit(patch, facts)
        # A hook has no pre-image that could tell a version it doesn't know.
        if unfit is not None and patch.delivery == "hook":
            raise PatchRefused(f"{patch.name}: {unfit}", hint="inv patch lists what fits")
        if patch.name not in {each.name for each in chosen}:
            chosen.append(patch)
    _refuse_without_base(chosen)
    wanted = [resolved(patch, facts, seen) for patch in chosen]
    steps = patch_plan.plan(wanted, seen.found, over_edits=over_edits)
    now = {path: file.sha256 for path, file in seen.found.items() if file.entry is not None}
    after = {**now, **{step.path: step.after for step in steps}}
    for step in steps:
        if step.after == step.original:
            del after[step.path]
    return PatchPlan(tuple(chosen), tuple(left_out), steps, after)


def _refuse_without_base(chosen: Sequence[PatchSet]) -> None:
    for number, patch in enumerate(chosen):
        missing = set(patch.stands_on) - {each.name for each in chosen[:number]}
        if missing:
            raise PatchRefused(
                f"{patch.name} was made on top of {', '.join(sorted(missing))}",
                evidence=[f"the sets in their order: {', '.join(each.name for each in chosen)}"],
                hint="name that set first, and this one after it",
            )


def _unfit(patch: PatchSet, facts: HostFacts) -> str | None:
    return patch.unfit(facts.version(patch.distribution) if patch.distribution else None)


@dataclass(frozen=True)
class Recovered:
    """An interrupted patch undone: the files put back, and of those edited meanwhile the hash under
    which the host keeps the edited version.
    """

    undone: tuple[str, ...]
    kept: Mapping[str, str]


def recover_request(settings: HostSettings, *, over_edits: bool = False) -> Request:
    """What `recover` asks."""
    return Request("patches.recover", {"state": settings.state, "over_edits": over_edits})


def recover(host: Host, settings: HostSettings, *, over_edits: bool = False) -> Recovered:
    """Undo a patch that was interrupted.

    Args:
        over_edits: a file that was edited meanwhile may be put back as well.

    Raises:
        PatchRefused: a file was edited in the middle of the patch.
    """
    answer = recover_request(settings, over_edits=over_edits).of(host)
    return Recovered(tuple(answer["undone"]), answer["kept"])


def commit(host: Host, settings: HostSettings, made: PatchPlan) -> None:
    """Make the planned writes, all or none, every file's hash checked afterwards.

    Raises:
        PatchRefused: a file changed since the plan was made; nothing was touched.
    """
    commit_request(settings, made.steps, made.names).of(host)


def undo(host: Host, settings: HostSettings, made: PatchPlan, seen: PatchView) -> None:
    """Put back what stood there before the plan was carried out, other patches included."""
    back = []
    for step in made.steps:
        entry = seen.found[step.path].entry
        sets = entry.sets if entry else ()
        back.append(Step(step.path, step.after, step.before, step.original, None, sets))
    if back:
        commit_request(settings, back, seen.applied).of(host)


def commit_request(settings: HostSettings, steps: Sequence[Step], sets: Sequence[str]) -> Request:
    """What makes these writes, all or none."""
    wire = []
    data = b""
    for step in steps:
        # What stood there once is kept on the host: it needn't travel.
        saved = step.content is None or step.after == step.original
        content = b"" if saved or step.content is None else step.content
        base = patch_plan.sha256(step.base) if content and step.base else None
        if base is not None and step.base is not None:
            content = delta.packed(step.base, content)
        wire.append(
            {
                "path": step.path,
                "before": step.before,
                "after": step.after,
                "original": step.original,
                "bytes": None if saved else len(content),
                "base": base,
                "sets": list(step.sets),
            }
        )
        data += content
    params = {"state": settings.state, "steps": wire, "sets": list(sets)}
    return Request("patches.commit", params, data)


@dataclass(frozen=True)
class Integrity:
    """A distribution held against its wheel's RECORD, or its checkout against git's last commit.

    ``checked`` counts the files compared, None where git was asked; ``different`` and
    ``leftovers`` (files of patch sets still there) are empty where nothing differs.
    """

    distribution: str
    checked: int | None
    different: tuple[str, ...]
    leftovers: tuple[str, ...]

    def __str__(self) -> str:
        against = "git's last commit" if self.checked is None else f"{self.checked} files of RECORD"
        found = (*self.different, *(f"left over: {path}" for path in self.leftovers))
        return f"{self.distribution} against {against}: {', '.join(found) or 'no difference'}"


#: What patches are made for; the rest of a venv is nobody's business here.
_PATCHED = ("flashinfer-python", "sglang")


def integrity(host: Host, facts: HostFacts) -> tuple[Integrity, ...]:
    """The packages that are patched, compared whole."""
    found = []
    for name in _PATCHED:
        installed = facts.distributions.get(name)
        if installed is not None and facts.site_packages is not None:
            answer = host.call(
                "integrity.differences",
                site=facts.site_packages,
                folder=installed["folder"],
                editable=installed["editable"],
            )
            different, leftovers = tuple(answer["different"]), tuple(answer["leftovers"])
            found.append(Integrity(name, answer["checked"], different, leftovers))
    return tuple(found)


def take_back(host: Host, settings: HostSettings, made: PatchPlan) -> tuple[Proof, ...]:
    """Carry out a plan with fewer sets, and prove each file that went back by reading it again.

    Raises:
        PatchRefused: a file is not its original afterwards.
    """
    commit(host, settings, made)
    back = [step for step in made.steps if step.after == step.original]
    after = view(host, settings, paths=[step.path for step in back])
    proofs = tuple(
        Proof(s.path, after.found[s.path].sha256, s.original, after.found[s.path].recorded)
        for s in back
    )
    wrong = [proof for proof in proofs if not proof.holds]
    if wrong:
        raise PatchRefused(
            "a file is not its original after the rollback",
            host=settings.name,
            evidence=[f"{p.path}: {p.sha256}, original {p.original}" for p in wrong],
            hint="reinstall the package with pip",
        )
    return proofs
