"""Windows onto a log that may be larger than memory, by bytes: from its end, or by bisection."""

from __future__ import annotations

import collections
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import compressing, patience, runs

_BLOCK = 256 * 1024
#: A search gives up on a line above this; its memory must stay constant.
_LONGEST_LINE = 4 * 1024 * 1024
_STAMP = re.compile(rb"\n\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_STAMP_BYTES = len(b"\n[2026-11-29 12:00:00")


def _open(state: str, run: str) -> int:
    return os.open(os.path.join(runs.folder(state, run), "server.log"), os.O_RDONLY | os.O_NOFOLLOW)


def tail_offset(fd: int, lines: int) -> int:
    """Where the last ``lines`` lines begin; looks back block by block from the end."""
    end = os.fstat(fd).st_size
    position, wanted = end, lines
    # A newline at the very end closes the last line; it doesn't begin another.
    if end and os.pread(fd, 1, end - 1) != b"\n":
        wanted -= 1
    while position > 0:
        begin = max(0, position - _BLOCK)
        block = os.pread(fd, position - begin, begin)
        found = block.count(b"\n")
        if found > wanted:
            at = len(block)
            for _ in range(wanted + 1):
                at = block.rfind(b"\n", 0, at)
            return begin + at + 1
        wanted -= found
        position = begin
    return 0


def select(
    state: str,
    run: str | None,
    start: int | None,
    tail: int | None,
    since: str | None,
    ago_s: float | None,
    grep: str | None,
    whole_lines: bool,
    pause: Callable[[float], bool],
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Part of a log as bytes.

    Every message has ``next``, the offset from which a later call goes on without losing or
    doubling a line; the last has ``end`` as well, where the selection ended.

    Args:
        run: None: the newest.
        start: go on from that offset; ``tail`` (without ``grep``), ``since`` and ``ago_s`` have
            had their effect.
        tail: the last so many lines (of those that match).
        since: from the first line stamped at or after ``YYYY-MM-DD HH:MM:SS``, the host's time.
        ago_s: the same, as seconds before now.
        grep: only lines that match the regular expression.
        whole_lines: leave out a last line that has no end yet.
    """
    fd = _open(state, runs.newest(state) if run is None else run)
    try:
        end = os.fstat(fd).st_size
        if whole_lines:
            end = _after_last_newline(fd, end)
        if start is None:
            start = _start(fd, tail if grep is None else None, since, ago_s)
        if grep is not None:
            yield from _matching(fd, start, end, re.compile(grep.encode()), tail, pause)
        else:
            yield from _send(fd, start, end, pause)
        yield {"next": end, "end": end}, b""
    finally:
        os.close(fd)


def pull(
    state: str,
    run: str,
    inode: int,
    offset: int,
    reads: Sequence[str],
    pause: Callable[[float], bool],
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What a log has got since an earlier pull.

    Args:
        inode, offset: the file that was read, and how far; of another file, or one that was cut,
            everything comes.
        reads: the codings that the client can read; see `compressing`.

    Messages: ``{"inode", "offset", "size", "coding"}`` first: from where on it comes, and how; then
    the pieces of one stream in that coding.
    """
    fd = _open(state, run)
    try:
        info = os.fstat(fd)
        position = offset if inode == info.st_ino and offset <= info.st_size else 0
        coding = compressing.choose(reads, info.st_size - position)
        head = {"inode": info.st_ino, "offset": position, "size": info.st_size, "coding": coding}
        yield head, b""
        if position < info.st_size:
            for piece in compressing.compressed(fd, position, info.st_size, coding):
                if pause(0):
                    return
                if piece:
                    yield {}, piece
    finally:
        os.close(fd)


def _start(fd: int, tail: int | None, since: str | None, ago_s: float | None) -> int:
    start = 0
    if ago_s is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - ago_s))
    if since is not None:
        start = since_offset(fd, since.encode())
    return start if tail is None else max(start, tail_offset(fd, tail))


def _after_last_newline(fd: int, end: int) -> int:
    while end > 0:
        begin = max(0, end - _BLOCK)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def since_offset(fd: int, stamp: bytes) -> int:
    """Where the first line stamped at or after ``stamp`` begins; bisects, for stamps ascend."""
    low, high = 0, os.fstat(fd).st_size
    while high - low > _BLOCK:
        middle = (low + high) // 2
        found = next(_stamps(fd, middle, high), None)
        if found is not None and found[1] < stamp:
            low = found[0]
        else:
            high = middle
    end = os.fstat(fd).st_size
    return next((at for at, seen in _stamps(fd, low, end) if seen >= stamp), end)


def _stamps(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The stamped lines that begin at or after ``start``: their offsets and stamps."""
    for position in range(start, end, _BLOCK):
        # With the byte before, which tells whether a line begins here, and as much of the next
        # block as a stamp may reach into.
        before = os.pread(fd, 1, position - 1) if position else b"\n"
        block = before + os.pread(fd, _BLOCK + _STAMP_BYTES - 2, position)
        for found in _STAMP.finditer(block):
            yield position + found.start(), found[1]


def _matching(
    fd: int,
    start: int,
    end: int,
    pattern: re.Pattern[bytes],
    tail: int | None,
    pause: Callable[[float], bool],
) -> Iterator[tuple[dict[str, Any], bytes]]:
    kept: collections.deque[bytes] = collections.deque(maxlen=tail)
    kept_bytes = 0
    pending = b""
    position = start
    while position < end and not pause(0):
        chunk = os.pread(fd, min(_BLOCK, end - position), position)
        if not chunk:
            break
        position += len(chunk)
        *lines, pending = (pending + chunk).split(b"\n")
        if position >= end and pending:
            lines.append(pending)
            pending = b""
        found = [line + b"\n" for line in patience.matching(pattern, lines)]
        kept.extend(found)
        kept_bytes += sum(map(len, found))
        if tail is None and kept_bytes > _BLOCK:
            yield {"next": position - len(pending)}, b"".join(kept)
            kept.clear()
            kept_bytes = 0
        if len(pending) > _LONGEST_LINE:
            pending = b""
    if tail is None:
        yield {"next": position - len(pending)}, b"".join(kept)
    else:  # all at once: a call that goes on would have to begin anew
        yield {"next": start}, b"".join(kept)


def _send(
    fd: int, start: int, end: int, pause: Callable[[float], bool]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    position = min(start, end)
    while position < end:
        chunk = os.pread(fd, min(_BLOCK, end - position), position)
        if not chunk or pause(0):
            break
        position += len(chunk)
        yield {"next": position}, chunk
