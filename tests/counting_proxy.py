"""A TCP proxy that counts what a task costs on the wire: connections, segments, bytes, round trips.

Linux only: segments come from the kernel's own TCP_INFO.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType

_BLOCK = 256 * 1024
#: Taken in and not yet passed on, each way: more than any link here holds in a delay.
_IN_FLIGHT = 64 * 1024 * 1024
_LOOK_S = 0.05
#: Advertised to both ends; with TCP's timestamps a full segment then carries 1448 bytes, as on
#: Ethernet. Loopback's own would carry 65483.
_MSS = 1460
#: Where tcpi_segs_in and tcpi_data_segs_in stand in Linux's struct tcp_info (linux/tcp.h).
_SEGS_IN, _DATA_SEGS_IN = 140, 152


@dataclass(frozen=True)
class Counted:
    """What passed through a `CountingProxy`, or between two looks at it.

    Attributes:
        connections: accepted from the client.
        packets: TCP segments that the client sent and that the host sent, with SYN, FIN and pure
            acknowledgements, each counted by the kernel that received it. Pure acknowledgements
            depend on how soon an end has something to answer, so this number may vary by a few.
        data_packets: those of them that carry data; what an end writes at once in one go is cut
            into segments of 1448 bytes.
        bytes_out: from the client to the host.
        bytes_in: from the host to the client.
        round_trips: one for the TCP handshake of each connection, and one for each flight that was
            answered. A flight is all that the client sends from when it has been answered until the
            answer to the first of it is there; the first flight begins with the connection, so that
            a client that waits for the server's greeting pays a round trip for it, and one that
            speaks meanwhile doesn't pay twice. An answer is whatever the host sent after the
            flight's first byte had reached it, if the client has not closed by then. So a pause of
            the client between two sendings costs none, what the host sends unasked costs none, and
            no link can do more round trips than fit into the time.
    """

    connections: int = 0
    packets: int = 0
    data_packets: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    round_trips: int = 0

    def __add__(self, other: Counted) -> Counted:
        return Counted(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def since(self, earlier: Counted) -> Counted:
        """What came on top of an earlier look."""
        return Counted(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class CountingProxy:
    """Forwards a port of its own on loopback to ``target`` there; a context manager.

    Args:
        delay_s: how long each byte takes, each way, in order and without a limit to how many are
            under way; a connection's handshake takes twice that, too. There is no slow start.
    """

    def __init__(self, target: int, delay_s: float = 0.0) -> None:
        self._target = target
        self.delay_s = delay_s
        self._over = threading.Event()
        self._ways: list[_Way] = []
        self._listener = socket.socket()
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _MSS)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> CountingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def counted(self) -> Counted:
        """What has passed so far."""
        return sum((way.counted() for way in list(self._ways)), Counted())

    def settle(self, within_s: float = 10.0) -> Counted:
        """Wait until every connection has ended at both ends; what has passed by then."""
        until = time.monotonic() + within_s
        for way in list(self._ways):
            assert way.ended.wait(until - time.monotonic()), "a connection is still open"
        return self.counted()

    def close(self) -> None:
        self._over.set()
        self._accepting.join(10)
        self._listener.close()
        for way in self._ways:
            way.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            if select.select([self._listener], [], [], _LOOK_S)[0]:
                client, _ = self._listener.accept()
                self._ways.append(_Way(client, self._target, self.delay_s))


class _Way:
    """One connection, carried by two threads."""

    def __init__(self, client: socket.socket, target: int, delay_s: float) -> None:
        self._client, self._host = client, socket.socket()
        self._target = target
        self._delay_s = delay_s
        # The client's kernel calls itself connected already; on a link it would be by then.
        self._connected_at = time.monotonic() + 2 * delay_s
        self._turns = _Turns(self._connected_at + delay_s)
        self._bytes = {True: 0, False: 0}
        self._segments = (0, 0)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._carry_both, daemon=True)]
        self._dialled = threading.Event()
        self.ended = threading.Event()
        self._threads[0].start()

    def counted(self) -> Counted:
        with self._lock:
            if not self.ended.is_set():
                self._look()
            return Counted(
                1, *self._segments, self._bytes[True], self._bytes[False], 1 + self._turns.answered
            )

    def close(self) -> None:
        for end in (self._client, self._host):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _look(self) -> None:
        """Ask the kernel how many segments both ends have sent."""
        both = [
            end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            for end in (self._client, self._host)
        ]
        every, data = (
            sum(int(struct.unpack_from("=I", told, at)[0]) for told in both)
            for at in (_SEGS_IN, _DATA_SEGS_IN)
        )
        self._segments = (every, data)

    def _carry_both(self) -> None:
        for end in (self._client, self._host):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _MSS)
        back = threading.Thread(target=self._dial_and_carry_back, daemon=True)
        self._threads.append(back)
        back.start()
        self._carry(True)
        back.join()
        with self._lock:
            self._look()
            self.ended.set()
            self._client.close()
            self._host.close()

    def _dial_and_carry_back(self) -> None:
        time.sleep(max(0.0, self._connected_at + self._delay_s - time.monotonic()))
        try:
            self._host.connect(("127.0.0.1", self._target))
        except OSError:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)
            return
        finally:
            self._dialled.set()
        self._carry(False)

    def _carry(self, outward: bool) -> None:
        """Take bytes from one end to the other, each when it is due, until the source ends."""
        source, target = (self._client, self._host) if outward else (self._host, self._client)
        due: deque[tuple[float, bytes]] = deque()
        held, ended = 0, False
        while not ended or due:
            now = time.monotonic()
            while due and due[0][0] <= now and self._dialled.wait():
                at, chunk = due.popleft()
                held -= len(chunk)
                if not outward:
                    self._turns.hears(at - self._delay_s)
                if not self._pass_on(target, chunk):
                    return
                self._bytes[outward] += len(chunk)
            wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
            if ended or held >= _IN_FLIGHT:
                time.sleep(wait_s or 0.0)
                continue
            try:
                if not select.select([source], [], [], wait_s)[0]:
                    continue
                chunk = source.recv(_BLOCK)
            except (OSError, ValueError):
                chunk = b""
            now = time.monotonic()
            if not chunk:
                ended = True
                if outward:
                    self._turns.leaves()
            elif outward:
                now = max(now, self._connected_at)
                self._turns.says(now + self._delay_s)
            due.append((now + self._delay_s, chunk))
            held += len(chunk)

    @staticmethod
    def _pass_on(target: socket.socket, chunk: bytes) -> bool:
        """False when the target takes nothing any more."""
        try:
            if chunk:
                target.sendall(chunk)
            else:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True


class _Turns:
    """Flights of one connection that were answered; see `Counted.round_trips`."""

    def __init__(self, reaches_at: float) -> None:
        self.answered = 0
        self._lock = threading.Lock()
        # When the flight under way reaches the host; None: it has been answered.
        self._reaches_at: float | None = reaches_at

    def says(self, reaches_at: float) -> None:
        """The client has sent something that reaches the host then."""
        with self._lock:
            if self._reaches_at is None:
                self._reaches_at = reaches_at

    def leaves(self) -> None:
        """The client has closed; what still comes is waited for by nobody."""
        with self._lock:
            self._reaches_at = None

    def hears(self, sent_at: float) -> None:
        """The client gets something now that the host has sent then."""
        with self._lock:
            if self._reaches_at is not None and sent_at >= self._reaches_at:
                self._reaches_at = None
                self.answered += 1
