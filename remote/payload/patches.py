"""Installed files changed in transactions that survive being killed at any step.

`patches/journal.json` says for every changed file what it was before the first change (its hash;
none for a file that wasn't there), what it is now, and which patch sets that comes from. Original
bytes lie in `patches/originals/<sha256>`. A transaction first writes `patches/pending.json` with
all it is going to do, then the files one by one, then the journal with its own id, then removes
`pending.json`. A pending transaction whose id is the journal's is whole; any other was interrupted,
and the next call undoes it, to the state before it began.
"""

from __future__ import annotations

import binascii
import csv
import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from . import delta, facts, files
from .refusal import Refused

Entries = dict[str, dict[str, Any]]


def _folder(state: str) -> str:
    return files.private_dir(os.path.join(files.state_dir(state), "patches"))


def _load(path: str) -> dict[str, Any] | None:
    found = files.read(path)
    if found is None:
        return None
    loaded: dict[str, Any] = json.loads(found.content)
    return loaded


def journal(state: str) -> Entries:
    """The changed files by path, as last committed."""
    entries: Entries = _journal(state)["files"]
    return entries


def _journal(state: str) -> dict[str, Any]:
    path = os.path.join(files.expand(state), "patches", "journal.json")
    return _load(path) or {"transaction": None, "sets": [], "files": {}}


def pending(state: str) -> dict[str, Any] | None:
    """The transaction that was interrupted, if there is one."""
    path = os.path.join(files.expand(state), "patches", "pending.json")
    found = _load(path)
    whole = found is not None and found["id"] == _journal(state)["transaction"]
    return None if whole else found


def look(
    state: str, paths: list[str], venv: str, edited: list[str], brought: list[str]
) -> tuple[dict[str, Any], bytes]:
    """The journal and the files as they are now, the journal's own files included.

    Args:
        edited: files of patch sets, by their path below whichever of `facts.roots` has them.
        brought: files that patch sets bring, by their path below site-packages.

    Each row has as ``recorded`` what the wheel's RECORD gives. The bytes that a new plan starts
    from (the saved original where there is one, else the file itself) stand one after another in
    the data; ``base_bytes`` gives lengths.
    """
    site = facts.site_packages(venv)
    roots = facts.roots(site, facts.distributions(site)) if site else []
    of_sets = [f"{root}/{path}" for path in edited for root in roots]
    of_sets += [f"{site}/{name}" for name in brought if site]
    known = journal(state)
    interrupted = pending(state)
    touched = [step["path"] for step in (interrupted or {}).get("steps", [])]
    rows: dict[str, Any] = {}
    data = []
    wanted = sorted({*paths, *of_sets, *known, *touched})
    by_wheel = recorded(site, wanted) if site and wanted else {}
    for path in wanted:
        now = files.read(path)
        row: dict[str, Any] = {
            "sha256": now.sha256 if now else None,
            "recorded": by_wheel.get(path),
            "in_site": site is not None and path.startswith(f"{site}/"),
        }
        if now:
            row.update(mode=now.mode, uid=now.uid, gid=now.gid)
        base = _base(state, known.get(path), now, row)
        row["base_bytes"] = len(base) if base is not None else None
        data.append(base or b"")
        rows[path] = row
    applied = _journal(state)["sets"]
    found = {"journal": known, "applied": applied, "pending": interrupted, "files": rows}
    return found, b"".join(data)


def _base(
    state: str, entry: dict[str, Any] | None, now: files.Found | None, row: dict[str, Any]
) -> bytes | None:
    if entry is None or _reinstalled(entry["original"], entry["current"], row):
        return now.content if now else None
    return None if entry["original"] is None else _original(state, entry["original"])


def _reinstalled(original: str | None, current: str | None, row: dict[str, Any]) -> bool:
    """Whether pip put another file in place of one that was changed here, or took it away.

    Args:
        row: of the file now: ``sha256``, ``recorded``, ``in_site`` as `look` gives them.
    """
    found, recorded = row["sha256"], row["recorded"]
    if found in (original, current):
        return False
    if found is None:
        return bool(row["in_site"]) and recorded is None
    return recorded is not None and (found == recorded or recorded != original)


def _original(state: str, sha256: str) -> bytes:
    content = saved_original(state, sha256)
    if content is None:
        path = _saved(state, sha256)
        raise Refused(
            "PatchRefused",
            f"the saved original {sha256[:12]} is {'damaged' if files.read(path) else 'missing'}",
            evidence=[path],
            hint="reinstall the package with pip, then run the task again",
        )
    return content


def _saved(state: str, sha256: str) -> str:
    return os.path.join(files.expand(state), "patches", "originals", sha256)


def saved_original(state: str, sha256: str) -> bytes | None:
    """The bytes kept under that hash; None where there are none, or they are damaged."""
    found = files.read(_saved(state, sha256))
    return found.content if found is not None and found.sha256 == sha256 else None


def save_original(state: str, content: bytes) -> None:
    """Keep the bytes of a file under their hash."""
    sha256 = files.sha256(content)
    files.private_dir(os.path.join(_folder(state), "originals"))
    if saved_original(state, sha256) is None:
        files.write(_saved(state, sha256), content)


def commit(state: str, steps: list[dict[str, Any]], sets: list[str], data: bytes) -> dict[str, Any]:
    """Make all changes or none.

    Args:
        steps: each ``{path, before, after, original, bytes, base, sets}``: hashes before, after,
            and without this tool (None: no such file), the length of the new content in ``data``
            (None: a saved original is meant), the hash of what it is told by (see `delta`; None:
            it stands there in full), and the patch sets it comes from.
        sets: all sets that are applied afterwards, in the order in which they stack.

    Raises:
        Refused: PatchRefused; a file isn't what the plan was made for. Nothing was changed.
        OSError: a write failed; everything was put back.
    """
    home = _folder(state)
    recover(state)
    known = journal(state)
    before: dict[str, files.Found | None] = {}
    for step in steps:
        now = before[step["path"]] = files.read(step["path"])
        _expect(step["path"], step["before"], now.sha256 if now else None)
        if now is not None:
            save_original(state, now.content)
    contents = _contents(state, steps, data)
    kept = ("path", "before", "after", "original", "sets")
    plan = [{key: step[key] for key in kept} for step in steps]
    for entry in plan:
        now, was = before[entry["path"]], known.get(entry["path"], {})
        if now is not None:
            entry.update(mode=now.mode, uid=now.uid, gid=now.gid)
        else:  # a file that a patch removed comes back as it was
            entry.update({key: was[key] for key in ("mode", "uid", "gid") if key in was})
    transaction = os.urandom(16).hex()
    intent = {"id": transaction, "steps": plan}
    files.write(os.path.join(home, "pending.json"), json.dumps(intent).encode())
    try:
        for entry, content in zip(plan, contents, strict=True):
            _put(entry["path"], content, entry)
            now = files.read(entry["path"])
            _expect(entry["path"], entry["after"], now.sha256 if now else None)
        files.write(os.path.join(home, "journal.json"), _written(known, plan, sets, transaction))
    except BaseException as first:
        try:
            recover(state)
        except BaseException as second:
            # The first failure is what matters; that the undo failed too must not hide it.
            raise Refused(
                "PatchRefused",
                f"{first}; and putting the files back failed too: {second}",
                hint="run inv rollback-patch again once the cause is mended",
            ) from first
        raise
    files.remove(os.path.join(home, "pending.json"))
    return {"changed": [entry["path"] for entry in plan]}


def recover(state: str, over_edits: bool = False) -> dict[str, Any]:
    """Undo an interrupted transaction: every file as it was before it began.

    One that pip replaced meanwhile, by its original or by another version's, stays.

    Args:
        over_edits: one that somebody edited meanwhile is put back too, the edited version kept
            beside the originals.

    Raises:
        Refused: a file was edited meanwhile, and ``over_edits`` is not given.
    """
    interrupted = pending(state)
    if interrupted is None:
        return {"undone": [], "kept": {}}
    known = journal(state)
    undone = []
    kept = {}
    for step in interrupted["steps"]:
        path = step["path"]
        files.remove_leftovers(path)
        now = files.read(path)
        original = known[path]["original"] if path in known else step["before"]
        row = {"sha256": now.sha256 if now else None, **_packaged(path)}
        if row["sha256"] in (step["before"], original):
            _drop_bytecode(path)
            continue
        if _reinstalled(original, step["after"], row):
            continue
        if now is not None and now.sha256 != step["after"]:
            if not over_edits:
                raise Refused(
                    "PatchRefused",
                    f"{path} was changed by somebody else in the middle of a patch",
                    evidence=[f"expected {step['before']} or {step['after']}, found {now.sha256}"],
                    hint="inv rollback-patch puts it back, and keeps what stands there under"
                    " patches/originals",
                )
            save_original(state, now.content)
            kept[path] = now.sha256
        content = None if step["before"] is None else _original(state, step["before"])
        _put(path, content, step)
        undone.append(path)
    files.remove(os.path.join(_folder(state), "pending.json"))
    return {"undone": undone, "kept": kept}


def _packaged(path: str) -> dict[str, Any]:
    """What RECORD says of a file, by the site-packages folder that its path shows."""
    head, inside, _ = path.rpartition("/site-packages/")
    if not inside:
        return {"recorded": None, "in_site": False}
    return {"recorded": recorded(f"{head}/site-packages", [path]).get(path), "in_site": True}


def _contents(state: str, steps: list[dict[str, Any]], data: bytes) -> list[bytes | None]:
    contents: list[bytes | None] = []
    position = 0
    for step in steps:
        if step["after"] is None:
            contents.append(None)
        elif step["bytes"] is None:
            contents.append(_original(state, step["after"]))
        else:
            content = data[position : position + step["bytes"]]
            position += step["bytes"]
            if step.get("base") is not None:
                content = delta.unpacked(_at_hand(state, step["path"], step["base"]), content)
            contents.append(content)
    return contents


def _at_hand(state: str, path: str, sha256: str) -> bytes:
    """The contents of that hash: the file itself, or what was saved of it."""
    now = files.read(path)
    if now is not None and now.sha256 == sha256:
        return now.content
    return _original(state, sha256)


def _expect(path: str, wanted: str | None, found: str | None) -> None:
    if wanted != found:
        raise Refused(
            "PatchRefused",
            f"{path} is not what the plan was made for",
            evidence=[
                f"wanted sha256 {wanted or 'no file'}",
                f"found  sha256 {found or 'no file'}",
            ],
            hint="somebody changed it meanwhile: run the task again to plan anew",
        )


def _put(path: str, content: bytes | None, like: dict[str, Any]) -> None:
    if content is None:
        files.remove(path)
    else:
        owner = (like["uid"], like["gid"]) if "uid" in like else None
        files.write(path, content, like.get("mode", 0o644), owner)
    _drop_bytecode(path)


def _drop_bytecode(path: str) -> None:
    """Remove compiled copies: one with equal time and size, or unchecked, would run instead."""
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    if ending == ".py":
        for stale in glob.glob(
            os.path.join(glob.escape(folder), "__pycache__", f"{glob.escape(stem)}.*.pyc")
        ):
            os.unlink(stale)


def _written(
    known: Entries, plan: list[dict[str, Any]], sets: list[str], transaction: str
) -> bytes:
    after = dict(known)
    for step in plan:
        if step["after"] == step["original"]:
            after.pop(step["path"], None)
        else:
            after[step["path"]] = {
                "original": step["original"],
                "current": step["after"],
                "sets": step["sets"],
                **{key: step[key] for key in ("mode", "uid", "gid") if key in step},
            }
    return json.dumps({"transaction": transaction, "sets": sets, "files": after}, indent=1).encode()


def recorded(site: str, paths: list[str]) -> dict[str, str]:
    """The sha256 that the wheels' RECORD files give for installed files, in hex, by path."""
    wanted = {os.path.relpath(path, site): path for path in paths}
    found = {}
    for path in glob.glob(os.path.join(glob.escape(site), "*.dist-info", "RECORD")):
        for name, digest in record(path):
            if name in wanted and digest:
                found[wanted[name]] = in_hex(digest)
    return found


def record(path: str) -> Iterator[tuple[str, str]]:
    """One RECORD: each file's name from site-packages, and its sha256 (empty: none) as written."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                kind, _, digest = row[1].partition("=") if len(row) >= 2 else ("", "", "")
                if row:
                    yield row[0], digest if kind == "sha256" else ""
    except FileNotFoundError:  # gone since we listed it: pip is at work
        return


def in_hex(digest: str) -> str:
    """A hash of RECORD, base64 without padding, in hex."""
    plain = digest.replace("-", "+").replace("_", "/")
    return binascii.a2b_base64(plain + "=" * (-len(digest) % 4)).hex()
