"""What a person sees: prose, tables, and on a terminal the progress of long work.

With ``--json`` prose goes to standard error and one JSON document to standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from remote.core.budgets import Budgets
from remote.core.heartbeat import Beat
from remote.core.log_events import Event, FatalLine, PhaseStarted, StartState
from remote.core.log_lines import printable_lines
from remote.core.phases import Phase
from remote.core.scrubbing import Scrubber
from remote.errors import ToolError
from remote.server import LinkNews, Verdict, fatal_words

if TYPE_CHECKING:
    # Imported where they are used: a task needs some of them, off a terminal hardly any.
    from rich.live import Live
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from remote.core.serving import Load

#: Columns of a table that goes to a file or a pipe.
_WIDTH_OFF_TERMINAL = 160


def _errors() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class Display:
    """One task's output.

    Args:
        as_json: data to standard output as JSON, prose to standard error.

    ``scrub`` takes secrets out of all that is printed: those that show by their name or shape, and
    in a session those that it knows.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.scrub: Callable[[str], str] = Scrubber().text
        self._prose = Console(stderr=as_json, highlight=False, soft_wrap=True, emoji=False)
        if not self._prose.is_terminal:
            self._prose.width = _WIDTH_OFF_TERMINAL
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._reported: ToolError | None = None
        self._goes_on = False

    def _shown(self, text: str) -> str:
        """Text as it may stand on a terminal: no secrets, no control characters, no markup."""
        return escape(printable_lines(self.scrub(text)))

    def say(self, text: str) -> None:
        self._prose.print(self._shown(text))

    def warn(self, text: str) -> None:
        """A warning: to standard error, where standard output may be read by a program."""
        # On a terminal through the same console, whose moving line it must not tear.
        console = self._prose if self._prose.is_terminal else _errors()
        console.print(f"[yellow]warning:[/] {self._shown(text)}")

    def good(self, text: str) -> None:
        self._prose.print(f"[green]{self._shown(text)}[/]")

    def judged(self, level: str, text: str) -> None:
        """A check's outcome: ``ok``, ``warning`` or ``failure`` in front of what was found."""
        colour = {"ok": "green", "warning": "yellow"}.get(level, "bold red")
        self._prose.print(f"[{colour}]{level:8}[/] {self._shown(text)}")

    def line(self, text: str, at_once: bool = False) -> None:
        """A line of data, as it is, to standard output; ``at_once`` also into a pipe."""
        sys.stdout.write(text + "\n")
        if at_once:
            sys.stdout.flush()

    def json(self, value: Mapping[str, Any] | Sequence[Any]) -> None:
        """The task's data, where ``--json`` asked for it."""
        if self.as_json:
            sys.stdout.write(json.dumps(_scrubbed(value, self.scrub), indent=1) + "\n")

    def script(self, text: str) -> None:
        self._highlighted(text, "bash")

    def diff(self, text: str) -> None:
        self._highlighted(text, "diff")

    def _highlighted(self, text: str, language: str) -> None:
        from rich.syntax import Syntax

        self._prose.print(Syntax(printable_lines(text), language, background_color="default"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(self._shown("" if cell is None else str(cell)) for cell in row))
        self._prose.print(table)

    def tell(self, text: str) -> None:
        """What is being done right now: a moving line on a terminal, otherwise a line."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=self._shown(text))
        elif not self._prose.is_terminal:
            self.say(text)

    @contextmanager
    def working(self, text: str, deadline_s: float | None = None) -> Iterator[None]:
        """Show that work goes on, on a terminal, for the block."""
        if not self._prose.is_terminal:
            self.say(text)
            yield
            return
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        limit = f" of {deadline_s:.0f} s" if deadline_s else ""
        columns = (
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn(escape(limit)),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
        )
        with Progress(*columns, console=self._prose, transient=True) as progress:
            self._progress = progress
            self._task = progress.add_task(escape(text), total=None, count="")
            try:
                yield
            finally:
                self._progress = self._task = None

    def bar(self, text: str, done: int, total: int) -> None:
        """Progress of known length within `working`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task,
                description=self._shown(text),
                completed=done,
                total=total or None,
                count=f"{done}/{total}" if total else "",
            )

    @property
    def on_terminal(self) -> bool:
        """Whether something can be shown in place."""
        return self._prose.is_terminal

    def live(self) -> Live:
        """A part of the terminal that is drawn anew again and again."""
        from rich.live import Live

        return Live(console=self._prose, auto_refresh=True, refresh_per_second=4, transient=True)

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; no where there is none."""
        if not sys.stdin.isatty():
            return False
        self._prose.print(f"{escape(question)} [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Errors told in the block don't end the task: its one document is yet to come."""
        self._goes_on = True
        try:
            yield
        finally:
            self._goes_on = False

    def error(self, error: ToolError) -> None:
        """One clear error: what, where, the evidence, the next step; the same one only once."""
        if error is self._reported:
            return
        self._reported = error
        if self.as_json and not self._goes_on:
            self.json({"error": error.as_dict()})
        where = f" on {error.host}" if error.host else ""
        console = _errors()
        console.print(f"[bold red]error{escape(where)}:[/] {self._shown(error.message)}")
        for line in error.evidence:
            console.print(f"  {self._shown(line)}")
        if error.hint:
            console.print(f"[bold]hint:[/] {self._shown(error.hint)}")


class StartWatch:
    """Shows a start: a line for each phase entered, and on a terminal where it stands now.

    Args:
        budgets: what earlier starts took, for how long the phase may still take.
    """

    def __init__(self, display: Display, budgets: Budgets | None = None) -> None:
        self._display = display
        self._budgets = budgets or Budgets()
        self._began = self._entered = time.monotonic()
        self._phase: Phase | None = None
        self._shown: set[Phase] = set()

    def __call__(self, event: Event | Beat | LinkNews, state: StartState) -> None:
        now = time.monotonic()
        if state.phase is not self._phase:
            self._phase, self._entered = state.phase, now
        if isinstance(event, LinkNews):
            self._display.warn(str(event))
        elif isinstance(event, FatalLine):
            # The verdict itself waits for the traceback behind this line.
            why = fatal_words(event)
            self._display.say(f"crashed: {why}; line {event.line}: {event.text}")
        elif isinstance(event, PhaseStarted) and event.phase not in self._shown:
            self._shown.add(event.phase)
            usual_s = self._budgets.expected_s(event.phase)
            usual = f" (usually {duration(usual_s)})" if usual_s and usual_s >= 1 else ""
            self._display.say(f"{now - self._began:6.1f} s  {event.phase.label}{usual}")
        self._bar(event, state, now - self._entered)

    def _bar(self, event: Event | Beat | LinkNews, state: StartState, spent_s: float) -> None:
        label, bar = state.phase.label, state.progress
        if bar is not None and state.slowest_rank:
            label += f" {state.slowest_rank}"
        left_s = self._budgets.left_s(state.phase, spent_s, bar)
        if left_s is not None:
            label += f", about {duration(left_s)} left"
        if isinstance(event, Beat) and event.builders:
            label += f" ({', '.join(event.builders)} at work)"
        done, total = (bar.done, bar.total) if bar is not None else (0, 0)
        self._display.bar(label, done, total)


class ServingView:
    """Shows a serving process: in place on a terminal, otherwise a line every few seconds."""

    _LINE_EVERY_S = 5.0

    def __init__(self, display: Display, run: str) -> None:
        self._display = display
        self._run = run
        self._live: Live | None = None
        self._line_at = time.monotonic() - self._LINE_EVERY_S

    def __enter__(self) -> ServingView:
        if self._display.on_terminal:
            self._live = self._display.live()
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, load: Load, beat: Beat | None) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._table(load, beat))
        elif now - self._line_at >= self._LINE_EVERY_S:
            self._line_at = now
            self._display.say(", ".join(f"{name} {value}" for name, value in self._cells(load)))

    def _cells(self, load: Load) -> list[tuple[str, str]]:
        doing = f"idle for {duration(load.idle_s)}" if load.idle_s >= 10 else "working"
        return [
            ("tokens/s", f"{load.tokens_per_s:.1f}"),
            ("running", str(load.running)),
            ("queued", str(load.queued)),
            ("token usage", f"{load.token_usage:.0%}"),
            ("server", doing),
        ]

    def _table(self, load: Load, beat: Beat | None) -> Table:
        from rich.table import Table

        table = Table(title=f"run {self._run}", box=None, show_header=False, title_justify="left")
        for name, value in self._cells(load):
            table.add_row(name, f"[bold]{escape(value)}[/]")
        if beat is not None:
            ranks = ", ".join(f"{name} {state}" for name, (_, state) in beat.ranks.items())
            table.add_row("ranks", escape(ranks))
            for number, (percent, mib) in enumerate(beat.gpus):
                table.add_row(f"GPU {number}", f"{percent} %, {mib} MiB")
        return table


def verdict_line(verdict: Verdict) -> str:
    """A verdict in one line."""
    words = verdict.outcome.value.replace("_", " ")
    return f"{words} after {verdict.elapsed_s:.1f} s: {verdict.reason}"


def _scrubbed(value: Any, scrub: Callable[[str], str]) -> Any:
    """Data with every text in it scrubbed; what JSON has no word for becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _scrubbed(each, scrub) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_scrubbed(each, scrub) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return scrub(str(value.value if isinstance(value, Enum) else value))


def moment(at: float) -> str:
    """A moment in seconds since the epoch, in this machine's time: ``2026-11-29 20:15``."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def duration(seconds: float | None) -> str:
    """Seconds as a person reads them: ``4 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds is None:
        return ""
    whole = int(seconds)
    for unit, size, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"
