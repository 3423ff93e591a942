"""`inv experiment`: deploy, bench, compare and take back, one profile after another.

The baseline goes first and once more last. What each step came to is written down as it happens,
so that the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from remote import (
    bench_store,
    benching,
    comparing,
    diagnosing,
    experiment,
    patch_work,
    planning,
    stopping,
)
from remote.benching import BenchOptions
from remote.comparing import Compared
from remote.core import experiment_plan
from remote.core.bench_plan import Asked
from remote.core.bench_result import Point
from remote.core.experiment_plan import Experiment, Role, Stage, Step
from remote.core.ids import DATED, dated_id
from remote.core.statistics import geometric_mean
from remote.display import Display
from remote.errors import (
    ConfigError,
    Locked,
    MeasurementInvalid,
    PreflightFailed,
    Regression,
    SSHError,
    ToolError,
)
from remote.private_file import write_whole
from remote.profile import require_known
from remote.session import Session

_FOLDER = "experiments"
_COLUMNS = (
    "step",
    "run",
    "outcome",
    "points",
    "output tok/s by level",
    "against baseline",
    "output",
)


@dataclass(frozen=True)
class ExperimentOptions:
    """What `inv experiment` was told.

    Attributes:
        fail_under: the least ratio of output throughput of a candidate; 0 allows any.
        anew: begin again although the same was begun before and not ended.
        questions: a file of questions with answers, asked beside the fixed prompts.
    """

    sweeps: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)
    note: str = ""
    fail_under: float = 0.0
    anew: bool = False
    bundle: bool = True
    questions: Path | None = None


class Kept:
    """The folder of one experiment: ``runs/experiments/<id>/``."""

    def __init__(self, runs: Path, name: str) -> None:
        self.folder = runs / _FOLDER / name

    def read(self) -> Experiment:
        """How far it is.

        Raises:
            ToolError: its file is missing or damaged.
        """
        path = self.folder / "experiment.json"
        try:
            return Experiment.from_dict(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path} can't be read: {error}", hint="--anew begins again") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """One client at a time works on it.

        Raises:
            Locked: another one does.
        """
        fd = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Locked(
                    f"experiment {self.folder.name} is being worked on by another task here",
                    hint="let it end; or begin one of its own with --anew",
                ) from error
            yield
        finally:
            os.close(fd)

    def write(self, made: Experiment) -> None:
        """Write down how far it is, in one step."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self.folder / "experiment.json", json.dumps(made.as_dict(), indent=1).encode())


def kept(runs: Path) -> list[Kept]:
    """The experiments here, oldest first."""
    folders = sorted(path for path in (runs / _FOLDER).glob("*") if DATED.match(path.name))
    return [Kept(runs, path.name) for path in folders if (path / "experiment.json").exists()]


def find(runs: Path, word: str) -> Kept:
    """The experiment that a user means: an id, the beginning of one, or ``last``.

    Raises:
        ConfigError: there is none, or there are several.
    """
    known = kept(runs)
    fits = known[-1:] if word == "last" else [e for e in known if e.folder.name.startswith(word)]
    if len(fits) != 1:
        raise ConfigError(
            f"{word!r} is the id of no experiment here" if not fits else f"{word!r} fits several",
            evidence=[each.folder.name for each in (fits or known)[-10:]],
            hint="inv experiment baseline,piecewise makes one",
        )
    return fits[0]


def checked(
    raw: Mapping[str, object], project: Path, profiles: str, sweeps: Sequence[str]
) -> tuple[Step, ...]:
    """The steps that were asked for, in profiles that there are.

    Raises:
        ConfigError: what was typed gives no experiment.
    """
    steps = experiment_plan.steps(profiles, sweeps)
    for name in dict.fromkeys(step.profile for step in steps):
        require_known(raw, project, name)
    return steps


#: Makes of an experiment that has ended what it is to leave; told with the rest.
Finish = Callable[[Session, Experiment, Path], Mapping[str, Any]]


def run_experiment(
    session: Session, steps: tuple[Step, ...], options: ExperimentOptions, finish: Finish
) -> dict[str, Any]:
    """Carry an experiment out, or what is missing of it.

    Args:
        finish: given the experiment and its folder, before anything is refused.

    Raises:
        Regression: a candidate's output differs, or it is slower than ``fail_under`` allows.
        MeasurementInvalid: points are invalid.
        SSHError, Locked, KeyboardInterrupt: it stopped; the same command goes on.
    """
    store = _begun(session, steps, options)
    with store.held():
        made = store.read()
        if not any(step.runs for step in made.steps):
            _check_plans(session, made)
        work = _Work(session, store, made, options)
        try:
            for number, step in enumerate(made.steps):
                if not step.stage.over:
                    work.on(number)
        except (SSHError, Locked, KeyboardInterrupt):
            session.display.say(
                f"experiment {made.id} is not done; the same command goes on with it"
            )
            raise
        return work.concluded(finish)


def _check_plans(session: Session, made: Experiment) -> None:
    """Plan every start before the first is made: a wrong setting is told now, not in an hour.

    Raises:
        ConfigError, PreflightFailed: a step can't be started as it is; nothing was touched.
    """
    settings, folders = session.host_settings, session.folders
    with session.display.working("planning every start"):
        for profile, sets in dict.fromkeys((step.profile, step.sets) for step in made.steps):
            try:
                wanted = planning.wish(settings, folders, profile, sets, planning.PatchChoice())
                session.host.ahead(planning.reading(settings, wanted))
                planning.plan(
                    session.host, settings, folders, wanted, session.clock, session.display.tell
                )
            except (ConfigError, PreflightFailed) as error:
                error.message = f"{' '.join((profile, *sets))}: {error.message}"
                raise


def _begun(session: Session, steps: tuple[Step, ...], options: ExperimentOptions) -> Kept:
    """The unfinished experiment in which the same was asked for, else a new one."""
    runs, display = session.settings.runs, session.display
    now_s = session.clock.wall_s()
    made = Experiment(
        id=dated_id(now_s),
        host=session.host_settings.name,
        steps=steps,
        matrix={name: value for name, value in vars(options.asked).items() if value},
        made_at=now_s,
        note=session.scrubber.text(options.note),
    )
    for each in reversed([] if options.anew else kept(runs)):
        with suppress(ToolError):
            earlier = each.read()
            if earlier.same_as(made) and not earlier.over:
                over = sum(step.stage.over for step in earlier.steps)
                display.say(
                    f"going on with experiment {earlier.id}: {over} of {len(steps)} steps are done"
                )
                return each
    store = Kept(runs, made.id)
    store.write(made)
    names = ", ".join(step.name for step in steps)
    display.say(f"experiment {made.id}: {len(steps)} steps: {names}")
    return store


class _Work:
    """One experiment as it is worked on."""

    def __init__(
        self, session: Session, store: Kept, made: Experiment, options: ExperimentOptions
    ) -> None:
        self._session = session
        self._store = store
        self._made = made
        self._options = options

    def on(self, number: int) -> None:
        """Take one step from where it is to its end."""
        display = self._session.display
        step = self._made.steps[number]
        display.say(f"step {number + 1} of {len(self._made.steps)}: {step.name}")
        note = self._noted(number)
        try:
            if step.stage is not Stage.MEASURED:
                step = self._measured(step, note)
        except (SSHError, Locked):
            raise
        except ToolError as error:  # a row with its diagnosis, and not the end
            display.error(error)
            told = self._session.scrubber
            why = {**error.as_dict(), "message": told.text(error.message)}
            step = replace(self._made.steps[number], stage=Stage.FAILED, error=why)
            note(step)
            self._clear(step)
            return
        self._clear(step)
        note(replace(step, stage=Stage.DONE))

    def _noted(self, number: int) -> Callable[[Step], None]:
        def note(step: Step) -> None:
            self._made = self._made.with_step(number, step)
            self._store.write(self._made)

        return note

    def _measured(self, step: Step, note: Callable[[Step], None]) -> Step:
        step = self._serving(step, note)
        note(step)
        session = self._session
        begun = self._bench_of(step)
        if begun is not None:
            begun.goes_on_with(step.run)
        options = BenchOptions(
            asked=Asked() if begun else self._options.asked,
            resume=begun is not None,
            note=self._made.note,
            questions=self._options.questions,
            bundle=self._options.bundle,
        )
        told = benching.run_bench(session, step.run, options, session.record.point)
        step = replace(step, bench=str(told["bench"]), stage=Stage.MEASURED)
        bench = self._bench_of(step)
        for run in bench.servers() if bench is not None else ():
            step = replace(step.started(run), stage=Stage.MEASURED)
        note(step)
        diagnosing.pull(session, step.run)
        return step

    def _serving(self, step: Step, note: Callable[[Step], None]) -> Step:
        """The step with a run that serves: the one it has, or a fresh start."""
        session = self._session
        if step.run:
            with suppress(ConfigError):  # it was planned, and never got to the host
                found = experiment.pick_run(session, step.run)
                if found.state == "starting":
                    experiment.wait(session, step.run, None, self._options.bundle)
                    return step
                if found.state == "ready":
                    return step
        options = experiment.DeployOptions(
            sets=step.sets,
            restart=True,
            bundle=self._options.bundle,
            note=self._made.note,
            expects=lambda plan: note(step.started(plan.run)),
        )
        told = experiment.deploy_profile(session, step.profile, options)
        return step.started(str(told["run"]))

    def _bench_of(self, step: Step) -> bench_store.LocalBench | None:
        """The newest bench that was begun for the step."""
        runs = self._session.settings.runs
        return max(_benches(runs, step), key=lambda each: each.bench, default=None)

    def _clear(self, step: Step) -> None:
        """Stop the server and take the patches back: the next step begins where this one did."""
        session = self._session
        with suppress(ConfigError):
            stopping.stop(session, step.run or None)
        patch_work.rollback(session, None)

    # --- the end --------------------------------------------------------------------------------

    def concluded(self, finish: Finish) -> dict[str, Any]:
        """Compare, show, and say what is wrong.

        Raises:
            Regression, MeasurementInvalid: see `run_experiment`.
            ToolError: the baseline itself never served.
        """
        compared = comparisons(self._session.settings.runs, self._made, self._options.fail_under)
        show(self._session.display, self._session.settings.runs, self._made, compared)
        told = {
            "experiment": self._made.as_dict(),
            "folder": str(self._store.folder),
            "comparisons": {name: each.as_dict() for name, each in compared.items()},
            "report": dict(finish(self._session, self._made, self._store.folder)),
        }
        self._refuse(compared, told)
        return told

    def _refuse(self, compared: dict[str, Compared], told: dict[str, Any]) -> None:
        made = self._made
        if made.baseline.stage is Stage.FAILED:
            raise ToolError(
                "the baseline failed, so there is nothing to compare with",
                host=made.host,
                evidence=[str(made.baseline.error.get("message", ""))],
                hint=f"inv show {made.baseline.run}" if made.baseline.run else None,
                details=told,
            )
        candidates = [step.name for step in made.steps if step.role is Role.CANDIDATE]
        if not any(name in compared for name in candidates):
            raise MeasurementInvalid(
                "no candidate was measured",
                host=made.host,
                evidence=[
                    f"{step.name}: {step.error.get('message', step.stage.value)}"
                    for step in made.steps
                    if step.role is Role.CANDIDATE
                ],
                details=told,
            )
        worse = [
            f"{name}: {failure}"
            for name, each in compared.items()
            if name in candidates
            for failure in each.failures
        ]
        if worse:
            raise Regression("a candidate falls behind", evidence=worse, details=told)
        unknown = [f"{name}: {gap}" for name, each in compared.items() for gap in each.gaps]
        if unknown:
            raise MeasurementInvalid(
                "not every level has a ratio to hold against --fail-under",
                evidence=unknown,
                details=told,
            )
        invalid = [
            f"{step.name}: level {point.level}, repeat {point.repeat}: {'; '.join(point.reasons)}"
            for step in made.steps
            for point in points_of(self._session.settings.runs, step)
            if not point.valid
        ]
        if invalid:
            raise MeasurementInvalid(
                f"{len(invalid)} points are invalid", evidence=invalid, details=told
            )


def _benches(runs: Path, step: Step) -> list[bench_store.LocalBench]:
    """All that were begun on the step's runs."""
    return [each for run in step.runs for each in bench_store.benches(runs, run)]


def points_of(runs: Path, step: Step) -> tuple[Point, ...]:
    """The rows that a step's bench came to, failed or not."""
    found = [each for each in _benches(runs, step) if each.points()]
    newest = max(found, key=lambda each: each.bench, default=None)
    return () if newest is None else newest.points()


def comparisons(runs: Path, made: Experiment, fail_under: float) -> dict[str, Compared]:
    """Each measured step against the baseline, by the step's name."""
    baseline = _measured(runs, made.baseline)
    if baseline is None:
        return {}
    found = {}
    for step in made.steps[1:]:
        candidate = _measured(runs, step)
        if candidate is not None:
            names = (made.baseline.name, step.name)
            found[step.name] = comparing.of(baseline, candidate, fail_under, names)
    return found


def _measured(runs: Path, step: Step) -> comparing.Measured | None:
    for run in reversed(step.runs):
        with suppress(ConfigError):
            return comparing.measured(runs, run)
    return None


def show(display: Display, runs: Path, made: Experiment, compared: dict[str, Compared]) -> None:
    """The experiment as a table, and the drift between its two baselines."""
    display.table(_COLUMNS, [_cells(runs, step, compared.get(step.name)) for step in made.steps])
    for step in made.steps:
        if step.stage is Stage.FAILED:
            display.warn(f"{step.name} failed: {step.error.get('message', '')}")
            for line in step.error.get("evidence", ())[:3]:
                display.warn(f"  {line}")
    drift = compared.get(made.steps[-1].name)
    if drift is not None and made.steps[-1].role is Role.DRIFT:
        ratios = [
            f"{row.level}: {row.ratio:.3f}"
            for row in drift.speed.rows
            if row.metric == "output_throughput" and row.ratio is not None
        ]
        display.say(
            "drift: the baseline against itself, output throughput by level: " + ", ".join(ratios)
        )
        if drift.verdict in ("better", "worse", "mixed"):
            display.warn(
                "the baseline has changed in the course of the experiment: what differs by as much"
                " may be the host's doing"
            )


def _cells(runs: Path, step: Step, compared: Compared | None) -> Sequence[str]:
    points = points_of(runs, step)
    valid = [point for point in points if point.valid]
    by_level: dict[int, list[float]] = {}
    for point in valid:
        by_level.setdefault(point.level, []).append(point.metrics["output_throughput"])
    speeds = ", ".join(
        f"{level}: {geometric_mean(values):,.1f}" for level, values in sorted(by_level.items())
    )
    kind = (step.error.get("diagnosis") or {}).get("kind")
    outcome = step.stage.value + (f": {kind}" if kind else "")
    ratios = ""
    if compared is not None:
        ratios = ", ".join(
            f"{row.level}: {row.ratio:.3f}"
            for row in compared.speed.rows
            if row.metric == "output_throughput" and row.ratio is not None
        )
        ratios += f" ({compared.speed.summary})"
    output = compared.output.summary if compared is not None and compared.output else ""
    return step.name, step.run, outcome, f"{len(valid)} of {len(points)}", speeds, ratios, output
