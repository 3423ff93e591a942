"""What `inv bench` does: plan, start on the host, take points as they finish, show the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote import (
    answers,
    bench,
    bench_store,
    diagnosing,
    experiment,
    host_lock,
    locking,
    server,
    venv,
)
from remote.bench import End, Link, Measured, Progress
from remote.bench_store import LocalBench
from remote.core import bench_plan
from remote.core.bench_plan import Asked, BenchPlan, Earlier, Usual
from remote.core.bench_result import Point, rows
from remote.core.host_facts import RunState
from remote.core.ids import dated_id
from remote.core.log_events import StartState
from remote.core.quality import Question, read_questions
from remote.display import duration
from remote.errors import (
    ConfigError,
    MeasurementInvalid,
    ServerCrashed,
    ServerHung,
    SSHError,
    ToolError,
)
from remote.server import Outcome, Verdict
from remote.session import Session

#: Seconds that one point may take where nobody says it: this many times what is expected at
#: most, and never less than the other.
_TIMES_EXPECTED = 5.0
_LEAST_LIMIT_S = 900.0
#: Deaths of a server after which a bench is given up.
_MOST_DEATHS = 2

_COLUMNS = (
    "concurrency",
    "repeat",
    "out tok/s",
    "total tok/s",
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "TPOT p99",
    "in flight",
    "seconds",
    "",
)


@dataclass(frozen=True)
class BenchOptions:
    """What `inv bench` was told.

    Attributes:
        resume: go on with the newest bench of the run.
        timeout_s: what one point may take; None: by what is expected.
        questions: a file of questions with answers.
    """

    asked: Asked = field(default_factory=Asked)
    resume: bool = False
    note: str = ""
    timeout_s: float | None = None
    questions: Path | None = None
    bundle: bool = True


#: Told each new row, to keep it elsewhere too.
NotePoint = Callable[[Point], object]


def run_bench(
    session: Session,
    run: str | None,
    options: BenchOptions,
    note_point: NotePoint = lambda point: None,
) -> dict[str, Any]:
    """Measure the matrix, or what is missing of it, and show it.

    Returns:
        The bench, its points and which are invalid, for ``--json``.

    Raises:
        ConfigError: the matrix is none.
        Locked: the run is being measured already.
        MeasurementInvalid: it ended before all points were measured.
        ServerCrashed, ServerHung: the server died twice, or at the last point.
    """
    questions = _questions(options.questions)
    if options.resume:
        _nothing_else(options.asked)
        found = experiment.pick_run(session, run)
        local, plan = _to_resume(session, found.run)
    else:
        usual = session.host_settings.bench
        matrix = bench_plan.matrix(
            options.asked,
            Usual(
                usual.concurrency,
                usual.input_len,
                usual.output_len,
                usual.repeats,
                usual.prompts,
            ),
        )
        found = _serving(session, run)
        local, plan = _new(session, found, matrix, options.note)
    work = _Work(session, local, plan, options, note_point, questions)
    if not options.resume:
        work.ask_for_quality(found.run)
    try:
        work.measure(found.run)
    except ToolError:
        work.show_table()
        raise
    work.show_table()
    return work.as_dict()


def collect(
    session: Session, run: str, note_point: NotePoint = lambda point: None
) -> list[dict[str, Any]]:
    """Take home what benches of a run measured while nobody was there, and follow one that runs.

    Returns:
        Each bench as `run_bench` gives it; empty where there is nothing to collect.
    """
    shown = []
    for seen in bench.look(session.host, session.host_settings, run):
        known = [
            each
            for each in bench_store.benches(session.settings.runs, run)
            if each.bench == seen.bench
        ]
        here = {bench_plan.point_name(*p.key) for each in known for p in each.points()}
        if seen.plan is None or (not seen.running and here >= set(seen.done)):
            continue
        local = known[0] if known else _adopted(session, seen.plan, run)
        work = _Work(session, local, seen.plan, BenchOptions(), note_point)
        work.take(run)
        work.show_table()
        shown.append(work.as_dict())
    return shown


def _questions(path: Path | None) -> tuple[Question, ...]:
    if path is None:
        return ()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--questions: {path} can't be read: {error}") from error
    return read_questions(text, str(path))


def _nothing_else(asked: Asked) -> None:
    given = [name for name, value in vars(asked).items() if value]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"--resume goes on with the matrix that was begun; {names} would change it",
            hint="leave it out, or begin a new bench without --resume",
        )


def _serving(session: Session, run: str | None) -> RunState:
    """The run, which serves.

    Raises:
        ToolError: it doesn't.
    """
    found = experiment.pick_run(session, run)
    settings = session.host_settings
    if found.state != "ready":
        raise ToolError(
            f"run {found.run} is not serving: {found.state}",
            host=settings.name,
            hint=f"inv wait --run {found.run} follows a start; inv deploy PROFILE makes one",
        )
    why_not = server.answers(session.host, settings, found.run)
    if why_not is not None:
        raise ToolError(
            f"run {found.run} does not serve now: {why_not}",
            host=settings.name,
            hint=f"inv diagnose --run {found.run}",
        )
    return found


def _new(
    session: Session, found: RunState, matrix: bench_plan.Matrix, note: str
) -> tuple[LocalBench, BenchPlan]:
    host, settings, display = session.host, session.host_settings, session.display
    # Before the prompts are asked: they would disturb the other bench, and empty its cache.
    bench.require_idle(host, settings, found.run)
    with display.working("reading the host"):
        facts = venv.survey(host, settings)
        venv.require_sglang(facts, settings)
        client = venv.bench_flags(host, settings, display.tell)
    now_s = session.clock.wall_s()
    plan = bench.plan(
        settings,
        found,
        str(facts.version("sglang")),
        client,
        matrix,
        dated_id(now_s),
        server.local_address(settings),
        now_s,
        gpus=bool(facts.gpus),
        note=session.scrubber.text(note),
    )
    return LocalBench(session.settings.runs, found.run, plan.bench), plan


def _to_resume(session: Session, run: str) -> tuple[LocalBench, BenchPlan]:
    """The newest bench of a run: from here, else as the host has it.

    Raises:
        ConfigError: there is none.
    """
    here = {each.bench: each for each in bench_store.benches(session.settings.runs, run)}
    there = {each.bench: each for each in bench.look(session.host, session.host_settings, run)}
    for name in sorted({*here, *there}, reverse=True):
        if name in here:
            return here[name], here[name].plan()
        plan = there[name].plan
        if plan is not None:
            return _adopted(session, plan, run), plan
    raise ConfigError(
        f"no bench of run {run} was begun",
        host=session.host_settings.name,
        hint=f"inv bench --run {run} begins one",
    )


def _adopted(session: Session, plan: BenchPlan, run: str) -> LocalBench:
    """The folder here for a bench that another client began."""
    local = LocalBench(session.settings.runs, plan.run, plan.bench)
    local.keep_plan(plan)
    local.goes_on_with(run)
    return local


class _Work:
    """One bench as it is worked on: the host measures, rows come home."""

    def __init__(
        self,
        session: Session,
        local: LocalBench,
        plan: BenchPlan,
        options: BenchOptions,
        note_point: NotePoint,
        questions: Sequence[Question] = (),
    ) -> None:
        self._session = session
        self._local = local
        self._plan = plan
        self._options = options
        self._note_point = note_point
        self._questions = questions
        self._began_s = session.clock.monotonic_s()
        # What the server tells of itself, and what it logs, may hold the key it was started with.
        for run in local.servers():
            diagnosing.learn_secrets(session, run)

    def ask_for_quality(self, run: str) -> None:
        """Keep what the server says to fixed prompts, once a deploy."""
        session, questions = self._session, self._questions
        kept = session.local(run)
        if (kept.folder / "quality.json").exists() and not questions:
            return
        display = session.display
        try:
            with display.working("asking the fixed prompts"):
                said = answers.ask(
                    session.host,
                    session.host_settings,
                    run,
                    server.local_address(session.host_settings),
                    questions,
                    lambda done, of: display.bar("fixed prompts", done, of),
                )
        except SSHError:
            raise
        except ToolError as error:
            # A server that is dead or dying shows so at the first point, and is diagnosed there.
            display.warn(f"the fixed prompts were not answered: {error.message}")
            return
        kept.write("quality.json", json.dumps(said, indent=1).encode() + b"\n")

    def measure(self, run: str) -> None:
        """All missing points, on that run and, should its server die, on one that replaces it.

        Raises:
            MeasurementInvalid: it ended otherwise before all were measured.
            ServerCrashed, ServerHung: the server died twice, or at the last point.
        """
        display = self._session.display
        deaths = 0
        if self._running(run):
            display.say(f"bench {self._plan.bench} is going on; taking it up")
        else:
            self._catch_up(run)
        while True:
            if not self._running(run):
                if not self._missing():
                    return
                self._start(run)
            end = self.take(run)
            if end.server_died:
                deaths += 1
                last = deaths == _MOST_DEATHS or not self._missing()
                run = self._after_death(run, end, last=last)
            elif self._missing():
                raise self._incomplete(end)

    def _catch_up(self, run: str) -> None:
        """What was measured on any of the bench's servers and is not here yet."""
        for each in dict.fromkeys((*self._local.servers(), run)):
            for seen in bench.look(self._session.host, self._session.host_settings, each):
                if seen.bench == self._plan.bench and set(seen.done) - self._names():
                    self.take(each)

    def _running(self, run: str) -> bool:
        return any(
            seen.bench == self._plan.bench and seen.running
            for seen in bench.look(self._session.host, self._session.host_settings, run)
        )

    def _names(self) -> set[str]:
        return {bench_plan.point_name(*point.key) for point in self._local.points()}

    def _missing(self) -> tuple[bench_plan.Job, ...]:
        return self._plan.missing({point.key for point in self._local.points()})

    def _start(self, run: str) -> None:
        session, settings, plan = self._session, self._session.host_settings, self._plan
        jobs = self._missing()
        before = [
            Earlier(
                level=point.level,
                prompts=point.prompts,
                input_len=point.input_len,
                output_len=point.output_len,
                measured_s=point.metrics["duration_s"],
                whole_s=point.ended_at - point.started_at,
            )
            for _, point in bench_store.measured_before(
                session.settings.runs, plan.host, plan.profile
            )
        ]
        expected = bench_plan.expected(plan, jobs, before)
        longest = max(bench_plan.expected(plan, [job], before).high_s for job in jobs)
        limit_s = self._options.timeout_s or max(_LEAST_LIMIT_S, _TIMES_EXPECTED * longest)
        # Held for the start: a deploy that has looked for benches finds none begun afterwards.
        with self._left_alone(run):
            try:
                with locking.held(session, f"bench {plan.bench}"):
                    bench.start(
                        session.host,
                        settings,
                        run,
                        plan,
                        jobs,
                        server.local_address(settings),
                        limit_s,
                        host_lock.whoami(),
                    )
            except (KeyboardInterrupt, SSHError):
                self._known_here(run)  # it may have begun there: --resume has to find it
                raise
            self._known_here(run)
            self._announce(run, len(jobs), expected)

    def _known_here(self, run: str) -> None:
        self._local.keep_plan(self._plan)
        self._local.goes_on_with(run)

    def _announce(self, run: str, points: int, expected: bench_plan.Expected) -> None:
        plan, display = self._plan, self._session.display
        levels = ", ".join(map(str, plan.levels))
        display.say(
            f"bench {plan.bench} of run {run}: {points} points, concurrency {levels},"
            f" {plan.input_len} tokens in, {plan.output_len} out, {plan.repeats} repeats"
        )
        if plan.quick:
            display.say(bench_plan.QUICK)
        low, high = duration(expected.low_s), duration(expected.high_s)
        span = low if low == high else f"{low} to {high}"
        display.say(f"expected to take {span} ({expected.basis})")

    def take(self, run: str) -> End:
        """Follow the bench on that run to its end; every point becomes a row here at once."""
        session, display = self._session, self._session.display
        with self._left_alone(run), display.working(f"measuring run {run}"):
            for news in bench.follow(
                session.host,
                session.host_settings,
                run,
                self._plan.bench,
                sorted(self._names()),
                session.clock,
            ):
                if isinstance(news, End):
                    return news
                if isinstance(news, Link):
                    display.warn(str(news))
                elif isinstance(news, Progress):
                    display.bar(str(news), news.done, news.of)
                else:
                    self._keep(news)
        raise AssertionError("a bench that is followed ends")

    def _keep(self, measured: Measured) -> None:
        """Files first, the row last: what has a row is complete."""
        point, result = measured.judged(self._plan)
        scrub = self._session.scrubber.data
        name, local = measured.name, self._local
        if result.problem is None:
            local.write(f"raw/{name}.jsonl", scrub(result.line))
        else:
            local.write(f"raw/{name}.jsonl", scrub(measured.raw))
        if result.server_info is not None and not (local.folder / "raw/server_info.json").exists():
            info = json.dumps(result.server_info, indent=1).encode()
            local.write("raw/server_info.json", scrub(info) + b"\n")
        for suffix, content in ((".csv", measured.gpu), (".processes.csv", measured.processes)):
            if content is not None:
                local.write(f"gpu/{name}{suffix}", scrub(content.encode()))
        if measured.steps:
            local.write(f"steps/{name}.log", scrub(measured.steps))
        if local.append(point):
            self._note_point(point)
            self._session.display.say(_line(point))

    @contextmanager
    def _left_alone(self, run: str) -> Iterator[None]:
        """What a person should know whose task ends before the bench does."""
        display = self._session.display
        hint = f"the bench goes on; collect it with: inv bench --run {run} --resume"
        try:
            yield
        except KeyboardInterrupt:
            self._session.host.close()  # whatever was half read there is nobody's any more
            if display.confirm("stop the bench too?"):
                bench.stop(
                    self._session.host,
                    self._session.host_settings,
                    run,
                    self._plan.bench,
                    display.tell,
                )
                display.say(
                    "the bench is stopped, the server goes on; what is missing is measured with:"
                    f" inv bench --run {run} --resume"
                )
            else:
                display.say(hint)
            raise
        except SSHError as error:
            error.hint = hint
            raise

    def _after_death(self, run: str, end: End, *, last: bool) -> str:
        """Diagnose, and start the same once more; the run that replaces it.

        Raises:
            ServerCrashed, ServerHung: it was the last try, or the start failed too.
        """
        session, display = self._session, self._session.display
        # Only the newest run's start is known well enough to be made again.
        again = not last and experiment.pick_run(session, None).run == run
        diagnosing.pull(session, run)
        try:
            with display.going_on() if again else nullcontext():
                diagnosing.conclude(session, run, self._verdict(end), bundle=self._options.bundle)
        except (ServerCrashed, ServerHung):
            if not again:
                raise
        display.say("starting the same once more; the bench goes on with what is missing")
        replaced = str(experiment.restart(session, None)["run"])
        self.ask_for_quality(replaced)
        return replaced

    def _verdict(self, end: End) -> Verdict:
        """What the host saw, as a wait would have put it."""
        hung = end.outcome == "server_hung"
        outcome = Outcome.HUNG if hung else Outcome.DIED_AFTER_READY
        elapsed_s = self._session.clock.monotonic_s() - self._began_s
        return Verdict(outcome, f"{end.why}, while it was measured", elapsed_s, StartState())

    def _incomplete(self, end: End) -> MeasurementInvalid:
        missing = [job.name for job in self._missing()]
        run = self._local.servers()[-1]
        hints = {
            "server_stopped": f"inv deploy {self._plan.profile} starts it again",
            "disk_full": f"make room on the host, then: inv bench --run {run} --resume",
        }
        return MeasurementInvalid(
            f"the bench ended before all points were measured: {end.why or end.outcome}",
            host=self._session.host_settings.name,
            evidence=[f"missing: {', '.join(missing)}"],
            hint=hints.get(end.outcome, f"inv bench --run {run} --resume measures what is missing"),
            details=self.as_dict(),
        )

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        points = self._local.points()
        return {
            "bench": self._plan.bench,
            "run": self._local.run,
            "folder": str(self._local.folder),
            "plan": self._plan.as_dict(),
            "points": rows(points),
            "missing": [job.name for job in self._missing()],
            "invalid": sorted(
                bench_plan.point_name(*point.key) for point in points if not point.valid
            ),
        }

    def show_table(self) -> None:
        """The points that are there, and what is against those that are invalid."""
        display = self._session.display
        points = sorted(self._local.points(), key=lambda point: point.key)
        if not points:
            return
        display.table(_COLUMNS, map(_cells, points))
        for point in points:
            for reason in () if point.valid else point.reasons:
                name = f"concurrency {point.level}, repeat {point.repeat}"
                display.warn(f"{name} is invalid: {self._session.scrubber.text(reason)}")
        notes = {point.gpu_note for point in points if point.gpu_note}
        for note in sorted(notes):
            display.say(note)
        display.say(f"kept in {self._local.folder}")


def _cells(point: Point) -> list[str]:
    def figure(name: str, digits: int = 1) -> str:
        return f"{point.metrics[name]:,.{digits}f}" if name in point.metrics else "-"

    return [
        str(point.level),
        str(point.repeat),
        figure("output_throughput"),
        figure("total_throughput"),
        figure("ttft_p50_ms"),
        figure("ttft_p99_ms"),
        figure("tpot_p50_ms", 2),
        figure("tpot_p99_ms", 2),
        figure("concurrency"),
        figure("duration_s"),
        "" if point.valid else "invalid",
    ]


def _line(point: Point) -> str:
    where = f"concurrency {point.level}, repeat {point.repeat}"
    if not point.valid:
        return f"{where}: invalid: {point.reasons[0]}"
    metrics = point.metrics
    return (
        f"{where}: {metrics['output_throughput']:,.1f} output tokens/s,"
        f" TTFT p99 {metrics['ttft_p99_ms']:,.0f} ms,"
        f" {metrics['duration_s']:.1f} s"
    )
