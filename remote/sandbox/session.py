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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import asyncssh

#: What a login gets on a plain Linux.
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The kernel's default of 64 KiB makes a fast writer wait for every turn of the event loop.
PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
_CLIENT_GONE = (OSError, asyncssh.Error)


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


class ShellSession(asyncssh.SSHServerProcess[bytes]):
    """One session: SFTP, or a shell on pipes or on a terminal of its own.

    As with OpenSSH, a client that goes away takes the pipes with it but not the process, and the
    session lasts until the process has ended *and* every holder of its output has let go.

    The pipes are served here: redirection by AsyncSSH goes through asyncio's pipe transport,
    which loses the end of the input when it comes while the pipe is full (seen with 3.10).
    """

    def __init__(self, account: Account) -> None:
        super().__init__(
            self._serve,
            asyncssh.SFTPServer,  # type: ignore[arg-type]  # as asyncssh.listen itself passes it
            sftp_version=3,
            allow_scp=False,
        )
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal: IO[bytes] | None = None
        self._pumps: list[asyncio.Task[None]] = []

    def exception_received(self, exc: Exception) -> None:
        """A signal or a new window size from the client, at any time; end of input included."""
        if isinstance(exc, asyncssh.TerminalSizeChanged):
            if self._terminal is not None and not self._terminal.closed:
                _set_size(self._terminal.fileno(), *exc.term_size)
        elif isinstance(exc, asyncssh.SignalReceived):
            self._signal(getattr(signal, f"SIG{exc.signal}", None))
        elif isinstance(exc, asyncssh.BreakReceived):
            self._signal(signal.SIGINT)
        else:
            super().exception_received(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for pump in self._pumps:
            pump.cancel()

    async def _serve(self, _: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run what the session asks for, to its end."""
        peer, here = self.get_extra_info("peername"), self.get_extra_info("sockname")
        environment = self._account.environment(
            self.term_type, f"{peer[0]} {peer[1]} {here[0]} {here[1]}"
        )
        start = self._start_on_pipes if self.term_type is None else self._start_on_terminal
        try:
            process = start(environment)
        except OSError as error:
            self.stderr.write(f"{self._account.shell}: {error}\n".encode())
            self.exit(255)
            return
        status = await _ended(process)
        inlet, *outlets = self._pumps
        await asyncio.wait(outlets)
        inlet.cancel()
        name = _signal_names().get(-status)
        with contextlib.suppress(*_CLIENT_GONE):
            if name is not None:
                self.exit_with_signal(name)
            else:
                self.stdout.write_eof()
                self.exit(status if status >= 0 else 128 - status)

    def _start_on_pipes(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        # Not asyncio's subprocess: its transport kills the process when the server ends.
        process = self._start(subprocess.PIPE, subprocess.PIPE, environment)
        assert process.stdin and process.stdout and process.stderr
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # over the user's share of pipe memory
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pump(
            _feed(self.stdin, process.stdin),
            _drain(process.stdout, self.stdout),
            _drain(process.stderr, self.stderr),
        )
        return process

    def _start_on_terminal(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        master, slave = os.openpty()
        reading = os.fdopen(master, "rb", buffering=0)
        try:
            _set_size(slave, *self.term_size)
            environment = {**environment, "SSH_TTY": os.ttyname(slave)}
            process = self._start(slave, slave, environment, _take_terminal)
        except BaseException:
            reading.close()
            raise
        finally:
            os.close(slave)
        self._terminal = reading
        writing = os.fdopen(os.dup(master), "wb", buffering=0)
        self._pump(_feed(self.stdin, writing), _drain(reading, self.stdout))
        return process

    def _start(
        self,
        stdin: int,
        output: int,
        environment: dict[str, str],
        in_child: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._account.arguments(self.command),
            executable=self._account.shell,
            stdin=stdin,
            stdout=output,
            stderr=output,
            bufsize=0,
            cwd=self._account.home,
            env=environment,
            start_new_session=True,
            preexec_fn=in_child,
        )
        return self._process

    def _pump(self, *work: Coroutine[None, None, None]) -> None:
        self._pumps = [asyncio.ensure_future(each) for each in work]

    def _signal(self, number: int | None) -> None:
        """To the whole process group, whose number is the leader's, while that is ours to name."""
        if number is not None and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _signal_names() -> dict[int, str]:
    """Number → name as SSH carries it; real-time signals have none."""
    return {number.value: number.name.removeprefix("SIG") for number in signal.Signals}


def _set_size(terminal: int, columns: int, rows: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def _take_terminal() -> None:
    """In the child, already the leader of a new session: make standard input its terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _feed(source: asyncssh.SSHReader[bytes], pipe: IO[bytes]) -> None:
    """Channel to process, until the channel's end of input; then the pipe is closed."""
    with pipe, contextlib.suppress(*_CLIENT_GONE):
        os.set_blocking(pipe.fileno(), False)
        reads = True
        while data := await source.read(CHUNK_BYTES):
            # What nobody reads any more is still taken from the client, or it would wait for ever.
            reads = reads and await _write(pipe.fileno(), data)


async def _write(descriptor: int, data: bytes) -> bool:
    """All of the data; False where the other end has been closed."""
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            await _ready(descriptor, loop.add_writer, loop.remove_writer)
        except OSError:
            return False
    return True


async def _drain(pipe: IO[bytes], target: asyncssh.SSHWriter[bytes]) -> None:
    """Process to channel, no faster than the client reads, until every writer has let go."""
    loop = asyncio.get_running_loop()
    with pipe, contextlib.suppress(*_CLIENT_GONE):  # or EIO, which is a terminal's end
        os.set_blocking(pipe.fileno(), False)
        while True:
            await _ready(pipe.fileno(), loop.add_reader, loop.remove_reader)
            data = os.read(pipe.fileno(), CHUNK_BYTES)
            if not data:
                return
            target.write(data)
            await target.drain()


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit status, or minus the signal; waits on a pidfd, so no thread and no SIGCHLD."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)
    try:
        await _ready(handle, loop.add_reader, loop.remove_reader)
    finally:
        os.close(handle)
    return process.wait()


async def _ready(
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:
    """Until the event loop finds the descriptor ready."""
    found = asyncio.Event()
    add(descriptor, found.set)
    try:
        await found.wait()
    finally:
        remove(descriptor)
