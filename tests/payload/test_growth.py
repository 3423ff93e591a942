"""A file's growth as the kernel tells it, and what is done where it tells nothing."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hosts import Venv, end_runs, free_port, new_run

from remote.payload import follow, growth, runs
from remote.payload.growth import Growth


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    return path


@pytest.fixture
def watching(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Growth]:
    watched = Growth(str(log))
    yield watched
    watched.close()


def wakes(watching: Growth) -> bool:
    """Whether who waits for it is woken."""
    assert watching.fd is not None
    return bool(select.select([watching.fd], [], [], 5.0)[0]) and watching.told()


def append(path: Path, data: bytes = b"x\n") -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_write_and_a_cut_are_told_once(watching: Growth, log: Path) -> None:
    assert not watching.told()
    for change in (lambda: append(log), lambda: log.open("r+b").truncate(0)):
        change()
        assert wakes(watching)
        assert not watching.told()


def test_another_file_in_its_place_is_told_and_then_watched(watching: Growth, log: Path) -> None:
    log.rename(log.with_name("server.log.1"))
    log.write_bytes(b"new\n")
    assert wakes(watching)
    watching.watch()
    append(log)
    assert wakes(watching)


def test_who_writes_to_a_renamed_file_is_heard(watching: Growth, log: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with log.open("ab") as file:
        log.rename(tmp_path / "elsewhere" / "old.log")
        assert wakes(watching)
        file.write(b"last words\n")
        file.flush()
        assert wakes(watching)


def test_a_file_system_of_the_network_has_to_be_looked_at(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_LOCAL", frozenset())
    assert Growth(str(log)).blind


def test_without_the_c_library_it_has_to_be_looked_at(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_libc", lambda: None)
    watching = Growth(str(log))
    assert watching.blind and watching.fd is None and not watching.told()


def test_growth_that_nobody_told_of_again_and_again_has_to_be_looked_for(watching: Growth) -> None:
    watching.blind = False
    for _ in range(3):
        watching.missed()
    assert not watching.blind
    watching.missed()
    assert watching.blind


def test_growth_that_was_told_is_not_held_against_it(watching: Growth, log: Path) -> None:
    watching.blind = False
    for _ in range(5):
        append(log)
        assert watching.told()
        watching.missed()
    assert not watching.blind


@pytest.mark.parametrize("blind", ["no library", "another file system", "deaf"])
def test_a_log_is_followed_all_the_same(
    blind: str, tmp_path: Path, fake_venv: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blind == "no library":
        monkeypatch.setattr(growth, "_libc", lambda: None)
    elif blind == "another file system":
        monkeypatch.setattr(growth, "_LOCAL", frozenset())
    else:  # a kernel that takes the watch and never tells
        monkeypatch.setattr(growth, "_MODIFY", 0x20)
    state, run = str(tmp_path / "state"), new_run()
    fake_venv.play("say('begun'); wait()")
    runs.start(state, run, {}, fake_venv.launch_script(free_port()))
    log = Path(runs.folder(state, run), "server.log")

    def pause(seconds: float, also: Sequence[int] = ()) -> bool:
        select.select(also, [], [], seconds)
        return False

    heard = b""
    written = threading.Timer(0.1, append, [log, b"the line\n"])
    began = time.monotonic()
    for body, data in follow.follow(state, run, 0, None, pause):
        heard += data if "log" in body else b""
        if heard == b"begun\n" and not written.ident:
            written.start()
        if b"the line\n" in heard:
            break
        assert time.monotonic() - began < 20
    end_runs(state)
    assert heard == b"begun\nthe line\n"
