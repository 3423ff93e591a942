"""Tracebacks out of a server's log: whole, per rank, untangled, and identical ones folded.

A rank's traceback begins on a line with its tag, but its body carries none, and other ranks write
in between. A collector holds every traceback that is still open and gives each line to the one it
continues. What it keeps is bounded, whatever the log holds.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from remote.core.log_lines import LogLine

_HEADER = "Traceback (most recent call last)"
#: Bounds: lines kept of one traceback, distinct tracebacks kept, tracebacks open at once.
MAX_LINES = 1000
MAX_DISTINCT = 200
MAX_OPEN = 64


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    path: str
    line: int
    function: str
    source: str = ""  #: the line of code, where it was printed

    @property
    def where(self) -> str:
        """``flashinfer/jit/cpp_ext.py:get_cuda_version``: the path from the package on."""
        return f"{package_path(self.path)}:{self.function}"


def package_path(path: str) -> str:
    """A path without what differs between hosts: everything up to ``site-packages``."""
    for root in ("/site-packages/", "/dist-packages/"):
        _, found, inside = path.rpartition(root)
        if found:
            return inside
    for package in _CHECKED_OUT:
        at = path.rfind(f"/{package}/")
        if at >= 0:
            return path[at + 1 :]
    return re.sub(r"^.*/lib/python3\.\d+/", "", path)


#: Packages that also run from a checkout, ``/sgl-workspace/sglang/python/sglang/srt``.
_CHECKED_OUT = ("sglang", "flashinfer", "vllm", "sgl_kernel", "deep_gemm")


class Link(str, Enum):
    """How an exception follows from the one printed before it."""

    FIRST = ""
    CAUSED_BY = "direct cause"
    WHILE_HANDLING = "during handling"


@dataclass(frozen=True)
class DynamoReport:
    """What Dynamo tells about code that it could not trace."""

    explanation: str = ""
    hints: tuple[str, ...] = ()
    context: str = ""  #: the developer debug context
    user_frames: tuple[Frame, ...] = ()  #: ``from user code``, outermost first


@dataclass(frozen=True)
class RaisedException:
    """One exception of a chain, with the frames it was raised through."""

    type: str  #: as printed, ``torch._dynamo.exc.Unsupported``; empty where it was cut off
    message: str  #: all of its lines
    frames: tuple[Frame, ...]  #: outermost first
    link: Link
    line: int  #: where the exception's own line stands; the last line read where it was cut off
    message_lines: tuple[int, ...] = ()  #: where each line of the message stands
    dynamo: DynamoReport | None = None
    native: tuple[str, ...] = ()  #: C++ frames printed with the message

    @property
    def headline(self) -> str:
        """``type: first line of the message``."""
        first = self.message.partition("\n")[0]
        return f"{self.type}: {first}" if self.type and first else self.type or first

    @property
    def raised_in(self) -> Frame | None:
        """The innermost frame; for Dynamo that of the traced code."""
        if self.dynamo is not None and self.dynamo.user_frames:
            return self.dynamo.user_frames[-1]
        return self.frames[-1] if self.frames else None


@dataclass(frozen=True)
class Traceback:
    """A chain of exceptions as one process printed it; the first one printed is the origin."""

    rank: str
    stamp: str
    header: str  #: what introduced it (``Scheduler hit an exception:``)
    chain: tuple[RaisedException, ...]
    first_line: int
    last_line: int
    text: tuple[str, ...]  #: its lines without prefixes
    head_cut: bool = False  #: the log begins inside it
    tail_cut: bool = False  #: it stops before an exception's line

    @property
    def root(self) -> RaisedException:
        """The exception everything else followed from."""
        return self.chain[0]

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for the same failure on another rank: numbers and addresses don't count."""
        return tuple(
            (
                block.type,
                _NUMBER.sub("#", block.message.partition("\n")[0]),
                tuple((package_path(frame.path), frame.function) for frame in block.frames),
            )
            for block in self.chain
        )


_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class FoldedTraceback:
    """The same traceback from one or several ranks, shown once."""

    traceback: Traceback  #: the first one
    ranks: tuple[str, ...]  #: in the order in which they printed it; empty where untagged
    times: int = 1

    def summary(self, world: int | None = None) -> str:
        """``2 of 2 ranks, first TP1 at 19:00:14``; ``world`` is how many ranks there are."""
        clock = self.traceback.stamp.rpartition(" ")[2].partition(".")[0]
        at = f" at {clock}" if clock else ""
        if not self.ranks:
            return (f"{self.times} times, first" if self.times > 1 else "once") + at
        of = f"{len(self.ranks)} of {max(world or 0, len(self.ranks))} ranks"
        return f"{of}, first {self.ranks[0]}{at}"


_FRAME = re.compile(r'\s*(?:[|+] )?File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Iteration"
    r"|Unsupported|OutOfResources|Timeout|Empty|Full|Failed|Failure|Break|Recompile\w*|Overload\w*)"
    r"|Exception|Unsupported|OutOfResources|(?:[A-Za-z_]\w*\.)+[A-Z]\w*))"
    r"(?:: ?(?P<message>.*)|\s*$)"
)
#: Lines that say of the traceback below that it did no harm.
_INTRODUCTIONS = (
    "Exception ignored",
    "Task exception was never",
    "--- Logging error",
    "ERROR:    Exc",
)
_LINKS = (
    ("The above exception was the direct cause", Link.CAUSED_BY),
    ("During handling of the above exception", Link.WHILE_HANDLING),
)
_MARKERS = re.compile(r"[\s^~]+")  # under the code that raised
_LINK_STARTS = tuple(words for words, _ in _LINKS)
_NATIVE = re.compile(r"(?:frame #\d+: |#\d+ +0x|\s*\d+ +0x[0-9a-f]{6,} )")
#: What shells, launchers and servers print behind a traceback.
_AFTERWARDS = re.compile(
    r"(?:Killed|Aborted|Terminated)\b|srun: |slurmstepd|\S+: line \d+: +\d+ |server exited"
    r"|Dumping requests|INFO:|usage: |/\S+: \w*Warning: |Fatal Python error|terminate called"
    r"|Set TORCHDYNAMO_VERBOSE|Piecewise CUDA Graph is enabled"
)
#: A record that reports an exception's text without its traceback.
_REPORT = re.compile(r"(?P<header>[\w ]+ (?:failed with error|hit an exception):) (?P<message>.+)")


@dataclass
class _Open:
    """A traceback still being read."""

    rank: str
    stamp: str
    header: str
    source: str
    first_line: int
    head_cut: bool
    last_line: int = 0
    text: list[str] = field(default_factory=list)
    chain: list[RaisedException] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    link: Link = Link.FIRST
    type: str | None = None
    message: list[str] = field(default_factory=list)
    message_lines: list[int] = field(default_factory=list)
    raised_on: int = 0
    expects_header: bool = False  # a chain separator was read
    flat: bool = False  # its indentation was lost on the way
    blank: bool = False  # the last line of the message was blank

    def keep(self, line: LogLine) -> None:
        if line.number > self.last_line:
            self.last_line = line.number
        if len(self.text) < MAX_LINES:
            self.text.append(line.text)

    def end_exception(self) -> None:
        """Close the exception being read, if there is one."""
        if self.type is None and not self.frames:
            return
        message = "\n".join(self.message).strip("\n").rstrip()
        self.chain.append(
            RaisedException(
                type=self.type or "",
                message=message,
                frames=tuple(self.frames),
                link=self.link,
                line=self.raised_on or self.last_line,
                message_lines=tuple(self.message_lines),
                dynamo=_dynamo_report(self.message),
                native=tuple(text for text in self.message if _NATIVE.match(text)),
            )
        )
        self.frames, self.message, self.message_lines = [], [], []
        self.type, self.raised_on = None, 0
        self.blank = False

    def closed(self) -> Traceback | None:
        tail_cut = self.type is None
        self.end_exception()
        if not self.chain:
            return None
        while self.text and not self.text[-1].strip():
            self.text.pop()
        return Traceback(
            rank=self.rank,
            stamp=self.stamp,
            header=self.header,
            chain=tuple(self.chain),
            first_line=self.first_line,
            last_line=self.last_line,
            text=tuple(self.text),
            head_cut=self.head_cut,
            tail_cut=tail_cut,
        )


class TracebackCollector:
    """Takes lines one by one and keeps the tracebacks among them, identical ones folded."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._current: _Open | None = None
        self._previous = ""
        self._bare: LogLine | None = None  # the last exception printed outside a traceback
        self._folded: OrderedDict[tuple[object, ...], FoldedTraceback] = OrderedDict()

    def take(self, line: LogLine) -> bool:
        """Whether the line belongs to a traceback."""
        text = line.text
        if _HEADER in text:
            self._header(line)
            return True
        if line.headed:
            # A record of its own: whatever this rank was printing is over.
            self._close([block for block in self._open if self._ended_by(block, line)])
            self._previous = text
            return self._report(line)
        if not self._open:
            self._previous = text
            if 'File "' in text:
                return self._orphan(line)
            if _EXCEPTION.match(text):
                self._bare = line
            elif text.startswith(_LINK_STARTS) and self._bare is not None:
                return self._resumed(line)
            return False
        return self._body(line)

    def finish(self) -> tuple[FoldedTraceback, ...]:
        """End of input: close what is open; all tracebacks, by their first line."""
        self._close(list(self._open))
        return self.folded

    @property
    def folded(self) -> tuple[FoldedTraceback, ...]:
        """The tracebacks closed so far."""
        return tuple(sorted(self._folded.values(), key=lambda folded: folded.traceback.first_line))

    def _header(self, line: LogLine) -> None:
        header = line.text.partition(_HEADER)[0].strip()
        if not header and self._previous.startswith(_INTRODUCTIONS):
            header = self._previous
        for block in reversed(self._open):
            if block.expects_header and self._same_writer(block, line):
                block.expects_header = False
                block.keep(line)
                self._current = block
                return
        if line.headed:
            self._close([block for block in self._open if self._ended_by(block, line)])
        else:
            # A bare header of the same writer: what it printed before is finished.
            self._close(
                [b for b in self._open if b.type is not None and self._same_writer(b, line)]
            )
        self._start(line, header, head_cut=False)

    def _report(self, line: LogLine) -> bool:
        """A record such as ``Piecewise CUDA Graph failed with error: …``."""
        found = _REPORT.match(line.text)
        if found is None:
            return False
        block = self._start(line, found["header"], head_cut=False)
        raised = _EXCEPTION.match(found["message"])
        block.type = raised["type"] if raised else ""
        block.message = [raised["message"] or "" if raised else found["message"]]
        block.message_lines, block.raised_on = [line.number], line.number
        return True

    def _start(self, line: LogLine, header: str, *, head_cut: bool) -> _Open:
        if len(self._open) >= MAX_OPEN:
            self._close(self._open[:1])
        block = _Open(line.rank, line.stamp, header, line.source, line.number, head_cut)
        block.keep(line)
        self._open.append(block)
        self._current = block
        return block

    def _orphan(self, line: LogLine) -> bool:
        """A frame without a header: the log begins inside a traceback."""
        found = _FRAME.fullmatch(line.text)
        if found is None:
            return False
        block = self._start(line, "", head_cut=True)
        block.frames.append(_frame(found))
        return True

    def _resumed(self, line: LogLine) -> bool:
        """A chain whose first exception was printed without its traceback."""
        if self._bare is None:
            return False
        block = self._start(self._bare, "", head_cut=True)
        self._before_exception(block, self._bare)
        self._bare = None
        return self._body(line)

    def _body(self, line: LogLine) -> bool:
        text = line.text
        found = _FRAME.fullmatch(text) if 'File "' in text else None
        block: _Open | None
        if len(self._open) == 1:
            (block,) = self._open
            block = block if self._same_writer(block, line) else None
        else:
            block = self._owner(line, found)
        if block is None:
            return found is not None and self._orphan(line)
        for words, link in _LINKS if text.startswith(_LINK_STARTS) else ():
            if text.startswith(words):
                block.keep(line)
                block.end_exception()
                block.link, block.expects_header = link, True
                self._current = block
                return True
        if found is not None and block.type is None:
            block.frames.append(_frame(found))
            block.flat = not text.startswith(" ")
        elif block.type is None:
            if not self._before_exception(block, line):
                return False
        elif not self._in_message(block, line):
            self._close([block])
            return False
        block.keep(line)
        self._current = block
        return True

    def _before_exception(self, block: _Open, line: LogLine) -> bool:
        """A line between a traceback's header and its exception: code, or the exception itself."""
        text = line.text
        if not text or text.isspace():
            return True
        if text[0] != " " and (raised := _EXCEPTION.match(text)):
            block.type = raised["type"]
            block.message = [raised["message"] or ""]
            block.message_lines = [line.number]
            block.raised_on = line.number
            return True
        if text[0] in " \t" or (block.flat and not block.frames[-1].source):
            if block.frames and not block.frames[-1].source and not _MARKERS.fullmatch(text):
                last = block.frames[-1]
                block.frames[-1] = Frame(last.path, last.line, last.function, text.strip())
            return True
        # Something else was printed in between; the traceback may go on below.
        return False

    def _in_message(self, block: _Open, line: LogLine) -> bool:
        """Whether a line goes on with the exception's message."""
        text = line.text
        if block.expects_header:
            return not text.strip()
        if not text or text.isspace():
            block.blank = True
        elif (text[0] != " " and _AFTERWARDS.match(text)) or (
            block.blank and not _goes_on(block.message, text)
        ):
            return False
        if len(block.message) < MAX_LINES:
            block.message.append(text)
            block.message_lines.append(line.number)
        return True

    def _owner(self, line: LogLine, found: re.Match[str] | None) -> _Open | None:
        """Which of several open tracebacks a body line continues."""
        mine = [block for block in self._open if self._same_writer(block, line)]
        if len(mine) < 2:
            return mine[0] if mine else None
        unfinished = [block for block in mine if block.type is None]
        if found is not None:
            # The stack that is behind the others gets the frame that the others had there.
            frame = _frame(found)
            ahead = max(unfinished, key=lambda block: len(block.frames), default=None)
            for block in unfinished:
                at = len(block.frames)
                if ahead is not None and at < len(ahead.frames):
                    expected = ahead.frames[at]
                    if (expected.path, expected.line) == (frame.path, frame.line):
                        return block
        elif _EXCEPTION.match(line.text) and unfinished:
            return self._current if self._current in unfinished else unfinished[0]
        elif line.text[:1] in (" ", "\t") and not _MARKERS.fullmatch(line.text):
            bare = [b for b in unfinished if b.frames and not b.frames[-1].source]
            if bare and self._current not in bare:
                return bare[0]
        if self._current in mine:
            current = self._current
            if found is None or (current is not None and current.type is None):
                return current
        return unfinished[-1] if unfinished else mine[-1]

    @staticmethod
    def _same_writer(block: _Open, line: LogLine) -> bool:
        if line.source != block.source:
            return False
        return not line.rank or line.rank == block.rank

    @staticmethod
    def _ended_by(block: _Open, line: LogLine) -> bool:
        """Whether a new record ends a traceback: one by the same rank, or one read to its end."""
        if line.source != block.source:
            return False
        return line.rank == block.rank or block.head_cut or block.type is not None

    def _close(self, blocks: list[_Open]) -> None:
        for block in blocks:
            self._open.remove(block)
            if self._current is block:
                self._current = self._open[-1] if self._open else None
            traceback = block.closed()
            if traceback is not None:
                self._fold(traceback)

    def _fold(self, traceback: Traceback) -> None:
        signature = traceback.signature
        known = self._folded.get(signature)
        if known is None:
            if len(self._folded) >= MAX_DISTINCT:
                # The first ones hold the cause of a start, the last ones that of a death.
                del self._folded[list(self._folded)[MAX_DISTINCT // 2]]
            ranks: tuple[str, ...] = (traceback.rank,) if traceback.rank else ()
            self._folded[signature] = FoldedTraceback(traceback, ranks)
            return
        ranks = known.ranks
        if traceback.rank and traceback.rank not in ranks:
            ranks = (*ranks, traceback.rank)
        first = known.traceback
        if traceback.first_line < first.first_line:
            first = traceback
            if traceback.rank:
                ranks = (traceback.rank, *(rank for rank in ranks if rank != traceback.rank))
        self._folded[signature] = FoldedTraceback(first, ranks, known.times + 1)


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["path"], int(found["line"][:9]), found["function"].strip())


def _goes_on(message: list[str], text: str) -> bool:
    """Whether text behind a blank line still belongs to the message above."""
    if text[0] in " \t" or text.startswith(("from user code:", "Last error:")):
        return True
    # Frames without their indentation, which some collectors strip.
    return any(line.startswith("from user code:") for line in message) and (
        _FRAME.fullmatch(text) is not None
    )


def _dynamo_report(message: list[str]) -> DynamoReport | None:
    """The structure of Dynamo's message, if it is one."""
    explanation = context = ""
    hints: list[str] = []
    frames: list[Frame] = []
    user_code = False
    for text in message:
        stripped = text.strip()
        if stripped.startswith("from user code:"):
            user_code = True
        elif user_code:
            if found := _FRAME.fullmatch(text):
                frames.append(_frame(found))
            elif text[:1] in (" ", "\t") and frames and not frames[-1].source:
                last = frames[-1]
                frames[-1] = Frame(last.path, last.line, last.function, stripped)
        elif stripped.startswith("Explanation: "):
            explanation = stripped.removeprefix("Explanation: ")
        elif stripped.startswith("Hint: "):
            hints.append(stripped.removeprefix("Hint: "))
        elif stripped.startswith("Developer debug context: "):
            context = stripped.removeprefix("Developer debug context: ")
    if not (explanation or hints or context or frames):
        return None
    return DynamoReport(explanation, tuple(hints), context, tuple(frames))
