"""An experiment: a baseline, candidates against it, and the baseline once more; and how far it got.

The plan is what was asked for, the progress what became of each step. Both are kept in one file,
so that the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import product
from typing import Any

from remote.errors import ConfigError

_MOST_STEPS = 64


class Role(str, Enum):
    """What a step is for."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    DRIFT = "drift"  #: the baseline again, at the end: what time alone has changed


class Stage(str, Enum):
    """How far a step is."""

    PENDING = "pending"
    STARTED = "started"  #: it has a run
    MEASURED = "measured"  #: all points are here
    DONE = "done"  #: and the host is as it was before
    FAILED = "failed"  #: it never served, or died for good

    @property
    def over(self) -> bool:
        return self in (Stage.DONE, Stage.FAILED)


@dataclass(frozen=True)
class Step:
    """One start and its bench."""

    name: str
    profile: str
    role: Role
    sets: tuple[str, ...] = ()
    stage: Stage = Stage.PENDING
    runs: tuple[str, ...] = ()  #: started for it; more than one where a server was replaced
    bench: str = ""
    error: Mapping[str, Any] = field(default_factory=dict)  #: as `ToolError.as_dict`

    @property
    def run(self) -> str:
        """The run that it stands on now; empty before the first."""
        return self.runs[-1] if self.runs else ""

    def started(self, run: str) -> Step:
        runs = self.runs if run in self.runs else (*self.runs, run)
        return replace(self, stage=Stage.STARTED, runs=runs)

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Step:
        return cls(
            name=str(known["name"]),
            profile=str(known["profile"]),
            role=Role(known["role"]),
            sets=tuple(known["sets"]),
            stage=Stage(known["stage"]),
            runs=tuple(known["runs"]),
            bench=str(known["bench"]),
            error=dict(known["error"]),
        )


@dataclass(frozen=True)
class Experiment:
    """What was asked for, and how far it is.

    Attributes:
        matrix: the bench's options as typed, by name.
        made_at: seconds since the epoch.
    """

    id: str
    host: str
    steps: tuple[Step, ...]
    matrix: Mapping[str, Any]
    made_at: float
    note: str = ""

    @property
    def over(self) -> bool:
        return all(step.stage.over for step in self.steps)

    @property
    def baseline(self) -> Step:
        return self.steps[0]

    def same_as(self, other: Experiment) -> bool:
        """Whether the same was asked for on the same host."""
        return (self.host, self._asked, dict(self.matrix)) == (
            other.host,
            other._asked,
            dict(other.matrix),
        )

    @property
    def _asked(self) -> list[tuple[str, Role, tuple[str, ...]]]:
        return [(step.profile, step.role, step.sets) for step in self.steps]

    def with_step(self, number: int, step: Step) -> Experiment:
        """The same with one step further on."""
        steps = (*self.steps[:number], step, *self.steps[number + 1 :])
        return replace(self, steps=steps)

    def as_dict(self) -> dict[str, Any]:
        """The shape kept as experiment.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Experiment:
        """From `as_dict`, also after a trip through JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(
                id=str(known["id"]),
                host=str(known["host"]),
                steps=tuple(Step.from_dict(each) for each in known["steps"]),
                matrix=dict(known["matrix"]),
                made_at=float(known["made_at"]),
                note=str(known["note"]),
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"no experiment: {wrong!r}") from wrong


def steps(profiles: str, sweeps: Sequence[str]) -> tuple[Step, ...]:
    """The steps that were asked for: baseline, candidates, baseline again.

    Args:
        profiles: ``baseline,piecewise``; the first is the baseline.
        sweeps: ``key=a,b,c`` each; the candidates are tried with every combination of values. With
            one profile its swept variants are the candidates.

    Raises:
        ConfigError: what was typed gives no experiment, a line of evidence each.
    """
    problems: list[str] = []
    names = _words(profiles, "profiles", problems)
    swept = [_sweep(text, problems) for text in sweeps]
    keys = [key for key, _ in swept]
    problems += [f"--sweep {key}: swept twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    if not problems and len(names) < 2 and not swept:
        problems.append(f"{profiles}: one profile and nothing to hold against it")
    combinations = [
        tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        for values in product(*(values for _, values in swept))
    ]
    candidates = names[1:] or names
    if len(candidates) * len(combinations) + 2 > _MOST_STEPS:
        problems.append(
            f"that is {len(candidates) * len(combinations)} candidates; {_MOST_STEPS - 2} are the"
            " most of one experiment"
        )
    if problems:
        raise ConfigError(
            "this gives no experiment",
            evidence=problems,
            hint="for example: inv experiment baseline,piecewise",
        )
    first = names[0]
    return (
        Step(first, first, Role.BASELINE),
        *(
            Step(" ".join((name, *sets)), name, Role.CANDIDATE, sets)
            for name in candidates
            for sets in combinations
        ),
        Step(f"{first} again", first, Role.DRIFT),
    )


def _words(text: str, what: str, problems: list[str]) -> list[str]:
    """Words between commas, none twice."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        problems.append(f"{text!r}: {what} go between commas, without gaps")
    problems += [f"{word} stands there twice" for word in sorted(_doubles(words)) if word]
    return [word for word in dict.fromkeys(words) if word]


def _doubles(words: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    return {word for word in words if word in seen or seen.add(word)}  # type: ignore[func-returns-value]


def _sweep(text: str, problems: list[str]) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        problems.append(f"--sweep {text}: wanted key=a,b,c")
        return key, []
    return key.strip(), _words(values, f"values of {key.strip()}", problems)
