"""Read SGLang's log as it grows: bytes in, events out, the state of the start beside them.

Most lines of a serving log are step and access lines: these are recognised in the raw bytes and
never decoded. Memory is constant, and events do not depend on how the bytes were cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from remote.core.log_events import (
    Event,
    FatalLine,
    FatalReason,
    GraphLines,
    PhaseEnded,
    PhaseStarted,
    Progress,
    Ready,
    ServerArgsSeen,
    ServingStep,
    StartState,
    StopRequested,
    TracebackSeen,
)
from remote.core.log_lines import LogLine, SegmentSplitter, own_words, parse_line
from remote.core.phases import Bar, Milestone, Phase, bar, figures, milestone
from remote.core.rank_phases import RankPhases

#: Requests written to the log hold whatever users sent: nothing in them is the server's word.
_REQUEST_DUMPS = ("Receive: ", "Finish: ", "Received request", "Finished request")

_BLANKS = ("", " ", "\t")  # what an empty line begins with, too
_PORT_TAKEN = ("ddress already in use", "[Errno 98]", "EADDRINUSE")
_PROCESS_DIED = re.compile(
    r"(?:Subprocess (?P<name>\S+) \(pid=\d+\) crashed with exit code (?P<code>-?\d+)"
    r"|Child process unexpectedly failed with an exit code (?P<child_code>\d+)"
    r"|Rank \d+ scheduler (?:is dead|died)(?: \(exit code: (?P<rank_code>-?\d+)\))?)"
)
_HIT = re.compile(r"(?:Scheduler|\w*Manager|\w*Controller|\w*Client) hit an exception:")
_CHILD_FAILED = ("Received sigquit from a child", "SIGQUIT received")
_DISABLED = re.compile(r"Disable (?:piecewise|prefill) CUDA graph because (?P<why>.*)")
_BACKEND = re.compile(r"\bbackend=(?P<name>\w+)")
_TRACEBACK = "Traceback (most recent call last)"


class LogReader:
    """An incremental reader of one server's log.

    Args:
        on_line: called with every line that is not a step, access or request line, in order;
            for readers that want more of the text than the events carry.
    """

    def __init__(self, on_line: Callable[[LogLine], object] | None = None) -> None:
        self._splitter = SegmentSplitter()
        self._on_line = on_line
        self._events: list[Event] = []
        self._begun = False
        self._begin_start()

    def _begin_start(self) -> None:
        self._state = StartState()  # what changes rarely; the rest is added by ``state``
        self._server = Phase.ARGUMENTS
        self._ranks = RankPhases()
        self._figures: dict[str, float] = {}
        self._bar: Progress | None = None
        self._last_step: ServingStep | None = None

    @property
    def state(self) -> StartState:
        """A snapshot; later input does not change it."""
        behind = self._ranks.behind()
        ranks_done = self._server is not Phase.ARGUMENTS
        phase = self._server if ranks_done or behind is None else self._ranks.phases[behind]
        return replace(
            self._state,
            lines=self._splitter.number - 1,
            phase=phase,
            ranks=dict(self._ranks.phases),
            inside=self._ranks.inside,
            slowest_rank=None if ranks_done or len(self._ranks.phases) < 2 else behind,
            figures=dict(self._figures),
            progress=self._bar if self._bar is not None and self._bar.phase is phase else None,
            last_step=self._last_step,
        )

    def feed(self, data: bytes) -> list[Event]:
        """The events of the lines completed by ``data``."""
        return self._read(self._splitter.feed(data))

    def finish(self) -> list[Event]:
        """End of input: the events of a last line without its newline."""
        return self._read(self._splitter.finish())

    @property
    def unfinished_line(self) -> int:
        """The number of the line whose newline has not come yet; 0 between lines."""
        return self._splitter.number if self._splitter.pending else 0

    def _read(self, segments: list[tuple[int, bytes]]) -> list[Event]:
        events: list[Event] = []
        self._events = events
        for number, raw in segments:
            if raw[-7:] == b" 200 OK":
                continue
            body = raw.find(b"] ") + 2
            head = raw[body : body + 12]
            if head == b"Decode batch":
                self._last_step = ServingStep(number, raw)
                events.append(self._last_step)
            elif head == b"Prefill batc":
                events.append(ServingStep(number, raw))
            elif not (b' HTTP/1.1" ' in raw and b"INFO: " in raw):
                self._line(parse_line(number, raw))
        return events

    def _line(self, line: LogLine) -> None:
        text = line.text
        indented = text[:1] in _BLANKS
        if not indented and text.startswith(_REQUEST_DUMPS):
            return
        drawn = bar(text) if "%" in text else None
        if drawn is not None:
            self._progress(line, drawn)
            if drawn.rest:
                self._line(parse_line(line.number, drawn.rest.encode()))
            return
        if self._on_line is not None:
            self._on_line(line)
        if not self._begun:
            self._begun = True
            self._events.append(PhaseStarted(line.number, Phase.ARGUMENTS, "", line.stamp))
        if indented:  # the body of a traceback, or of a longer message
            return
        reached = milestone(text)
        if reached is not None:
            self._milestone(line, reached)
        else:
            self._remark(line)

    def _progress(self, line: LogLine, drawn: Bar) -> None:
        if drawn.phase is None:
            return
        moved = Progress(line.number, drawn.phase, drawn.done, drawn.total, drawn.detail, line.rank)
        if moved != self._bar:
            self._bar = moved
            self._events.append(moved)
            self._note_figures(figures(drawn.detail))

    def _milestone(self, line: LogLine, reached: Milestone) -> None:
        said = figures(line.text)
        self._note_figures(said)
        graphs = _graphs_after(self._state.graphs, line.text, reached)
        if graphs is not self._state.graphs:
            self._state = replace(self._state, graphs=graphs)
        if reached.ends is not None:
            self._leave(line, reached.ends, said)
        if reached.starts is not None:
            self._enter(line, reached.starts, {} if reached.ends else said)

    def _leave(self, line: LogLine, phase: Phase, said: dict[str, float]) -> None:
        if phase.of_the_server:
            self._events.append(PhaseEnded(line.number, phase, "", line.stamp, said))
            return
        for left in self._ranks.leave(line.rank, phase, line.number):
            told = said if left is phase else {}
            self._events.append(PhaseEnded(line.number, left, line.rank, line.stamp, told))

    def _enter(self, line: LogLine, phase: Phase, said: dict[str, float]) -> None:
        if self._server is Phase.ARGUMENTS and not self._ranks.phases:
            self._events.append(PhaseEnded(line.number, Phase.ARGUMENTS, "", line.stamp))
        if not phase.of_the_server:
            unsaid = self._ranks.enter(line.rank, phase, line.number)
            if unsaid is not None:
                self._events += (
                    PhaseEnded(line.number, left, line.rank, line.stamp) for left in unsaid
                )
                self._events.append(PhaseStarted(line.number, phase, line.rank, line.stamp, said))
            return
        for rank, left in self._ranks.leave_all():
            self._events.append(PhaseEnded(line.number, left, rank, line.stamp))
        self._server = phase
        self._events.append(PhaseStarted(line.number, phase, "", line.stamp, said))
        if not self._state.opened:
            self._state = replace(self._state, opened=line.number)
        if phase is Phase.READY:
            ready = Ready(line.number, line.stamp)
            self._state = replace(self._state, ready=ready)
            self._server = Phase.SERVING
            self._events += (
                ready,
                PhaseEnded(line.number, Phase.READY, "", line.stamp),
                PhaseStarted(line.number, Phase.SERVING, "", line.stamp),
            )

    def _remark(self, line: LogLine) -> None:
        """Lines that are no milestone: arguments, sizes, deaths, requests to stop."""
        text = line.text
        if text.startswith("server_args="):
            self._server_args(line)
        elif text.startswith("max_total_num_tokens="):
            self._note_figures(figures(text))
        elif text.startswith("SIGTERM received"):
            request = StopRequested(line.number, line.stamp)
            self._state = replace(self._state, stop_requested=request)
            self._events.append(request)
        elif off := _DISABLED.match(text):
            graphs = replace(self._state.graphs, prefill=False, off_reason=off["why"].strip())
            self._state = replace(self._state, graphs=graphs)
        else:
            if _TRACEBACK in text:
                header = text.partition(_TRACEBACK)[0].strip()
                self._events.append(TracebackSeen(line.number, header, line.rank, line.stamp))
            self._death(line)

    def _server_args(self, line: LogLine) -> None:
        if not line.rank and (self._state.fatal or self._server is not Phase.ARGUMENTS):
            self._begin_start()  # the log goes on with another start
            self._events.append(PhaseStarted(line.number, Phase.ARGUMENTS, "", line.stamp))
        if self._state.server_args is None:
            self._events.append(ServerArgsSeen(line.number, line.text))
            self._state = replace(self._state, server_args=line.text)

    def _death(self, line: LogLine) -> None:
        verdict = _fatal(line)
        if verdict is None or self._state.stop_requested is not None:
            return
        reason, exit_code = verdict
        fatal = FatalLine(line.number, line.text, reason, line.rank, line.stamp, exit_code)
        if self._state.fatal is None:
            self._state = replace(self._state, fatal=fatal)
        self._events.append(fatal)

    def _note_figures(self, said: dict[str, float]) -> None:
        self._figures.update(said)


def _fatal(line: LogLine) -> tuple[FatalReason, int | None] | None:
    """Why the server cannot serve after this line, and an exit code where one is named."""
    text = line.text
    if " hit an exception:" in text and _HIT.match(text):
        return FatalReason.SCHEDULER_EXCEPTION, None
    if text.startswith(_CHILD_FAILED):
        return FatalReason.CHILD_FAILED, None
    if text.startswith("Initialization failed. warmup error"):
        return FatalReason.WARM_UP_FAILED, None
    if text[0] in "SCR" and (died := _PROCESS_DIED.match(text)):
        if died["child_code"]:
            return FatalReason.PROCESS_DIED, -int(died["child_code"])
        code = died["code"] or died["rank_code"]
        return FatalReason.PROCESS_DIED, int(code) if code else None
    # PyTorch warns of one address family and goes on with the other.
    first, second, third = _PORT_TAKEN  # one by one: every line of a flood comes by here
    taken = first in text or second in text or third in text
    if taken and "[c10d]" not in text and own_words(line):
        return FatalReason.PORT_IN_USE, None
    return None


def _graphs_after(graphs: GraphLines, text: str, reached: Milestone) -> GraphLines:
    """What is known of CUDA graphs after a line that starts or ends a capture."""
    backend = _BACKEND.search(text)
    if reached.starts is Phase.DECODE_CAPTURE and backend:
        return replace(graphs, decode_backend=backend["name"])
    if reached.starts is Phase.PREFILL_CAPTURE:
        return replace(graphs, prefill_backend=backend["name"] if backend else "piecewise")
    if reached.ends is Phase.DECODE_CAPTURE:
        return replace(graphs, decode=True)
    if reached.ends is Phase.PREFILL_CAPTURE:
        return replace(graphs, prefill=True)
    return graphs
