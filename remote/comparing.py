"""`inv compare` and `inv baseline`: one run's bench and answers against another's, without SSH."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote import bench_store, config, history
from remote.bench_store import LocalBench
from remote.clock import Clock
from remote.core import comparison, quality
from remote.core.bench_result import Point
from remote.core.comparison import Comparison, Floor, Row, Verdict
from remote.core.published import read_published
from remote.core.quality import AnswerSet, Quality
from remote.display import Display
from remote.errors import ConfigError, MeasurementInvalid, Regression, ToolError
from remote.ledger import Ledger

#: The name that a baseline has where nobody gives it one.
DEFAULT_NAME = "baseline"

_COLUMNS = ("level", "metric", "baseline", "candidate", "ratio", "95% interval", "p", "verdict")


@dataclass(frozen=True)
class Measured:
    """A run's bench as it is kept here."""

    run: str
    bench: LocalBench
    plan: Mapping[str, Any]
    points: tuple[Point, ...]
    answers: AnswerSet | None


@dataclass(frozen=True)
class Compared:
    """Speed and output of a candidate against a baseline."""

    baseline: str
    candidate: str
    speed: Comparison
    output: quality.Report | None  #: None where one of the two was not asked
    floor: Floor | None = None

    @property
    def failures(self) -> tuple[str, ...]:
        """Why this is a regression; empty where it is none."""
        found = []
        if self.output is not None and self.output.verdict is Quality.OUTSIDE:
            found += [f"{self.output.summary}: {reason}" for reason in self.output.reasons]
        if self.floor is not None:
            least = self.floor.least
            found += [
                f"level {row.level}: output throughput is {row.ratio:.3f} of the baseline's,"
                f" allowed is {least:g}"
                for row in self.floor.below
            ]
        return tuple(found)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Levels for which it is not known whether throughput is what it has to be."""
        unknown = self.floor.unknown if self.floor is not None else ()
        return tuple(f"level {row.level}: {row.reason}" for row in unknown)

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        return {
            "baseline": self.baseline,
            "candidate": self.candidate,
            "verdict": self.verdict,
            "speed": self.speed.as_dict(),
            "output": None if self.output is None else self.output.as_dict(),
            "failures": list(self.failures),
        }

    @property
    def verdict(self) -> str:
        """One word or two over both: output that differs is worse, whatever its speed."""
        if self.output is not None and self.output.verdict is Quality.OUTSIDE:
            return self.output.summary
        return self.speed.summary


def name_baseline(
    raw: Mapping[str, object], project: Path, display: Display, clock: Clock, run: str, name: str
) -> dict[str, Any]:
    """Make a run the one that others of its host are compared with.

    Raises:
        ConfigError: no such run, or nothing was measured on it.
    """
    runs = config.load(raw, project).runs
    row = history.find(raw, project, run)
    found = measured(runs, row.id)
    name = name or DEFAULT_NAME
    Ledger(runs).set_baseline(row.host, name, row.id, clock.wall_s())
    display.good(f"{row.id} is {row.host}'s {name}: {len(found.points)} points")
    return {"host": row.host, "name": name, "run": row.id}


def compare(
    raw: Mapping[str, object],
    project: Path,
    display: Display,
    run: str,
    *,
    baseline: str = "",
    fail_under: float = 0.0,
) -> dict[str, Any]:
    """Show a run against its baseline.

    Args:
        baseline: a run, the name of a baseline, or a CSV file with a published table.
        fail_under: the least ratio of output throughput; 0 allows any.

    Raises:
        ConfigError: nothing to compare.
        Regression: output differs, or throughput is below what is allowed.
        MeasurementInvalid: it is not known whether it is.
    """
    runs = config.load(raw, project).runs
    row = history.find(raw, project, run)
    candidate = measured(runs, row.id)
    if baseline.endswith(".csv"):
        compared = _against_published(Path(baseline).expanduser(), candidate, fail_under)
    else:
        named = Ledger(runs).baselines(row.host)
        if baseline and baseline not in named:
            other = history.find(raw, project, baseline).id
        else:
            other = _named(named, baseline, row.host)
        if other == row.id:
            raise ConfigError(
                f"{row.id} is the baseline itself",
                hint="name another with --baseline, or compare another run",
            )
        compared = of(measured(runs, other), candidate, fail_under)
    show(display, compared)
    if compared.failures:
        raise Regression(
            f"{row.id} falls behind {compared.baseline}",
            evidence=compared.failures,
            hint=f"inv diff {compared.baseline} {row.id} shows what differs",
            details=compared.as_dict(),
        )
    if compared.gaps:
        raise MeasurementInvalid(
            "not every level has a ratio to hold against --fail-under",
            evidence=compared.gaps,
            hint="a level without a ratio passes nothing: measure the levels that the baseline has,"
            " with the same lengths",
            details=compared.as_dict(),
        )
    return compared.as_dict()


def measured(runs: Path, run: str) -> Measured:
    """The newest bench of a run.

    Raises:
        ConfigError: there is none, or it has no rows.
    """
    for bench in reversed(bench_store.benches(runs, run)):
        points = bench.points()
        if points:
            return Measured(run, bench, bench.plan().as_dict(), points, answers(runs, run))
    raise ConfigError(
        f"nothing was measured on run {run}", hint=f"inv bench --run {run} measures it"
    )


def of(
    baseline: Measured,
    candidate: Measured,
    fail_under: float = 0.0,
    names: tuple[str, str] | None = None,
) -> Compared:
    """Two benches compared.

    Args:
        fail_under: see `compare`.
        names: what the two are called; by default their runs.
    """
    speed = comparison.compare(
        baseline.points,
        candidate.points,
        baseline.plan,
        candidate.plan,
        names or (baseline.run, candidate.run),
    )
    output = None
    if baseline.answers is not None and candidate.answers is not None:
        output = quality.judge(baseline.answers, candidate.answers)
    return Compared(baseline.run, candidate.run, speed, output, _floor(speed, fail_under))


def answers(runs: Path, run: str) -> AnswerSet | None:
    """What the run's server said to the fixed prompts; None where it was not asked.

    Raises:
        ToolError: the file is damaged.
    """
    path = runs / run / "quality.json"
    try:
        return AnswerSet.from_dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ToolError(
            f"{path} can't be read: {error}", hint="remove it; the next bench asks anew"
        ) from error


def _named(named: Mapping[str, str], wanted: str, host: str) -> str:
    """The run that is a host's baseline of that name, else the one named last.

    Raises:
        ConfigError: none was ever named.
    """
    if not named:
        raise ConfigError(
            f"{host} has no baseline yet",
            hint="inv baseline RUN names one; or: inv compare RUN --baseline OTHER",
        )
    return named[wanted] if wanted else next(iter(named.values()))


def _against_published(path: Path, candidate: Measured, fail_under: float) -> Compared:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--baseline: {path} can't be read: {error}") from error
    table = read_published(text, path.name)
    speed = comparison.compare_published(table, candidate.points, candidate.run)
    return Compared(path.name, candidate.run, speed, None, _floor(speed, fail_under))


def _floor(speed: Comparison, least: float) -> Floor | None:
    return comparison.floor(speed, least) if least else None


# --- showing it ---------------------------------------------------------------------------------


def show(display: Display, compared: Compared) -> None:
    """The table for a person: what the verdict rests on, and the means beside it."""
    speed = compared.speed
    display.say(f"baseline {compared.baseline}, candidate {compared.candidate}")
    display.table(_COLUMNS, map(_cells, filter(_shown, speed.rows)))
    for side in (speed.baseline, speed.candidate):
        for left_out in side.left_out:
            display.warn(f"{side.name}: left out: {left_out}")
    for reason in dict.fromkeys((*speed.unlike, *_reasons(speed))):
        display.warn(reason)
    for note in speed.notes:
        display.say(note)
    if compared.output is None:
        display.say("output: not compared (a bench asks the fixed prompts)")
    else:
        display.say(f"output: {compared.output.summary}")
        for reason in (*compared.output.reasons, *_distances(compared.output)):
            display.say(f"  {reason}")
        for reason in compared.output.notes:
            display.say(f"  {reason}")
    tell = display.good if not compared.failures else display.warn
    tell(f"verdict: {compared.verdict}")


def _distances(output: quality.Report) -> list[str]:
    """How far the answers are apart, and how far they may be."""
    found = output.distance
    if found is None or output.logprob_limit is None or output.parted_limit is None:
        return []
    return [
        f"log-probabilities {found.logprob:.3f} nats apart (allowed {output.logprob_limit:.3f}),"
        f" {found.parted:.0%} of tokens after a parting (allowed {output.parted_limit:.0%})"
    ]


def _shown(row: Row) -> bool:
    """On a screen what decides, and the rest of throughput; all of it is in ``--json``."""
    return row.deciding or row.metric == "total_throughput"


def _reasons(speed: Comparison) -> list[str]:
    """Why rows have no verdict, each reason once."""
    return [row.reason for row in speed.rows if row.deciding and row.reason and not speed.unlike]


def _cells(row: Row) -> list[str]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.3g}"

    interval = "" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
    return [
        str(row.level),
        row.metric,
        number(row.baseline),
        number(row.candidate),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        interval,
        "" if row.p is None else "<0.001" if row.p < 0.001 else f"{row.p:.3f}",
        row.verdict.value if row.verdict is not Verdict.NONE else "",
    ]
