"""What was tried and what came of it: the ledger's runs listed, shown, compared, exported.

Nothing here asks a host. Where the ledger has no row of a run, its folder still tells of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from remote import config
from remote.core import export as exporting
from remote.core.flags import flag_lines
from remote.core.phases import Phase
from remote.core.run_list import Asked, fitting, ordered
from remote.core.run_record import Ending, RunRow, headline, settled
from remote.core.shell import join
from remote.core.start_identity import differences, in_words, normal_script
from remote.core.unified_diff import between
from remote.display import Display, duration, moment
from remote.errors import ConfigError, ToolError
from remote.ledger import EventRow, Ledger

LAST = "last"
#: What a table of measured levels shows; the rest stands in the rows.
_SHOWN_METRICS = ("output_throughput", "total_throughput", "ttft_p99_ms", "tpot_p99_ms")
_KEPT = "launch.sh", "plan.json", "verdict.json", "diagnosis.json"


@dataclass(frozen=True)
class Told:
    """All that is kept of one run; ``kept_by`` says where its row comes from."""

    row: RunRow
    kept_by: str
    phases: Mapping[Phase, float]
    events: Sequence[EventRow]
    points: Sequence[Mapping[str, Any]]
    same: Sequence[str]
    files: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        return {
            "run": self.row.as_dict(),
            "kept_by": self.kept_by,
            "phases": {phase.value: seconds for phase, seconds in self.phases.items()},
            "events": [event.as_dict() for event in self.events],
            "points": list(self.points),
            "same_starts": list(self.same),
            "files": list(self.files),
        }


def runs(
    raw: Mapping[str, object], project: Path, display: Display, asked: Asked
) -> dict[str, Any]:
    """The starts that are asked for, with what those that failed have cost."""
    folder = config.load(raw, project).runs
    ledger = Ledger(folder)
    known = ledger.runs()
    found = fitting(known, asked)
    points = _by_run(ledger.points([row.id for row in found]))
    rows = ordered(found, points, asked.sort)
    shown = rows[: asked.limit or None]
    figures = {row.id: headline(points.get(row.id, ()), "output_throughput") for row in shown}
    display.table(
        ("run", "started", "host", "outcome", "took", "min lost", "tokens/s", "note"),
        [
            (
                row.id,
                moment(row.at),
                row.host,
                row.outcome.replace("_", " ") + (f": {row.kind}" if row.kind else ""),
                duration(row.seconds),
                "" if not row.minutes_lost else f"{row.minutes_lost:.1f}",
                _at_level(figures[row.id]),
                row.note,
            )
            for row in shown
        ],
    )
    lost = round(sum(row.minutes_lost or 0.0 for row in found), 1)
    failed = sum(row.failed for row in found)
    display.say(
        f"{len(found)} runs, {failed} failed, {lost:.1f} minutes lost"
        + (f"; {len(shown)} shown (--limit)" if len(shown) < len(found) else "")
    )
    _hint_at_folders(display, folder, ledger, {row.id for row in known})
    return {
        "runs": [
            {**row.as_dict(), "output_throughput": _as_dict(figures[row.id])} for row in shown
        ],
        "total": len(found),
        "failed": failed,
        "minutes_lost": lost,
    }


def _at_level(figure: tuple[float, int] | None) -> str:
    return "" if figure is None else f"{figure[0]:,.1f} at {figure[1]}"


def _as_dict(figure: tuple[float, int] | None) -> dict[str, float] | None:
    return None if figure is None else {"mean": round(figure[0], 3), "level": figure[1]}


def _by_run(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        found.setdefault(str(point["run"]), []).append(point)
    return found


def _hint_at_folders(display: Display, folder: Path, ledger: Ledger, known: set[str]) -> None:
    others = [run for run in _folders(folder) if run not in known]
    if others:
        why = "are not in it" if ledger.exists else "are all that is left: it was moved or deleted"
        display.say(
            f"{len(others)} folders in {folder} {why}; inv show RUN reads them, and inv status"
            " takes in what the host still knows"
        )
    elif not known:
        display.say("nothing was started yet; inv deploy PROFILE does")


def find(raw: Mapping[str, object], project: Path, word: str) -> RunRow:
    """The start that a user means: an id, the beginning of one, or ``last``.

    Raises:
        ConfigError: there is none, or there are several.
    """
    return _found(config.load(raw, project).runs, word)[0]


def _found(folder: Path, word: str) -> tuple[RunRow, str]:
    rows = {row.id: row for row in Ledger(folder).runs()}
    known = sorted({*rows, *_folders(folder)})
    if word == LAST:
        fits = sorted(rows, key=lambda run: rows[run].at)[-1:] or known[-1:]
    else:
        fits = [word] if word in known else [run for run in known if run.startswith(word)]
    if len(fits) != 1 or not word:
        several = "begins the ids of several runs" if fits else "is the id of no run known here"
        raise ConfigError(
            "no run was started yet" if word == LAST else f"{word!r} {several}",
            evidence=fits[-10:] or known[-10:],
            hint="inv runs lists them; the beginning of an id is enough, and last is the newest",
        )
    (run,) = fits
    if run in rows:
        return rows[run], "ledger"
    return _from_folder(folder / run), "folder"


def _folders(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/plan.json"))


def _from_folder(folder: Path) -> RunRow:
    """A start by what lies in its folder."""
    plan = _read(folder / "plan.json")
    run = str(plan.get("run", folder.name))
    row = RunRow.from_record(run, str(plan.get("host", "")), _time_of(run), plan, str(folder))
    verdict, diagnosis = _read(folder / "verdict.json"), _read(folder / "diagnosis.json")
    if verdict:
        phase = diagnosis.get("phase") or verdict.get("phase")
        ending = Ending(
            str(verdict["outcome"]),
            kind=str(diagnosis.get("kind") or ""),
            cause=str(diagnosis.get("cause") or ""),
            first_rank=str(diagnosis.get("first_rank") or ""),
            phase="" if verdict["outcome"] == "ready" else str(phase or ""),
            seconds=verdict.get("elapsed_s"),
        )
        row = settled(row, ending)
    return row


def _time_of(run: str) -> float:
    try:
        began = datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return began.timestamp()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def tell(runs: Path, word: str) -> Told:
    """All that is known of one start.

    Raises:
        ConfigError: as in `find`.
    """
    row, kept_by = _found(runs, word)
    ledger = Ledger(runs)
    folder = _folder_of(runs, row)
    return Told(
        row,
        kept_by,
        ledger.phases_of(row.id),
        ledger.events(row.id),
        ledger.points([row.id]),
        [each.id for each in ledger.same_starts(row.identity) if each.id != row.id],
        sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        ),
    )


def _folder_of(runs: Path, row: RunRow) -> Path:
    return Path(row.folder) if row.folder else runs / row.id


def show(raw: Mapping[str, object], project: Path, display: Display, word: str) -> dict[str, Any]:
    """Print all that is known of one start."""
    runs = config.load(raw, project).runs
    told = tell(runs, word)
    for line in _lines(told, _folder_of(runs, told.row)):
        display.say(line)
    if told.points:
        display.table(*_table(told.points))
    return told.as_dict()


def _lines(told: Told, folder: Path) -> Iterator[str]:
    row = told.row
    yield f"run {row.id}: profile {row.profile} on {row.host}, {row.ending}"
    yield f"  started {moment(row.at)}" + (f" by {row.who}" if row.who else "")
    if row.note:
        yield f"  note: {row.note}"
    if row.seconds is not None:
        where = f", in phase {row.phase}" if row.phase else ""
        rank = f", first on {row.first_rank}" if row.first_rank else ""
        yield f"  {row.outcome.replace('_', ' ')} after {duration(row.seconds)}{where}{rank}"
    if row.minutes_lost:
        points = f", {row.points_lost} bench points among it" if row.points_lost else ""
        yield f"  {row.minutes_lost:.1f} minutes lost{points}"
    if row.sets:
        yield f"  set: {join(row.sets)}"
    yield f"  flags: {join(row.argv)}"
    for name, value in row.fingerprint.items():
        if name == "patches":
            named = ", ".join(f"{patch} ({digest[:12]})" for patch, digest in value.items())
            yield f"  patches: {named or 'none'}"
        elif name == "gpus":
            yield f"  GPUs: {in_words(value)}"
        elif name != "venv":
            yield f"  {name}: {value}"
    if told.phases:
        spent = ", ".join(f"{phase.label} {s:.1f} s" for phase, s in told.phases.items())
        yield f"  phases: {spent}"
    for event in told.events:
        details = {name: value for name, value in event.details.items() if value not in ("", None)}
        yield f"  {moment(event.at)}  {event.what}: {json.dumps(details)}"
    if told.same:
        yield f"  exactly the same start: {', '.join(told.same)}"
    if told.kept_by == "folder":
        yield "  the ledger has no row of it: this is what its folder tells"
    if told.files:
        kept = [name for name in told.files if name in _KEPT or "evidence.tar" in name]
        yield f"  kept in {folder}: {', '.join(kept)} and {len(told.files) - len(kept)} more"


def _table(
    points: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    columns = ("level", "repeat", "valid", *_SHOWN_METRICS, "why not")
    return columns, [
        (
            point["level"],
            point["repeat"],
            "yes" if point["valid"] else "no",
            *(_figure(point["metrics"].get(name)) for name in _SHOWN_METRICS),
            "; ".join(point.get("reasons", ())),
        )
        for point in points
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def diff(
    raw: Mapping[str, object], project: Path, display: Display, was: str, now: str
) -> dict[str, Any]:
    """What two starts don't have in common; figures side by side, without a verdict."""
    settings = config.load(raw, project)
    before, after = _found(settings.runs, was)[0], _found(settings.runs, now)[0]
    removed, added = _flags(before, after)
    environment = [str(each) for each in differences(before.fingerprint, after.fingerprint)]
    texts = {row.id: script_of(settings.runs, row) for row in (before, after)}
    script = between(texts[before.id].encode(), texts[after.id].encode(), "launch.sh")
    measured = _side_by_side(Ledger(settings.runs), before.id, after.id)
    display.say(f"- {before.id}: {before.profile} on {before.host}, {before.ending}")
    display.say(f"+ {after.id}: {after.profile} on {after.host}, {after.ending}")
    for row, sign in ((before, "-"), (after, "+")):
        if row.note:
            display.say(f"{sign} note: {row.note}")
        if not row.fingerprint:
            display.warn(f"run {row.id} has no record of its environment: an older tool made it")
    for sign, flags in (("-", removed), ("+", added)):
        for flag in flags:
            display.say(f"{sign} flag: {flag}")
    for line in environment:
        display.say(f"  {line}")
    for row in (before, after):
        if not texts[row.id]:
            display.warn(f"the start script of run {row.id} is not kept here")
    if all(texts.values()) and script:
        display.diff(script)
    if measured:
        display.table(
            ("level", "in", "out", "metric", "-", "+", "+ / -"),
            [
                (*key, name, _figure(a), _figure(b), f"{b / a:.3f}" if a else "")
                for key, name, a, b in measured
            ],
        )
        display.say("whether that is a difference: inv compare")
    if not (removed or added or environment or script):
        display.good("the same flags, environment, patches and script")
    return {
        "runs": [before.id, after.id],
        "flags": {"removed": removed, "added": added},
        "environment": [
            each.as_dict() for each in differences(before.fingerprint, after.fingerprint)
        ],
        "script": script if all(texts.values()) else None,
        "points": [
            {"level": k[0], "input_len": k[1], "output_len": k[2], "metric": n, "was": a, "now": b}
            for k, n, a, b in measured
        ],
    }


def _flags(before: RunRow, after: RunRow) -> tuple[list[str], list[str]]:
    was, now = ([join(line) for line in flag_lines(row.argv)] for row in (before, after))
    return [line for line in was if line not in now], [line for line in now if line not in was]


def script_of(runs: Path, row: RunRow) -> str:
    """The run's start script without what differs from run to run; empty where it isn't kept."""
    try:
        text = (_folder_of(runs, row) / "launch.sh").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    return normal_script(text, row.id)


#: Level, input and output length of points that can stand side by side.
_Shape = tuple[int, int, int]


def _side_by_side(ledger: Ledger, was: str, now: str) -> list[tuple[_Shape, str, float, float]]:
    """Means over the valid repeats, where both have some."""
    means: dict[str, dict[tuple[_Shape, str], float]] = {}
    for run in (was, now):
        values: dict[tuple[_Shape, str], list[float]] = {}
        for point in ledger.points([run]):
            shape = (point["level"], point.get("input_len", 0), point.get("output_len", 0))
            for name in _SHOWN_METRICS if point["valid"] else ():
                if point["metrics"].get(name) is not None:
                    values.setdefault((shape, name), []).append(point["metrics"][name])
        means[run] = {key: sum(found) / len(found) for key, found in values.items()}
    both = sorted(
        (key for key in means[was] if key in means[now]),
        key=lambda key: (key[0], _SHOWN_METRICS.index(key[1])),
    )
    return [(*key, means[was][key], means[now][key]) for key in both]


def export(
    raw: Mapping[str, object], project: Path, display: Display, what: str, form: str, output: str
) -> dict[str, Any] | None:
    """Write all starts, or all bench points, to a file; without one, to standard output.

    Raises:
        ConfigError: no such kind or format, or the file can't be there.
        ToolError: it could not be written; what stood there before still does.
    """
    for option, value, known in (
        ("what", what, ("runs", "points")),
        ("format", form, exporting.FORMATS),
    ):
        if value not in known:
            raise ConfigError(f"--{option} is {' or '.join(known)}, not {value!r}")
    ledger = Ledger(config.load(raw, project).runs)
    rows = [row.as_dict() for row in ledger.runs()] if what == "runs" else ledger.points()
    if display.as_json and not output:
        return {"what": what, "rows": rows}
    text = exporting.text(rows, form)
    if not output:
        sys.stdout.write(text)
        return None
    path = Path(output).expanduser().absolute()
    _write(path, text)
    display.good(f"{len(rows)} {what} in {path}")
    return {"file": str(path), "rows": len(rows), "what": what, "format": form}


def _write(path: Path, text: str) -> None:
    """The whole file in one step, or none of it."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"{path} can't be written: {why}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ToolError(f"{path} could not be written: {error.strerror}") from error
