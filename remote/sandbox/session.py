"""What one SSH session of the embedded host runs: a shell, as OpenSSH's server would."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import signal
import struct
import subprocess
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import asyncssh

#: What a login gets on a plain Linux.
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The kernel's default of 64 KiB makes a fast writer wait for every turn of the event loop.
PIPE_BYTES = 1 << 20


@dataclass(frozen=True)
class Account:
    """Who logs in: this user, in a home of the sandbox's own."""

    name: str
    home: Path
    shell: str

    @classmethod
    def here(cls, home: Path) -> Account:
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        return cls(pwd.getpwuid(os.getuid()).pw_name, home, shell)

    def environment(self, terminal: str | None, connection: str) -> dict[str, str]:
        """A login's environment: nothing of the server's own, nothing that the client sent.

        Args:
            terminal: the kind of terminal, where one was asked for.
            connection: client address and port, server address and port, by blanks.
        """
        environment = {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell,
            "PATH": LOGIN_PATH,
            "LANG": "C.UTF-8",
            "SSH_CONNECTION": connection,
        }
        if terminal is not None:
            environment["TERM"] = terminal
        return environment

    def arguments(self, command: str | None) -> list[str]:
        """The shell's argument vector: a login shell, or one given the command line."""
        if command is None:
            return ["-" + Path(self.shell).name]
        return [Path(self.shell).name, "-c", command]


async def serve(account: Account, session: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run what a session asks for, to its end.

    As with OpenSSH, a client that goes away takes the pipes with it but not the process, and the
    session lasts until the process has ended *and* every holder of its output has let go.
    """
    peer, here = session.get_extra_info("peername"), session.get_extra_info("sockname")
    connection = f"{peer[0]} {peer[1]} {here[0]} {here[1]}"
    environment = account.environment(session.term_type, connection)
    arguments = account.arguments(session.command)
    try:
        if session.term_type is None:
            process = await _start_on_pipes(session, account, arguments, environment)
        else:
            process = await _start_on_terminal(session, account, arguments, environment)
    except OSError as error:
        session.stderr.write(f"{account.shell}: {error}\n".encode())
        session.exit(255)
        await session.wait_closed()
        return
    status = await _ended(process)
    with contextlib.suppress(OSError):  # the client may be gone
        await session.stdout.drain()
        await session.stderr.drain()
        session.stdout.write_eof()
        if status < 0:
            session.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            session.exit(status)
    await session.wait_closed()


async def _start_on_pipes(
    session: asyncssh.SSHServerProcess[bytes],
    account: Account,
    arguments: list[str],
    environment: dict[str, str],
) -> subprocess.Popen[bytes]:
    # Not asyncio's subprocess: its transport kills the process when the server ends.
    process = subprocess.Popen(
        arguments,
        executable=account.shell,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=account.home,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # over the user's share of pipe memory
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    await _connect(session, process, process.stdin, process.stdout, process.stderr)
    return process


async def _start_on_terminal(
    session: asyncssh.SSHServerProcess[bytes],
    account: Account,
    arguments: list[str],
    environment: dict[str, str],
) -> subprocess.Popen[bytes]:
    master, slave = os.openpty()
    try:
        _set_size(slave, *session.term_size)
        process = subprocess.Popen(
            arguments,
            executable=account.shell,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=account.home,
            env={**environment, "SSH_TTY": os.ttyname(slave)},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    typed = os.fdopen(os.dup(master), "wb", buffering=0)
    await _connect(session, process, typed, os.fdopen(master, "rb", buffering=0), None)
    return process


def _set_size(terminal: int, columns: int, rows: int, width: int, height: int) -> None:
    """Before the shell looks; later changes reach it through the redirection."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def _take_terminal() -> None:
    """In the child, already the leader of a new session: make standard input its terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _connect(
    session: asyncssh.SSHServerProcess[bytes],
    process: subprocess.Popen[bytes],
    stdin: IO[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes] | None,
) -> None:
    # A signal from the client is for the whole process group, whose number is the leader's.
    session.set_redirect_pid(-process.pid)
    # One stream's end must not end the other's: both are drained before the channel's own EOF.
    await session.redirect(stdin=stdin, stdout=stdout, stderr=stderr, send_eof=False)


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit status, or minus the signal; waits on a pidfd, so no thread and no SIGCHLD."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return process.wait()
