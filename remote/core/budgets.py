"""How long each phase of a start may take, learnt from earlier starts of this host and profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from remote.core.log_events import Progress
from remote.core.phases import Phase

#: Before the first start: what a large model on a cold host may take, in seconds.
PRIORS_S: Mapping[Phase, float] = {
    Phase.IMPORT: 300,
    Phase.ARGUMENTS: 300,
    Phase.DISTRIBUTED: 300,
    Phase.WEIGHTS: 1800,
    Phase.KV_POOL: 300,
    Phase.DECODE_CAPTURE: 900,
    Phase.PREFILL_CAPTURE: 1800,
    Phase.JIT_BUILD: 3600,
    Phase.HTTP: 60,
    Phase.WARM_UP: 600,
    Phase.READY: 60,
    Phase.SERVING: 60,
}
#: An earlier start's longest time is allowed this often, and never less than so many seconds: page
#: caches and kernel caches that are cold again cost a multiple.
_FACTOR = 3.0
_LEAST_S = 30.0
#: A bar's pace is believed from so many steps on.
_STEPS = 2


@dataclass(frozen=True)
class Budgets:
    """Seconds per phase; ``history`` holds what earlier starts took, newest last."""

    history: Mapping[Phase, Sequence[float]] = field(default_factory=dict)

    def allowed_s(self, phase: Phase) -> float:
        """What the phase may take before silence means that it hangs."""
        earlier = self.history.get(phase)
        return max(_FACTOR * max(earlier), _LEAST_S) if earlier else PRIORS_S[phase]

    def expected_s(self, phase: Phase) -> float | None:
        """What it usually takes; None before the first start."""
        earlier = self.history.get(phase)
        return median(earlier) if earlier else None

    def left_s(self, phase: Phase, spent_s: float, bar: Progress | None = None) -> float | None:
        """What is left of the phase: by the bar's pace, else by earlier starts; None: unknown."""
        if bar is not None and bar.phase is phase and _STEPS <= bar.done < bar.total:
            return spent_s / bar.done * (bar.total - bar.done)
        expected = self.expected_s(phase)
        return None if expected is None or spent_s >= expected else expected - spent_s
