"""The embedded host's SSH server, over loopback, by a client that checks its key."""

from __future__ import annotations

import asyncio
import getpass
import os
import random
import signal
import stat
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import asyncssh
import pytest

from remote.sandbox.control import start_server
from remote.sandbox.layout import Layout
from remote.sandbox.process import ProcessId, started_in
from remote.sandbox.record import ServerRecord

T = TypeVar("T")


def connection(
    layout: Layout, *, user: str | None = None, key: Path | asyncssh.SSHKey | None = None
) -> AbstractAsyncContextManager[asyncssh.SSHClientConnection]:
    record = ServerRecord.read(layout.server_record)
    assert record is not None
    client_key = key if isinstance(key, asyncssh.SSHKey) else str(key or layout.client_key)
    return asyncssh.connect(
        "127.0.0.1",
        record.port,
        username=user or getpass.getuser(),
        client_keys=[client_key],
        known_hosts=str(layout.known_hosts),
        config=None,
        agent_path=None,
        encoding=None,
    )


def over(layout: Layout, use: Callable[[asyncssh.SSHClientConnection], Awaitable[T]]) -> T:
    """Connect, do one thing, and give back what it gave."""

    async def go() -> T:
        async with connection(layout) as client:
            return await asyncio.wait_for(use(client), 30)

    return asyncio.run(go())


@dataclass(frozen=True)
class Done:
    """A command that has ended, seen from the client."""

    status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes

    @classmethod
    def of(cls, done: asyncssh.SSHCompletedProcess) -> Done:
        assert isinstance(done.stdout, bytes)
        assert isinstance(done.stderr, bytes)
        signalled = done.exit_signal[0] if done.exit_signal else None
        return cls(done.exit_status, signalled, done.stdout, done.stderr)


def run(
    layout: Layout, command: str | None, data: bytes = b"", env: dict[str, str] | None = None
) -> Done:
    async def use(client: asyncssh.SSHClientConnection) -> Done:
        return Done.of(await client.run(command, input=data, env=env or {}))

    return over(layout, use)


def environment(raw: bytes) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in raw.decode().split("\0") if entry)
    return {name: value for name, _, value in pairs}


def test_status_output_and_errors_come_apart(served: Layout) -> None:
    done = run(served, "echo out; echo err >&2; exit 7")

    assert (done.status, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_the_command_is_one_line_of_shell_in_the_home(served: Layout) -> None:
    done = run(served, "pwd; x='a  b'; echo \"$x\" | tr a z")

    assert done.stdout == f"{served.home}\nz  b\n".encode()


def test_megabytes_pass_both_ways_byte_for_byte(served: Layout) -> None:
    data = random.Random(5).randbytes(5_000_000)

    assert run(served, "cat", data).stdout == data


def test_errors_may_go_on_after_the_output_has_ended(served: Layout) -> None:
    done = run(served, "exec 1>&-; for i in 1 2 3; do echo late $i >&2; sleep 0.02; done")

    assert done.stderr == b"late 1\nlate 2\nlate 3\n"


def test_a_reader_that_stops_early_does_not_hang_the_session(served: Layout) -> None:
    done = run(served, "head -c 3", b"abc" + bytes(3_000_000))

    assert (done.status, done.stdout) == (0, b"abc")


def test_a_signal_that_ends_the_command_is_passed_on(served: Layout) -> None:
    done = run(served, "kill -KILL $$")

    assert done.signal == "KILL"


def test_a_signal_reaches_the_whole_group_even_after_the_end_of_the_input(served: Layout) -> None:
    async def use(client: asyncssh.SSHClientConnection) -> str | None:
        process = await client.create_process("sleep 300 & echo going; wait")
        await process.stdout.readline()
        process.stdin.write_eof()
        process.send_signal("TERM")
        return Done.of(await process.wait()).signal

    assert over(served, use) == "TERM"
    assert started_in(served.home, served.venv) == ()


def test_the_environment_is_a_logins_and_nothing_leaks_into_it(served: Layout) -> None:
    found = environment(run(served, "cat /proc/self/environ").stdout)

    assert found["HOME"] == str(served.home)
    assert found["USER"] == found["LOGNAME"] == getpass.getuser()
    assert found["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert found["SSH_CONNECTION"].startswith("127.0.0.1 ")
    by_bash = {"PWD", "SHLVL", "_"}
    login = {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "SSH_CONNECTION"}
    assert set(found) - by_bash == login


def test_variables_that_the_client_sends_are_not_taken(served: Layout) -> None:
    done = run(served, "cat /proc/self/environ", env={"PYTHONPATH": "/x", "PATH": "/x"})
    found = environment(done.stdout)

    assert "PYTHONPATH" not in found
    assert found["PATH"] != "/x"


def test_a_terminal_has_its_size_and_changes_it(served: Layout) -> None:
    async def use(client: asyncssh.SSHClientConnection) -> list[bytes]:
        process = await client.create_process(
            "trap 'stty size; exit' WINCH; stty size; echo $TERM; while :; do sleep 0.05; done",
            term_type="xterm-256color",
            term_size=(101, 41),
        )
        first = [await process.stdout.readline() for _ in range(2)]
        process.change_terminal_size(77, 33)
        return [*first, await process.stdout.readline()]

    assert over(served, use) == [b"41 101\r\n", b"xterm-256color\r\n", b"33 77\r\n"]


def test_control_c_interrupts_what_runs_on_the_terminal(served: Layout) -> None:
    async def use(client: asyncssh.SSHClientConnection) -> Done:
        command = "trap 'echo interrupted; exit 3' INT; echo going; while :; do sleep 0.05; done"
        process = await client.create_process(command, term_type="xterm")
        await process.stdout.readline()
        process.stdin.write(b"\x03")
        return Done.of(await process.wait())

    done = over(served, use)
    assert done.status == 3
    assert b"interrupted" in done.stdout


def test_without_a_command_there_is_a_login_shell(served: Layout) -> None:
    done = run(served, None, b'echo "$0"; exit 4\n')

    assert done.stdout.startswith(b"-")
    assert done.status == 4


def test_files_come_and_go_by_sftp_from_the_home(served: Layout) -> None:
    async def use(client: asyncssh.SSHClientConnection) -> str:
        async with client.start_sftp_client() as sftp:
            async with sftp.open("note", "wb") as file:
                await file.write(b"\x00\xff")
            return os.fsdecode(await sftp.getcwd())

    assert Path(over(served, use)) == served.home
    assert (served.home / "note").read_bytes() == b"\x00\xff"


def test_a_loopback_port_is_forwarded_and_no_other(served: Layout) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def use(client: asyncssh.SSHClientConnection) -> bytes:
        listener = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            reader, writer = await client.open_connection("127.0.0.1", port)
            writer.write(b"through\n")
            return bytes(await reader.readline())

    async def elsewhere(client: asyncssh.SSHClientConnection) -> None:
        await client.open_connection("192.0.2.1", 80)

    assert over(served, use) == b"through\n"
    with pytest.raises(asyncssh.ChannelOpenError):
        over(served, elsewhere)


def test_many_sessions_run_at_once_on_one_connection(served: Layout) -> None:
    # Each waits for all the others, so one at a time would never end.
    meet = "echo > met.{n}; until [ $(ls met.* | wc -l) -eq 12 ]; do sleep 0.02; done; echo {n}"

    async def use(client: asyncssh.SSHClientConnection) -> list[bytes]:
        sessions = (client.run(meet.format(n=number)) for number in range(12))
        return [Done.of(done).stdout for done in await asyncio.gather(*sessions)]

    assert over(served, use) == [f"{number}\n".encode() for number in range(12)]


def test_a_wrong_key_and_a_wrong_user_are_refused(served: Layout) -> None:
    async def attempt(**other: object) -> None:
        async with connection(served, **other):  # type: ignore[arg-type]
            pass

    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(attempt(key=asyncssh.generate_private_key("ssh-ed25519")))
    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(attempt(user="somebody-else"))


def test_a_changed_host_key_is_noticed_by_the_client(served: Layout, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    record = ServerRecord.read(served.server_record)
    assert record is not None
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{record.port} {other}")

    async def attempt() -> None:
        async with asyncssh.connect(
            "127.0.0.1",
            record.port,
            client_keys=[str(served.client_key)],
            known_hosts=str(tmp_path / "known_hosts"),
            config=None,
        ):
            pass

    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        asyncio.run(attempt())


def test_a_process_outlives_its_connection_and_loses_its_pipes(served: Layout) -> None:
    async def use(client: asyncssh.SSHClientConnection) -> int:
        process = await client.create_process("echo $$; cat > /dev/null; echo eof > ended; sleep 9")
        return int(await process.stdout.readline())

    pid = over(served, use)
    ended = served.home / "ended"

    async def until_ended() -> None:
        while not ended.exists():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(until_ended(), 10))
    process = ProcessId.of(pid)
    assert process is not None
    os.killpg(pid, signal.SIGKILL)


def test_private_files_are_the_owners_alone(served: Layout) -> None:
    assert stat.S_IMODE(served.ssh.stat().st_mode) == 0o700
    for path in (served.host_key, served.client_key, served.known_hosts, served.server_record):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_was_started_survives_the_server_and_the_port_stays(layout: Layout) -> None:
    port = start_server(layout)
    record = ServerRecord.read(layout.server_record)
    assert record is not None
    pid = int(run(layout, "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!").stdout)
    try:
        assert record.process.stop(5.0)
        assert ProcessId.of(pid) is not None
        assert start_server(layout) == port
    finally:
        os.kill(pid, signal.SIGKILL)
        again = ServerRecord.read(layout.server_record)
        assert again is not None
        again.process.stop(5.0)
