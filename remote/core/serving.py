"""What a serving process does right now, from the steps that its ranks log."""

from __future__ import annotations

from dataclasses import dataclass

from remote.core.log_events import ServingStep

#: SGLang logs every 40th decode step: after so many seconds without one, nothing is decoded.
_STALE_S = 10.0


@dataclass(frozen=True)
class Load:
    """The load over all ranks that log for themselves (one a data-parallel group)."""

    tokens_per_s: float = 0.0
    running: int = 0
    queued: int = 0
    token_usage: float = 0.0  #: of the fullest rank, 0 to 1
    idle_s: float = 0.0  #: since the last step of any rank

    def as_dict(self) -> dict[str, float]:
        """The shape printed with ``--json``."""
        return {
            "tokens_per_s": round(self.tokens_per_s, 2),
            "running": self.running,
            "queued": self.queued,
            "token_usage": self.token_usage,
            "idle_s": round(self.idle_s, 1),
        }


class ServingMeter:
    """Takes steps as they are logged and tells the load at a moment.

    Args:
        now_s: monotonic seconds, as in every call.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._last: dict[str, tuple[float, ServingStep]] = {}
        self._decoded: dict[str, tuple[float, ServingStep]] = {}

    def step(self, now_s: float, step: ServingStep) -> None:
        """A rank logged a prefill or decode step."""
        self._last[step.rank] = (now_s, step)
        if step.decode:
            self._decoded[step.rank] = (now_s, step)

    def load(self, now_s: float) -> Load:
        """The load now."""
        fresh = [step for at, step in self._last.values() if now_s - at < _STALE_S]
        decoded = [step for at, step in self._decoded.values() if now_s - at < _STALE_S]
        last_s = max((at for at, _ in self._last.values()), default=self._began_s)
        return Load(
            tokens_per_s=sum(step.tokens_per_s for step in decoded),
            running=sum(step.running for step in fresh),
            queued=sum(step.queued for step in fresh),
            token_usage=max((step.token_usage for step in fresh), default=0.0),
            idle_s=now_s - last_s,
        )
