"""A TCP proxy that spoils connections: slow, narrow, cut, reset or frozen at any byte."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """What happens to a connection."""

    CUT = "cut"  # both ends are told that the other has closed
    RESET = "reset"  # both ends get an RST
    FREEZE = "freeze"  # nobody is told anything, and nothing is carried any more


class Towards(Enum):
    """The direction whose bytes are counted."""

    HOST = "host"
    CLIENT = "client"


@dataclass(frozen=True)
class Fault:
    """What happens once ``after`` bytes were carried in that direction.

    ``stays``: whoever connects after a freeze finds the way frozen too.
    """

    kind: Kind
    towards: Towards
    after: int
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value} after {self.after} bytes to the {self.towards.value}"


@dataclass
class Connection:
    """One client's way to the host: what it has carried, and whether it was spoilt."""

    client: socket.socket
    host: socket.socket
    fault: Fault | None
    carried: dict[Towards, int] = field(
        default_factory=lambda: {Towards.HOST: 0, Towards.CLIENT: 0}
    )
    struck: threading.Event = field(default_factory=threading.Event)

    def room(self, towards: Towards) -> int:
        """Bytes that may still be carried that way."""
        if self.fault is None or self.fault.towards is not towards:
            return _BLOCK
        return min(_BLOCK, self.fault.after - self.carried[towards])


_BLOCK = 65536
_LOOK_S = 0.05


class FaultProxy:
    """Forwards a port of its own to ``target`` on loopback.

    Args:
        delay_s: every byte takes so long, each way.
        bytes_per_s: no more than so many pass, each way; None: as many as come.
    """

    def __init__(self, target: int, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._target = target
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self._faults: deque[Fault] = deque()
        self.connections: list[Connection] = []
        self.frozen = False
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def spoil(self, faults: Iterable[Fault]) -> None:
        """The next connections meet these, one each; those after them none."""
        self._faults.extend(faults)

    def heal(self) -> None:
        """Carry new connections again; frozen ones stay as they are, as on a real network."""
        self._faults.clear()
        self.frozen = False

    @property
    def struck(self) -> int:
        """How many connections were spoilt."""
        return sum(connection.struck.is_set() for connection in self.connections)

    def carried(self, towards: Towards) -> int:
        """Bytes that all connections carried."""
        return sum(connection.carried[towards] for connection in self.connections)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        for connection in self.connections:
            connection.client.close()
            connection.host.close()

    def _start(self, what: object, *args: object) -> None:
        thread = threading.Thread(target=what, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            if self.frozen or not select.select([self._listener], [], [], _LOOK_S)[0]:
                self._over.wait(_LOOK_S if self.frozen else 0)
                continue
            client, _ = self._listener.accept()
            try:
                host = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for end in (client, host):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fault = self._faults.popleft() if self._faults else None
            connection = Connection(client, host, fault)
            self.connections.append(connection)
            self._start(self._carry, connection, Towards.HOST)
            self._start(self._carry, connection, Towards.CLIENT)

    def _carry(self, connection: Connection, towards: Towards) -> None:
        """Take bytes from one end to the other, each when it is due."""
        source, target = connection.client, connection.host
        if towards is Towards.CLIENT:
            source, target = target, source
        due: deque[tuple[float, bytes]] = deque()
        free_at, ended = 0.0, False
        while not self._over.is_set() and not connection.struck.is_set():
            now = time.monotonic()
            while due and due[0][0] <= now:
                try:
                    target.sendall(due[0][1])
                except OSError:
                    return
                connection.carried[towards] += len(due.popleft()[1])
                if connection.room(towards) <= 0:
                    self._strike(connection)
                    return
            if ended and not due:
                with suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
            wait_s = min(_LOOK_S, max(0.0, due[0][0] - now)) if due else _LOOK_S
            room = connection.room(towards) - sum(len(chunk) for _, chunk in due)
            if ended or room <= 0:
                self._over.wait(wait_s)
                continue
            try:
                if not select.select([source], [], [], wait_s)[0]:
                    continue
                chunk = source.recv(room)
            except (OSError, ValueError):  # reset, or closed by the other direction
                chunk = b""
            if not chunk:
                ended = True
                continue
            now = time.monotonic()
            if self.bytes_per_s is not None:
                free_at = max(free_at, now) + len(chunk) / self.bytes_per_s
            due.append((max(free_at, now) + self.delay_s, chunk))

    def _strike(self, connection: Connection) -> None:
        assert connection.fault is not None
        kind = connection.fault.kind
        if kind is Kind.FREEZE:
            self.frozen = connection.fault.stays
        connection.struck.set()
        if kind is Kind.FREEZE:
            return
        for end in (connection.client, connection.host):
            if kind is Kind.RESET:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
            else:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
