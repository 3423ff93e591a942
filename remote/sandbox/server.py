"""The embedded host's SSH server: ``python -m remote.sandbox.server FOLDER [READY_FD]``.

It detaches, listens on a loopback port, lets in this user with the sandbox's client key and
nobody else, and ends on SIGTERM; what was started through it lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from pathlib import Path

import asyncssh

from remote.sandbox import keys
from remote.sandbox.layout import Layout
from remote.sandbox.process import ProcessId
from remote.sandbox.record import LOOPBACK, ServerRecord
from remote.sandbox.session import Account, ShellSession

#: The default exchange is post-quantum and costs 90 ms of CPU; nothing here leaves the machine.
KEY_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
#: A receive window that does not bound throughput.
WINDOW_BYTES = 16 << 20


class OwnerOnly(asyncssh.SSHServer):
    """Lets in the account's user with one key; forwards to loopback alone."""

    def __init__(self, account: Account, client_key: asyncssh.SSHKey) -> None:
        self._account = account
        self._client_key = client_key.public_data

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._account.name and key.public_data == self._client_key

    def session_requested(self) -> ShellSession:
        return ShellSession(self._account)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return dest_host in {LOOPBACK, "::1", "localhost"}


async def listen(layout: Layout, port: int) -> asyncssh.SSHAcceptor:
    """Start listening; port 0 takes any free one."""
    account = Account.here(layout.home)
    client_key = asyncssh.read_public_key(keys.public(layout.client_key))
    return await asyncssh.listen(
        LOOPBACK,
        port,
        server_factory=functools.partial(OwnerOnly, account, client_key),
        server_host_keys=[str(layout.host_key)],
        encoding=None,
        line_editor=False,
        kex_algs=KEY_EXCHANGES,
        compression_algs=None,
        window=WINDOW_BYTES,
        login_timeout=30,
        agent_forwarding=False,
    )


async def listen_again(layout: Layout) -> asyncssh.SSHAcceptor:
    """On the port of the time before, so that addresses stay good; on any free one otherwise."""
    before = ServerRecord.read(layout.server_record)
    if before is not None:
        with contextlib.suppress(OSError):
            return await listen(layout, before.port)
    return await listen(layout, 0)


async def run(folder: Path, ready: int | None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        folder: the sandbox's folder; keys and home are there.
        ready: a pipe to write the port to once the record and known_hosts are in place.
    """
    layout = Layout(folder)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    os.chdir(layout.home)  # where SFTP's relative paths begin
    async with await listen_again(layout) as acceptor:
        port = acceptor.get_port()
        host_key = keys.public(layout.host_key).read_text(encoding="ascii")
        keys.write_private(layout.known_hosts, keys.known_hosts_line(port, host_key).encode())
        process = ProcessId.of(os.getpid())
        assert process is not None
        ServerRecord(process, port).write(layout.server_record)
        if ready is not None:
            os.write(ready, f"{port}\n".encode())
            os.close(ready)
        await stopped.wait()


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    ready = int(sys.argv[2]) if len(sys.argv) > 2 else None
    if os.fork():
        os._exit(0)  # the task that started it waits for this, and never has to reap a child
    os.setsid()
    asyncio.run(run(folder, ready))


if __name__ == "__main__":
    main()
