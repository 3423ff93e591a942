"""A whole log as one value: its start, tracebacks, stacks, and the lines that say something.

Constant memory, whatever the size of the log: repeated lines are kept a few times, tracebacks are
folded, and between a long head and the tail the rest is let go.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from remote.core.log_events import Event, StartState
from remote.core.log_lines import LogLine, own_words, parse_line
from remote.core.phases import Phase
from remote.core.server_log import LogReader
from remote.core.stacks import Stack, StackCollector
from remote.core.tracebacks import FoldedTraceback, TracebackCollector
from remote.core.wrapping import unwrapped

#: Kept: lines from the head, lines from the tail, repetitions of one line, characters of a line.
HEAD_LINES = 3000
TAIL_LINES = 1000
REPEATS = 3
LINE_CHARS = 4000
_MAX_RANKS = 4096
#: A log delivered newest-first has to be turned around as a whole.
_MAX_REVERSED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Reading:
    """What a log holds."""

    state: StartState
    tracebacks: tuple[FoldedTraceback, ...]  #: by first line
    stacks: tuple[Stack, ...]
    lines: tuple[LogLine, ...]  #: outside tracebacks and stacks, serving routine left out
    last_of_rank: Mapping[str, LogLine]  #: each rank's last line
    cut_line: int = 0  #: number of a last line without its newline; 0 where there is none
    turned: int = 0  #: lines of a log that came newest-first and was turned around

    def number(self, line: int) -> int:
        """The number that a line has in the log as it was given."""
        return self.turned + 1 - line if self.turned else line

    @property
    def world(self) -> int:
        """How many ranks there are: as the arguments say, else as many as wrote."""
        sizes = dict(_SIZES.findall(self.state.server_args or ""))
        told = int(sizes.get("tp_size", 1)) * int(sizes.get("pp_size", 1))
        return max(told, len(self.last_of_rank), 1)

    @property
    def of_sglang(self) -> bool:
        """Whether SGLang itself wrote in it: its records, its arguments, its milestones."""
        state = self.state
        return bool(
            state.server_args
            or state.ranks
            or state.opened
            or any(line.headed or line.rank for line in self.lines)
        )

    @property
    def of_a_server(self) -> bool:
        """Whether anything in it is a program's own word; prose about one, and noise, are none."""
        return bool(
            self.of_sglang
            or self.state.fatal
            or self.tracebacks
            or self.stacks
            or any(map(own_words, self.lines))
        )

    @property
    def last_line(self) -> LogLine | None:
        """The last that says something, outside tracebacks and stacks."""
        return self.lines[-1] if self.lines else None

    @property
    def excerpt(self) -> bool:
        """Whether somebody cut it out of a longer log: ranks at work that nobody launched."""
        return self.state.server_args is None and (
            bool(self.state.ranks) or self.state.phase not in (Phase.IMPORT, Phase.ARGUMENTS)
        )


_SIZES = re.compile(r"\b((?:tp|pp)_size)'?[=:] ?(\d{1,6})")
_DIGITS = b"0123456789"


class _KeptLines:
    """Lines worth keeping: a head, a tail, and few repetitions of each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self._head: list[LogLine] = []
        self._tail: deque[LogLine] = deque(maxlen=TAIL_LINES)

    def take(self, line: LogLine) -> None:
        if not line.text.strip():
            return
        shape = line.text[:300].encode("utf-8", "replace").translate(None, _DIGITS)
        times = self._seen.get(shape, 0)
        if times >= REPEATS:
            return
        if len(self._seen) < 4 * HEAD_LINES or times:
            self._seen[shape] = times + 1
        if len(line.text) > LINE_CHARS:
            line = line._replace(text=line.text[:LINE_CHARS] + "…")
        if len(self._head) < HEAD_LINES:
            self._head.append(line)
        else:
            self._tail.append(line)

    def all(self) -> tuple[LogLine, ...]:
        return (*self._head, *self._tail)


class LogReading:
    """Reads a log incrementally, as ``LogReader`` does, and keeps what a diagnosis needs."""

    def __init__(self) -> None:
        self._reader = LogReader(self._take)
        self._tracebacks = TracebackCollector()
        self._stacks = StackCollector()
        self._kept = _KeptLines()
        self._last_of_rank: dict[str, LogLine] = {}

    @property
    def state(self) -> StartState:
        """The state of the start so far."""
        return self._reader.state

    def feed(self, data: bytes) -> list[Event]:
        """The events of the lines completed by ``data``."""
        return self._reader.feed(data)

    def finish(self) -> Reading:
        """End of input: all of it."""
        cut_line = self._reader.unfinished_line
        self._reader.finish()
        return Reading(
            state=self._reader.state,
            tracebacks=self._tracebacks.finish(),
            stacks=tuple(self._stacks.stacks),
            lines=self._kept.all(),
            last_of_rank=dict(self._last_of_rank),
            cut_line=cut_line,
        )

    def _take(self, line: LogLine) -> None:
        if line.rank and (line.rank in self._last_of_rank or len(self._last_of_rank) < _MAX_RANKS):
            self._last_of_rank[line.rank] = line
        if not self._tracebacks.take(line) and not self._stacks.take(line):
            self._kept.take(line)


def read_log(chunks: Iterable[bytes]) -> Reading:
    """Read a whole log; one that was delivered newest-first is turned around, and what a tool put
    in front of every line taken away.
    """
    pending = iter(chunks)
    head = b""
    for chunk in pending:
        head += chunk
        if len(head) >= 64 * 1024:
            break
    if _newest_first(head):
        whole = bytearray(head)
        for chunk in pending:
            whole += chunk[: max(0, _MAX_REVERSED_BYTES - len(whole))]
        return _read_backwards(bytes(whole))
    reading = LogReading()
    for chunk in unwrapped(chain((head,), pending), head):
        reading.feed(chunk)
    return reading.finish()


def _newest_first(head: bytes) -> bool:
    """Whether the times in front of the lines go back, and never forward."""
    times = [parse_line(0, raw).stamp for raw in head.split(b"\n")[:500] if raw[:1] != b" "]
    outer = [time for time in times if len(time) >= len("2026-03-03T08:40:11")]
    back = sum(later < earlier for earlier, later in pairwise(outer))
    return back >= 3 and not any(later > earlier for earlier, later in pairwise(outer))


def _read_backwards(data: bytes) -> Reading:
    lines = data.rstrip(b"\n").split(b"\n")
    reading = LogReading()
    reading.feed(b"\n".join(reversed(lines)) + b"\n")
    return replace(reading.finish(), turned=len(lines))
