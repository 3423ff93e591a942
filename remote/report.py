"""One report as a page that opens offline, and as Markdown for a pull request.

What stands in it came out of logs and from other people. In the page everything is escaped, and
its own policy lets nothing be loaded or run; in Markdown nothing but the template marks up.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from remote.charts import draw
from remote.core import report_view as view
from remote.core.comparison import Verdict
from remote.core.report_data import ReportData
from remote.errors import ToolError
from remote.rendering import strict_environment

HTML = "report.html.j2"
MARKDOWN = "report.md.j2"


class _Marked(str):
    """Markdown that a filter has made."""


def html(data: ReportData, folders: Sequence[Path]) -> str:
    """The page.

    Args:
        folders: where the templates are, in order.
    """
    series = view.all_series(data.runs)
    charts = draw(data.runs, series, data.comparisons)
    document = json.dumps(_finite(view.as_document(data)), default=str, allow_nan=False)
    # Inside a script element nothing is escaped: what could end it is written as JSON may.
    for mark in "<>&":
        document = document.replace(mark, f"\\u{ord(mark):04x}")
    values = {"charts": charts, "document": document}
    return _render(HTML, data, series, folders, values, autoescape=True)


def markdown(data: ReportData, folders: Sequence[Path]) -> str:
    """The text for a pull request."""
    series = view.all_series(data.runs)
    text = _render(MARKDOWN, data, series, folders, {}, autoescape=False, finalize=_marked)
    return re.sub(r"\n{3,}", "\n\n", text)


def write(path: Path, text: str) -> None:
    """Put a report there in one step.

    Raises:
        ToolError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ToolError(f"{path} can't be written: {error.strerror}") from error


def _render(
    template: str,
    data: ReportData,
    series: Sequence[view.Series],
    folders: Sequence[Path],
    values: Mapping[str, Any],
    autoescape: bool,
    finalize: Callable[[object], str] | None = None,
) -> str:
    environment = strict_environment(folders, autoescape=autoescape, finalize=finalize)
    environment.filters.update(
        moment=view.moment,
        number=view.number,
        ratio=view.ratio,
        label=view.label,
        findings=view.findings,
        fenced=_fenced,
        tagless=_tagless,
    )
    return environment.get_template(template).render(
        data=data,
        names=view.names(data.runs),
        series=series,
        environment=view.environment(data.runs),
        failures=view.failures(data.runs),
        verdicts=Verdict,
        **values,
    )


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON has not."""
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _marked(value: object) -> str:
    """A value as it reads in a line of Markdown: no mark-up, no new line, no cell of its own."""
    if isinstance(value, _Marked):
        return value
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~!@$])", r"\\\1", text)


def _fenced(text: str, language: str = "") -> _Marked:
    """A block of code, its fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return _Marked(f"{fence}{language}\n{text.rstrip()}\n{fence}")


def _tagless(text: str) -> _Marked:
    """Text inside an element, where Markdown's own escapes would show."""
    return _Marked(escape(" ".join(text.split())))
