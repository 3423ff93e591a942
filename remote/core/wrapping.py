"""What a tool put in front of every line of a whole log, and nothing in the line itself tells.

`grep -n` and `cat -n` number lines, stern and tab-separated exports repeat the same words, `srun
--label` and its like put the task's number there. Which it is shows only over many lines: the same
shape in front of each, and behind it records of SGLang's that are hidden with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

#: Lines that are looked at, and how many of them have to be whole records once unwrapped.
_LINES = 400
_RECORD = re.compile(rb"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_NUMBERED = re.compile(rb"[ \t]*(\d{1,9})[:\t] ?")
_LABELLED = re.compile(rb"[ \t]*(\d{1,5}): ")
_MAX_LINE = 1 << 20


def unwrapped(chunks: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """The log without what stands in front of every line.

    Args:
        chunks: the log, ``head`` included.
        head: its beginning, to tell by.
    """
    shape = _shape(head)
    if shape is None:
        yield from chunks
        return
    pattern, stands_for = shape
    rest = b""
    for chunk in chunks:
        block, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            lines = [pattern.sub(stands_for, line, count=1) for line in block.split(b"\n")]
            yield b"\n".join(lines) + b"\n"
        elif len(rest) > _MAX_LINE:
            yield rest
            rest = b""
    if rest:
        yield pattern.sub(stands_for, rest, count=1)


def _shape(head: bytes) -> tuple[re.Pattern[bytes], bytes] | None:
    """What to take away from the beginning of each line, and what to put there."""
    lines = [line for line in head.split(b"\n")[:_LINES] if line.strip()][:-1]
    # A log whose records begin its lines is not wrapped.
    if len(lines) < 2 or any(map(_RECORD.match, lines)):
        return None
    for shape in _candidates(lines):
        pattern, _ = shape
        bare = [pattern.sub(b"", line, count=1) for line in lines]
        if any(map(_RECORD.match, bare)):
            return shape
    return None


def _candidates(lines: list[bytes]) -> Iterator[tuple[re.Pattern[bytes], bytes]]:
    numbers = [found and int(found[1]) for found in map(_NUMBERED.match, lines)]
    known = [number for number in numbers if number is not None]
    if len(known) == len(lines) and all(a < b for a, b in pairwise(known)):
        yield re.compile(rb"\A[ \t]*\d{1,9}[:\t]"), b""
    if all(map(_LABELLED.match, lines)):
        # Told apart as tasks: their tracebacks interleave.
        yield re.compile(rb"\A[ \t]*(\d{1,5}): "), rb"(Task pid=\1) "
    same = _shared(lines)
    record = _RECORD.search(lines[0])
    if record is not None:
        same = same[: record.start()]
    same = same[: max(same.rfind(mark) for mark in b" \t:|") + 1]
    if same:
        yield re.compile(rb"\A" + re.escape(same)), b""


def _shared(lines: list[bytes]) -> bytes:
    """The bytes that all begin with."""
    first, last = min(lines), max(lines)
    length = next(
        (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:length]
