"""What happens in a server's log, as values; and what is known after reading so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from remote.core.phases import Phase


@dataclass(frozen=True)
class PhaseStarted:
    """A rank, or the whole server where ``rank`` is empty, entered a phase."""

    line: int
    phase: Phase
    rank: str = ""
    stamp: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseEnded:
    """A phase was left; ``figures`` are those of the line that said so."""

    line: int
    phase: Phase
    rank: str = ""
    stamp: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """A progress bar moved."""

    line: int
    phase: Phase
    done: int
    total: int
    detail: str
    rank: str = ""


@dataclass(frozen=True)
class ServerArgsSeen:
    """The line with every argument as the server resolved it."""

    line: int
    text: str


@dataclass(frozen=True)
class Ready:
    """The server's own ready line."""

    line: int
    stamp: str = ""


class FatalReason(str, Enum):
    """Why a line means that this server will never serve (again)."""

    PORT_IN_USE = "port_in_use"
    SCHEDULER_EXCEPTION = "scheduler_exception"
    PROCESS_DIED = "process_died"
    CHILD_FAILED = "child_failed"
    WARM_UP_FAILED = "warm_up_failed"


@dataclass(frozen=True)
class FatalLine:
    """A line after which the server cannot serve, even while its process lives."""

    line: int
    text: str
    reason: FatalReason
    rank: str = ""
    stamp: str = ""
    exit_code: int | None = None  #: of the process that died, where the line says it


@dataclass(frozen=True)
class StopRequested:
    """The server was asked to stop; what dies afterwards is no failure."""

    line: int
    stamp: str = ""


@dataclass(frozen=True)
class TracebackSeen:
    """A traceback starts here; most are failures, some a healthy server prints too."""

    line: int
    header: str  #: what stood before ``Traceback`` on the line (``Scheduler hit an exception:``)
    rank: str = ""
    stamp: str = ""


_STAMP_AND_RANK = re.compile(rb"\[(\d[\d-]+ [\d:.]+)((?: [A-Z_]+\d+)*)\] (?:Dec|Pre)")
_STEP_FIGURES = {
    "running": re.compile(rb"#running-req: (\d+)"),
    "queued": re.compile(rb"#queue-req: (\d+)"),
    "token_usage": re.compile(rb"token usage: ([\d.]+)"),
    "tokens_per_s": re.compile(rb"throughput \(token/s\): ([\d.]+)"),
}


class ServingStep(NamedTuple):
    """A ``Decode batch`` or ``Prefill batch`` line; its figures are parsed only when asked for.

    A busy server prints thousands a second, and few of them are ever looked at.
    """

    line: int
    raw: bytes

    @property
    def decode(self) -> bool:
        """Whether it decoded; otherwise it prefilled."""
        return b"] Decode batch" in self.raw

    @property
    def rank(self) -> str:
        """The rank that printed it; empty where the line carries none."""
        found = _STAMP_AND_RANK.search(self.raw)
        return found[2].decode().strip() if found else ""

    @property
    def stamp(self) -> str:
        """The log's own time."""
        found = _STAMP_AND_RANK.search(self.raw)
        return found[1].decode() if found else ""

    @property
    def running(self) -> int:
        """Requests running."""
        return int(self._figure("running"))

    @property
    def queued(self) -> int:
        """Requests waiting."""
        return int(self._figure("queued"))

    @property
    def token_usage(self) -> float:
        """Share of the KV pool in use, 0 to 1."""
        return self._figure("token_usage")

    @property
    def tokens_per_s(self) -> float:
        """Generation throughput of a decode step, input throughput of a prefill step."""
        return self._figure("tokens_per_s")

    def _figure(self, name: str) -> float:
        found = _STEP_FIGURES[name].search(self.raw)
        return float(found[1].rstrip(b".")) if found else 0.0


Event = (
    PhaseStarted
    | PhaseEnded
    | Progress
    | ServerArgsSeen
    | Ready
    | FatalLine
    | StopRequested
    | TracebackSeen
    | ServingStep
)


@dataclass(frozen=True)
class GraphLines:
    """What the log says about CUDA graphs; None means that it says nothing (yet)."""

    decode: bool | None = None  #: captured to the end
    prefill: bool | None = None  #: captured to the end, or said to be off
    prefill_backend: str | None = None  #: ``piecewise`` up to 0.5.13, then as the line names it
    decode_backend: str | None = None
    off_reason: str | None = None  #: why prefill graphs are off, in the server's words


@dataclass(frozen=True)
class StartState:
    """What is known of one start after the lines read so far."""

    lines: int = 0  #: lines ended so far
    phase: Phase = Phase.ARGUMENTS  #: of the server; where ranks differ, of those behind
    ranks: Mapping[str, Phase] = field(default_factory=dict)  #: of each rank that printed one
    inside: frozenset[str] = frozenset()  #: ranks that have not left the phase they entered
    slowest_rank: str | None = None  #: None once serving, and where ranks aren't told apart
    progress: Progress | None = None  #: the last bar of the current phase
    figures: Mapping[str, float] = field(default_factory=dict)  #: latest of each
    server_args: str | None = None
    graphs: GraphLines = GraphLines()
    opened: int = 0  #: the line on which the HTTP server started; 0 before
    ready: Ready | None = None
    fatal: FatalLine | None = None  #: the first
    stop_requested: StopRequested | None = None
    last_step: ServingStep | None = None  #: the last decode step
