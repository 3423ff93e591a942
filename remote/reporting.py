"""`inv report`: what was tried and measured, as one page and as Markdown; asks no host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote import comparing, config, experimenting, history, report
from remote.clock import Clock
from remote.comparing import Compared
from remote.config import Settings
from remote.core.experiment_plan import Experiment, Stage
from remote.core.report_data import QualityNote, ReportData, ReportRun
from remote.display import Display
from remote.errors import ConfigError
from remote.ledger import Ledger
from remote.session import Session

#: Runs of a report for which nothing was named.
_NEWEST = 20


def write(
    raw: Mapping[str, object],
    project: Path,
    display: Display,
    clock: Clock,
    *,
    runs: str = "",
    experiment: str = "",
    baseline: str = "",
    output: str = "",
) -> dict[str, Any]:
    """Write the report of some runs, of an experiment, or of the newest of these.

    Args:
        runs: ids, or beginnings of ids, between commas.
        experiment: its id, or ``last``.
        baseline: the run that the others are held against; for an experiment its own.
        output: the page's file; the Markdown lies beside it.

    Raises:
        ConfigError: there is nothing to report.
        ToolError: a file can't be written.
    """
    settings = config.load(raw, project)
    if runs and experiment:
        raise ConfigError("--runs and --experiment exclude each other")
    if experiment and baseline:
        raise ConfigError("an experiment has its own baseline; leave --baseline out")
    if experiment or not (runs or baseline or not experimenting.kept(settings.runs)):
        store = experimenting.find(settings.runs, experiment or "last")
        made = store.read()
        data = of_experiment(settings, made, clock.wall_s())
        page = Path(output) if output else store.folder / "report.html"
    else:
        data = _of_runs(settings, raw, project, runs, baseline, clock.wall_s())
        page = Path(output) if output else settings.runs / "report.html"
    return put(settings, display, data, page.expanduser())


def put(settings: Settings, display: Display, data: ReportData, page: Path) -> dict[str, Any]:
    """Write page and Markdown; where they are."""
    text = page.with_suffix(".md")
    if text == page:
        raise ConfigError(f"{page}: the page wants another ending than .md")
    report.write(page, report.html(data, settings.template_folders))
    report.write(text, report.markdown(data, settings.template_folders))
    display.good(f"report: {page}, and as Markdown {text}")
    return {"html": str(page), "markdown": str(text), "runs": [run.id for run in data.runs]}


def after_experiment(session: Session, made: Experiment, folder: Path) -> Mapping[str, Any]:
    """The report of an experiment that has just ended."""
    data = of_experiment(session.settings, made, session.clock.wall_s())
    return put(session.settings, session.display, data, folder / "report.html")


def of_experiment(settings: Settings, made: Experiment, now_s: float) -> ReportData:
    """All that an experiment came to, failures too."""
    started = [run for step in made.steps for run in step.runs]
    compared = experimenting.comparisons(settings.runs, made, 0.0)
    title = " against ".join(
        (", ".join(dict.fromkeys(s.name for s in made.steps[1:-1])), made.baseline.name)
    )
    over = sum(step.stage.over for step in made.steps)
    unfinished = "" if made.over else f" ({over} of {len(made.steps)} steps so far)"
    failed = sum(step.stage is Stage.FAILED for step in made.steps)
    failures = f", {failed} failed" if failed else ""
    return _data(
        settings, f"{title} on {made.host}{unfinished}{failures}", started, compared.values(), now_s
    )


def _of_runs(
    settings: Settings,
    raw: Mapping[str, object],
    project: Path,
    runs: str,
    baseline: str,
    now_s: float,
) -> ReportData:
    ledger = Ledger(settings.runs)
    words = [word.strip() for word in runs.split(",") if word.strip()]
    if words:
        chosen = [history.find(raw, project, word) for word in words]
    else:
        chosen = list(reversed(ledger.runs()[:_NEWEST]))
    if not chosen:
        raise ConfigError("nothing was started yet", hint="inv deploy PROFILE does")
    against = history.find(raw, project, baseline).id if baseline else ""
    compared = []
    for row in chosen:
        other = against or next(iter(ledger.baselines(row.host).values()), "")
        if other and other != row.id:
            with suppress(ConfigError):  # one of the two was not measured
                one = comparing.measured(settings.runs, other)
                compared.append(comparing.of(one, comparing.measured(settings.runs, row.id)))
    ids = [row.id for row in chosen]
    ids += [each.baseline for each in compared if each.baseline not in ids]
    hosts = ", ".join(dict.fromkeys(row.host for row in chosen))
    return _data(settings, f"{len(ids)} runs on {hosts}", dict.fromkeys(ids), compared, now_s)


def _data(
    settings: Settings,
    title: str,
    runs: Sequence[str] | Mapping[str, None],
    compared: Any,
    now_s: float,
) -> ReportData:
    found: list[Compared] = list(compared)
    return ReportData(
        title=title,
        made_at=now_s,
        runs=tuple(report_run(settings.runs, run) for run in runs if _known(settings.runs, run)),
        comparisons=tuple(each.speed for each in found),
        qualities=tuple(
            QualityNote(each.candidate, each.output, f"{each.candidate}/quality.json")
            for each in found
            if each.output is not None
        ),
    )


def _known(runs: Path, run: str) -> bool:
    """Whether anything is kept of it: a start may have been refused before it had a folder."""
    try:
        history.tell(runs, run)
    except ConfigError:
        return False
    return True


def report_run(runs: Path, run: str) -> ReportRun:
    """One run as a report shows it."""
    told = history.tell(runs, run)
    row = told.row
    environment = {name: value for name, value in row.fingerprint.items() if name != "patches"}
    patches = row.fingerprint.get("patches", {})
    points: tuple[Any, ...] = ()
    with suppress(ConfigError):
        points = comparing.measured(runs, run).points
    return ReportRun(
        id=row.id,
        at=row.at,
        host=row.host,
        profile=" ".join((row.profile, *row.sets)),
        outcome=row.outcome,
        note=row.note,
        kind=row.kind,
        cause=row.cause,
        first_rank=row.first_rank,
        minutes_lost=row.minutes_lost,
        phases={phase.label: seconds for phase, seconds in told.phases.items()},
        environment=environment,
        patches=tuple(f"{name} ({digest[:12]})" for name, digest in patches.items()),
        script=history.script_of(runs, row),
        points=points,
        source=row.id,
    )
