"""Following a run on its host: every byte in order, then its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually, new_run

from remote.config import HostSettings
from remote.host import Piece
from remote.payload.follow import _Bell, _Ranks


@pytest.fixture
def run() -> str:
    return new_run()


class Following:
    """A follow of one run; collects what it hears."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self.log = b""
        self.heard: list[dict[str, Any]] = []

    def until(self, key: str) -> Any:
        for piece in self._pieces:
            if "log" in piece.body:
                self.log += piece.data
            else:
                self.heard.append(dict(piece.body))
            if key in piece.body:
                return piece.body[key]
        raise AssertionError(f"ended without {key}")

    def until_log(self, wanted: bytes) -> None:
        while wanted not in self.log:
            self.until("log")


def start(host: LocalHost, venv: Venv, run: str, play: str) -> Path:
    venv.play(play)
    script = venv.launch_script(host.settings.port)
    host.call("runs.start", data=script, state=host.settings.state, run=run, note={})
    return Path(host.settings.state) / "runs" / run


def follow(host: LocalHost, run: str, offset: int = 0, probe: Any = None) -> Any:
    return host.stream(
        "follow.follow", state=host.settings.state, run=run, offset=offset, probe=probe
    )


def test_the_last_words_before_a_death_are_heard(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    start(local_host, fake_venv, run, "say('first'); time.sleep(0.1); say('last'); die()")
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        assert following.until("gone") == 137
    assert following.log.endswith(b"first\nlast\n") or b"first\nlast\n" in following.log
    assert following.heard[-1]["stop_requested"] is False


def test_bytes_that_are_not_utf8_pass_unchanged(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    start(local_host, fake_venv, run, "os.write(2, bytes(range(256))); raise SystemExit(0)")
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        following.until("gone")
    assert following.log == bytes(range(256))


def test_it_begins_at_the_offset_also_long_after_the_end(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    start(local_host, fake_venv, run, "say('0123456789'); raise SystemExit(4)")
    state = local_host.settings.state
    eventually(lambda: local_host.call("runs.look", state=state, run=run)["exit_status"] == 4)
    with follow(local_host, run, offset=7) as pieces:
        following = Following(pieces)
        assert following.until("gone") == 4
    assert following.log == b"789\n"


def test_a_silent_server_gives_signs_of_life(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    start(local_host, fake_venv, run, "orphan(); say('up'); wait()")
    with follow(local_host, run) as pieces:
        tick = Following(pieces).until("tick")
    assert tick["processes"] >= 2 and tick["cpu_s"] >= 0


def test_a_log_that_is_cut_is_read_from_its_beginning(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    home = start(local_host, fake_venv, run, "say('before'); wait()")
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        following.until_log(b"before\n")
        with (home / "server.log").open("r+b") as log:
            log.truncate(0)
        assert "cut" in following.until("restarted")
        with (home / "server.log").open("ab") as log:
            log.write(b"after\n")
        following.until_log(b"after\n")
    assert following.log.endswith(b"before\nafter\n")


def test_a_log_that_is_replaced_is_read_to_its_end_and_then_anew(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    home = start(local_host, fake_venv, run, "say('before'); wait()")
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        following.until_log(b"before\n")
        (home / "server.log").rename(home / "server.log.1")
        (home / "server.log").write_bytes(b"after\n")
        assert "replaced" in following.until("restarted")
        following.until_log(b"after\n")


def test_a_stop_by_somebody_else_is_told_as_such(
    local_host: LocalHost, fake_venv: Venv, run: str, lab: HostSettings, home: Path
) -> None:
    start(local_host, fake_venv, run, "say('up'); wait()")
    other = LocalHost(lab, home)
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        following.until_log(b"up\n")
        with other.stream("runs.stop", state=lab.state, run=run, grace_s=5.0) as messages:
            list(messages)
        assert following.until("gone") == 143
    assert following.heard[-1]["stop_requested"] is True
    other.close()


def test_the_readiness_check_is_answered_while_the_log_goes_on(
    local_host: LocalHost, fake_venv: Venv, run: str
) -> None:
    start(local_host, fake_venv, run, "serve(); say('up'); wait()")
    probe = {"address": "127.0.0.1", "port": local_host.settings.port, "timeout_s": 5.0}
    with follow(local_host, run) as pieces:
        Following(pieces).until_log(b"up\n")
    with follow(local_host, run, probe=probe) as pieces:
        assert Following(pieces).until("probe")["ok"]


def test_a_server_whose_script_never_got_so_far_is_gone(local_host: LocalHost, run: str) -> None:
    state = local_host.settings.state
    local_host.call("runs.start", data=b"echo no; exit 9\n", state=state, run=run, note={})
    with follow(local_host, run) as pieces:
        following = Following(pieces)
        assert following.until("gone") == 9
    assert following.log == b"no\n"


def test_a_follow_that_ends_at_any_moment_ends() -> None:
    def open_and_close() -> None:
        for _ in range(1000):
            bell = _Bell()
            _Ranks(bell).close()
            bell.close()

    ending = threading.Thread(target=open_and_close, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
