"""The matrix of a bench, from what was asked for: levels, lengths, prompts, repeats, seeds.

Also the command line of `sglang.bench_serving` for each point, in the flags that the installed one
takes, and how long the whole is going to take.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.core.fields import whole_number
from remote.errors import ConfigError, PreflightFailed

#: Prompts of a level where nobody says how many: enough waves that the last, thinning one weighs
#: little, and enough requests for a 99th percentile at low levels.
_WAVES = 5
_FEWEST_PROMPTS = 64
#: With `--quick`: see `QUICK`.
_QUICK_WAVES = 2
_QUICK_FEWEST_PROMPTS = 16
_QUICK_LENGTH = 256
_QUICK_REPEATS = 2
QUICK = (
    f"quick: {_QUICK_WAVES} prompts per request in flight (at least {_QUICK_FEWEST_PROMPTS}),"
    f" at most {_QUICK_LENGTH} tokens in and out, {_QUICK_REPEATS} repeats"
)

_LARGEST = {"level": 100_000, "tokens": 1_000_000, "prompts": 10_000_000, "repeats": 1000}

#: Requests that warm a level up before its first point: the kernels of larger batches are compiled
#: or tuned when they are first needed, and that is no part of the figures.
_MOST_WARM_UPS = 64

#: Where nothing was measured yet, at best and at worst: what a token of one request takes, however
#: many run beside it, and what the client needs for itself (imports, tokenizer, prompts).
_TOKEN_S = (0.01, 0.06)
_CLIENT_S = (6.0, 40.0)
#: A prompt token costs so much of an output token.
_INPUT_SHARE = 0.05


@dataclass(frozen=True)
class Asked:
    """The options as typed; empty where one was not given."""

    concurrency: str = ""
    input_len: str = ""
    output_len: str = ""
    prompts: str = ""
    repeats: str = ""
    quick: bool = False


@dataclass(frozen=True)
class Usual:
    """What holds where an option was not given: the settings' matrix."""

    levels: tuple[int, ...]
    input_len: int
    output_len: int
    repeats: int
    prompts: int = 0  #: 0: by the level


@dataclass(frozen=True)
class Matrix:
    """What is measured; lengths in tokens, levels in requests in flight."""

    levels: tuple[int, ...]
    input_len: int
    output_len: int
    repeats: int
    prompts: Mapping[int, int]
    quick: bool

    @property
    def seeds(self) -> tuple[int, ...]:
        """One a repeat, always the same: two benches are given the same prompts."""
        return tuple(range(1, self.repeats + 1))


@dataclass(frozen=True)
class Job:
    """One point to measure.

    Attributes:
        warm_ups: requests sent before those that count.
    """

    level: int
    repeat: int
    seed: int
    prompts: int
    warm_ups: int

    @property
    def name(self) -> str:
        return point_name(self.level, self.repeat)


@dataclass(frozen=True)
class BenchPlan:
    """One matrix against one server run; `as_dict` is what is kept as plan.json.

    Attributes:
        made_at: seconds since the epoch.
        argv: the client's words; ``{prompts}``, ``{level}``, ``{seed}``, ``{warm_ups}`` and
            ``{output}`` are filled in for each point.
        gpus: that the server spans, 0 where it uses none.
    """

    bench: str
    run: str
    host: str
    profile: str
    levels: tuple[int, ...]
    input_len: int
    output_len: int
    repeats: int
    prompts: Mapping[int, int]
    seeds: tuple[int, ...]
    range_ratio: float
    warm_up: bool
    flush_cache: bool
    quick: bool
    sglang: str
    argv: tuple[str, ...]
    tokenizer: str
    model: str
    made_at: float
    gpus: int = 0
    note: str = ""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All points, in order.

        Repeat by repeat rather than level by level: a host that slows down in the course of a
        bench then touches every level, and what is interrupted has all of them.
        """
        return self.missing(())

    def missing(self, done: Collection[tuple[int, int]]) -> tuple[Job, ...]:
        """The points without a row, by level and repeat.

        The first that is left of each level warms it up: the server may be another one by now.
        """
        warmed: set[int] = set()
        jobs = []
        for repeat, seed in enumerate(self.seeds, 1):
            for level in self.levels:
                if (level, repeat) in done:
                    continue
                first = self.warm_up and level not in warmed
                warmed.add(level)
                warm_ups = min(level, _MOST_WARM_UPS) if first else 1
                jobs.append(Job(level, repeat, seed, self.prompts[level], warm_ups))
        return tuple(jobs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "run": self.run,
            "host": self.host,
            "profile": self.profile,
            "levels": list(self.levels),
            "input_len": self.input_len,
            "output_len": self.output_len,
            "repeats": self.repeats,
            "prompts": {str(level): count for level, count in self.prompts.items()},
            "seeds": list(self.seeds),
            "range_ratio": self.range_ratio,
            "warm_up": self.warm_up,
            "flush_cache": self.flush_cache,
            "quick": self.quick,
            "sglang": self.sglang,
            "argv": list(self.argv),
            "tokenizer": self.tokenizer,
            "model": self.model,
            "made_at": self.made_at,
            "gpus": self.gpus,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> BenchPlan:
        """From `as_dict`, also after a trip through JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(
                bench=str(known["bench"]),
                run=str(known["run"]),
                host=str(known["host"]),
                profile=str(known["profile"]),
                levels=tuple(int(level) for level in known["levels"]),
                input_len=int(known["input_len"]),
                output_len=int(known["output_len"]),
                repeats=int(known["repeats"]),
                prompts={int(level): int(count) for level, count in known["prompts"].items()},
                seeds=tuple(int(seed) for seed in known["seeds"]),
                range_ratio=float(known["range_ratio"]),
                warm_up=bool(known["warm_up"]),
                flush_cache=bool(known["flush_cache"]),
                quick=bool(known["quick"]),
                sglang=str(known["sglang"]),
                argv=tuple(str(word) for word in known["argv"]),
                tokenizer=str(known["tokenizer"]),
                model=str(known["model"]),
                made_at=float(known["made_at"]),
                gpus=int(known.get("gpus", 0)),
                note=str(known.get("note", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no plan of a bench: {error!r}") from error


def point_name(level: int, repeat: int) -> str:
    """What the files of a point are called: ``c256-r1``."""
    return f"c{level}-r{repeat}"


def matrix(asked: Asked, usual: Usual) -> Matrix:
    """The matrix that was asked for.

    What was typed holds as it is; `--quick` makes lighter what was not.

    Raises:
        ConfigError: everything that is wrong with it, a line of evidence each.
    """
    problems: list[str] = []
    quick = asked.quick
    levels = _levels(asked.concurrency, usual.levels, problems)

    def chosen(option: str, typed: str, usual_value: int, light: int, most: str) -> int:
        if typed:
            return _number(option, typed, most, problems)
        return min(usual_value, light) if quick else usual_value

    input_len = chosen("input-len", asked.input_len, usual.input_len, _QUICK_LENGTH, "tokens")
    output_len = chosen("output-len", asked.output_len, usual.output_len, _QUICK_LENGTH, "tokens")
    repeats = chosen("repeats", asked.repeats, usual.repeats, _QUICK_REPEATS, "repeats")
    if asked.prompts:
        count = _number("prompts", asked.prompts, "prompts", problems)
        prompts = dict.fromkeys(levels, count)
        over = [level for level in levels if level > count]
        if count and over:
            shown = ", ".join(map(str, over))
            problems.append(f"--prompts: {count} prompts can't keep {shown} requests in flight")
    elif usual.prompts:
        prompts = {level: max(usual.prompts, level) for level in levels}
    else:
        waves, fewest = (
            (_QUICK_WAVES, _QUICK_FEWEST_PROMPTS) if quick else (_WAVES, _FEWEST_PROMPTS)
        )
        prompts = {level: max(fewest, waves * level) for level in levels}
    if problems:
        raise ConfigError(
            "the matrix can't be measured as asked",
            evidence=problems,
            hint="for example: inv bench --concurrency 1,10,256 --input-len 1024 --output-len 1024",
        )
    return Matrix(levels, input_len, output_len, repeats, prompts, quick)


def _levels(text: str, usual: tuple[int, ...], problems: list[str]) -> tuple[int, ...]:
    if not text.strip():
        if text:
            problems.append("--concurrency: wanted levels as 1,10,256, found nothing")
        return usual
    levels: list[int] = []
    for word in text.split(","):
        level = whole_number(word)
        if level is None:
            problems.append(f"--concurrency: {word.strip()!r} is no number of requests in flight")
        elif not 1 <= level <= _LARGEST["level"]:
            problems.append(f"--concurrency: {level} is not between 1 and {_LARGEST['level']}")
        elif level in levels:
            problems.append(f"--concurrency: {level} stands there twice")
        else:
            levels.append(level)
    return tuple(levels)


def _number(option: str, text: str, most: str, problems: list[str]) -> int:
    value = whole_number(text)
    if value is None or not 1 <= value <= _LARGEST[most]:
        problems.append(
            f"--{option}: wanted a whole number from 1 to {_LARGEST[most]}, found {text!r}"
        )
        return 0
    return value


def client_words(
    flags: Mapping[str, Any],
    *,
    address: str,
    port: int,
    model: str,
    tokenizer: str,
    input_len: int,
    output_len: int,
    sglang: str,
    host: str | None = None,
) -> tuple[str, ...]:
    """The words of `python -m sglang.bench_serving` as a template, see `BenchPlan.argv`.

    Args:
        flags: those that the installed client takes, from its own parser.
        sglang: its version, for the error.

    Raises:
        PreflightFailed: it lacks a flag without which the figures would mean something else.
    """
    needed = {
        "backend": "sglang",
        "host": address,
        "port": str(port),
        "model": model,
        "dataset-name": "random-ids",
        "random-input-len": str(input_len),
        "random-output-len": str(output_len),
        "random-range-ratio": "1.0",
        "num-prompts": "{prompts}",
        "max-concurrency": "{level}",
        "seed": "{seed}",
        "output-file": "{output}",
    }
    lacking = [
        f"--{name}" for name in (*needed, "flush-cache", "output-details") if name not in flags
    ]
    for name in ("backend", "dataset-name"):
        choices = (flags.get(name) or {}).get("choices")
        if choices and needed[name] not in choices:
            lacking.append(f"--{name} {needed[name]}")
    if lacking:
        raise PreflightFailed(
            f"the bench client of the installed SGLang {sglang} does not take what a bench needs",
            host=host,
            evidence=[f"it has no {each}" for each in lacking],
            hint="SGLang 0.5.8 and newer have them",
        )
    words = ["-m", "sglang.bench_serving"]
    for name, value in needed.items():
        words += [f"--{name}", value]
    words += ["--flush-cache", "--output-details"]
    if tokenizer != model and "tokenizer" in flags:
        words += ["--tokenizer", tokenizer]
    if "warmup-requests" in flags:
        words += ["--warmup-requests", "{warm_ups}"]
    return tuple(words)


_BLANK = re.compile(r"\{(prompts|level|seed|warm_ups|output)\}")


def filled(argv: Sequence[str], job: Job, output: str) -> list[str]:
    """The client's words for one point."""
    values = {
        "prompts": str(job.prompts),
        "level": str(job.level),
        "seed": str(job.seed),
        "warm_ups": str(job.warm_ups),
        "output": output,
    }
    return [_BLANK.sub(lambda found: values[found[1]], word) for word in argv]


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """What stands behind a flag on a server's command line, either way of writing it."""
    for number, word in enumerate(argv):
        if word == f"--{name}" and number + 1 < len(argv):
            return argv[number + 1]
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def gpus_of(argv: Sequence[str]) -> int:
    """The GPUs that a server of that command line spans on its host."""
    count = 1
    for names in (("tp-size", "tensor-parallel-size", "tp"), ("pp-size", "pipeline-parallel-size")):
        said = next((v for name in names if (v := flag_value(argv, name)) is not None), "1")
        count *= whole_number(said) or 1
    # With data-parallel attention the groups share the tensor-parallel GPUs.
    if "--enable-dp-attention" not in argv:
        said = flag_value(argv, "dp-size") or flag_value(argv, "data-parallel-size") or "1"
        count *= whole_number(said) or 1
    return count


@dataclass(frozen=True)
class Earlier:
    """A point measured before on the same host with the same profile; whole seconds of it."""

    level: int
    prompts: int
    input_len: int
    output_len: int
    measured_s: float
    whole_s: float

    @property
    def token_s(self) -> float:
        """Seconds for each token of a request, queueing and all."""
        return self.measured_s / _steps(self.level, self.prompts, self.input_len, self.output_len)


@dataclass(frozen=True)
class Expected:
    """How long a bench is going to take, from ``low_s`` to ``high_s``, and why that is thought."""

    low_s: float
    high_s: float
    basis: str


def expected(plan: BenchPlan, jobs: Sequence[Job], earlier: Sequence[Earlier]) -> Expected:
    """The duration of these points.

    From earlier points where there are any: those of the nearest level, scaled by the tokens. A
    level that was never measured is taken from its neighbour and makes the range wide.
    """
    steps = {
        level: _steps(level, plan.prompts[level], plan.input_len, plan.output_len)
        for level in plan.levels
    }
    if not earlier:
        low, high = (
            sum(steps[job.level] * token_s + client_s for job in jobs)
            for token_s, client_s in zip(_TOKEN_S, _CLIENT_S, strict=True)
        )
        return Expected(
            low,
            high,
            f"nothing was measured on {plan.host} with {plan.profile} yet: this supposes"
            f" {_TOKEN_S[0] * 1000:.0f} to {_TOKEN_S[1] * 1000:.0f} ms a token",
        )
    client_s = statistics.median(max(each.whole_s - each.measured_s, 0.0) for each in earlier)
    total, guessed = 0.0, False
    for job in jobs:
        nearest = min(
            (abs(math.log(each.level / job.level)), -number, each)
            for number, each in enumerate(earlier)
        )
        guessed = guessed or nearest[0] > math.log(1.5)
        total += steps[job.level] * nearest[2].token_s + client_s
    spread = 3.0 if guessed else 1.3
    points = "1 earlier point" if len(earlier) == 1 else f"{len(earlier)} earlier points"
    basis = f"from {points} on {plan.host} with {plan.profile}"
    if guessed:
        basis += ", none at some of these levels"
    return Expected(total / spread, total * spread, basis)


def _steps(level: int, prompts: int, input_len: int, output_len: int) -> float:
    """Output tokens that are made one after another: waves of requests, times their length."""
    waves = max(1.0, prompts / min(level, prompts))
    return waves * (output_len + _INPUT_SHARE * input_len)
