"""Bytes of a log → lines: split, bounded, stripped of what collectors put in front.

Four things stand between a log file and what SGLang printed: lines arrive in arbitrary chunks,
progress bars redraw themselves with carriage returns, collectors (docker compose, Kubernetes,
Ray, torchrun, Slurm) stack prefixes in front, and nothing promises UTF-8 or a newline in the next
gigabyte. Each is undone here, once, in constant memory.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

#: A piece of a line longer than this is cut; real ``server_args=`` lines take 10 to 30 KB.
MAX_LINE_BYTES = 256 * 1024


class LogLine(NamedTuple):
    """One line as the process printed it, and what the prefixes said about it."""

    number: int
    text: str
    rank: str = ""  #: as printed (``TP0``, ``DP1 TP3 EP3``); empty where the line carries none
    stamp: str = ""  #: the log's own time, ``2026-11-29 19:00:14``; empty where it has none
    source: str = ""  #: collector prefixes other than times (``sglang-1 |``, ``(Engine pid=7)``)
    headed: bool = False  #: SGLang's own ``[time ranks]`` stands on it: a record begins here


class SegmentSplitter:
    """Cuts a stream of bytes at newlines and carriage returns; any chunking gives the same cuts.

    A segment is handed out as soon as its end is seen, so that a progress bar moves while its
    line is still being redrawn. Empty segments are left out; what exceeds ``MAX_LINE_BYTES`` is
    dropped.
    """

    def __init__(self) -> None:
        self.number = 1  #: of the line being read, counted in newlines
        self._pending = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The segments completed by ``data``, in order, each with the number of its line."""
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            return self._unfinished(data)
        block = self._pending + head if self._pending else head
        self._pending = b""
        lines = block.split(b"\n")
        overlong = len(block) > MAX_LINE_BYTES and max(map(len, lines)) > MAX_LINE_BYTES
        if overlong or b"\r" in block:
            segments = [
                (number, piece[:MAX_LINE_BYTES])
                for number, line in enumerate(lines, self.number)
                for piece in line.split(b"\r")
                if piece
            ]
        else:
            segments = [numbered for numbered in enumerate(lines, self.number) if numbered[1]]
        self.number += len(lines)
        return segments + self._unfinished(tail) if tail else segments

    @property
    def pending(self) -> bool:
        """Whether a line was begun and not ended."""
        return bool(self._pending)

    def finish(self) -> list[tuple[int, bytes]]:
        """The last line, where the input did not end in a newline."""
        last, self._pending = self._pending, b""
        return [(self.number, last)] if last else []

    def _unfinished(self, data: bytes) -> list[tuple[int, bytes]]:
        segments = []
        done, returned, rest = data.rpartition(b"\r")
        if returned:
            block = self._pending + done
            self._pending = b""
            segments = [
                (self.number, piece[:MAX_LINE_BYTES]) for piece in block.split(b"\r") if piece
            ]
        self._pending += rest[: MAX_LINE_BYTES - len(self._pending)]
        return segments


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
RANK_TAG = r"(?:DP|PP|TP|EP|CP|SP|ATTN_CP|ATTN_TP|MOE_DP|MOE_EP)\d+"

_LEVEL = r"(?:ERROR|WARNING|INFO|DEBUG|CRITICAL)"

#: One prefix at a time; the alternatives are tried in this order, again and again.
_PREFIX = re.compile(
    rf"""
      \[(?P<ci>{_DATE}T{_CLOCK}Z)\][ ]                           # a CI system
    | \[(?P<stamp>(?:{_DATE}|\d\d-\d\d)[ T]{_CLOCK}) (?P<rank>(?:[ ]{RANK_TAG})*) \][ ]?
    | \[(?P<torchrun>rank\d+)\]:[ ]?
    | \[gpu=(?P<gpu>\d+)\][ ]                                  # SGLang before 0.3
    | \[[WIEF]\d*[ ]\S+[ ](?:\d+[ ])?\S+:\d+\][ ]?             # torch, C++ side
    | [WIEF]\d{{4}}[ ]{_CLOCK}[ ]\d+[ ]\S+\.py:\d+\][ ]?          # torch, Python side
    | (?P<source>\((?:[^()\s]+[ ]){{0,3}}pid=\d+(?:,[ ]ip=[^)]*)?\)  # Ray
        | \[?[A-Za-z0-9][\w.-]*\]?[ ]+\|(?=[ ]|$)                 # docker compose
        | (?:std(?:out|err))[ ][FP](?=[ ]|$)                      # CRI, after its time
        | \d{{1,4}}:(?=[ ]\[{_DATE})                              # srun --label
        | \[(?:pod|job|deploy\w*|[a-z][\w.-]*)(?:/[\w.-]+)+\](?=[ ]|$) # kubectl logs --prefix
        | \[\d+,\d+\]<std(?:out|err)>:                           # mpirun --tag-output
        | [\w.-]+[ ][\w./@-]+\[\d+\]:(?=[ ]|$)                   # journald and syslog
      )[ ]?
    | (?:{_LEVEL}[ ])?
      (?P<outer>{_DATE}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)
      (?:[ ](?:\|[ ]{_LEVEL}[ ]\|[ ]\w+[ ]\|
        |-[ ](?:[\w.]+[ ]-[ ])?{_LEVEL}[ ]-
        |{_LEVEL}[ ]\d+[ ]\[(?P<tagged>(?:[ ]{RANK_TAG})*)[ ][\w.]+:\d+\]
        |\[[\w./]+:\d+\]))?(?:[ ]|$)
    | \[[ ]*(?P<boot>\d+\.\d{{3,6}})\][ ]                       # the kernel's clock
    | (?P<syslog>[A-Z][a-z]{{2}}[ ][ \d]\d[ ]\d\d:\d\d:\d\d)[ ](?=\S+[ ]\S+:)
    | (?:{_LEVEL}[ ])?(?P<vllm>\d\d-\d\d[ ]{_CLOCK})(?:[ ]\[?[\w./]+:\d+\])?(?:[ ]|$)
    | >[ ]?(?=[\[>]|[ ]{{2}}|[A-Za-z]|$)                           # quoted in an issue
    """,
    re.VERBOSE,
)
#: What a prefix may start with: everything else is spared the expression above.
_PREFIX_STARTS = frozenset("[(>0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
#: What a worker's name tells of its rank.
_WORKER = re.compile(rf"\brank=(?P<number>\d+)|_(?P<tag>{RANK_TAG}(?:_{RANK_TAG})*) pid=")
_RAY_SUFFIX = re.compile(r" \[repeated \d+x across cluster\]$")


#: Past the constructor's keywords, which cost as much as the rest of the line.
_plain = tuple.__new__

#: How a line of Docker's json-file driver starts.
_JSON_STARTS = ('{"log":"', '{"log": "')


def _out_of_json(text: str) -> str:
    """The line in a record of Docker's, its time in front; what is none stays as it is."""
    try:
        record = json.loads(text)
        return f"{record.get('time', '')} {str(record['log']).rstrip()}".lstrip()
    except ValueError:
        return text


def parse_line(number: int, raw: bytes) -> LogLine:
    """Decode one segment and peel its prefixes; the innermost time and rank win."""
    text = raw.decode("utf-8", "replace")
    # Most lines of a traceback: no prefix begins with a blank.
    if raw[:1] == b" " and b"\x1b" not in raw:
        return _plain(LogLine, (number, text, "", "", "", False))
    if text.startswith(_JSON_STARTS):
        text = _out_of_json(text)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank = stamp = outer = source = ""
    start = 0
    while start < len(text) and text[start] in _PREFIX_STARTS:
        found = _PREFIX.match(text, start)
        if found is None or not found[0]:
            break
        start = found.end()
        if found["stamp"]:
            stamp = found["stamp"]
            rank = found["rank"].strip() or rank
            # What follows a time and a rank is the message itself, unless a second time does.
            if not text.startswith("[", start):
                break
        elif found["torchrun"]:
            rank = rank or found["torchrun"]
        elif found["gpu"]:
            rank = rank or f"TP{found['gpu']}"
        elif found["source"]:
            source = f"{source} {found['source']}".strip()
            if worker := _WORKER.search(found["source"]):
                tag = worker["tag"]
                rank = tag.replace("_", " ") if tag else f"rank{worker['number']}"
        else:
            outer = found["outer"] or found["ci"] or found["vllm"] or found["syslog"] or outer
            outer = found["boot"] or outer
            rank = (found["tagged"] or "").strip() or rank
    if start:
        text = text[start:]
    if source and text.endswith("cluster]"):
        text = _RAY_SUFFIX.sub("", text)
    return LogLine(number, text, rank, stamp or outer, source, bool(stamp))


#: How a program's own words begin: an exception, a refused command, a level, the kernel, NCCL.
_OWN_WORDS = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Warning)\b(?::|$)|[\w. -]{1,60}: error: |usage: "
    r"|(?:ERROR|FATAL|FAILED|CRITICAL|WARNING|INFO):? |Fatal Python error: |terminate called "
    r"|(?:Killed|Aborted|Segmentation fault)(?: \(core dumped\))?$|\S+:\d+:\d+ \[\d+\] NCCL "
    r"|\[ *\d+\.\d{3,}\] |\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] |\w{3} +\d+ [\d:]{8} \S+ kernel: "
    r"|\S+\.sh: line \d+: |\[Errno \d+\] |Out of memory: |oom-kill:|NVRM: |\w+ fatal *: "
    r"|(?:ninja|srun|slurmstepd|(?:/\w+)*/?(?:ba)?sh): "
)


def own_words(line: LogLine) -> bool:
    """Whether a program printed the line, rather than somebody wrote about one that did."""
    return bool(
        line.headed or line.stamp or line.source or line.rank or _OWN_WORDS.match(line.text)
    )


def printable(text: str) -> str:
    """The text as it is safe to show: terminal escapes removed, control characters made visible.

    Tabs stay; so does nothing else that could move a cursor, ring, or reverse the writing.
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", _ANSI.sub("", text))


def printable_lines(text: str) -> str:
    """Text of several lines with each made safe to show."""
    return "\n".join(printable(line) for line in text.split("\n"))


class Collapser:
    """The lines a terminal would be left with: carriage returns write over what stood there.

    Incremental and in constant memory; lines come out without their newline, as they are (see
    ``printable`` for showing them). A line longer than the bound ends in ``…``.
    """

    def __init__(self) -> None:
        self._shown = ""  # what earlier carriage returns left on the current line
        self._piece = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> list[str]:
        """The lines completed by ``data``."""
        *complete, rest = data.split(b"\n")
        lines = []
        for part in complete:
            self._take(part)
            lines.append(self._end())
        self._take(rest)
        return lines

    def finish(self) -> list[str]:
        """The last line, where the input did not end in a newline."""
        return [self._end()] if self._piece or self._shown else []

    def _take(self, part: bytes) -> None:
        *overwritten, last = part.split(b"\r") if b"\r" in part else (part,)
        for piece in overwritten:
            self._append(piece)
            self._overwrite()
        self._append(last)

    def _append(self, piece: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._piece)
        self._cut = self._cut or len(piece) > room
        self._piece += piece[:room]

    def _overwrite(self) -> None:
        text = self._piece.decode("utf-8", "replace")
        self._piece.clear()
        self._shown = text + self._shown[len(text) :]

    def _end(self) -> str:
        redrawn = bool(self._shown)
        self._overwrite()
        line, cut = self._shown, self._cut
        self._shown, self._cut = "", False
        # A shorter bar is padded with blanks over a longer one.
        return (line.rstrip() if redrawn else line) + ("…" if cut else "")


def collapse(data: bytes) -> list[str]:
    """All lines of ``data`` as a terminal would leave them."""
    collapser = Collapser()
    return collapser.feed(data) + collapser.finish()
