"""A serving process watched: its load, and what ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually
from sessions import Task, once_watched

from remote import experiment, inspecting, server, watching
from remote.errors import ServerCrashed, ServerHung, ToolError

TWO = "a = rank('scheduler_TP0'); b = rank('scheduler_TP1'); "
DECODES = (
    "[say('[2026-11-29 12:00:0%d TP0] Decode batch, #running-req: 3, #token: 40, token usage:"
    " 0.25, gen throughput (token/s): 120.5, #queue-req: 2,' % n) or time.sleep(0.4)"
    " for n in range(9)]; "
)


class Watched:
    """A server that got ready, and a watch over it."""

    def __init__(self, task: Task, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.task, self.run = task, ""
        self.patch = patch
        self.go = folder / "go"
        #: What a server's play waits with for `watch`.
        self.held = f"hold({str(self.go)!r}); "

    def ready(self, play: str = "") -> None:
        self.run = self.task.start(f"{TWO}serve(); ready(); {play}wait()")
        experiment.wait(self.task.session, self.run, 60.0)

    def watch(
        self, seconds: float | None = None, then: Callable[[], object] | None = None
    ) -> dict[str, Any]:
        """Watch it; at the first sign of life ``then`` happens, and the server goes on."""
        once_watched(self.patch, then or self.go.touch)
        return watching.watch(self.task.session, self.run, seconds, bundle=False)

    def rank(self, name: str) -> int:
        settings = self.task.host.settings
        told = self.task.host.call("evidence.look", state=settings.state, run=self.run, known={})
        return int(told["ranks"][name]["pid"])


@pytest.fixture
def watched(
    local_host: LocalHost, fake_venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Watched:
    return Watched(Task(local_host, fake_venv, tmp_path), monkeypatch, tmp_path)


def test_the_load_is_told(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    watched.ready(f"{watched.held}{DECODES}")
    told = watched.watch(seconds=5.0)
    assert told["outcome"] == "ready"
    assert told["load"]["tokens_per_s"] == 120.5
    assert (told["load"]["running"], told["load"]["queued"]) == (3, 2)
    assert "tokens/s" in capsys.readouterr().out


def test_a_stopped_rank_is_named(watched: Watched) -> None:
    watched.ready()
    os.kill(watched.rank("TP1"), signal.SIGSTOP)
    with pytest.raises(ServerHung) as raised:
        watched.watch()
    assert "rank_stopped" in raised.value.evidence[0] and "TP1" in raised.value.evidence[0]


def test_a_killed_rank_is_named_while_the_port_still_answers(watched: Watched) -> None:
    watched.ready()
    victim = watched.rank("TP0")
    with pytest.raises(ServerCrashed) as raised:
        watched.watch(then=lambda: os.kill(victim, signal.SIGKILL))
    assert "process_killed" in raised.value.evidence[0] and "TP0" in raised.value.evidence[0]
    diagnosis = raised.value.details["diagnosis"]
    assert isinstance(diagnosis, dict) and diagnosis["outcome"] == "died_after_ready"


def test_a_server_that_answers_no_generation_hangs(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUIET_S", 1.5)
    chatter = "[say('INFO: GET /health 503') or time.sleep(0.5) for n in range(100)]"
    watched.run = watched.task.start(f"{TWO}serve(answers=1); ready(); {chatter}")
    experiment.wait(watched.task.session, watched.run, 60.0)
    with pytest.raises(ServerHung) as raised:
        watched.watch()
    assert "a generation is not answered" in raised.value.message
    assert "watchdog_or_health" in raised.value.evidence[0]


def test_a_fatal_line_ends_the_watch(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    watched.ready(
        f"{watched.held}say('[2026-11-29 12:00:09] Subprocess scheduler_0 (pid=7) crashed with"
        " exit code -9. Triggering SIGQUIT'); "
    )
    with pytest.raises(ServerCrashed) as raised:
        watched.watch()
    assert "process_killed" in raised.value.evidence[0]
    assert "crashed: " in (said := capsys.readouterr().out)
    assert "Subprocess scheduler_0 (pid=7) crashed with exit code -9" in said


def test_a_stop_by_somebody_is_no_failure(watched: Watched, home: Path) -> None:
    from remote import server
    from remote.clock import SystemClock

    watched.ready()
    settings = watched.task.host.settings
    other = LocalHost(settings, home)

    def stop() -> None:
        found = server.look(other, settings, watched.run)
        server.stop(other, settings, found, SystemClock(), lambda text: None)

    stopping = threading.Thread(target=stop)
    assert watched.watch(then=stopping.start)["outcome"] == "stopped"
    stopping.join()
    other.close()


def test_what_is_not_serving_is_not_watched(watched: Watched) -> None:
    watched.run = watched.task.start("say('up'); wait()")
    eventually(watched.task.says(watched.run, b"up"))
    with pytest.raises(ToolError, match="not serving: starting"):
        watched.watch()


def test_the_rank_that_went_first_is_named_although_all_are_gone_at_once(watched: Watched) -> None:
    # As SGLang does it: the launcher that misses a rank ends the others, and itself.
    watched.ready(f"{watched.held}b.kill(); time.sleep(0.01); a.kill(); os._exit(1); ")
    with pytest.raises(ServerCrashed) as crashed:
        watched.watch()
    diagnosis = crashed.value.as_dict()["diagnosis"]
    assert isinstance(diagnosis, dict)
    assert (diagnosis["kind"], diagnosis["first_rank"]) == ("process_killed", "TP1")


def test_a_rank_that_takes_longer_to_end_than_the_others_to_miss_it_is_named(
    watched: Watched,
) -> None:
    reset = (
        r"say('[2026-11-29 12:00:09 TP0] Scheduler hit an exception: Traceback (most recent call"
        r" last):\n  File \"/v/scheduler.py\", line 1, in recv_requests\n    work.wait()\n"
        r"RuntimeError: [pair.cc:538] Read error [127.0.0.1]:1966: Connection reset by peer\n'); "
    )
    missed = f"b.stdout.read(); {reset}time.sleep(0.02); a.kill(); b.kill(); os._exit(1); "
    two = "a = rank('scheduler_TP0'); b = rank('scheduler_TP1', lingers=True); "
    watched.run = watched.task.start(f"{two}serve(); ready(); {missed}")
    experiment.wait(watched.task.session, watched.run, 60.0)
    victim = watched.rank("TP1")
    with pytest.raises(ServerCrashed) as crashed:
        watched.watch(then=lambda: os.kill(victim, signal.SIGKILL))
    diagnosis = crashed.value.as_dict()["diagnosis"]
    assert isinstance(diagnosis, dict)
    assert (diagnosis["kind"], diagnosis["first_rank"]) == ("process_killed", "TP1")


def test_a_rank_that_is_let_go_on_hangs_no_more(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.ready()
    pid = watched.rank("TP1")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ServerHung):
        watched.watch()
    session = watched.task.session
    assert inspecting.diagnose(session, watched.run)["kind"] == "rank_stopped", "still"
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: inspecting.diagnose(session, watched.run)["outcome"] == "ready")
    assert watched.watch(seconds=1.5)["outcome"] == "ready"
    found = server.look(watched.task.host, watched.task.host.settings, watched.run)
    assert found.state == "ready"
