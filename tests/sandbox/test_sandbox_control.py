from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote.errors import ConfigError, ToolError
from remote.sandbox import control
from remote.sandbox.control import Sandbox, require_linux, start_server
from remote.sandbox.entry import FIRST_PORT, UNAVAILABLE, host_entry, sglang_port
from remote.sandbox.keys import have_keys, make_keys
from remote.sandbox.layout import Layout
from remote.sandbox.process import ProcessId
from remote.sandbox.record import ServerRecord
from remote.sandbox.setup import Progress
from remote.sandbox.steps import Keys


@pytest.fixture
def sandbox(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox whose set-up is its keys alone."""
    monkeypatch.setattr(control, "all_steps", lambda pins: (Keys(),))
    sandbox = Sandbox(layout.folder)
    yield sandbox
    sandbox.down()


def up(sandbox: Sandbox) -> control.SandboxEntry:
    return sandbox.up(lambda progress: None, lambda question: False)


def test_up_is_done_once_and_down_ends_it(sandbox: Sandbox) -> None:
    first, second = up(sandbox), up(sandbox)

    assert (first.set_up, first.server_started) == (True, True)
    assert (second.set_up, second.server_started) == (False, False)
    assert first.host == second.host
    status = sandbox.status()
    assert status.ssh_pid is not None
    assert str(first.host["address"]).endswith(f"@127.0.0.1:{status.ssh_port}")

    assert sandbox.down().stopped_pid == status.ssh_pid
    assert sandbox.status().ssh_pid is None
    assert sandbox.down().stopped_pid is None


def test_another_process_with_the_servers_pid_is_left_alone(sandbox: Sandbox) -> None:
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        known = ProcessId.of(bystander.pid)
        assert known is not None
        imposter = replace(known, start_ticks=known.start_ticks - 1)
        ServerRecord(imposter, 1).write(sandbox.layout.server_record)

        assert sandbox.status().ssh_pid is None
        assert sandbox.down().stopped_pid is None
        assert up(sandbox).server_started
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_killed_server_is_started_again(sandbox: Sandbox) -> None:
    up(sandbox)
    record = ServerRecord.read(sandbox.layout.server_record)
    assert record is not None
    record.process.stop(0.0)

    assert up(sandbox).server_started


def test_a_server_whose_keys_are_gone_is_replaced(sandbox: Sandbox) -> None:
    up(sandbox)
    old = sandbox.status().ssh_pid
    for path in sandbox.layout.ssh.iterdir():
        path.unlink()

    assert up(sandbox).server_started
    assert sandbox.status().ssh_pid != old
    assert old is not None
    assert ProcessId.of(old) is None


def test_a_second_task_says_that_it_waits_and_then_goes_on(sandbox: Sandbox) -> None:
    waits = threading.Event()

    def report(progress: Progress) -> None:
        if progress.name == "lock":
            waits.set()

    with sandbox._locked(report):
        second = threading.Thread(target=sandbox.up, args=(report, lambda question: False))
        second.start()
        assert waits.wait(10)
        assert sandbox.status().ssh_pid is None
    second.join(20)

    assert sandbox.status().ssh_pid is not None


def test_reset_refuses_while_something_runs_there_and_then_takes_it_all(sandbox: Sandbox) -> None:
    up(sandbox)
    server = sandbox.status().ssh_pid
    home = {"HOME": str(sandbox.layout.home), "PATH": os.environ["PATH"]}
    left = subprocess.Popen(["sleep", "300"], env=home)
    try:
        assert sandbox.leftover_pids() == (left.pid,)
        with pytest.raises(ToolError, match="still run") as caught:
            sandbox.reset()
        assert caught.value.evidence == (f"pid {left.pid}: sleep 300",)
        assert sandbox.status().ssh_pid == server
    finally:
        left.kill()
        left.wait()

    assert sandbox.reset() > 0
    assert not sandbox.folder.exists()
    assert server is not None
    assert ProcessId.of(server) is None
    assert sandbox.reset() == 0


def test_reset_keeps_away_from_a_folder_with_other_things_in_it(sandbox: Sandbox) -> None:
    thesis = sandbox.folder / "thesis.tex"
    thesis.touch()

    with pytest.raises(ToolError) as caught:
        sandbox.reset()

    assert caught.value.evidence == (str(thesis),)
    assert thesis.exists()


def test_down_and_reset_of_nothing_make_nothing(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "none")

    assert sandbox.down().stopped_pid is None
    assert sandbox.reset() == 0
    assert not sandbox.folder.exists()


def test_a_server_that_cannot_start_shows_its_log(layout: Layout) -> None:
    layout.host_key.write_text("not a key")

    with pytest.raises(ToolError, match="did not start") as caught:
        start_server(layout)

    assert any("key" in line.lower() for line in caught.value.evidence)


def test_keys_open_to_others_are_not_taken_and_closed_again(layout: Layout) -> None:
    before = layout.client_key.read_bytes()
    layout.client_key.chmod(0o644)
    assert not have_keys(layout)

    make_keys(layout)

    assert have_keys(layout)
    assert layout.client_key.read_bytes() == before


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")]
)
def test_elsewhere_the_hint_is_a_real_host(system: str, machine: str) -> None:
    with pytest.raises(ConfigError, match=f"this is {system} on {machine}") as caught:
        require_linux(system, machine)

    for key in ("address:", "venv:", "model:", "port:"):
        assert key in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": {"pid": 1}, "port": 2}'])
def test_a_spoilt_server_record_is_no_server(sandbox: Sandbox, text: str) -> None:
    sandbox.layout.server_record.write_text(text)

    assert sandbox.status().ssh_pid is None


def test_the_entry_is_plain_settings_with_a_reason_for_each_thing_left_out(layout: Layout) -> None:
    entry = host_entry(layout, 2222)

    assert json.loads(json.dumps(entry)) == entry
    assert str(entry["address"]).endswith("@127.0.0.1:2222")
    assert entry["unavailable"] == UNAVAILABLE
    assert all(UNAVAILABLE.values())


def test_the_port_is_kept_while_it_is_free_or_its_own(layout: Layout) -> None:
    port = sglang_port(layout)
    assert port >= FIRST_PORT
    assert host_entry(layout, 2222)["port"] == sglang_port(layout) == port
    with socket.socket() as taken:  # by somebody else, or by the server of this very sandbox
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert sglang_port(layout, in_use=True) == port
        other = sglang_port(layout)
        assert other > port
    assert sglang_port(layout) == other
