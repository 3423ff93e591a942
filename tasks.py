"""The tasks: `inv --list`, `inv --help TASK`. Parse, call, print; the work is in `remote/`.

Nothing heavy is imported at the top: `inv --list` and shell completion stay fast.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Collection, Context, task

from remote.core.defaults import DEFAULTS
from remote.core.entry_checks import misshapen, number, uncastable
from remote.errors import INTERRUPTED, OK, ConfigError, ToolError

if TYPE_CHECKING:
    from remote.display import Display

PROJECT = Path(__file__).absolute().parent

# Invoke turns this off for the sake of this file; the package would be compiled at every task.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
# What is imported stays: to look through it for garbage over and over is a fifth of a task's start.
gc.set_threshold(100_000)


def _refuse_broken_settings() -> None:
    """Say what is wrong with settings that Invoke itself would answer with a traceback.

    It reads them only after this module, and it has imported the same reader already.
    """
    from invoke.vendor.yaml import YAMLError, safe_load

    path = PROJECT / "invoke.yaml"
    problems: list[tuple[str, str]] = []
    settings: object = {}
    try:
        settings = safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        pass
    except (YAMLError, OSError, UnicodeDecodeError) as broken:
        problems = [("it can't be read", " ".join(str(broken).split()))]
    problems += misshapen(settings, DEFAULTS)
    if not problems:
        given = settings if isinstance(settings, dict) else {}
        problems += uncastable({**DEFAULTS, **given}, os.environ)
    if problems:
        lines = [f"  {where}: {what}" for where, what in problems]
        sys.stderr.write("\n".join([f"error: wrong in {path} or the environment", *lines, ""]))
        sys.exit(2)


_refuse_broken_settings()

_HOST = "the host's name in invoke.yaml (default: host:, the only one, or the embedded sandbox)"
_JSON = "data as one JSON document on standard output, prose on standard error"
_RUN = "the run's id (default: the newest on the host)"
_NOTE = "why it is tried and what is expected; kept with the run, and shown where it is"
_QUESTIONS = 'a file of {"question": …, "answer": …} lines, asked beside the fixed prompts'
_FAIL_UNDER = "exit 3 where output throughput is below this part of the baseline's, e.g. 0.97"
_KNOWN_RUN = "a run's id, the beginning of one, or last"
_BREAK_LOCK = "take the host from a task or a start of somebody else; asks first"
_YES = "don't ask"
_NO_BUNDLE = "after a crash or a hang, end at once instead of bringing its evidence"


def _reported(body: Callable[..., Any], dials: bool) -> Callable[..., Any]:
    """Run a task's body with a display; errors become one clear message and an exit code.

    The body returns its data, printed with ``--json``, or an exit code. With ``dials`` it is known
    to ask a host, which is dialled while all that takes is imported.
    """

    @functools.wraps(body)
    def run(c: Context, *args: Any, **options: Any) -> None:
        if dials and "--help" not in options.values():
            from remote import dialing

            dialing.begin(c.config, PROJECT, options.get("host") or "")
        from remote.display import Display

        display = Display(as_json=bool(options.get("json")))
        try:
            if "--help" in options.values():
                raise ConfigError("--help goes before the task: inv --help TASK")
            result = body(c, display, *args, **_read(options, numeric, texts))
            if result is not None and not isinstance(result, int):
                display.json(result)
            sys.stdout.flush()
        except ToolError as error:
            display.error(error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            display.warn("interrupted")
            display.json({"error": {"type": "Interrupted", "exit_code": INTERRUPTED}})
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read standard output (`head`) has had enough; the interpreter must not try
            # to write the rest when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(OK)
        if isinstance(result, int):
            sys.exit(result)

    # Invoke reads a task's options from its signature; the display is none of them. Numbers are
    # read here, for Invoke's own reading ends in a traceback; and what was given empty
    # (`--run "$RUN"`) is told from what was not given, for it must not mean the default.
    signature = inspect.signature(body)
    numeric = {
        name: p.default
        for name, p in signature.parameters.items()
        if isinstance(p.default, (int, float)) and not isinstance(p.default, bool)
    }
    texts = [n for n, p in signature.parameters.items() if p.default == "" and n != "note"]
    kept = [
        p.replace(default=None) if name in numeric or name in texts else p
        for name, p in signature.parameters.items()
        if name != "display"
    ]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    del run.__wrapped__
    return run


def _read(options: dict[str, Any], numeric: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """The options with those that are numbers read; one that wasn't given has its default.

    Raises:
        ConfigError: a number is none, or a text was given that is empty.
    """
    read: dict[str, Any] = {}
    for name, default in numeric.items():
        text = options.get(name)
        try:
            read[name] = default if text is None else number(name, text, default)
        except ValueError as wrong:
            raise ConfigError(str(wrong)) from wrong
    for name in texts:
        read[name] = text = options.get(name) or ""
        if not text and options.get(name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} was given without a value")
    return {**options, **read}


def _task(*, dials: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    help_texts = {"host": _HOST, "json": _JSON, **options.pop("help", {})}

    def wrap(body: Callable[..., Any]) -> Any:
        names = body.__code__.co_varnames[: body.__code__.co_argcount]
        texts = {name: text for name, text in help_texts.items() if name in names}
        return task(help=texts, auto_shortflags=False, **options)(_reported(body, dials))

    return wrap


@_task()
def hosts(c: Context, display: Display, json: bool = False) -> Any:
    """List the hosts of invoke.yaml, and the embedded one."""
    from remote.overview import hosts as listed

    return listed(c.config, PROJECT, display)


@_task()
def profiles(c: Context, display: Display, json: bool = False) -> Any:
    """List the profiles that can be deployed."""
    from remote.overview import profiles as listed

    return listed(c.config, PROJECT, display)


@_task(
    dials=True,
    iterable=["set", "patch", "add_patch"],
    help={
        "profile": "a profile of templates/profiles/, see inv profiles",
        "dry": "show plan, script and every file's diff; change nothing",
        "diff": "the same as --dry",
        "restart": "start anew although nothing has changed",
        "timeout": "seconds the start may take (default: the profile's)",
        "set": "key=value over the profile: an intent, a flag, env.NAME; may be repeated",
        "patch": "a patch set, or a .patch file, instead of the profile's; may be repeated",
        "add_patch": "a patch set, or a .patch file, on top of the profile's; may be repeated",
        "no_patch": "start with no patch applied",
        "note": _NOTE,
        "no_bundle": _NO_BUNDLE,
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    },
)
def deploy(
    c: Context,
    display: Display,
    profile: str,
    host: str = "",
    dry: bool = False,
    diff: bool = False,
    restart: bool = False,
    timeout: float = 0.0,
    set: Sequence[str] | None = None,
    patch: Sequence[str] | None = None,
    add_patch: Sequence[str] | None = None,
    no_patch: bool = False,
    note: str = "",
    no_bundle: bool = False,
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Render, push, patch, start and follow until the server is ready."""
    from remote.experiment import DeployOptions, deploy_profile
    from remote.planning import PatchChoice
    from remote.profile import require_known
    from remote.session import opened

    # A wrong name is told before the embedded host is set up for it.
    require_known(c.config, PROJECT, profile)
    choice = PatchChoice(tuple(patch or ()), tuple(add_patch or ()), no_patch)
    options = DeployOptions(
        *(tuple(set or ()), choice, dry, diff, restart, timeout or None),
        bundle=not no_bundle,
        note=note,
    )
    with opened(
        c.config, PROJECT, host, display, set_up=True, break_lock=break_lock, yes=yes
    ) as session:
        return deploy_profile(session, profile, options)


@_task(
    dials=True,
    help={
        "run": _RUN,
        "timeout": "seconds to wait (default: what is left of the profile's)",
        "no_bundle": _NO_BUNDLE,
    },
)
def wait(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    timeout: float = 0.0,
    no_bundle: bool = False,
    json: bool = False,
) -> Any:
    """Take a start up again, as deploy would go on; and collect what its benches measured."""
    from remote import benching, experiment
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        told = experiment.wait(session, run or None, timeout or None, bundle=not no_bundle)
        return {**told, "benches": benching.collect(session, told["run"], session.record.point)}


@_task(
    dials=True,
    help={
        "timeout": "seconds the start may take (default: the profile's)",
        "note": _NOTE,
        "no_bundle": _NO_BUNDLE,
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    },
)
def restart(
    c: Context,
    display: Display,
    host: str = "",
    timeout: float = 0.0,
    note: str = "",
    no_bundle: bool = False,
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Deploy the newest run's profile again, whatever it is doing."""
    from remote import experiment
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        return experiment.restart(session, timeout or None, bundle=not no_bundle, note=note)


@_task(
    dials=True,
    help={
        "run": _RUN,
        "pid": "a foreign server that holds the port: end that one",
        "break_lock": _BREAK_LOCK,
        "yes": "don't ask before ending a foreign process, or breaking a lock",
    },
)
def stop(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    pid: int = 0,
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Stop what this tool started, and wait until processes and GPU memory are gone."""
    from remote import stopping
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        if pid:
            return stopping.stop_foreign(session, pid, yes)
        return stopping.stop(session, run or None)


@_task(dials=True)
def status(c: Context, display: Display, host: str = "", json: bool = False) -> Any:
    """Show the host, its newest run, and what is patched."""
    from remote.overview import show_status, status
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        found = status(session)
    show_status(display, found)
    return found


@_task(dials=True)
def doctor(c: Context, display: Display, host: str = "", json: bool = False) -> Any:
    """Check all that a start may trip over, each with its remedy; exit 14 on a failure."""
    from remote.doctor import examine
    from remote.errors import PreflightFailed
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        found = examine(session)
    display.json(found)
    return PreflightFailed.exit_code if found["failures"] else OK


@_task(
    dials=True,
    help={
        "run": _RUN,
        "tail": "the last so many lines (of those that match)",
        "follow": "go on as it grows, until the server is gone",
        "since": "10m, 2h, or '2026-11-29 20:15' in the host's time",
        "grep": "only lines that match the regular expression",
    },
)
def logs(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    tail: int = -1,
    follow: bool = False,
    since: str = "",
    grep: str = "",
    json: bool = False,
) -> Any:
    """Print a run's log, as a terminal would have left it."""
    from remote.overview import print_logs
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return print_logs(session, run or None, tail, since or None, grep or None, follow)


@_task(
    dials=True,
    help={
        "run": _RUN,
        "concurrency": 'requests in flight, one point each: "1,10,256" (default: bench: settings)',
        "input_len": "tokens in (default: the settings')",
        "output_len": "tokens out (default: the settings')",
        "prompts": "requests a point (default: 5 x concurrency, at least 64)",
        "repeats": "how often each level is measured (default: the settings')",
        "quick": "a lighter matrix for a first look; it is said which",
        "resume": "go on with the points that are missing in the run's newest bench",
        "note": "why it is measured, kept with the bench",
        "timeout": "seconds one point may take (default: by what is expected)",
        "questions": _QUESTIONS,
        "no_bundle": _NO_BUNDLE,
    },
)
def bench(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    concurrency: str = "",
    input_len: str = "",
    output_len: str = "",
    prompts: str = "",
    repeats: str = "",
    quick: bool = False,
    resume: bool = False,
    note: str = "",
    timeout: float = 0.0,
    questions: str = "",
    no_bundle: bool = False,
    json: bool = False,
) -> Any:
    """Measure a matrix of concurrency levels on a serving run; exit 4 if a point is invalid."""
    from remote.benching import BenchOptions, run_bench
    from remote.core.bench_plan import Asked
    from remote.errors import MeasurementInvalid
    from remote.session import opened

    asked = Asked(concurrency, input_len, output_len, prompts, repeats, quick)
    path = Path(questions) if questions else None
    options = BenchOptions(asked, resume, note, timeout or None, path, bundle=not no_bundle)
    with opened(c.config, PROJECT, host, display) as session:
        report = run_bench(session, run or None, options, session.record.point)
    display.json(report)
    return MeasurementInvalid.exit_code if report["invalid"] else OK


@_task(
    help={
        "run": _KNOWN_RUN,
        "name": "what the baseline is called (default: baseline); the one named last counts",
    }
)
def baseline(c: Context, display: Display, run: str, name: str = "", json: bool = False) -> Any:
    """Make a measured run the one that others of its host are compared with."""
    from remote import comparing
    from remote.clock import SystemClock

    return comparing.name_baseline(c.config, PROJECT, display, SystemClock(), run, name)


@_task(
    help={
        "run": _KNOWN_RUN,
        "baseline": "another run, a baseline's name, or a .csv file with a published table",
        "fail_under": _FAIL_UNDER,
    }
)
def compare(
    c: Context,
    display: Display,
    run: str,
    baseline: str = "",
    fail_under: float = 0.0,
    json: bool = False,
) -> Any:
    """Hold a run's figures and output against the baseline's; exit 3 where output differs."""
    from remote import comparing

    return comparing.compare(
        c.config, PROJECT, display, run, baseline=baseline, fail_under=fail_under
    )


@_task(
    help={
        "runs": "ids of runs, or their beginnings, between commas (default: the newest)",
        "experiment": "the id of an experiment, or last (the default where there is one)",
        "baseline": "the run that the others are held against (default: the host's baseline)",
        "output": "the page's file; the Markdown lies beside it",
    }
)
def report(
    c: Context,
    display: Display,
    runs: str = "",
    experiment: str = "",
    baseline: str = "",
    output: str = "",
    json: bool = False,
) -> Any:
    """Write what was tried and measured as one page that opens offline, and as Markdown."""
    from remote import reporting
    from remote.clock import SystemClock

    return reporting.write(
        c.config,
        PROJECT,
        display,
        SystemClock(),
        runs=runs,
        experiment=experiment,
        baseline=baseline,
        output=output,
    )


@_task(
    dials=True,
    iterable=["sweep"],
    help={
        "profiles": "baseline,piecewise: the first is the baseline, measured first and again last",
        "sweep": "key=a,b,c: the candidates with each of these; may be repeated",
        "concurrency": 'requests in flight: "1,10,256" (default: bench: settings)',
        "input_len": "tokens in (default: the settings')",
        "output_len": "tokens out (default: the settings')",
        "prompts": "requests a point (default: 5 x concurrency, at least 64)",
        "repeats": "how often each level is measured (default: the settings')",
        "quick": "a lighter matrix for a first look; it is said which",
        "questions": _QUESTIONS,
        "note": _NOTE,
        "fail_under": _FAIL_UNDER,
        "anew": "begin again although the same was begun and not ended",
        "no_bundle": _NO_BUNDLE,
    },
)
def experiment(
    c: Context,
    display: Display,
    profiles: str,
    host: str = "",
    sweep: Sequence[str] | None = None,
    concurrency: str = "",
    input_len: str = "",
    output_len: str = "",
    prompts: str = "",
    repeats: str = "",
    quick: bool = False,
    questions: str = "",
    note: str = "",
    fail_under: float = 0.0,
    anew: bool = False,
    no_bundle: bool = False,
    json: bool = False,
) -> Any:
    """Deploy, bench, compare and take back one profile after another; the same command goes on."""
    from remote import reporting
    from remote.core.bench_plan import Asked
    from remote.experimenting import ExperimentOptions, checked, run_experiment
    from remote.session import opened

    asked = Asked(concurrency, input_len, output_len, prompts, repeats, quick)
    options = ExperimentOptions(
        tuple(sweep or ()),
        asked,
        note,
        fail_under,
        anew,
        bundle=not no_bundle,
        questions=Path(questions).expanduser() if questions else None,
    )
    # A wrong name is told before the embedded host is set up for it.
    steps = checked(c.config, PROJECT, profiles, options.sweeps)
    with opened(c.config, PROJECT, host, display, set_up=True) as session:
        return run_experiment(session, steps, options, reporting.after_experiment)


@_task(
    dials=True,
    help={
        "run": _RUN,
        "seconds": "watch so long (default: until the server is over, or Ctrl-C)",
        "no_bundle": _NO_BUNDLE,
    },
)
def watch(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    seconds: float = 0.0,
    no_bundle: bool = False,
    json: bool = False,
) -> Any:
    """Show a serving process live; a rank that stops or dies is found and named."""
    from remote import watching
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return watching.watch(session, run or None, seconds or None, bundle=not no_bundle)


@_task(
    iterable=["log"],
    help={"run": _RUN, "log": "a log from anywhere instead, - for standard input; may be repeated"},
)
def diagnose(
    c: Context,
    display: Display,
    host: str = "",
    run: str = "",
    log: Sequence[str] | None = None,
    json: bool = False,
) -> Any:
    """Say why a run, or the server of any log, failed: kind, cause, rank, lines, next step."""
    from remote import inspecting

    if log:
        return inspecting.diagnose_files(display, log, run)
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return inspecting.diagnose(session, run or None)


@_task(dials=True, help={"run": _RUN})
def pull(c: Context, display: Display, host: str = "", run: str = "", json: bool = False) -> Any:
    """Bring a run's log and evidence here; of the log only what is new."""
    from remote import inspecting
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return inspecting.pull(session, run or None)


@_task(
    help={
        "host": "only that host's",
        "profile": "only that profile's",
        "outcome": "only those that ended so: ready, crashed, hung, ...",
        "since": "10m, 2h, 3d, or '2026-11-29 20:15'",
        "failed": "only those that did not get ready, or died",
        "limit": "so many at most, 0 for all (default: 30)",
        "sort": "at, host, profile, outcome, seconds, minutes_lost, or a metric of the bench",
    }
)
def runs(
    c: Context,
    display: Display,
    host: str = "",
    profile: str = "",
    outcome: str = "",
    since: str = "",
    failed: bool = False,
    limit: int = 30,
    sort: str = "at",
    json: bool = False,
) -> Any:
    """List what was started, what became of it, and the minutes lost."""
    import time

    from remote import history
    from remote.core.run_list import Asked, since_s

    moment = since_s(since, time.time())
    asked = Asked(host, profile, outcome, moment, failed, limit, sort)
    return history.runs(c.config, PROJECT, display, asked)


@_task(help={"run": _KNOWN_RUN})
def show(c: Context, display: Display, run: str, json: bool = False) -> Any:
    """Show all that is known of a run: flags, environment, phases, points, what happened."""
    from remote import history

    return history.show(c.config, PROJECT, display, run)


@_task(help={"run": _KNOWN_RUN, "other": "another one, what was changed to"})
def diff(c: Context, display: Display, run: str, other: str, json: bool = False) -> Any:
    """Show what differs between two runs: flags, environment, patches, script, figures."""
    from remote import history

    return history.diff(c.config, PROJECT, display, run, other)


@_task(
    help={
        "run": _KNOWN_RUN,
        "force": "also where host, profile or patches are not what they were",
        "timeout": "seconds the start may take (default: the profile's)",
        "note": _NOTE,
        "no_bundle": _NO_BUNDLE,
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    }
)
def rerun(
    c: Context,
    display: Display,
    run: str,
    force: bool = False,
    timeout: float = 0.0,
    note: str = "",
    no_bundle: bool = False,
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Start a run once more, exactly; refused where it would be another."""
    from remote import history, rerunning
    from remote.session import opened

    row = history.find(c.config, PROJECT, run)
    with opened(c.config, PROJECT, row.host, display, break_lock=break_lock, yes=yes) as session:
        return rerunning.rerun(
            session,
            row,
            force=force,
            note=note,
            timeout_s=timeout or None,
            bundle=not no_bundle,
        )


@_task(
    help={
        "what": "runs or points",
        "format": "csv or jsonl",
        "output": "the file (default: standard output)",
    }
)
def export(
    c: Context,
    display: Display,
    what: str = "runs",
    format: str = "csv",
    output: str = "",
    json: bool = False,
) -> Any:
    """Write all runs, or all bench points, as a table for other tools."""
    from remote import history

    return history.export(c.config, PROJECT, display, what, format, output)


@_task(
    dials=True,
    help={
        "name": "only that patch set (default: all)",
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    },
)
def rollback_patch(
    c: Context,
    display: Display,
    host: str = "",
    name: str = "",
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Return every patched file to its original bytes, and prove it by hash."""
    from remote import patch_work
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        return patch_work.rollback(session, name or None)


@_task(dials=True, help={"break_lock": _BREAK_LOCK, "yes": _YES})
def restore(
    c: Context,
    display: Display,
    host: str = "",
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Stop all runs, roll back all patches, remove the tool's folder there, and prove it."""
    from remote.restoring import restore as restored
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        return restored(session)


@_task(dials=True)
def patch_list(c: Context, display: Display, host: str = "", json: bool = False) -> Any:
    """List the patch sets and their state on the host."""
    from remote import patch_work
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return patch_work.listed(session)


@_task(dials=True, help={"name": "a patch set, or a .patch file"})
def patch_diff(c: Context, display: Display, name: str, host: str = "", json: bool = False) -> Any:
    """Show what a patch set would change on the host."""
    from remote import patch_work
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return patch_work.show_diff(session, name)


@_task(
    dials=True,
    help={
        "name": "a patch set, or a .patch file",
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    },
)
def patch_apply(
    c: Context,
    display: Display,
    name: str,
    host: str = "",
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Apply a patch set on top of those that are applied."""
    from remote import patch_work
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        return patch_work.apply(session, name)


@_task(
    dials=True,
    help={
        "name": "NAME or PACKAGE/NAME of the new patch set, in your templates folder",
        "distribution": "the edited package (default: the first that has edits)",
        "summary": "what the edits are for, in one line",
        "break_lock": _BREAK_LOCK,
        "yes": _YES,
    },
)
def patch_author(
    c: Context,
    display: Display,
    name: str,
    host: str = "",
    distribution: str = "",
    summary: str = "",
    break_lock: bool = False,
    yes: bool = False,
    json: bool = False,
) -> Any:
    """Turn edits made by hand in the host's packages into a patch set."""
    from remote import authoring
    from remote.session import opened

    with opened(c.config, PROJECT, host, display, break_lock=break_lock, yes=yes) as session:
        return authoring.author(session, name, distribution or None, summary or None)


@_task(dials=True)
def patch_verify(c: Context, display: Display, host: str = "", json: bool = False) -> Any:
    """Check every patched file by hash; exit 13 where one is not what this tool left there."""
    from remote import patch_work
    from remote.errors import OK, PatchRefused
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        report = patch_work.verify(session)
    display.json(report)
    return OK if report["holds"] else PatchRefused.exit_code


@_task(
    dials=True,
    help={
        "every": "also the calls that SGLang keeps away from torch.compile",
        "fail_on_trap": "exit 13 when a call can't be traced",
    },
)
def probe(
    c: Context,
    display: Display,
    host: str = "",
    every: bool = False,
    fail_on_trap: bool = False,
    json: bool = False,
) -> Any:
    """Trace SGLang's bare FlashInfer calls, to find what piecewise CUDA graphs would trip over."""
    from remote import patch_work
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        return patch_work.probed(session, every, fail_on_trap)


@_task(dials=True, help={"command": "run by bash in the host's home folder"})
def run(c: Context, display: Display, command: str, host: str = "") -> Any:
    """Run a command on the host in the runs' environment; its exit code is passed on."""
    from remote.session import opened
    from remote.venv import by_hand

    with opened(c.config, PROJECT, host, display) as session:
        return session.host.interact(
            by_hand(session.host, session.host_settings, command, terminal=sys.stdin.isatty())
        )


@_task(dials=True)
def shell(c: Context, display: Display, host: str = "") -> Any:
    """Open a shell on the host in the runs' environment."""
    from remote.session import opened
    from remote.venv import by_hand

    with opened(c.config, PROJECT, host, display) as session:
        return session.host.interact(
            by_hand(session.host, session.host_settings, None, terminal=sys.stdin.isatty())
        )


@_task(
    dials=True,
    help={"local_port": "the port here (default: the server's own number, or a free one)"},
)
def tunnel(
    c: Context, display: Display, host: str = "", local_port: int = 0, json: bool = False
) -> Any:
    """Reach the server through the SSH connection, until Ctrl-C."""
    from remote.overview import hold_tunnel
    from remote.session import opened

    with opened(c.config, PROJECT, host, display) as session:
        hold_tunnel(session, local_port)


@_task()
def sandbox_up(c: Context, display: Display, json: bool = False) -> Any:
    """Set the embedded host up, where it isn't yet, and start it."""
    from remote.sandbox import tasks as embedded

    return embedded.up(c.config, PROJECT, display)


@_task()
def sandbox_status(c: Context, display: Display, json: bool = False) -> Any:
    """Show the embedded host: what is installed, its size, whether it runs."""
    from remote.sandbox import tasks as embedded

    return embedded.status(c.config, PROJECT, display)


@_task()
def sandbox_down(c: Context, display: Display, json: bool = False) -> Any:
    """Stop the embedded host's SSH server; what was started through it lives on."""
    from remote.sandbox import tasks as embedded

    return embedded.down(c.config, PROJECT, display)


@_task(help={"yes": "don't ask"})
def sandbox_reset(c: Context, display: Display, yes: bool = False, json: bool = False) -> Any:
    """Remove the embedded host, its folder and all."""
    from remote.sandbox import tasks as embedded

    return embedded.reset(c.config, PROJECT, display, yes)


@_task()
def sandbox_lock(c: Context, display: Display, json: bool = False) -> Any:
    """Refresh the pinned versions of the embedded host's packages."""
    from remote.sandbox import tasks as embedded

    return embedded.lock(c.config, PROJECT, display)


def _namespace() -> Collection:
    top = Collection(
        hosts,
        profiles,
        deploy,
        wait,
        restart,
        stop,
        status,
        doctor,
        logs,
        bench,
        baseline,
        compare,
        experiment,
        report,
        watch,
        diagnose,
        pull,
        runs,
        show,
        diff,
        rerun,
        export,
        rollback_patch,
        restore,
        probe,
        run,
        shell,
        tunnel,
    )
    patches = Collection("patch")
    patches.add_task(patch_list, name="list", default=True)
    patches.add_task(patch_diff, name="diff")
    patches.add_task(patch_apply, name="apply")
    patches.add_task(patch_verify, name="verify")
    patches.add_task(patch_author, name="author")
    top.add_collection(patches)
    embedded = Collection("sandbox")
    for name, each in (
        ("up", sandbox_up),
        ("status", sandbox_status),
        ("down", sandbox_down),
        ("reset", sandbox_reset),
        ("lock", sandbox_lock),
    ):
        embedded.add_task(each, name=name)
    top.add_collection(embedded)
    top.configure(dict(DEFAULTS))
    return top


ns = _namespace()
