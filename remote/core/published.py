"""A table of figures that somebody else measured, as CSV: one row a concurrency level."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remote.errors import ConfigError

_LEVEL = frozenset({"level", "concurrency", "max_concurrency", "batch", "batch_size", "users"})
_LATENCY = {
    "ttft": ("ttft", "time_to_first_token"),
    "tpot": ("tpot", "time_per_output_token"),
    "itl": ("itl", "inter_token_latency"),
    "e2e": ("e2e", "e2el", "end_to_end", "e2e_latency"),
}
_STATISTIC = {
    "mean": ("mean", "avg", "average"),
    "p50": ("p50", "median"),
    "p99": ("p99", "99th"),
}
_ABSENT = frozenset({"", "-", "–", "—", "n/a", "na", "nan", "none", "null"})
_THOUSANDS = re.compile(r"\d{1,3}([,' _\u00a0\u202f]\d{3})+(\.\d+)?\Z")


@dataclass(frozen=True)
class PublishedLevel:
    """The figures at one level, by metric: tokens/s and ms."""

    line: int  #: of the file, from 1
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Published:
    """A whole table."""

    name: str
    levels: Mapping[int, PublishedLevel]
    ignored: tuple[str, ...] = ()  #: columns that name no metric


def read_published(text: str, name: str) -> Published:
    """The table in a CSV file.

    Separated by commas, semicolons or tabs; ``1,520`` is a number where it is quoted. Headers are
    read with goodwill: ``Output tok/s``, ``P99 TTFT (ms)``, ``median_itl_ms``.

    Args:
        name: of the file, for messages and sources.

    Raises:
        ConfigError: no level or no metric among the headers, or a row that can't be read, with
            its line.
    """
    text = text.lstrip("\ufeff")
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(",;\t", key=re.sub(r'"[^"]*"', "", first).count)
    lines = csv.reader(io.StringIO(text), delimiter=separator)
    columns: list[tuple[str, float] | None] | None = None
    ignored: tuple[str, ...] = ()
    levels: dict[int, PublishedLevel] = {}
    problems: list[str] = []
    try:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns, ignored = _headers(cells, name)
                continue
            try:
                level, figures = _row(cells, columns)
                if level in levels:
                    raise ValueError(f"level {level} again, as in line {levels[level].line}")
                levels[level] = PublishedLevel(lines.line_num, figures)
            except ValueError as wrong:
                problems.append(f"line {lines.line_num}: {wrong}")
    except csv.Error as wrong:
        problems.append(f"line {lines.line_num}: {wrong}")
    if problems:
        raise ConfigError(f"{name} can't be read", evidence=problems)
    if not levels:
        raise ConfigError(f"{name} holds no figures", hint="one row a level, below the headers")
    return Published(name, levels, ignored)


def _headers(
    cells: Sequence[str], name: str
) -> tuple[list[tuple[str, float] | None], tuple[str, ...]]:
    """What each column holds: a metric (or ``level``) and the factor to its unit."""
    columns = [_column(cell) for cell in cells]
    found = [column[0] for column in columns if column is not None]
    evidence = [f"headers: {', '.join(cell.strip() for cell in cells)}"]
    if "level" not in found or len(found) < 2:
        what = "level" if "level" not in found else "metric"
        raise ConfigError(
            f"{name} has no column for the {what}",
            evidence=evidence,
            hint="name columns concurrency, output_throughput, total_throughput, ttft_p99_ms, …",
        )
    twice = sorted({metric for metric in found if found.count(metric) > 1})
    if twice:
        raise ConfigError(f"{name} has two columns for {', '.join(twice)}", evidence=evidence)
    pairs = zip(cells, columns, strict=True)
    return columns, tuple(cell.strip() for cell, column in pairs if column is None and cell.strip())


def _column(header: str) -> tuple[str, float] | None:
    word = re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_")
    if word in _LEVEL:
        return "level", 1.0
    parts = word.split("_")
    for metric, names in _LATENCY.items():
        if any(f"_{each}_" in f"_{word}_" for each in names):
            statistic = next(
                (key for key, said in _STATISTIC.items() if any(each in parts for each in said)),
                None,
            )
            if statistic is None:
                return None
            in_seconds = parts[-1] in ("s", "sec", "seconds")
            return f"{metric}_{statistic}_ms", 1000.0 if in_seconds else 1.0
    if {"throughput", "tok", "toks", "tokens", "tps"} & set(parts):
        for kind in ("output", "total"):
            if kind in parts and "input" not in parts:
                return f"{kind}_throughput", 1.0
    return None


def _row(
    cells: Sequence[str], columns: Sequence[tuple[str, float] | None]
) -> tuple[int, dict[str, float]]:
    """Level and figures of one row.

    Raises:
        ValueError: what is wrong with it.
    """
    if len(cells) > len(columns) and any(cell.strip() for cell in cells[len(columns) :]):
        raise ValueError(
            f"{len(cells)} cells under {len(columns)} headers (quote numbers such as 1,520)"
        )
    level: int | None = None
    figures: dict[str, float] = {}
    for cell, column in zip(cells, columns, strict=False):
        if column is None or cell.strip().lower() in _ABSENT:
            continue
        metric, factor = column
        value = _number(cell, metric)
        if metric != "level":
            figures[metric] = value * factor
        elif value != int(value):
            raise ValueError(f"level: wanted a whole number, found {cell.strip()!r}")
        else:
            level = int(value)
    if level is None:
        raise ValueError("no level")
    return level, figures


def _number(cell: str, metric: str) -> float:
    text = cell.strip()
    if _THOUSANDS.match(text):
        text = re.sub(r"[,' _\u00a0\u202f]", "", text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{metric}: wanted a number above 0, found {cell.strip()!r}")
    return value
