"""What was edited by hand in an installed package: the files, as they are and as they were.

A wheel's RECORD tells which files changed, and the originals come from what a patch saved or from
the same wheel, downloaded anew. An editable install is asked by git, against its last commit.
"""

from __future__ import annotations

import glob
import os
import subprocess
import tempfile
import zipfile
from typing import Any

from . import facts, files, patches
from .refusal import Refused

#: Larger files are no source that anybody edits by hand.
_LARGEST_BYTES = 8 * 1024 * 1024

#: What editors and patch tools leave beside a file.
_LEFTOVERS = ("~", ".orig", ".rej", ".bak", ".swp", ".tmp", ".pyc")

_GIT_S = 60.0
_PIP_S = 600.0


def read(
    state: str,
    python: str,
    site: str,
    distribution: str,
    version: str,
    folder: str,
    editable: str | None,
) -> tuple[dict[str, Any], bytes]:
    """The files of a distribution that somebody changed, what this tool left there aside.

    Args:
        folder: the distribution's metadata folder.
        editable: the source of an editable install.

    Returns:
        ``files``, each with ``path`` on the host, ``name`` as a diff calls it, and the lengths
        ``original`` and ``edited`` (None: no such file) of the bytes that stand one after another
        in the data; ``left_out``, each with ``path`` and ``reason``. A file that was patched
        before it was edited has ``stacked`` and no original: the journal's is the one.

    Raises:
        Refused: an original is not to be had, or the checkout's git does not answer.
    """
    known = patches.journal(state)
    if editable:
        found, left_out = _in_checkout(editable, known)
    else:
        found, left_out = _in_wheel(site, folder, known)
        _fill_in(found, state, python, folder, f"{distribution}=={version}")
    rows = []
    data = []
    for file in found:
        unfit = _unfit(file)
        if unfit:
            left_out.append({"path": file["path"], "reason": unfit})
            continue
        row = {key: file[key] for key in ("path", "name", "stacked")}
        for side in ("original", "edited"):
            content = file[side]
            row[side] = None if content is None else len(content)
            data.append(content or b"")
        rows.append(row)
    return {"files": rows, "left_out": left_out}, b"".join(data)


def adopt(state: str, steps: list[dict[str, Any]], sets: list[str], data: bytes) -> dict[str, Any]:
    """Count edited files as patched: their originals are saved, so that they can be taken back.

    Args:
        steps: each ``{path, edited, original, bytes, sets}``: hashes as it is and was (None: no
            such file), and the length of the original in ``data`` (None: it is saved already).
        sets: all sets that are applied afterwards.

    Raises:
        Refused: a file was changed meanwhile; nothing was noted.
    """
    position = 0
    for step in steps:
        if step["bytes"] is not None:
            patches.save_original(state, data[position : position + step["bytes"]])
            position += step["bytes"]
    plan = [
        {
            "path": step["path"],
            "before": step["edited"],
            "after": step["edited"],
            "original": step["original"],
            "bytes": None,
            "sets": step["sets"],
        }
        for step in steps
    ]
    return patches.commit(state, plan, sets, b"")


def _unfit(file: dict[str, Any]) -> str | None:
    """Why no unified diff can hold the change."""
    original, edited = file["original"], file["edited"]
    if b"\0" in (original or b"") or b"\0" in (edited or b""):
        return "binary"
    if original is None and edited == b"" and not file["stacked"]:
        return "a new file without a line, which no diff can hold"
    return None


def _kept_by_us(path: str, sha256: str | None, known: patches.Entries) -> bool:
    return path in known and sha256 == known[path]["current"]


def _stacked(path: str, sha256: str | None, known: patches.Entries) -> bool:
    """Whether a patch was applied to the file before it was edited."""
    return path in known and sha256 != known[path]["original"]


def _in_wheel(
    site: str, folder: str, known: patches.Entries
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    recorded = dict(patches.record(os.path.join(folder, "RECORD")))
    found = []
    left_out = []
    for name, digest in sorted(recorded.items()):
        path = os.path.join(site, name)
        if not digest or name.startswith("..") or name.endswith(_LEFTOVERS):
            continue
        wanted = patches.in_hex(digest)
        now = _small(path)
        sha256 = now.sha256 if now else None
        if sha256 == wanted or _kept_by_us(path, sha256, known):
            continue
        if now is None:
            # Images leave out tests and sources to save room: that is no edit.
            if not os.path.lexists(path):
                left_out.append({"path": path, "reason": "gone"})
            continue
        # A patch of another version's file says nothing about this one.
        stacked = _stacked(path, sha256, known) and known[path]["original"] == wanted
        found.append(
            {
                "path": path,
                "name": name,
                "stacked": stacked,
                "recorded": wanted,
                "original": None,
                "edited": now.content,
            }
        )
    for path in _beside(site, recorded, known):
        now = _small(path)
        if now is not None:
            name = os.path.relpath(path, site)
            found.append(
                {
                    "path": path,
                    "name": name,
                    "stacked": path in known,
                    "recorded": None,
                    "original": None,
                    "edited": now.content,
                }
            )
    return found, left_out


def _small(path: str) -> files.Found | None:
    """The file, where it is a regular one of a size that people edit."""
    if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_BYTES:
        return None
    return files.read(path)


def _beside(site: str, recorded: dict[str, str], known: patches.Entries) -> list[str]:
    """Files in the package's own folders that no wheel brought and that aren't as we left them."""
    folders = {os.path.dirname(name) for name in recorded}
    metadata = (".dist-info", ".data", "__pycache__")
    sources = [name for name in folders if name and not name.startswith("..")]
    candidates = []
    for name in sorted(sources):
        if any(part.endswith(metadata) for part in name.split("/")):
            continue
        folder = os.path.join(site, name)
        if not os.path.isdir(folder):
            continue
        for entry in os.scandir(folder):
            told = os.path.join(name, entry.name) in recorded
            hidden = entry.name.startswith(".") or entry.name.endswith(_LEFTOVERS)
            if entry.is_file(follow_symlinks=False) and not told and not hidden:
                candidates.append(entry.path)
    if not candidates:
        return []
    others: set[str] = set()
    for path in glob.glob(os.path.join(glob.escape(site), "*.dist-info", "RECORD")):
        others.update(name for name, _ in patches.record(path))
    found = []
    for path in sorted(candidates):
        now = _small(path)
        if os.path.relpath(path, site) in others or now is None:
            continue
        if not _kept_by_us(path, now.sha256, known):
            found.append(path)
    return found


def _fill_in(
    found: list[dict[str, Any]], state: str, python: str, folder: str, requirement: str
) -> None:
    """The originals of a wheel's files: those saved here, the rest from the wheel itself."""
    wanted = [file for file in found if file["recorded"] and not file["stacked"]]
    for file in wanted:
        file["original"] = patches.saved_original(state, file["recorded"])
    missing = [file for file in wanted if file["original"] is None]
    if not missing:
        return
    from_wheel, said = _downloaded(
        python, _source(folder) or requirement, [file["name"] for file in missing]
    )
    for file in missing:
        content = from_wheel.get(file["name"])
        if content is None or files.sha256(content) != file["recorded"]:
            if content is not None:
                said = [f"the wheel of {requirement} that pip finds holds another such file"]
            raise Refused(
                "PatchRefused",
                f"the original of {file['path']} is neither saved on the host nor to be had"
                " from pip",
                evidence=[f"RECORD has sha256 {file['recorded']}", *said],
                hint=f"let the venv's pip reach an index that has {requirement} (pip config), or"
                f" save the wheel's own file as {state}/patches/originals/{file['recorded']}",
            )
        file["original"] = content


def _source(folder: str) -> str | None:
    """The address of the wheel that was installed, where it was not an index's."""
    note = facts.direct_url(folder)
    url = str(note.get("url", ""))
    return url if "archive_info" in note and url.endswith(".whl") else None


def _downloaded(
    python: str, requirement: str, names: list[str]
) -> tuple[dict[str, bytes], list[str]]:
    """Files of a wheel, by name, and what pip said last where it has none."""
    with tempfile.TemporaryDirectory(prefix="sglang-remote-") as folder:
        command = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        try:
            done = subprocess.run(
                [*command, "--progress-bar=off", "--dest", folder, requirement],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PIP_S,
                cwd=folder,
                env={**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {}, [str(error)]
        wheels = glob.glob(os.path.join(folder, "*.whl"))
        if done.returncode or not wheels:
            return {}, done.stderr.decode("utf-8", "replace").strip().splitlines()[-5:]
        with zipfile.ZipFile(wheels[0]) as archive:
            return _members(archive, names), []


def _members(archive: zipfile.ZipFile, names: list[str]) -> dict[str, bytes]:
    found = {}
    for member in archive.namelist():
        head, library, rest = member.partition(".data/")
        name = rest.partition("/")[2] if library and "/" not in head else member
        if name in names:
            found[name] = archive.read(member)
    return found


def _in_checkout(
    source: str, known: patches.Entries
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """What `git diff HEAD` names; paths from the checkout's root, where a diff is applied too."""
    top = _git(source, "rev-parse", "--show-toplevel").decode().rstrip("\n")
    # Patches are looked for in the source and in the folder above it.
    root = top if top in (source.rstrip("/"), os.path.dirname(source.rstrip("/"))) else source
    changes = _git(top, "diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "HEAD")
    before = _git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", "HEAD").split(b"\0")
    found = []
    left_out = []
    for word in changes.split(b"\0")[:-1]:
        name = os.fsdecode(word)
        path = os.path.join(top, name)
        relative = os.path.relpath(path, root)
        if os.path.islink(path) or os.path.isdir(path):
            left_out.append({"path": path, "reason": "not a regular file"})
        elif relative.startswith(".."):
            left_out.append({"path": path, "reason": f"outside {root}"})
        else:
            now = files.read(path)
            sha256 = now.sha256 if now else None
            if _kept_by_us(path, sha256, known):
                continue
            stacked = _stacked(path, sha256, known)
            old = word in before and not stacked
            found.append(
                {
                    "path": path,
                    "name": relative,
                    "stacked": stacked,
                    "original": _git(top, "cat-file", "--filters", f"HEAD:{name}") if old else None,
                    "edited": now.content if now else None,
                }
            )
    untracked = _git(top, "ls-files", "-z", "--others", "--exclude-standard")
    for word in untracked.split(b"\0")[:-1]:
        path = os.path.join(top, os.fsdecode(word))
        if path not in known:
            left_out.append({"path": path, "reason": "not tracked; git add -N takes it in"})
    return found, left_out


def _git(folder: str, *words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _git_refused(folder, [str(error)]) from error
    if done.returncode:
        raise _git_refused(folder, done.stderr.decode("utf-8", "replace").strip().splitlines()[-5:])
    return done.stdout


def _git_refused(folder: str, said: list[str]) -> Refused:
    return Refused(
        "PatchRefused",
        f"git does not say what was changed in {folder}",
        evidence=said,
        hint="an editable install is compared with its checkout's last commit: try git diff HEAD"
        " there by hand",
    )
