"""Memory of processes that have ended is waited for, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from remote.payload import gpus
from remote.payload.refusal import Refused


class Driver:
    """nvidia-smi and a clock: processes' memory is given back after some askings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
        self.held, self.now = held, 0.0
        monkeypatch.setattr(gpus, "ask", self.ask)
        monkeypatch.setattr(gpus, "time", self)

    def ask(self) -> dict[str, Any]:
        self.held -= 1
        theirs = "GPU-0, 77, 100\n"
        ours = "GPU-0, 4242, 70000\nGPU-1, 4242, 70000\n"
        return {"gpus": "", "apps": theirs + (ours if self.held >= 0 else "")}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, held=3)
    assert list(gpus.released({4242, 4243})) == [{"gpu_memory_of": 1}] * 3
    assert driver.now == 1.5


def test_memory_that_stays_is_refused_with_the_process_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Driver(monkeypatch, held=10_000)
    with pytest.raises(Refused, match="memory is not") as stays:
        list(gpus.released({4242}))
    assert stays.value.evidence == [f"GPU GPU-{n}: pid 4242, 70000 MiB" for n in (0, 1)]


def test_a_host_without_gpus_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ask", lambda: {"reason": "no nvidia-smi on this host"})
    assert list(gpus.released({4242})) == []
