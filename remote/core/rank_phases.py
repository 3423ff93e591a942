"""Each rank's phase during a start, and which rank is behind."""

from __future__ import annotations

from collections import defaultdict

from remote.core.phases import Phase


class RankPhases:
    """Follows ranks through their phases; a rank without a tag is named by the empty string."""

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}  #: the last phase each rank entered
        self._open: dict[str, list[Phase]] = defaultdict(list)  # a JIT build nests in a phase
        self._passed: dict[str, list[tuple[Phase, int]]] = defaultdict(list)

    def enter(self, rank: str, phase: Phase, line: int) -> list[Phase] | None:
        """The rank enters a phase; what it left without saying so comes back.

        None where it is in that phase already.
        """
        open_phases = self._open[rank]
        if phase in open_phases:
            return None
        left: list[Phase] = []
        if phase is not Phase.JIT_BUILD:
            left = open_phases[::-1]
            open_phases.clear()
        open_phases.append(phase)
        self.phases[rank] = phase
        if phase is not Phase.JIT_BUILD:
            self._passed[rank].append((phase, line))
        return left

    def leave(self, rank: str, phase: Phase, line: int) -> list[Phase]:
        """The rank leaves a phase, and with it whatever nests in it, innermost first.

        A phase whose beginning was cut off counts as left too.
        """
        open_phases = self._open[rank]
        left = [phase]
        if phase in open_phases:
            at = open_phases.index(phase)
            left = open_phases[at:][::-1]
            del open_phases[at:]
        elif phase is Phase.JIT_BUILD:
            return []
        if open_phases:
            self.phases[rank] = open_phases[-1]
        elif phase is not Phase.JIT_BUILD:
            self.phases[rank] = phase
        if phase is not Phase.JIT_BUILD:
            self._passed[rank].append((phase, line))
        return left

    def leave_all(self) -> list[tuple[str, Phase]]:
        """Every rank leaves what it is in: the server as a whole went on."""
        left = [(rank, phase) for rank, phases in self._open.items() for phase in phases[::-1]]
        self._open.clear()
        return left

    @property
    def inside(self) -> frozenset[str]:
        """Ranks that entered a phase and did not leave it."""
        return frozenset(rank for rank, phases in self._open.items() if phases)

    def behind(self) -> str | None:
        """The rank that got least far; at the same place, the one that came there last.

        Some versions print some phases on the first rank only: phases that a single rank has
        reported compare nothing. None before any rank reported.
        """
        if not self.phases:
            return None
        reported: dict[Phase, set[str]] = defaultdict(set)
        for rank, steps in self._passed.items():
            for phase, _ in steps:
                reported[phase].add(rank)
        several = len(self.phases) > 1

        def progress(rank: str) -> tuple[int, int]:
            shared = [
                line
                for phase, line in self._passed[rank]
                if len(reported[phase]) > 1 or not several
            ]
            return (len(shared), -shared[-1] if shared else 0)

        return min(self.phases, key=progress)
