"""Patch sets: folders of `templates/patches/<package>/<name>/`, or a diff of the user's own."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from remote.core import unified_diff
from remote.core.fields import Fields, Problems, described
from remote.core.nearest import did_you_mean
from remote.errors import ConfigError

#: Where a set stands that came as a file, not as a folder with a manifest.
USER = "user"

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class PatchSet:
    """What a manifest says, and the files it brings.

    Attributes:
        step: where it stands in the chain of traps, A to E, empty elsewhere.
        verdict: ``works`` or ``fails``, as it is known; ``outcome`` says how.
        distribution: the package it is for, ``versions`` the range it was made for; empty: any.
        diffs: changes to installed files, paths relative to site-packages (delivery ``edit``).
        files: files of its own for site-packages, by name (delivery ``hook``).
        known: by a diff's path, the sha256 of each original that it was made for; a path that is
            missing takes what the wheel's RECORD gives.
        stands_on: the sets that must be applied before this one.
        symbols: what the proof after applying must find to be ours; where the set is known to
            work, it must trace as well.
        traces: further functions whose trace the proof shows.
        requires_sglang: the range in which a profile wants it; elsewhere ``why_not_elsewhere``.
        switch: the environment variable that turns it off.
    """

    name: str
    summary: str
    why: str
    step: str
    verdict: str
    outcome: str
    distribution: str
    versions: str
    upstream: str
    diffs: tuple[unified_diff.FileDiff, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stands_on: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    requires_sglang: str = ""
    why_not_elsewhere: str = ""
    switch: str = ""

    @property
    def digest(self) -> str:
        """A hash of what the set writes."""
        content = repr((self.diffs, sorted(self.files.items())))
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def delivery(self) -> str:
        return "hook" if self.files else "edit"

    def unfit(self, version: str | None) -> str | None:
        """Why the set wasn't made for an installed version of its package; None where it was."""
        if not self.distribution:
            return None
        if version is None:
            return f"{self.distribution} is not installed"
        if _within(version, self.versions):
            return None
        return f"made for {self.distribution} {self.versions}, installed is {version}"

    def unwanted(self, sglang: str | None) -> str | None:
        """Why a profile leaves it out beside this SGLang; None where it doesn't."""
        if not self.requires_sglang or _within(sglang or "0", self.requires_sglang):
            return None
        return self.why_not_elsewhere or f"needs SGLang {self.requires_sglang}"


def _within(version: str, versions: str) -> bool:
    try:
        return Version(version) in SpecifierSet(versions, prereleases=True)
    except InvalidVersion:
        return False


def names(folders: Sequence[Path]) -> list[str]:
    """The patch sets there are, ``package/name``."""
    found = {
        f"{manifest.parent.parent.name}/{manifest.parent.name}"
        for folder in folders
        for manifest in (folder / "patches").glob("*/[!.]*/manifest.yaml")
    }
    return sorted(found)


def load(name: str, folders: Sequence[Path]) -> PatchSet:
    """Read a set; ``name`` is ``package/name``, or the name alone where it is unambiguous.

    A path to a unified diff is a set of its own, without a manifest.

    Raises:
        ConfigError: no such set, or its manifest or diff is wrong.
    """
    if name.endswith((".patch", ".diff")):
        return _from_file(Path(name))
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


def write(folder: Path, patch: PatchSet, diff: bytes) -> Path:
    """Put an edit into a folder of templates as `load` reads it, all of it or nothing.

    Returns:
        The set's folder.

    Raises:
        ConfigError: there is such a folder already, or it can't be written.
    """
    import yaml

    home = folder / "patches" / patch.name
    half = home.with_name(f".{home.name}.half")
    manifest = {
        "summary": patch.summary,
        "distribution": patch.distribution,
        "versions": patch.versions,
        "delivery": "edit",
        "edits": [f"{home.name}.diff"],
        "known": {path: sorted(hashes) for path, hashes in patch.known.items()},
        **({"stands_on": list(patch.stands_on)} if patch.stands_on else {}),
    }
    try:
        half.mkdir(parents=True, exist_ok=True)
        (half / f"{home.name}.diff").write_bytes(diff)
        text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=100)
        (half / "manifest.yaml").write_text(text, "utf-8")
        half.rename(home)  # refused where a folder with something in it stands
    except OSError as error:
        raise ConfigError(f"cannot write the patch set {home}: {error.strerror}") from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return home


def _from_file(path: Path) -> PatchSet:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the patch {path}: {error.strerror}") from error
    return PatchSet(
        name=f"{USER}/{path.name}",
        summary=f"the diff {path}",
        why="",
        step="",
        verdict="",
        outcome="",
        distribution="",
        versions="",
        upstream="",
        diffs=tuple(unified_diff.parse(text, str(path))),
    )


def _read(name: str, home: Path) -> PatchSet:
    import yaml

    path = home / "manifest.yaml"
    problems = Problems()
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML", evidence=str(error).splitlines()) from error
    fields = Fields("", raw, problems)
    delivery = fields.text("delivery")
    if delivery not in ("edit", "hook"):
        problems.add("delivery", f"wanted edit or hook, found {delivery!r}")
    diffs = _diffs(fields, home)
    patch = PatchSet(
        name=name,
        summary=fields.text("summary"),
        why=fields.text("why", ""),
        step=fields.text("step", ""),
        verdict=fields.text("verdict", ""),
        outcome=fields.text("outcome", ""),
        distribution=fields.text("distribution"),
        versions=fields.text("versions"),
        upstream=fields.text("upstream", ""),
        diffs=diffs,
        files=_files(fields, home),
        known=_known(fields.section("known"), diffs),
        stands_on=_texts(fields, "stands_on"),
        symbols=_texts(fields, "symbols"),
        traces=_texts(fields, "traces"),
        requires_sglang=fields.text("requires_sglang", ""),
        why_not_elsewhere=fields.text("why_not_elsewhere", ""),
        switch=fields.text("switch", ""),
    )
    for key, versions in (
        ("versions", patch.versions),
        ("requires_sglang", patch.requires_sglang),
    ):
        try:
            SpecifierSet(versions)
        except InvalidSpecifier:
            problems.add(key, f"wanted a range as '>=0.6.1,<=0.6.3', found {versions!r}")
    if delivery == "edit" and not patch.diffs:
        problems.add("edits", "missing: an edit needs a diff")
    if delivery == "hook" and not patch.files:
        problems.add("files", "missing: a hook brings files")
    fields.refuse_unknown()
    problems.raise_any(str(path))
    return patch


def _diffs(fields: Fields, home: Path) -> tuple[unified_diff.FileDiff, ...]:
    found: list[unified_diff.FileDiff] = []
    for name in _texts(fields, "edits"):
        content = _content(fields, "edits", home / name)
        if content is not None:
            found += unified_diff.parse(content, str(home / name))
    return tuple(found)


def _known(fields: Fields, diffs: Sequence[unified_diff.FileDiff]) -> dict[str, frozenset[str]]:
    found = {}
    paths = {diff.path for diff in diffs}
    for path in fields.entries():
        hashes = _texts(fields, path)
        if path not in paths:
            fields.problem(path, f"no diff changes it{did_you_mean(path, sorted(paths))}")
        for each in hashes:
            if not _SHA256.match(each):
                fields.problem(path, f"wanted a sha256 in hex, found {each!r}")
        found[path] = frozenset(hashes)
    return found


def _files(fields: Fields, home: Path) -> dict[str, bytes]:
    found = {}
    for name in _texts(fields, "files"):
        content = _content(fields, "files", home / name)
        if "/" in name or name.startswith("."):
            fields.problem("files", f"{name!r} must stand in site-packages itself")
        elif content is not None:
            found[name] = content
    return found


def _content(fields: Fields, key: str, path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        fields.problem(key, f"no such file: {path}")
        return None


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.value(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        fields.problem(key, f"wanted a list of text, found {described(value)}")
        return ()
    return tuple(value)
