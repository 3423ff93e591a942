"""One check of a host and its outcome; and what a start asks of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Level(str, Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Line:
    """One check's outcome; ``remedy`` is what to do, where there is something to do."""

    check: str
    level: Level
    text: str
    remedy: str | None = None
    evidence: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        return {
            "check": self.check,
            "level": self.level.value,
            "text": self.text,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
        }


def ok(check: str, text: str) -> Line:
    return Line(check, Level.OK, text)


def warning(check: str, text: str, remedy: str | None = None, *evidence: str) -> Line:
    return Line(check, Level.WARNING, text, remedy, evidence)


def failure(check: str, text: str, remedy: str | None = None, *evidence: str) -> Line:
    return Line(check, Level.FAILURE, text, remedy, evidence)


@dataclass(frozen=True)
class Start:
    """What a start asks of the host; the host's settings by name where a remedy speaks of them.

    Attributes:
        gpus: how many it takes; None: all.
        visible: the indexes that it may take (CUDA_VISIBLE_DEVICES); None: any.
        weights: it reads weights from the model's folder.
        tokenizer: it reads a tokenizer from there.
        balanced: SGLang itself refuses GPUs of unlike free memory.
    """

    host: str
    port: int
    gpus: int | None = None
    visible: tuple[int, ...] | None = None
    weights: bool = True
    tokenizer: bool = True
    balanced: bool = True

    @classmethod
    def from_plan(
        cls, host: str, port: int, argv: Sequence[str], environment: Mapping[str, str]
    ) -> Start:
        """From the words after ``-m sglang.launch_server`` and the server's variables."""
        told = _options(argv)
        wanted = 1
        for names in (
            ("tp-size", "tensor-parallel-size", "tp"),
            ("pp-size", "pipeline-parallel-size"),
        ):
            size = next((told[name] for name in names if name in told), "1")
            wanted *= int(size) if size.isdigit() else 1
        listed = [word.strip() for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        switch = environment.get("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "1").lower()
        return cls(
            host,
            port,
            wanted,
            tuple(map(int, listed)) if all(word.isdigit() for word in listed) else None,
            weights=told.get("load-format") != "dummy",
            tokenizer=not {"skip-tokenizer-init", "tokenizer-path"} & told.keys(),
            balanced=wanted > 1 and switch not in ("0", "false", "no", "n"),
        )


def on_all_gpus(start: Start) -> Start:
    """The same start where nothing says how many GPUs it takes."""
    return replace(start, gpus=None, balanced=True)


def _options(argv: Sequence[str]) -> dict[str, str]:
    """Flags and their first value, without dashes."""
    told = {}
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            told[name[2:]] = value if equals else following
    return told
