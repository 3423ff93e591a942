"""A start followed to its verdict, against real processes and through lost connections."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hosts import FakeClock, LocalHost, Venv, eventually, new_run

from remote import host_lock, server
from remote.clock import SystemClock
from remote.config import HostSettings
from remote.core.budgets import Budgets
from remote.core.log_events import FatalLine, StartState
from remote.core.phases import Phase
from remote.errors import ConnectionLost, HostKeyRefused, Unreachable
from remote.server import Outcome, Verdict

FATAL = "[2026-11-29 12:00:01] ERROR: [Errno 98] error while attempting to bind on address"
SCHEDULER = "[2026-11-29 12:00:01 TP1] Scheduler hit an exception: Traceback"


class Start:
    """One start on the host of a test, and what its wait kept and told."""

    def __init__(self, host: LocalHost, venv: Venv) -> None:
        self.host = host
        self.venv = venv
        self.run = new_run()
        self.log = b""
        self.told: list[object] = []

    def begin(self, play: str) -> None:
        self.venv.play(play)
        settings = self.host.settings
        script = self.venv.launch_script(settings.port)
        server.start_request(settings, self.run, script, {"profile": "test"}).of(self.host)

    def wait(
        self,
        timeout_s: float = 60.0,
        clock: Any = None,
        watch: Any = None,
        budgets: Budgets | None = None,
    ) -> Verdict:
        def keep(data: bytes) -> None:
            self.log += data

        def tell(event: object, state: StartState) -> None:
            self.told.append(event)
            if watch is not None:
                watch(event, state)

        return server.until_ready(
            self.host,
            self.host.settings,
            self.run,
            clock or SystemClock(),
            timeout_s,
            tell,
            keep,
            budgets,
        )

    @property
    def folder(self) -> Path:
        return Path(self.host.settings.state) / "runs" / self.run


@pytest.fixture
def start(local_host: LocalHost, fake_venv: Venv) -> Start:
    return Start(local_host, fake_venv)


def test_ready_is_the_line_and_health_and_a_generation(start: Start) -> None:
    start.begin("say('starting'); serve(); time.sleep(0.1); ready(); wait()")
    verdict = start.wait()
    assert verdict.outcome is Outcome.READY
    assert verdict.generated == " 4 5"
    assert start.log.startswith(b"starting\n") and b"fired up" in start.log


def test_health_that_comes_late_is_waited_for(start: Start) -> None:
    start.begin("serve(after=3); ready(); wait()")
    assert start.wait().outcome is Outcome.READY


def test_answers_before_the_ready_line_are_not_asked_for(start: Start) -> None:
    start.begin("serve(); say('still warming up'); wait()")
    verdict = start.wait(timeout_s=5.0, clock=FakeClock(step_s=2.0))
    assert verdict.outcome is Outcome.NOT_READY


def test_no_generation_is_not_ready(start: Start) -> None:
    start.begin("serve(answer='{}'); ready(); wait()")
    verdict = start.wait(timeout_s=3.0, clock=FakeClock(step_s=0.2))
    assert verdict.outcome is Outcome.NOT_READY
    assert "not ready after 3 s" in verdict.reason


def test_a_stranger_on_the_port_is_not_our_server(start: Start) -> None:
    with socket.create_server(("127.0.0.1", start.host.settings.port)):
        start.begin("ready(); wait()")
        verdict = start.wait()
    assert verdict.outcome is Outcome.CRASHED
    assert "another process" in verdict.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [(FATAL, "the port is taken"), (SCHEDULER, "the scheduler hit an exception on TP1")],
)
def test_a_fatal_line_is_the_end_although_the_process_lives(
    start: Start, line: str, reason: str
) -> None:
    start.begin(f"say('one'); say({line!r}); wait()")
    verdict = start.wait()
    assert verdict.outcome is Outcome.CRASHED
    assert verdict.reason == reason
    assert (verdict.line_number, verdict.exit_status) == (2, None)
    assert verdict.line is not None and verdict.line in line
    assert any(isinstance(event, FatalLine) for event in start.told)
    assert server.look(start.host, start.host.settings, start.run).alive


def test_a_sigkill_is_heard_with_its_status(start: Start) -> None:
    start.begin("say('loading'); die()")
    verdict = start.wait()
    assert verdict.outcome is Outcome.CRASHED
    assert verdict.exit_status == 137
    assert "SIGKILL" in verdict.reason
    assert start.log == b"loading\n"


def test_a_log_that_is_not_utf8_is_kept_as_it_is(start: Start) -> None:
    start.begin("os.write(2, b'caf\\xe9 \\xff\\n' + b'no newline'); raise SystemExit(1)")
    verdict = start.wait()
    assert start.log == b"caf\xe9 \xff\nno newline"
    assert verdict.exit_status == 1


def test_a_fatal_last_line_without_its_newline_decides(start: Start) -> None:
    start.begin(f"say('one'); os.write(2, {SCHEDULER!r}.encode()); die()")
    verdict = start.wait()
    assert (verdict.outcome, verdict.line_number) == (Outcome.CRASHED, 2)
    assert verdict.line is not None and verdict.line.startswith("Scheduler hit an exception")


def test_death_after_the_ready_line_is_told_apart(start: Start) -> None:
    start.begin("ready(); time.sleep(0.1); die()")
    assert start.wait().outcome is Outcome.DIED_AFTER_READY


def test_a_stop_by_somebody_else_is_no_crash(start: Start, lab: HostSettings, home: Path) -> None:
    start.begin("say('up'); wait()")
    other = LocalHost(lab, home)

    def stop() -> None:
        eventually(lambda: b"up" in (start.folder / "server.log").read_bytes())
        found = server.look(other, lab, start.run)
        server.stop(other, lab, found, SystemClock(), lambda text: None)

    stopping = threading.Thread(target=stop)
    stopping.start()
    verdict = start.wait()
    stopping.join()
    other.close()
    assert verdict.outcome is Outcome.STOPPED
    me = host_lock.whoami()
    assert verdict.reason == f"the server was stopped on request by {me['user']} on {me['client']}"


def test_past_its_budget_without_a_sign_of_work_it_hangs(start: Start) -> None:
    start.begin("say('up'); wait()")
    learnt = Budgets({Phase.ARGUMENTS: [1.0]})
    verdict = start.wait(timeout_s=5000.0, clock=FakeClock(step_s=2.0), budgets=learnt)
    assert verdict.outcome is Outcome.HUNG
    assert "30 s are allowed" in verdict.reason and "do nothing" in verdict.reason


def test_time_is_up_while_the_server_goes_on(start: Start) -> None:
    start.begin("say('up'); wait()")
    verdict = start.wait(timeout_s=20.0, clock=FakeClock(step_s=15.0))
    assert verdict.outcome is Outcome.NOT_READY
    assert "20 s" in verdict.reason
    assert server.look(start.host, start.host.settings, start.run).server_pid is not None


def test_a_log_that_is_cut_begins_anew(start: Start) -> None:
    start.begin("say('x' * 100); time.sleep(0.3); os.truncate(2, 0); serve(); ready(); wait()")
    verdict = start.wait()
    assert verdict.outcome is Outcome.READY
    assert verdict.state.ready is not None and verdict.state.ready.line == 1


def test_a_wait_can_be_taken_up_again(start: Start) -> None:
    start.begin("say('up'); wait()")
    start.wait(timeout_s=5.0, clock=FakeClock(step_s=3.0))
    first, start.log = start.log, b""
    start.wait(timeout_s=5.0, clock=FakeClock(step_s=3.0))
    assert start.log == first == b"up\n"


# Cut wherever: before the greeting, within a message, between two, one after another.
@pytest.mark.parametrize("budget", [10, 100, 400, 777, 1500, 2600, 5000])
def test_no_byte_of_the_log_is_lost_or_doubled_by_lost_connections(
    lab: HostSettings, home: Path, fake_venv: Venv, budget: int
) -> None:
    start = Start(LocalHost(lab, home), fake_venv)
    lines = "for n in range(60): say(f'line {n} ' + 'x' * 90); time.sleep(0.005)"
    start.begin(lines + "\nserve()\nready()\nwait()")
    start.host.close()
    start.host = LocalHost(lab, home, budgets=[budget] * 4)
    verdict = start.wait(clock=FakeClock())
    start.host.close()
    assert verdict.outcome is Outcome.READY
    assert start.log == (start.folder / "server.log").read_bytes()
    assert start.host.connections > 1
    assert any(isinstance(event, server.LinkNews) for event in start.told)


class Scripted(LocalHost):
    """A host whose streams end as the test says."""

    def __init__(self, settings: HostSettings, home: Path, endings: list[Exception]) -> None:
        super().__init__(settings, home)
        self.endings = endings

    def stream(self, function: str, **params: Any) -> Any:
        if self.endings:
            raise self.endings.pop(0)
        return super().stream(function, **params)


def test_a_host_that_never_was_there_is_not_dialled_again(lab: HostSettings, home: Path) -> None:
    clock = FakeClock()
    host = Scripted(lab, home, [Unreachable("no route")])
    with pytest.raises(Unreachable):
        list(server.Follower(host, lab, new_run(), clock).pieces())
    assert clock.slept == []


def test_dialling_ends_when_it_has_taken_too_long(lab: HostSettings, home: Path) -> None:
    clock = FakeClock()
    host = Scripted(
        lab, home, [ConnectionLost("cut"), *(Unreachable("no route") for _ in range(99))]
    )
    with pytest.raises(ConnectionLost, match=r"^cut; dialled again for 6\d s, in vain: no route$"):
        list(server.Follower(host, lab, new_run(), clock).pieces())
    assert host.redial_s < sum(clock.slept) <= host.redial_s + 2


def test_a_host_that_comes_back_with_another_key_is_not_dialled_again(
    lab: HostSettings, home: Path
) -> None:
    clock = FakeClock()
    host = Scripted(lab, home, [ConnectionLost("cut"), HostKeyRefused("changed")])
    with pytest.raises(HostKeyRefused, match="changed"):
        list(server.Follower(host, lab, new_run(), clock).pieces())
    assert len(clock.slept) == 1


def test_whether_a_run_serves_is_asked_on_the_host(start: Start) -> None:
    start.begin("serve(); ready(); wait()")
    start.wait()
    settings = start.host.settings
    assert server.answers(start.host, settings, start.run) is None
    why = server.answers(start.host, settings, new_run())
    assert why is not None and "another process" in why


def test_the_phase_of_a_run_is_read_from_its_log(start: Start) -> None:
    start.begin("serve(); ready(); wait()")
    start.wait()
    assert server.phase_of(start.host, start.host.settings, start.run) is Phase.SERVING


@pytest.mark.parametrize(
    ("status", "words"),
    [(None, "unknown"), (0, "exit status 0"), (137, "SIGKILL"), (139, "SIGSEGV"), (255, "255")],
)
def test_an_exit_status_in_words(status: int | None, words: str) -> None:
    assert words in server.describe_status(status)
