"""Hung or slow: what a server's signs of work say, phase by phase.

A start may be silent for half an hour and well: kernels are being built, shards read. So silence
alone is nothing. A server hangs when a phase has taken longer than it may and nothing shows work:
the log stands still, no compiler runs, memory does not move, no CPU time is used. A rank that
waits for another spins, on the CPU and on the GPU, so these two are weak signs: alone they only
buy time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from remote.core.budgets import Budgets
from remote.core.host_evidence import SERVER
from remote.core.phases import Phase

#: Seconds that a rank is seen stopped, and missing, before it counts: a profiler stops a process
#: for a moment, and one in the middle of an exec has no name.
_STOPPED_S = 4.0
_MISSING_S = 1.5
#: Seconds without a sign after which a phase past its budget hangs.
_QUIET_S = 30.0
#: Budgets after which weak signs alone are no longer believed.
_SPINNING = 3.0
#: Growth that is work: CPU seconds a second, bytes of memory, MiB and percent of a GPU.
_CPU_SHARE = 0.05
_MEMORY_BYTES = 16 * 1024 * 1024
_GPU_MIB = 64
_GPU_PERCENT = 5


@dataclass(frozen=True)
class Beat:
    """One look at the processes of a run; the tick of `payload/follow.py`."""

    processes: int
    cpu_s: float
    memory_bytes: int = 0  #: resident, over all processes
    ranks: Mapping[str, tuple[int, str]] = field(default_factory=dict)  #: name → pid and state
    builders: tuple[str, ...] = ()  #: compilers at work
    stopping: bool = False  #: this tool asked it to stop
    dead: Mapping[int, str] = field(default_factory=dict)  #: ended, not asked about: pid → title
    gpus: tuple[tuple[int, int], ...] = ()  #: utilisation in percent and memory in MiB, each GPU

    @classmethod
    def from_tick(cls, tick: Mapping[str, Any]) -> Beat:
        """From the message of a follow."""
        return cls(
            processes=tick["processes"],
            cpu_s=tick["cpu_s"],
            memory_bytes=tick["memory_bytes"],
            ranks={name: (pid, state) for name, (pid, state) in tick["ranks"].items()},
            builders=tuple(tick["builders"]),
            stopping=tick["stopping"],
            dead=dict(tick["dead"]),
            gpus=tuple((percent, mib) for percent, mib in tick["gpus"]),
        )


class AlarmKind(str, Enum):
    """What is wrong."""

    STOPPED = "stopped"  #: a rank lives and does not run
    MISSING = "missing"  #: a rank is gone while the server goes on
    SILENT = "silent"  #: past its budget without a sign of work


@dataclass(frozen=True)
class Alarm:
    """Why the server will not get further by itself."""

    kind: AlarmKind
    reason: str
    ranks: tuple[str, ...] = ()


class Heartbeat:
    """Takes signs of work as they come, and says when there is reason for alarm.

    Args:
        now_s: monotonic seconds, as in every call.
    """

    def __init__(self, budgets: Budgets, now_s: float) -> None:
        self._budgets = budgets
        self._phase = Phase.ARGUMENTS
        self._entered_s = now_s
        self._strong_s = now_s  # the last sign of work
        self._weak_s = now_s  # the last sign that may also be a spinning wait
        self._last: tuple[float, Beat] | None = None
        self._moved: Beat | None = None  # as memory stood at the last sign
        self._stopped: dict[str, float] = {}
        self._missing: dict[str, float] = {}
        self.roster: dict[str, int] = {}  #: every rank seen, with its pid
        self.durations: dict[Phase, float] = {}  #: seconds of the phases left so far
        self.lost: dict[str, int | None] = {}  #: ranks that ended first, with their exit status

    def log(self, now_s: float, phase: Phase) -> None:
        """The log grew; the server is in that phase now."""
        self._strong_s = now_s
        if phase is not self._phase:
            spent = self.durations.get(self._phase, 0.0) + now_s - self._entered_s
            self.durations[self._phase] = spent
            self._phase, self._entered_s = phase, now_s

    def lose(self, ended: Iterable[Mapping[str, Any]]) -> None:
        """Ranks ended while the server's main process went on."""
        self.lost.update({str(each["rank"]): each["exit"] for each in ended})

    def resume(self, now_s: float) -> None:
        """Nothing could be seen for a while: what was not seen is no silence."""
        self._strong_s = self._weak_s = now_s
        self._stopped.clear()
        self._missing.clear()

    def beat(self, now_s: float, beat: Beat) -> None:
        """The processes were looked at."""
        self._work(now_s, beat)
        self._watch_ranks(now_s, beat)
        self._last = (now_s, beat)

    def _work(self, now_s: float, beat: Beat) -> None:
        moved = self._moved
        if (
            moved is None
            or beat.builders
            or abs(beat.memory_bytes - moved.memory_bytes) > _MEMORY_BYTES
            or len(beat.gpus) != len(moved.gpus)
            or any(
                abs(new[1] - old[1]) > _GPU_MIB
                for new, old in zip(beat.gpus, moved.gpus, strict=False)
            )
        ):
            self._strong_s, self._moved = now_s, beat
        if self._last is None:
            return
        last_s, last = self._last
        share = (beat.cpu_s - last.cpu_s) / max(now_s - last_s, 0.001)
        if share > _CPU_SHARE or any(percent > _GPU_PERCENT for percent, _ in beat.gpus):
            self._weak_s = now_s

    def _watch_ranks(self, now_s: float, beat: Beat) -> None:
        living = {pid for pid, _ in beat.ranks.values()}
        # One process may change its name as it learns its rank: the pid is what counts.
        renamed = [
            name for name, pid in self.roster.items() if pid in living and name not in beat.ranks
        ]
        for name in renamed:
            del self.roster[name]
        # Without the main process a whole server is gone: the follow itself tells that.
        gone = [
            name
            for name, pid in self.roster.items()
            if SERVER in beat.ranks and pid not in living and name not in beat.ranks
        ]
        # One that died before it was first seen alive has no name but its title.
        known = set(self.roster.values())
        gone += [f"{title} (pid {pid})" for pid, title in beat.dead.items() if pid not in known]
        named = {name: pid for name, (pid, _) in beat.ranks.items() if not name.startswith("pid ")}
        self.roster.update(named)
        stopped = [name for name, (_, state) in beat.ranks.items() if state == "T"]
        self._missing = {name: self._missing.get(name, now_s) for name in gone}
        self._stopped = {name: self._stopped.get(name, now_s) for name in stopped}

    def alarm(self, now_s: float) -> Alarm | None:
        """Reason to give the start up, if there is one; a server that is being stopped has none."""
        if self._last is not None and self._last[1].stopping:
            return None
        stopped = _older(self._stopped, now_s - _STOPPED_S)
        if stopped:
            return Alarm(AlarmKind.STOPPED, f"{_and(stopped)} is stopped and does not run", stopped)
        missing = _older(self._missing, now_s - _MISSING_S)
        if missing:
            return Alarm(AlarmKind.MISSING, f"the process of {_and(missing)} is gone", missing)
        allowed_s = self._budgets.allowed_s(self._phase)
        spent_s = now_s - self._entered_s
        quiet_s = now_s - self._strong_s
        if self._phase in (Phase.READY, Phase.SERVING) or spent_s < allowed_s:
            return None
        spinning = now_s - self._weak_s < _QUIET_S
        if quiet_s < _QUIET_S or (spinning and quiet_s < _SPINNING * allowed_s):
            return None
        how = "its processes spin" if spinning else "its processes do nothing"
        return Alarm(
            AlarmKind.SILENT,
            f"hangs while {self._phase.label}: {spent_s:.0f} s so far where {allowed_s:.0f} s are"
            f" allowed, and for {quiet_s:.0f} s no sign of work ({how})",
        )


def _older(since_s: Mapping[str, float], moment_s: float) -> tuple[str, ...]:
    return tuple(name for name, seen_s in since_s.items() if seen_s <= moment_s)


def _and(names: tuple[str, ...]) -> str:
    return ", ".join(names)
