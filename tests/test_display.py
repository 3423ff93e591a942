"""What a person sees off a terminal, and what a program reads with --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote.core.budgets import Budgets
from remote.core.experiment_plan import Stage
from remote.core.heartbeat import Beat
from remote.core.log_events import FatalLine, FatalReason, PhaseStarted, StartState
from remote.core.phases import Phase
from remote.core.scrubbing import Scrubber
from remote.core.serving import Load
from remote.display import Display, ServingView, StartWatch, duration, verdict_line
from remote.errors import NotReady, ToolError
from remote.server import LinkNews, Outcome, Verdict

Captured = pytest.CaptureFixture[str]

#: What a host may send: terminal codes, and what the display's own markup would take for its.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold]x[/bold] [/] [red :boom:"


def test_prose_goes_to_stdout_and_with_json_to_stderr(capsys: Captured) -> None:
    Display().say("hello")
    assert capsys.readouterr() == ("hello\n", "")
    display = Display(as_json=True)
    display.say("hello")
    display.json({"a": 1})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": 1} and err == "hello\n"


def test_without_json_no_data_is_printed(capsys: Captured) -> None:
    Display().json({"a": 1})
    assert capsys.readouterr() == ("", "")


def test_an_error_is_told_with_host_evidence_and_hint(capsys: Captured) -> None:
    Display().error(NotReady("not ready", host="gpu", evidence=["line 1"], hint="inv wait"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error on gpu: not ready\n  line 1\nhint: inv wait\n"


def test_an_error_is_one_document_with_json_and_told_once(capsys: Captured) -> None:
    display, error = Display(as_json=True), ToolError("broken", evidence=["x"])
    display.error(error)
    display.error(error)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == error.as_dict()
    assert err.count("broken") == 1


def test_nothing_from_a_host_steers_the_terminal_or_the_markup(capsys: Captured) -> None:
    display = Display()
    display.say(HOSTILE)
    display.warn(HOSTILE)
    display.tell(HOSTILE)
    display.table(("column",), [(HOSTILE,)])
    display.diff(HOSTILE)
    display.error(ToolError(HOSTILE, host="gpu", evidence=[HOSTILE], hint=HOSTILE))
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "\x1b" not in text and "\x07" not in text
    # What a program may read on standard output is not mixed with warnings and errors.
    assert out.count("[bold]x[/bold] [/] [red :boom:") == 4
    assert err.count("[bold]x[/bold] [/] [red :boom:") == 4


def test_long_lines_are_not_wrapped_where_no_terminal_is(capsys: Captured) -> None:
    path = "/venv/" + "x" * 400
    Display().say(path)
    assert capsys.readouterr().out == path + "\n"


def test_nobody_to_ask_is_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert Display().confirm("really?") is False


def test_a_start_is_a_line_for_each_phase(capsys: Captured) -> None:
    watch = StartWatch(Display())
    for phase in (Phase.ARGUMENTS, Phase.WEIGHTS, Phase.WEIGHTS):
        watch(PhaseStarted(1, phase), StartState(phase=phase))
    watch(LinkNews(4.0), StartState(phase=Phase.WEIGHTS))
    out, err = capsys.readouterr()
    assert sum(Phase.WEIGHTS.label in line for line in out.splitlines()) == 1
    assert "lost for 4 s" in err


def test_a_crash_is_said_as_soon_as_its_line_is_there(capsys: Captured) -> None:
    fatal = FatalLine(7, "[Errno 98] in use", FatalReason.PORT_IN_USE, "TP1", "", None)
    StartWatch(Display())(fatal, StartState(fatal=fatal))
    said = capsys.readouterr().out
    assert said == "crashed: the port is taken on TP1; line 7: [Errno 98] in use\n"


class Bars(Display):
    """Keeps what would be drawn in place."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[str] = []

    def bar(self, text: str, done: int, total: int) -> None:
        self.drawn.append(f"{text} {done}/{total}")


def test_a_phase_is_shown_with_what_is_usual_and_what_is_left(capsys: Captured) -> None:
    display = Bars()
    watch = StartWatch(display, Budgets({Phase.WEIGHTS: [100.0, 130.0, 130.0]}))
    watch(PhaseStarted(1, Phase.WEIGHTS), StartState(phase=Phase.WEIGHTS))
    assert "(usually 2 min 10 s)" in capsys.readouterr().out
    assert "loading weights, about 2 min " in display.drawn[-1]
    compiling = Beat(processes=9, cpu_s=1.0, builders=("cicc", "ninja"))
    watch(compiling, StartState(phase=Phase.JIT_BUILD))
    assert display.drawn[-1] == "building kernels (cicc, ninja at work) 0/0"


def test_a_serving_process_is_a_line_every_few_seconds(capsys: Captured) -> None:
    with ServingView(Display(), "run") as view:
        for _ in range(100):
            view.show(Load(120.5, 3, 2, 0.25, 1.0), None)
    line = "tokens/s 120.5, running 3, queued 2, token usage 25%, server working\n"
    assert capsys.readouterr().out == line


def test_a_verdict_in_a_line() -> None:
    verdict = Verdict(Outcome.DIED_AFTER_READY, "gone", 12.34, StartState())
    assert verdict_line(verdict) == "died after ready after 12.3 s: gone"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (0.0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_as_a_person_reads_them(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_data_is_printed_as_json_without_secrets(capsys: Captured) -> None:
    display = Display(as_json=True)
    scrubber = Scrubber()
    scrubber.learn(["hunter2-hunter2"])
    display.scrub = scrubber.text
    said = ["--k hunter2-hunter2"]
    display.json({"stage": Stage.DONE, "path": Path("/x"), "n": 1.5, "told": said})
    told = json.loads(capsys.readouterr().out)
    assert told == {"stage": "done", "path": "/x", "n": 1.5, "told": ["--k ***"]}
