"""A run's processes, looked at again and again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hosts import eventually, new_run

from remote.payload import procs
from remote.payload.family import Family, Titles

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> str:
    return new_run()


@pytest.fixture
def start(run: str) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, ours: bool = True) -> subprocess.Popen[bytes]:
        env = {**os.environ, **({procs.RUN_VARIABLE: run} if ours else {})}
        started.append(subprocess.Popen(words or ("sleep", "60"), env=env))
        eventually(lambda: procs.mark_of(started[-1].pid, "PATH"))
        return started[-1]

    yield begin
    for child in started:
        child.kill()
        child.wait()


def pids(found: list[procs.Process]) -> list[int]:
    return [process.pid for process in found]


def test_members_are_found_strangers_are_not(run: str, start: Start) -> None:
    first = start()
    start(ours=False)
    family = Family(run)
    for _ in range(4):
        assert pids(family.look()) == [first.pid]
    second = start()
    assert pids(family.look()) == [first.pid, second.pid]
    first.kill()
    first.wait()
    assert pids(family.look(everybody=False)) == [second.pid]


def test_who_has_come_is_found_where_little_is_asked_for_too(run: str, start: Start) -> None:
    family = Family(run)
    family.look()
    child = start()
    looks = [pids(family.look(everybody=False)) for _ in range(6)]
    assert looks[-1] == [child.pid] and [] in looks


def test_strangers_are_not_asked_again_and_again(
    run: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = start(ours=False)
    family = Family(run)
    family.look()
    family.look()
    asked: list[int] = []
    run_of = procs.run_of

    def ask(pid: int) -> str | None:
        asked.append(pid)
        return run_of(pid)

    monkeypatch.setattr(procs, "run_of", ask)
    for _ in range(10):
        family.look()
    assert stranger.pid not in asked


def test_one_in_the_middle_of_an_exec_is_asked_once_more(
    run: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start()
    family = Family(run)
    with monkeypatch.context() as patched:
        patched.setattr(procs, "run_of", lambda pid: None)
        assert family.look() == []
    assert pids(family.look()) == [child.pid]


def test_a_child_that_ended_and_nobody_asked_about_stays_told(run: str, start: Start) -> None:
    shell = start("bash", "-c", "sleep 60 & while :; do sleep 0.1; done")
    family = Family(run)

    def sleeper() -> int | None:
        found = [p.pid for p in procs.members(run) if procs.command_line(p.pid)[-1:] == ["60"]]
        return found[0] if found else None

    child = eventually(sleeper)
    family.look()
    os.kill(shell.pid, signal.SIGSTOP)  # so that it cannot ask
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not (procs.find(child) or procs.find(os.getpid())).alive)  # type: ignore[union-attr]
    for everybody in (True, False, False):
        family.look(everybody=everybody)
        assert child in pids(family.dead)
    os.kill(shell.pid, signal.SIGCONT)


def test_a_title_is_read_again_once_the_name_has_changed(start: Start) -> None:
    titles = Titles()
    child = start("bash", "-c", "read -t 0.2 < <(sleep 60); exec sleep 60")

    def named(name: str) -> procs.Process | None:
        found = procs.find(child.pid)
        return found if found is not None and found.name == name else None

    assert titles.of(eventually(lambda: named("bash"))) == "bash"
    assert titles.of(eventually(lambda: named("sleep"))) == "sleep"
