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
_NO_NEWLINE = b"\\ "  # what follows depends on the language of the diff that printed it


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
    lines = _lines(text)
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
                    side[-1] = side[-1].removesuffix(b"\n")
            position += 1
    _refuse_more(lines, position, head, source)
    return Hunk(int(head[1]), tuple(old), tuple(new)), position


def _refuse_more(lines: Sequence[bytes], position: int, head: re.Match[bytes], source: str) -> None:
    """Refuse lines of a hunk behind its end; the next header and a mail's signature are none."""
    line, following = (*lines[position : position + 2], b"", b"")[:2]
    header = line.startswith(b"--- ") and following.startswith(b"+++ ")
    if line.startswith((b" ", b"+", b"-")) and not header and line.rstrip() != b"--":
        raise ConfigError(
            f"{source}:{position + 1}: the hunk {head[0].decode()} goes on behind its end",
            evidence=[line.decode(errors="replace").rstrip()],
        )


def _lines(content: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends one, not a lone carriage return."""
    *whole, rest = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def apply(content: bytes, diff: FileDiff) -> bytes:
    """The file with every hunk applied.

    Raises:
        PatchRefused: a hunk's lines aren't there, or more than once; with the lines it wanted and
            the lines it found.
    """
    if diff.creates and content:
        raise PatchRefused(f"the patch makes {diff.path}, which is there already")
    lines = _lines(content)
    result: list[bytes] = []
    position = 0
    for number, hunk in enumerate(diff.hunks, 1):
        at = _place(lines, hunk, position, diff.path, number)
        result += lines[position:at]
        result += hunk.new
        position = at + len(hunk.old)
    result += lines[position:]
    if diff.removes and result:
        raise PatchRefused(
            f"the patch removes {diff.path}, which holds more than it names",
            evidence=_shown(result[:5]),
        )
    return b"".join(result)


def _place(lines: list[bytes], hunk: Hunk, after: int, path: str, number: int) -> int:
    old, size = list(hunk.old), len(hunk.old)

    def stands(at: int) -> bool:
        # Lines without their newline, theirs or ours, can only be the file's last.
        open_end = bool(hunk.new) and not hunk.new[-1].endswith(b"\n") and at + size < len(lines)
        glued = 0 < at <= len(lines) and not lines[at - 1].endswith(b"\n") and bool(hunk.new)
        return at <= len(lines) and lines[at : at + size] == old and not open_end and not glued

    # A hunk without old lines stands after the line that it names, otherwise at that line.
    said = hunk.start - 1 if old else hunk.start
    if said >= after and stands(said):
        return said
    places = [at for at in range(after, len(lines) - size + 1) if old and stands(at)]
    if len(places) == 1:
        return places[0]
    found = lines[max(said, 0) : said + size]
    why = f"its lines occur {len(places)} times" if places else "its lines are not there"
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


def written(old: bytes | None, new: bytes | None, path: str) -> bytes:
    """The unified diff from ``old`` to ``new``, as `parse` reads it; None: no such file."""
    before, after = (
        b"/dev/null" if content is None else f"{side}/{path}".encode()
        for side, content in (("a", old), ("b", new))
    )
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(old or b""), _lines(new or b""), before, after
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def between(old: bytes, new: bytes, path: str) -> str:
    """The unified diff from ``old`` to ``new``, for reading."""
    return written(old, new, path).decode("utf-8", "replace")
