"""A candidate's bench against a baseline's: per level and metric a ratio, and a verdict.

The verdict rests on output throughput and on p99 TTFT and TPOT, at every level, corrected for
their number over the whole table; all other figures have their intervals and no verdict. So an
interval that leaves out 1 is not yet a verdict: it is one of many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Protocol

from remote.core.published import Published
from remote.core.statistics import (
    FAMILY_ERROR,
    Contrast,
    contrast,
    geometric_mean,
    holm,
    share_variance,
)
from remote.errors import ConfigError

THROUGHPUTS = ("output_throughput", "total_throughput")
LATENCIES = tuple(
    f"{what}_{how}_ms" for what in ("ttft", "tpot", "itl", "e2e") for how in ("mean", "p50", "p99")
)
METRICS = THROUGHPUTS + LATENCIES
DECIDING = ("output_throughput", "ttft_p99_ms", "tpot_p99_ms")


class MeasuredPoint(Protocol):
    """What is read of a bench point."""

    @property
    def bench(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def valid(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def origin(self) -> str: ...


class Verdict(str, Enum):
    """What a row, or the table, says of the candidate."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    NOT_COMPARABLE = "not comparable"
    MIXED = "mixed"  #: of a table: better here, worse there
    NONE = ""  #: no verdict is passed; the reason says why, where it isn't a mere interval


@dataclass(frozen=True)
class Row:
    """One metric at one level; means are geometric, as the ratio's are."""

    level: int
    metric: str
    baseline: float | None = None
    candidate: float | None = None
    repeats: tuple[int, int] = (0, 0)  #: figures behind the two means
    ratio: float | None = None  #: candidate to baseline
    low: float | None = None  #: the ratio's 95% confidence interval
    high: float | None = None
    p: float | None = None  #: of a deciding row, corrected
    verdict: Verdict = Verdict.NONE
    reason: str = ""
    sources: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  #: ``<run>/<file>:<line>``

    @property
    def deciding(self) -> bool:
        return self.metric in DECIDING


@dataclass(frozen=True)
class Side:
    """Where the figures of one side come from."""

    name: str
    points: int = 0  #: that count
    left_out: tuple[str, ...] = ()  #: invalid points, each with its reasons


@dataclass(frozen=True)
class Comparison:
    """The whole table."""

    baseline: Side
    candidate: Side
    rows: tuple[Row, ...]
    verdict: Verdict
    unlike: tuple[str, ...] = ()  #: why the two can't be compared at all
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The verdict in words."""
        return self.verdict.value or "no verdict"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "summary": self.summary}


@dataclass(frozen=True)
class Floor:
    """What ``--fail-under`` finds: ratios of output throughput against the least allowed."""

    least: float
    lowest: Row | None  #: over all levels
    below: tuple[Row, ...]
    unknown: tuple[Row, ...]  #: levels of the baseline without a ratio: these pass nothing


def compare(
    baseline: Iterable[MeasuredPoint],
    candidate: Iterable[MeasuredPoint],
    baseline_plan: Mapping[str, Any],
    candidate_plan: Mapping[str, Any],
    names: tuple[str, str] = ("baseline", "candidate"),
) -> Comparison:
    """The table of two benches.

    Args:
        baseline_plan: the bench's plan; what only one of the two says is not compared.
        names: what the sides are called.
    """
    sides = (_Points(names[0], baseline), _Points(names[1], candidate))
    unlike = _unlike(baseline_plan, candidate_plan)
    notes = _unknown(baseline_plan, candidate_plan)
    rows: list[Row] = []
    contrasts: dict[int, Contrast] = {}
    for level in sorted(sides[0].levels | sides[1].levels):
        other_load = _other_load(level, baseline_plan, candidate_plan)
        for metric in METRICS:
            row = _measured(level, metric, sides)
            if row is None:
                continue
            refused = "; ".join(unlike) or _missing(level, metric, sides, row) or other_load
            if refused:
                row = replace(row, verdict=Verdict.NOT_COMPARABLE, reason=refused)
            else:
                row, found = _contrasted(row, sides)
                if found is not None:
                    contrasts[len(rows)] = found
            rows.append(row)
    _judge(rows, contrasts)
    if any(row.ratio is not None for row in rows):
        notes += ("repeats against one start don't hold the spread from start to start",)
    return Comparison(
        baseline=sides[0].side,
        candidate=sides[1].side,
        rows=tuple(rows),
        verdict=_overall(rows),
        unlike=unlike,
        notes=notes,
    )


def compare_published(
    published: Published, candidate: Iterable[MeasuredPoint], name: str = "candidate"
) -> Comparison:
    """The table against single figures: ratios, but neither intervals nor verdicts.

    An interval of the candidate's repeats alone would pass for the ratio's and be too narrow.
    """
    side = _Points(name, candidate)
    theirs = published.levels
    rows: list[Row] = []
    for level in sorted(set(theirs) | side.levels):
        for metric in METRICS:
            figure = theirs[level].figures.get(metric) if level in theirs else None
            ours = side.values(level, metric)
            if figure is None and not ours:
                continue
            mean = geometric_mean(ours) if ours else None
            missing = published.name if figure is None else name if mean is None else ""
            source = (f"{published.name}:{theirs[level].line}",) if figure is not None else ()
            rows.append(
                Row(
                    level,
                    metric,
                    baseline=figure,
                    candidate=mean,
                    repeats=(int(figure is not None), len(ours)),
                    ratio=mean / figure if mean is not None and figure is not None else None,
                    verdict=Verdict.NOT_COMPARABLE if missing else Verdict.NONE,
                    reason=f"not in {missing}" if missing else _PUBLISHED,
                    sources=(source, side.sources(level, metric)),
                )
            )
    return Comparison(
        baseline=Side(published.name, len(theirs)),
        candidate=side.side,
        rows=tuple(rows),
        verdict=Verdict.NONE,
        notes=("the model, lengths, GPUs and tokenizer behind a published table are not checked",),
    )


def floor(comparison: Comparison, least: float) -> Floor:
    """Output throughput at every level held against the least ratio allowed.

    Raises:
        ConfigError: ``least`` is no ratio above zero.
    """
    if not (math.isfinite(least) and least > 0):
        raise ConfigError(f"--fail-under wants a ratio above 0, such as 0.97, found {least}")
    rows = [row for row in comparison.rows if row.metric == "output_throughput"]
    known = [row for row in rows if row.ratio is not None]
    return Floor(
        least=least,
        lowest=min(known, key=lambda row: row.ratio or 0.0, default=None),
        below=tuple(row for row in known if row.ratio is not None and row.ratio < least),
        unknown=tuple(row for row in rows if row.ratio is None and row.baseline is not None),
    )


_PUBLISHED = "a published figure is one value, its spread unknown"


class _Points:
    """The points of one side; of a point measured anew the last counts."""

    def __init__(self, name: str, points: Iterable[MeasuredPoint]) -> None:
        last = {(point.bench, point.level, point.repeat): point for point in points}
        self._valid = [point for point in last.values() if point.valid]
        self._invalid = [point for point in last.values() if not point.valid]
        self.levels = {point.level for point in last.values()}
        self.side = Side(
            name,
            len(self._valid),
            tuple(
                f"level {point.level}, repeat {point.repeat}: "
                + ("; ".join(point.reasons) or "invalid")
                for point in self._invalid
            ),
        )

    def measured(self, level: int, metric: str) -> list[MeasuredPoint]:
        return [
            point
            for point in self._valid
            if point.level == level and _usable(point.metrics.get(metric))
        ]

    def values(self, level: int, metric: str) -> list[float]:
        return [point.metrics[metric] for point in self.measured(level, metric)]

    def sources(self, level: int, metric: str) -> tuple[str, ...]:
        return tuple(point.origin for point in self.measured(level, metric))

    def why_none(self, level: int, metric: str) -> str:
        """Why there is no figure, for a side that has none."""
        if level not in self.levels:
            return f"level {level} was not measured by {self.side.name}"
        if not any(point.level == level for point in self._valid):
            count = sum(point.level == level for point in self._invalid)
            return f"no valid point at level {level} in {self.side.name} ({count} invalid)"
        return f"{self.side.name} has no figure above zero for it"


def _usable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _measured(level: int, metric: str, sides: tuple[_Points, _Points]) -> Row | None:
    """The row with its means; None where neither side has the metric and it decides nothing."""
    values = [side.values(level, metric) for side in sides]
    if not any(values) and metric not in DECIDING:
        return None
    means = [geometric_mean(each) if each else None for each in values]
    return Row(
        level,
        metric,
        baseline=means[0],
        candidate=means[1],
        repeats=(len(values[0]), len(values[1])),
        sources=(sides[0].sources(level, metric), sides[1].sources(level, metric)),
    )


def _missing(level: int, metric: str, sides: tuple[_Points, _Points], row: Row) -> str:
    means = (row.baseline, row.candidate)
    return "; ".join(
        side.why_none(level, metric)
        for side, mean in zip(sides, means, strict=True)
        if mean is None
    )


def _contrasted(row: Row, sides: tuple[_Points, _Points]) -> tuple[Row, Contrast | None]:
    """The row with its ratio; the contrast where both sides were repeated."""
    assert row.baseline is not None and row.candidate is not None
    row = replace(row, ratio=row.candidate / row.baseline)
    single = [side.side.name for side, n in zip(sides, row.repeats, strict=True) if n < 2]
    if single:
        reason = f"one repeat in {' and '.join(single)}: no interval, no verdict"
        return replace(row, reason=reason), None
    values = [side.values(row.level, row.metric) for side in sides]
    return row, contrast(*values)


def _judge(rows: list[Row], contrasts: Mapping[int, Contrast]) -> None:
    """Put intervals into the rows, and verdicts into those that decide."""
    deciding = [index for index in contrasts if rows[index].deciding]
    moderated = share_variance([contrasts[index] for index in deciding])
    found = {**contrasts, **dict(zip(deciding, moderated, strict=True))}
    corrected = dict(zip(deciding, holm([found[index].p for index in deciding]), strict=True))
    for index, each in found.items():
        low, high = each.interval()
        row = replace(rows[index], low=low, high=high)
        if index in corrected:
            p = corrected[index]
            row = replace(row, p=p, verdict=_verdict(row.metric, each.log_ratio, p))
        rows[index] = row


def _verdict(metric: str, log_ratio: float, p: float) -> Verdict:
    if p >= FAMILY_ERROR:
        return Verdict.NO_DIFFERENCE
    more_is_better = metric in THROUGHPUTS
    return Verdict.BETTER if (log_ratio > 0) == more_is_better else Verdict.WORSE


def _overall(rows: Sequence[Row]) -> Verdict:
    found = {row.verdict for row in rows if row.deciding}
    if {Verdict.WORSE, Verdict.BETTER} <= found:
        return Verdict.MIXED
    for verdict in (Verdict.WORSE, Verdict.BETTER, Verdict.NO_DIFFERENCE):
        if verdict in found:
            return verdict
    return Verdict.NOT_COMPARABLE if found <= {Verdict.NOT_COMPARABLE} else Verdict.NONE


#: What has to be the same, by the plan's key, and what it is called.
_ALIKE = {
    "model": "model",
    "tokenizer": "tokenizer",
    "input_len": "input length",
    "output_len": "output length",
    "range_ratio": "range of lengths",
    "gpus": "number of GPUs",
    "flush_cache": "flushing of the cache",
    "warm_up": "warm-up",
}


def _unlike(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for key, name in _ALIKE.items():
        ours, theirs = baseline.get(key), candidate.get(key)
        if ours is None or theirs is None or _same(key, ours, theirs):
            continue
        found.append(f"unlike {name}: {ours} against {theirs}")
    return tuple(found)


def _same(key: str, ours: object, theirs: object) -> bool:
    """Equal; of paths the last part counts, for two hosts keep one model in different places."""
    if key in ("model", "tokenizer"):
        return _last_part(ours) == _last_part(theirs)
    return ours == theirs


def _last_part(path: object) -> str:
    return str(path).rstrip("/").rpartition("/")[2]


def _unknown(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    names = [
        name
        for key, name in _ALIKE.items()
        if baseline.get(key) is None or candidate.get(key) is None
    ]
    return (f"not known on both sides, so not compared: {', '.join(names)}",) if names else ()


def _other_load(level: int, baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Few prompts end in a long tail of idle slots: another number is another load."""
    counts = [_prompts(plan, level) for plan in (baseline, candidate)]
    if None in counts or counts[0] == counts[1]:
        return ""
    return f"unlike load at level {level}: {counts[0]} prompts against {counts[1]}"


def _prompts(plan: Mapping[str, Any], level: int) -> int | None:
    """Keys are text once a plan has been through JSON."""
    counts = plan.get("prompts")
    if not isinstance(counts, Mapping):
        return None
    count = counts.get(str(level), counts.get(level))
    return None if count is None else int(count)
