"""Whether two sets of repeats differ: ratios with intervals, and tests corrected for their number.

Everything is on the log scale, where a ratio is a difference and noise is a share of the figure.

The two sides are not paired by seed. Inputs of fixed lengths cost the same whatever their seed,
so a pair shares nothing but its number: pairing would halve the degrees of freedom for no gain.
Where a seed does matter, leaving it in the spread widens the interval and never narrows it.

The spread of one row is known badly from a few repeats. Rows of one table are measured alike, so a
row's variance is moderated by the others' (the empirical Bayes estimate of Smyth, 2004), as far as
they agree. It is never taken below what the row itself shows: a row that is noisier than the rest
keeps its noise. What remains unknown is the spread from one start of a server to the next: repeats
against one server don't hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

#: The chance that a table of two equal sides holds any verdict. Promised are 5 in 100; the rest is
#: for the variance being an estimate, most of all with three repeats.
FAMILY_ERROR = 0.04
#: A relative standard deviation below this is not believed: clocks and rounding are no better.
_LEAST_SD = 0.001
#: Degrees of freedom that a table needs before its rows tell of each other, and a row of its own.
_SHARED_DF = 36
_ROW_DF = 4
#: The others never weigh more than this many degrees of freedom in one row.
_MOST_PRIOR_DF = 16.0


@dataclass(frozen=True)
class Contrast:
    """How one figure of the candidate stands to the baseline's."""

    log_ratio: float  #: of the geometric means
    variance: float  #: of one repeat's logarithm
    df: float
    scale: float  #: variance of ``log_ratio`` in units of ``variance``: 1/n + 1/m

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def p(self) -> float:
        """The two-sided p-value of the ratio being 1."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.df, -abs(self.log_ratio) / self._error))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The ratio's confidence interval, not corrected for the number of rows."""
        from scipy.special import stdtrit

        reach = float(stdtrit(self.df, (1 + confidence) / 2)) * self._error
        return math.exp(self.log_ratio - reach), math.exp(self.log_ratio + reach)

    @property
    def _error(self) -> float:
        return math.sqrt(self.variance * self.scale)


def geometric_mean(values: Sequence[float]) -> float:
    """Of figures above zero."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def interval_of_mean(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """The confidence interval of the geometric mean; None for fewer than two figures."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    df = len(logs) - 1
    variance = max(math.fsum((each - mean) ** 2 for each in logs) / df, _LEAST_SD**2)
    reach = float(stdtrit(df, (1 + confidence) / 2)) * math.sqrt(variance / len(logs))
    return math.exp(mean - reach), math.exp(mean + reach)


def contrast(baseline: Sequence[float], candidate: Sequence[float]) -> Contrast:
    """The contrast of two sets of repeats, at least two figures above zero in each."""
    sides = [[math.log(value) for value in side] for side in (baseline, candidate)]
    means = [math.fsum(side) / len(side) for side in sides]
    df = sum(len(side) - 1 for side in sides)
    squares = math.fsum(
        (value - mean) ** 2 for side, mean in zip(sides, means, strict=True) for value in side
    )
    return Contrast(
        log_ratio=means[1] - means[0],
        variance=max(squares / df, _LEAST_SD**2),
        df=float(df),
        scale=sum(1 / len(side) for side in sides),
    )


def share_variance(rows: Sequence[Contrast]) -> list[Contrast]:
    """The rows of one table, each variance moderated by those of the others.

    Returned as they came where the table is too small to learn from.
    """
    whole_df = sum(row.df for row in rows)
    if whole_df < _SHARED_DF or len(rows) < 2:
        return list(rows)
    prior_df, prior = _prior(rows)
    return [_moderated(row, prior_df, prior, whole_df) for row in rows]


def _moderated(row: Contrast, prior_df: float, prior: float, whole_df: float) -> Contrast:
    if row.df < _ROW_DF:
        return row
    known = (prior_df * prior + row.df * row.variance) / (prior_df + row.df)
    return replace(row, variance=max(known, row.variance), df=min(prior_df + row.df, whole_df))


def _prior(rows: Sequence[Contrast]) -> tuple[float, float]:
    """Degrees of freedom and variance of what the rows have in common.

    Variances drawn from a scaled inverse chi-squared distribution have logarithms whose mean and
    spread are known; the spread beyond what sampling explains says how unlike the rows are.
    """
    from scipy.special import digamma, polygamma

    logs = [
        math.log(row.variance) - float(digamma(row.df / 2)) + math.log(row.df / 2) for row in rows
    ]
    mean = math.fsum(logs) / len(logs)
    spread = math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1)
    unexplained = spread - math.fsum(float(polygamma(1, row.df / 2)) for row in rows) / len(rows)
    if unexplained <= 0:
        whole_df = sum(row.df for row in rows)
        return _MOST_PRIOR_DF, math.fsum(row.variance * row.df for row in rows) / whole_df
    half_df = _inverse_trigamma(unexplained)
    prior = math.exp(mean + float(digamma(half_df)) - math.log(half_df))
    return min(2 * half_df, _MOST_PRIOR_DF), prior


def _inverse_trigamma(value: float) -> float:
    """Where trigamma is ``value``: Newton's method on its reciprocal, which is nearly straight."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-9 * x:
            break
    return x


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted so that any one below E errs in E of all tables (Holm, 1979)."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted
