"""Processes told from their namesakes, and found wherever they went."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hosts import eventually, new_run

from remote.payload import procs


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"], env={procs.RUN_VARIABLE: "a-run", "PATH": "/bin"})
    yield process
    process.kill()
    process.wait()


def found(pid: int) -> procs.Process:
    process = procs.find(pid)
    assert process is not None
    return process


def test_a_process_is_found_with_its_parent_and_run(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    assert process.alive and process.parent == os.getpid()
    assert eventually(lambda: procs.run_of(sleeper.pid)) == "a-run"
    described = procs.describe(sleeper.pid)
    assert described["command"] == ["sleep", "300"]
    assert described["start"] == process.start


def test_a_name_with_brackets_and_spaces_is_read(tmp_path: os.PathLike[str]) -> None:
    program = os.path.join(tmp_path, "a) S (b")  # noqa: PTH118
    os.symlink("/bin/sleep", program)  # noqa: PTH211
    process = subprocess.Popen([program, "300"])
    assert found(process.pid).parent == os.getpid()
    process.kill()
    process.wait()


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    assert eventually(lambda: not found(process.pid).alive)
    assert not procs.same(process.pid, found(process.pid).start)
    process.wait()
    assert procs.find(process.pid) is None


def test_a_later_process_of_the_same_pid_is_never_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    process = found(sleeper.pid)
    earlier = process._replace(start=process.start - 1)
    assert not procs.same(earlier.pid, earlier.start)
    assert not procs.send(earlier, signal.SIGKILL)
    assert sleeper.poll() is None
    assert procs.send(process, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_signalling_one_that_is_gone_says_so() -> None:
    process = subprocess.Popen(["sleep", "300"])
    there = found(process.pid)
    process.kill()
    process.wait()
    assert not procs.send(there, signal.SIGTERM)


def test_members_are_found_out_of_the_process_group() -> None:
    run = new_run()
    script = "setsid sleep 300 & sleep 300 & exit 0"
    env = {procs.RUN_VARIABLE: run, "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], env=env, check=True)
    sleeping = ["sleep", "300"]

    def both() -> list[procs.Process] | None:
        found = procs.members(run)
        commands = [procs.command_line(process.pid) for process in found]
        return found if commands == [sleeping, sleeping] else None

    members = eventually(both)
    for process in members:
        procs.send(process, signal.SIGKILL)
    assert eventually(lambda: not procs.members(run))


def test_a_run_whose_id_begins_like_another_is_another() -> None:
    run = new_run()
    env = {procs.RUN_VARIABLE: f"{run}-2", "OTHER": f"x{procs.RUN_VARIABLE}={run}"}
    process = subprocess.Popen(["/bin/sleep", "300"], env=env)
    assert eventually(lambda: procs.members(f"{run}-2"))
    assert procs.members(run) == []
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_holder_of_a_port_is_named(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as server:
        server.bind((address, 0))
        port = server.getsockname()[1]
        assert procs.listeners(port) == (False, [])
        server.listen()
        assert procs.listeners(port) == (True, [os.getpid()])
    assert procs.listeners(port) == (False, [])


def test_a_client_of_a_port_does_not_hold_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        client = subprocess.Popen([sys.executable, "-S", "-c", connect])
        with server.accept()[0]:
            assert procs.listeners(port) == (True, [os.getpid()])
        client.wait()
