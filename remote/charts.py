"""A report's charts, drawn by Matplotlib as SVG that takes its colours and type from the page.

Matplotlib paints in stand-in colours; in the SVG they become CSS variables, so that one drawing
reads in light and in dark. Labels stay text, and what was measured has a title with its source.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Any

from remote.core.comparison import DECIDING, Comparison, Verdict
from remote.core.report_data import ReportRun
from remote.core.report_view import Figure, Series, failures, label, names, number, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

#: Series that are told apart by colour; more begin again with another mark.
COLOURS = 8
_MARKS = "osD^vPX*"
_HATCHES = ("", "//", "..")
#: Stand-ins, and the CSS variables that they become.
_INK, _MUTED, _GRID, _GOOD, _BAD = "#b00001", "#b00002", "#b00003", "#b00004", "#b00005"
_SERIES = [f"#a0000{index}" for index in range(1, COLOURS + 1)]
_VARIABLES = {
    _INK: "ink",
    _MUTED: "muted",
    _GRID: "grid",
    _GOOD: "good",
    _BAD: "bad",
    **{colour: f"series-{index}" for index, colour in enumerate(_SERIES, 1)},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 9,
    "font.family": "DejaVu Sans",
    # A name with dollar signs is a name, no formula.
    "text.parse_math": False,
    "text.color": _INK,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.titlesize": 9,
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "hatch.color": _INK,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
}
_WIDTH_IN = 8.0


@dataclass(frozen=True)
class Chart:
    """A drawing to stand in a page; ``alt`` says what it shows to who can't see it."""

    name: str
    title: str
    alt: str
    svg: str


def draw(
    runs: Sequence[ReportRun], series: Sequence[Series], comparisons: Sequence[Comparison]
) -> dict[str, list[Chart]]:
    """All charts that there are figures for, by the part of the report they belong to."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        ratios = [_ratios(index, each) for index, each in enumerate(comparisons)]
        return {
            "ratios": [chart for chart in ratios if chart],
            "curves": [chart for chart in (_curves(series),) if chart],
            "bars": [chart for chart in (_bars(series),) if chart],
            "phases": [chart for chart in (_phases(runs),) if chart],
            "timeline": [chart for chart in (_timeline(runs),) if chart],
        }


def _curves(series: Sequence[Series]) -> Chart | None:
    """Latency over throughput, a line a bench, its levels written at the points."""
    metrics = [
        metric
        for metric in ("ttft_p99_ms", "tpot_p99_ms")
        if any(each.of(metric) for each in series)
    ]
    if not metrics:
        return None
    drawing = _drawing(4.2)
    titles: dict[str, str] = {}
    handles: dict[str, Any] = {}
    for number_, metric in enumerate(metrics):
        axes = drawing.add_subplot(1, len(metrics), number_ + 1)
        shown: list[tuple[float, float]] = []
        labelled: set[int] = set()
        for index, each in enumerate(series):
            pairs = [
                (each.figures[figure.level, "output_throughput"], figure)
                for figure in each.of(metric)
                if (figure.level, "output_throughput") in each.figures
            ]
            xs, ys = [x.mean for x, _ in pairs], [y.mean for _, y in pairs]
            (handles[each.name],) = axes.plot(
                xs, ys, color=_colour(index), marker=_mark(index), markersize=5, linewidth=1.4
            )
            for x, y in pairs:
                gid = f"curve-{metric}-{index}-{y.level}"
                titles[gid] = f"{each.name}: {_told(x)}; {_told(y)}"
                axes.plot([x.mean], [y.mean], color=_colour(index), marker=_mark(index), gid=gid)
                if y.level not in labelled:
                    labelled.add(y.level)
                    axes.annotate(
                        str(y.level), (x.mean, y.mean), (4, 5), textcoords="offset points", size=8
                    )
            shown += zip(xs, ys, strict=True)
        _scales(axes, shown)
        axes.set_xlabel("output throughput (tokens/s)")
        axes.set_ylabel(label(metric))
    _legend(drawing, handles)
    what = " and ".join(label(metric) for metric in metrics)
    alt = f"{what} over output throughput, one point a concurrency level. " + " ".join(
        f"{each.name}: "
        + "; ".join(
            f"level {figure.level}, {number(figure.mean)} tokens/s"
            for figure in each.of("output_throughput")
        )
        + "."
        for each in series
    )
    return _chart("curves", "Latency over throughput", alt, drawing, titles)


def _bars(series: Sequence[Series]) -> Chart | None:
    """Output throughput, a panel a level, with the 95% interval of each mean."""
    levels = sorted({figure.level for each in series for figure in each.of("output_throughput")})
    if not levels:
        return None
    columns = min(4, len(levels))
    rows = -(-len(levels) // columns)
    drawing = _drawing(0.9 + 2.3 * rows)
    titles: dict[str, str] = {}
    handles: dict[str, Any] = {}
    told = []
    for place, level in enumerate(levels):
        axes = drawing.add_subplot(rows, columns, place + 1)
        for index, each in enumerate(series):
            figure = each.figures.get((level, "output_throughput"))
            if figure is None:
                continue
            low, high = figure.interval or (figure.mean, figure.mean)
            gid = f"bar-{level}-{index}"
            titles[gid] = f"{each.name}: {_told(figure)}"
            told.append(f"{each.name} at level {level}: {number(figure.mean)}")
            (handles[each.name],) = axes.bar(
                [index],
                [figure.mean],
                color=_colour(index),
                hatch=_HATCHES[index // COLOURS % len(_HATCHES)],
                gid=gid,
            )
            if figure.interval:
                axes.errorbar(
                    [index],
                    [figure.mean],
                    yerr=[[figure.mean - low], [high - figure.mean]],
                    color=_INK,
                    capsize=3,
                    linewidth=1,
                )
            axes.annotate(
                number(figure.mean),
                (index, high),
                (0, 3),
                textcoords="offset points",
                ha="center",
                size=8,
            )
        axes.set_title(f"level {level}")
        axes.set_xticks([])
        axes.set_xlim(-0.7, len(series) - 0.3)
        axes.margins(y=0.18)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="x", visible=False)
    drawing.supylabel("output throughput (tokens/s)", size=9)
    _legend(drawing, handles)
    alt = "Output throughput in tokens/s with 95% intervals. " + "; ".join(told) + "."
    return _chart("bars", "Output throughput at each level", alt, drawing, titles)


def _ratios(place: int, comparison: Comparison) -> Chart | None:
    """The deciding metrics' ratios with their intervals, around 1."""
    rows = [row for row in comparison.rows if row.deciding and row.ratio is not None]
    if not rows:
        return None
    drawing = _drawing(1.1 + 0.27 * len(rows))
    axes = drawing.add_subplot()
    titles = {}
    for index, row in enumerate(rows):
        assert row.ratio is not None
        colour = {Verdict.BETTER: _GOOD, Verdict.WORSE: _BAD}.get(row.verdict, _INK)
        gid = f"ratio-{place}-{index}"
        titles[gid] = (
            f"level {row.level}, {label(row.metric)}: {ratio(row)};"
            f" {', '.join([*row.sources[0], *row.sources[1]])}"
        )
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [index, index], color=colour, linewidth=1.6)
        mark = _MARKS[DECIDING.index(row.metric)]
        axes.plot([row.ratio], [index], color=colour, marker=mark, markersize=6, gid=gid)
        if row.verdict in (Verdict.BETTER, Verdict.WORSE):
            axes.annotate(
                row.verdict.value,
                (row.high or row.ratio, index),
                (6, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                size=8,
            )
    axes.axvline(1, color=_MUTED, linewidth=1)
    axes.set_yticks(
        range(len(rows)),
        [f"level {row.level}, {label(row.metric).rpartition(' (')[0]}" for row in rows],
    )
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"ratio of {comparison.candidate.name} to {comparison.baseline.name}")
    alt = "Ratios with 95% intervals. " + "; ".join(
        f"level {row.level}, {label(row.metric)}: {ratio(row)} {row.verdict.value}".strip()
        for row in rows
    )
    title = f"{comparison.candidate.name} against {comparison.baseline.name}"
    return _chart(f"ratios-{place}", title, alt, drawing, titles)


def _phases(runs: Sequence[ReportRun]) -> Chart | None:
    """What the phases of each start took."""
    timed = [run for run in runs if run.phases]
    if not timed:
        return None
    called = names(runs)
    phases = list(dict.fromkeys(phase for run in timed for phase in run.phases))
    drawing = _drawing(1.3 + 0.34 * len(timed))
    axes = drawing.add_subplot()
    titles = {}
    handles: dict[str, Any] = {}
    for row, run in enumerate(timed):
        left = 0.0
        for phase, seconds in run.phases.items():
            index = phases.index(phase)
            gid = f"phase-{row}-{index}"
            titles[gid] = f"{called[run.id]}: {phase} {seconds:.1f} s; {run.source}"
            (handles[phase],) = axes.barh(
                [row],
                [seconds],
                left=left,
                height=0.62,
                color=_colour(index),
                hatch=_HATCHES[index // COLOURS % len(_HATCHES)],
                gid=gid,
            )
            left += seconds
        axes.annotate(
            f"{left:.1f} s" + ("" if not run.failed else f", {run.outcome}"),
            (left, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    axes.set_yticks(range(len(timed)), [_short(called[run.id]) for run in timed])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds")
    _legend(drawing, handles)
    alt = "Seconds of each start. " + "; ".join(
        f"{called[run.id]}: {sum(run.phases.values()):.1f} s" for run in timed
    )
    return _chart("phases", "Phases of the starts", alt, drawing, titles)


def _timeline(runs: Sequence[ReportRun]) -> Chart | None:
    """Every start as it happened, the failed ones with their kind; none where nothing failed."""
    failed = failures(runs)
    if not failed:
        return None
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    rows = list(dict.fromkeys(run.profile for run in runs))
    drawing = _drawing(1.1 + 0.42 * len(rows))
    axes = drawing.add_subplot()
    titles = {}
    for index, run in enumerate(sorted(runs, key=lambda run: run.at)):
        when: Any = datetime.fromtimestamp(run.at, timezone.utc)
        gid = f"start-{index}"
        titles[gid] = f"{run.id}: {run.outcome} {run.kind} {run.cause}"
        colour, mark = (_BAD, "X") if run.failed else (_GOOD, "o")
        row = rows.index(run.profile)
        axes.plot([when], [row], color=colour, marker=mark, markersize=8, gid=gid)
        if run.failed:
            axes.annotate(
                _short(run.kind or run.outcome),
                (when, row),
                (7, 0),
                textcoords="offset points",
                va="center",
                size=8,
            )
    axes.set_yticks(range(len(rows)), [_short(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.14)
    locator = AutoDateLocator(maxticks=7, tz=timezone.utc)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=timezone.utc))
    axes.set_xlabel("time (UTC)")
    alt = f"{len(failed)} of {len(runs)} starts failed: " + "; ".join(
        f"{run.id} {run.outcome} {run.kind}".strip() for run in failed
    )
    return _chart("timeline", "Starts and failures", alt, drawing, titles)


def _drawing(height_in: float) -> Drawing:
    from matplotlib.figure import Figure as New

    return New(figsize=(_WIDTH_IN, height_in), layout="constrained")


def _colour(index: int) -> str:
    return _SERIES[index % COLOURS]


def _mark(index: int) -> str:
    return _MARKS[(index + index // COLOURS) % len(_MARKS)]


def _short(text: str) -> str:
    return text if len(text) <= 44 else f"{text[:20]}…{text[-22:]}"


def _told(figure: Figure) -> str:
    return (
        f"level {figure.level}, {label(figure.metric)}: {number(figure.mean)};"
        f" {', '.join(figure.sources)}"
    )


def _scales(axes: Axes, shown: Sequence[tuple[float, float]]) -> None:
    """Logarithmic where the figures span more than a factor of twenty; ticks in plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for values, set_scale, axis in (
        ([x for x, _ in shown], axes.set_xscale, axes.xaxis),
        ([y for _, y in shown], axes.set_yscale, axes.yaxis),
    ):
        if values and max(values) > 20 * min(values):
            wide = max(values) > 1000 * min(values)
            set_scale("log")
            axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.margins(0.12)


def _legend(drawing: Drawing, handles: Mapping[str, Any]) -> None:
    drawing.legend(
        list(handles.values()),
        [_short(name) for name in handles],
        loc="outside lower center",
        ncols=max(1, min(4, len(handles), 100 // max(map(len, handles), default=1))),
    )


def _chart(name: str, title: str, alt: str, drawing: Drawing, titles: Mapping[str, str]) -> Chart:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    FigureCanvasSVG(drawing).print_svg(out, metadata={"Date": None})
    return Chart(name, title, alt, _fitted(out.getvalue(), name, alt, titles))


def _fitted(svg: str, name: str, alt: str, titles: Mapping[str, str]) -> str:
    """Matplotlib's file as an element of a page: ids of its own, the page's colours and type."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    # Patterns and clips are referred to; two drawings in one page must not share them.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'url\(#|xlink:href="#', lambda found: f"{found[0]}{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font: \1px var(--type)", svg)
    for gid, title in titles.items():
        mark = f'<g id="{name}-{gid}">'
        svg = svg.replace(mark, f"{mark}<title>{escape(title)}</title>")
    return re.sub(
        r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>",
        lambda found: (
            f'<svg role="img" aria-label="{escape(alt)}" viewBox="{found[1]}"'
            ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        ),
        svg,
        count=1,
    )
