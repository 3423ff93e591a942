"""A report's data as its templates and charts take them: figures with names, units and sources.

Every figure that was measured keeps the lines it comes from: ``<run>/<file>:<line>``, below the
folder of the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from remote.core.comparison import LATENCIES, METRICS, Comparison, MeasuredPoint, Row
from remote.core.report_data import ReportData, ReportRun
from remote.core.statistics import geometric_mean, interval_of_mean


@dataclass(frozen=True)
class Figure:
    """A metric at one level: the mean of its repeats."""

    level: int
    metric: str
    mean: float
    interval: tuple[float, float] | None  #: 95%, None for one repeat
    repeats: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """One bench of one run."""

    name: str
    run: str
    figures: Mapping[tuple[int, str], Figure]

    @property
    def levels(self) -> list[int]:
        return sorted({level for level, _ in self.figures})

    def of(self, metric: str) -> list[Figure]:
        """A metric's figures, by level."""
        return [
            self.figures[level, metric] for level in self.levels if (level, metric) in self.figures
        ]


@dataclass(frozen=True)
class Line:
    """One property over all runs."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def names(runs: Sequence[ReportRun]) -> dict[str, str]:
    """What each run is called: its profile, with its id where two have the same."""
    counts = Counter(run.profile for run in runs)
    return {
        run.id: run.profile if counts[run.profile] == 1 else f"{run.profile} ({run.id})"
        for run in runs
    }


def all_series(runs: Sequence[ReportRun]) -> list[Series]:
    """The benches with a valid point, by run and then as they were made."""
    called = names(runs)
    found = []
    for run in runs:
        benches = sorted({point.bench for point in run.points if point.valid})
        for bench in benches:
            name = called[run.id] + (f", bench {bench}" if len(benches) > 1 else "")
            points = [point for point in run.points if point.valid and point.bench == bench]
            figures = _figures(points)
            if figures:
                found.append(Series(name, run.id, figures))
    return found


def _figures(points: Sequence[MeasuredPoint]) -> dict[tuple[int, str], Figure]:
    found = {}
    for level in sorted({point.level for point in points}):
        for metric in METRICS:
            having = [
                point
                for point in points
                if point.level == level and 0 < point.metrics.get(metric, 0) < float("inf")
            ]
            if having:
                values = [point.metrics[metric] for point in having]
                found[level, metric] = Figure(
                    level,
                    metric,
                    geometric_mean(values),
                    interval_of_mean(values),
                    len(values),
                    tuple(point.origin for point in having),
                )
    return found


def environment(runs: Sequence[ReportRun]) -> list[Line]:
    """Every property of the runs' environments; a run that lacks one has an empty text."""
    keys = dict.fromkeys(key for run in runs for key in run.environment if key != "patches")
    lines = [Line("host", tuple(run.host for run in runs))]
    lines += [Line(key, tuple(_told(run.environment.get(key)) for run in runs)) for key in keys]
    lines.append(Line("patches", tuple(_patches(run) for run in runs)))
    return lines


def _patches(run: ReportRun) -> str:
    digests = run.environment.get("patches")
    known = digests if isinstance(digests, Mapping) else {}
    return ", ".join(
        f"{name} {str(known[name])[:12]}" if name in known else name for name in run.patches
    )


def _told(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        counts = Counter(str(each) for each in value)
        return ", ".join(f"{n} × {each}" if n > 1 else each for each, n in counts.items())
    return str(value)


def moment(at: float) -> str:
    """``2026-11-29 20:15 UTC``."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def number(value: float | None) -> str:
    """Three figures or more: ``1,520``, ``66.4``, ``0.952``."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 1
        else (f"{value:.3f}")
    )


def ratio(row: Row) -> str:
    """``0.952 (0.931–0.973)``."""
    if row.ratio is None:
        return "–"
    span = "" if row.low is None or row.high is None else f" ({row.low:.3f}–{row.high:.3f})"
    return f"{row.ratio:.3f}{span}"


def label(metric: str) -> str:
    """A metric with its unit: ``TTFT p99 (ms)``."""
    if metric in LATENCIES:
        what, how, _ = metric.split("_")
        return f"{what.upper()} {how} (ms)"
    return metric.replace("_", " ") + " (tokens/s)"


def findings(comparison: Comparison) -> list[str]:
    """The verdicts of a comparison, each in a line."""
    lines = []
    for row in comparison.rows:
        if row.verdict.value in ("better", "worse"):
            metric = label(row.metric).rpartition(" (")[0]
            lines.append(f"level {row.level}: {metric} {row.verdict.value}, ratio {ratio(row)}")
    lines += [f"not comparable: {each}" for each in comparison.unlike]
    if not comparison.unlike:
        lines += dict.fromkeys(row.reason for row in comparison.rows if row.deciding and row.reason)
    return lines


def as_document(data: ReportData) -> dict[str, Any]:
    """All of it for a program to read."""
    return {
        "title": data.title,
        "made_at": data.made_at,
        "runs": [_run(run) for run in data.runs],
        "comparisons": [each.as_dict() for each in data.comparisons],
        "qualities": [
            {"run": each.run, "source": each.source, **each.report.as_dict()}
            for each in data.qualities
        ],
    }


def _run(run: ReportRun) -> dict[str, Any]:
    fields = {
        name: getattr(run, name)
        for name in (
            *("id", "at", "host", "profile", "outcome", "note", "kind", "cause", "first_rank"),
            *("minutes_lost", "script", "source"),
        )
    }
    return {
        **fields,
        "phases": dict(run.phases),
        "environment": dict(run.environment),
        "patches": list(run.patches),
        "points": [
            {
                "bench": point.bench,
                "level": point.level,
                "repeat": point.repeat,
                "valid": point.valid,
                "reasons": list(point.reasons),
                "metrics": dict(point.metrics),
                "source": point.origin,
            }
            for point in run.points
        ],
        "figures": [
            asdict(figure) for series in all_series([run]) for figure in series.figures.values()
        ],
    }


def failures(runs: Iterable[ReportRun]) -> list[ReportRun]:
    """Those that failed, oldest first."""
    return sorted((run for run in runs if run.failed), key=lambda run: run.at)
