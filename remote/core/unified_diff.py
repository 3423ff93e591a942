"""Unified diffs, read and applied exactly: every line a hunk names must stand in the file.

A hunk may stand at another line than it says, if its old lines occur exactly once; no line may
differ. Files are bytes: line ends and encodings pass through unchanged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from remote.errors import ConfigError, PatchRefused

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = b"\\ No newline at end of file"


@dataclass(frozen=True)
class Hunk:
    """``old`` lines, expected from line ``start`` (1-based), become ``new``; with line ends."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True)
class FileDiff:
    """The hunks for one file. ``path`` is as the diff names it, without ``a/`` or ``b/``; the
    old or new side may be missing, for a file made or removed.
    """

    path: str
    creates: bool
    removes: bool
    hunks: tuple[Hunk, ...]


def parse(text: bytes, source: str) -> list[FileDiff]:
    """The files of a diff; prose and git's own header lines between them are passed over.

    Raises:
        ConfigError: no hunk in it, or a hunk shorter or longer than it says.
    """
    lines = text.splitlines(keepends=True)
    files: list[FileDiff] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        following = lines[position + 1] if position + 1 < len(lines) else b""
        if not (line.startswith(b"--- ") and following.startswith(b"+++ ")):
            position += 1
            continue
        old, new = _name(line), _name(following)
        position += 2
        hunks = []
        while position < len(lines) and (head := _HUNK.match(lines[position])):
            hunk, position = _hunk(lines, position + 1, head, source)
            hunks.append(hunk)
        if not hunks:
            raise ConfigError(f"{source}: no hunk after {following.decode(errors='replace')!r}")
        path = _stripped(old if new == "/dev/null" else new)
        files.append(FileDiff(path, old == "/dev/null", new == "/dev/null", tuple(hunks)))
    if not files:
        raise ConfigError(
            f"{source} is no unified diff: no line '--- ' followed by '+++ '",
            hint="make one with: diff -u old new, or git diff",
        )
    return files


def _name(line: bytes) -> str:
    return line[4:].split(b"\t")[0].strip().decode("utf-8", "replace")


def _stripped(path: str) -> str:
    return path[2:] if path.startswith(("a/", "b/")) else path


def _hunk(
    lines: Sequence[bytes], position: int, head: re.Match[bytes], source: str
) -> tuple[Hunk, int]:
    olds, news = int(head[2] or 1), int(head[4] or 1)
    old: list[bytes] = []
    new: list[bytes] = []
    while len(old) < olds or len(new) < news:
        line = lines[position] if position < len(lines) else b""
        kind, body = line[:1], line[1:]
        if kind == b" " or line in (b"\n", b"\r\n"):  # editors strip the space of an empty line
            body = body if kind == b" " else line
            old.append(body)
            new.append(body)
        elif kind == b"-":
            old.append(body)
        elif kind == b"+":
            new.append(body)
        elif not line.startswith(_NO_NEWLINE):
            raise ConfigError(
                f"{source}:{position + 1}: the hunk {head[0].decode()} ends too early",
                evidence=[line.decode(errors="replace").rstrip()],
            )
        position += 1
        if position < len(lines) and lines[position].startswith(_NO_NEWLINE):
            for side, holds in ((old, kind in b" -"), (new, kind in b" +")):
                if holds and side:
                    side[-1] = side[-1].rstrip(b"\r\n")
            position += 1
    return Hunk(int(head[1]), tuple(old), tuple(new)), position


def apply(content: bytes, diff: FileDiff) -> bytes:
    """The file with every hunk applied.

    Raises:
        PatchRefused: a hunk's lines aren't there, or more than once; with the lines it wanted and
            the lines it found.
    """
    lines = content.splitlines(keepends=True)
    result: list[bytes] = []
    position = 0
    for number, hunk in enumerate(diff.hunks, 1):
        at = _place(lines, hunk, position, diff.path, number)
        result += lines[position:at]
        result += hunk.new
        position = at + len(hunk.old)
    return b"".join([*result, *lines[position:]])


def _place(lines: list[bytes], hunk: Hunk, after: int, path: str, number: int) -> int:
    old, size = list(hunk.old), len(hunk.old)
    # A hunk without old lines stands after the line that it names, otherwise at that line.
    said = hunk.start - 1 if old else hunk.start
    if said >= after and lines[said : said + size] == old:
        return said
    places = [i for i in range(after, len(lines) - size + 1) if lines[i : i + size] == old]
    if old and len(places) == 1:
        return places[0]
    found = lines[max(said, 0) : said + size]
    why = f"its lines occur {len(places)} times" if old and places else "its lines are not there"
    raise PatchRefused(
        f"hunk {number} does not apply to {path}: {why}",
        evidence=[
            f"wanted from line {hunk.start}:",
            *_shown(old),
            f"found at line {hunk.start}:",
            *_shown(found or [b"(the file ends before)"]),
        ],
        hint="the file is another version than the patch was made for",
    )


def _shown(lines: Sequence[bytes]) -> list[str]:
    return ["  " + line.decode("utf-8", "replace").rstrip("\r\n") for line in lines]


def between(old: bytes, new: bytes, path: str) -> str:
    """The unified diff from ``old`` to ``new``, for reading."""
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(
            old.decode("utf-8", "replace").splitlines(keepends=True),
            new.decode("utf-8", "replace").splitlines(keepends=True),
            f"a/{path}",
            f"b/{path}",
        )
    )
