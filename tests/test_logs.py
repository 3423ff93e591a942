"""`inv logs`: what was typed, and the lines that come of it."""

from __future__ import annotations

import pytest
from hosts import FakeClock, LocalHost, Venv, eventually, new_run

from remote import logs
from remote.errors import ConfigError
from remote.logs import Selection, selection


@pytest.mark.parametrize(
    ("since", "wanted"),
    [
        ("90s", Selection(ago_s=90.0)),
        ("1.5m", Selection(ago_s=90.0)),
        ("2h", Selection(ago_s=7200.0)),
        ("1d", Selection(ago_s=86400.0)),
        ("2026-11-29", Selection(since="2026-11-29 00:00:00")),
        ("2026-11-29 20:15", Selection(since="2026-11-29 20:15:00")),
        ("2026-11-29T20:15:30", Selection(since="2026-11-29 20:15:30")),
    ],
)
def test_since_as_it_is_typed(since: str, wanted: Selection) -> None:
    assert selection(None, since, None) == wanted


@pytest.mark.parametrize("since", ["", "10", "m", "yesterday", "20:15", "2026-11-29 20", "-5m"])
def test_a_since_that_makes_no_sense_is_refused_with_examples(since: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        selection(None, since, None)
    assert "10m" in str(refusal.value.hint)


def test_other_bad_selections_are_refused() -> None:
    with pytest.raises(ConfigError, match="--tail"):
        selection(-5, None, None)
    with pytest.raises(ConfigError, match="--grep"):
        selection(None, None, "(unclosed")


class Log:
    """A run's log on the host of a test, read as the task does."""

    def __init__(self, host: LocalHost, venv: Venv) -> None:
        self.host, self.venv, self.run = host, venv, new_run()
        self.told: list[str] = []

    def start(self, play: str) -> None:
        self.venv.play(play)
        settings = self.host.settings
        script = self.venv.launch_script(settings.port)
        self.host.call("runs.start", data=script, state=settings.state, run=self.run, note={})

    def ended(self, play: str) -> None:
        self.start(play)
        state = self.host.settings.state
        eventually(
            lambda: (
                self.host.call("runs.look", state=state, run=self.run)["exit_status"] is not None
            )
        )

    def lines(self, follow: bool = False, **wanted: str | int) -> list[str]:
        found = logs.lines(
            self.host,
            self.host.settings,
            self.run,
            Selection(**wanted),  # type: ignore[arg-type]
            follow=follow,
            clock=FakeClock(),
            tell=self.told.append,
        )
        return list(found)


@pytest.fixture
def log(local_host: LocalHost, fake_venv: Venv) -> Log:
    return Log(local_host, fake_venv)


def test_bars_are_left_as_a_terminal_would_leave_them(log: Log) -> None:
    log.ended(r"os.write(2, b'start\n 10%|#   |\r 50%|##  |\r100%|####|\nend\n')")
    assert log.lines() == ["start", "100%|####|", "end"]


def test_lines_are_safe_to_print(log: Log) -> None:
    log.ended(r"os.write(2, b'caf\xe9 \x1b]0;title\x07\x1b[2J\xff\n')")
    (line,) = log.lines()
    assert "\x1b" not in line and "\x07" not in line
    assert line.startswith("caf\ufffd")


def test_a_last_line_without_its_newline_is_printed(log: Log) -> None:
    log.ended("say('one'); os.write(2, b'two')")
    assert log.lines(tail=1) == ["two"]
    assert log.lines() == ["one", "two"]


def test_following_goes_on_where_the_tail_ended(log: Log) -> None:
    play = "for n in range(30): say(f'line {n}'); time.sleep(0.01)"
    log.start(play)
    path = log.host.settings.state + f"/runs/{log.run}/server.log"
    eventually(lambda: b"line 5\n" in open(path, "rb").read())  # noqa: PTH123, SIM115
    lines = log.lines(follow=True, tail=3)
    first = int(lines[0].split()[1])
    assert lines == [f"line {n}" for n in range(first, 30)]
    assert any("server is gone" in text for text in log.told)


def test_following_with_grep_shows_only_what_matches(log: Log) -> None:
    log.start("for n in range(20): say(f'{n % 2} {n}'); time.sleep(0.01)")
    assert log.lines(follow=True, grep="^0 ") == [f"0 {n}" for n in range(0, 20, 2)]


@pytest.mark.parametrize("budget", [700, 1500, 3000])
def test_following_survives_lost_connections(
    local_host: LocalHost, fake_venv: Venv, budget: int
) -> None:
    log = Log(local_host, fake_venv)
    log.start("for n in range(80): say(f'line {n} ' + 'x' * 40); time.sleep(0.005)")
    # The first connection lives through the selection, and is cut while it follows.
    log.host = LocalHost(local_host.settings, local_host.home, budgets=[budget] * 3)
    lines = log.lines(follow=True, tail=0)
    log.host.close()
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(numbers[0], 80))
    assert log.host.connections > 1
    assert any("is back" in text for text in log.told)


@pytest.mark.parametrize("follow", [False, True])
def test_a_pattern_that_would_search_without_end_is_given_up(log: Log, follow: bool) -> None:
    late = "time.sleep(0.5); " if follow else ""
    (log.start if follow else log.ended)(f"{late}print('a' * 60 + '!'); time.sleep(0)")
    with pytest.raises(ConfigError, match="was given up") as slow:
        log.lines(follow=follow, grep="(a+)+$")
    assert "simpler" in str(slow.value.hint)
    assert log.lines(grep="^a+!$") == ["a" * 60 + "!"]
    assert log.told == []
