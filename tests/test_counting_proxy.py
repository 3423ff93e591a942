"""What the counting proxy counts, told by plain sockets whose costs are known."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from counting_proxy import Counted, CountingProxy

DELAY_S = 0.02


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection is served by a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def echo(connection: socket.socket) -> None:
    """Send back each line as it comes."""
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall(line)


def greet(connection: socket.socket) -> None:
    connection.sendall(b"welcome\n")
    echo(connection)


def push(connection: socket.socket) -> None:
    """After the first line, speak unasked."""
    with connection, connection.makefile("rb") as lines:
        lines.readline()
        for _ in range(5):
            connection.sendall(b"news\n")
            time.sleep(DELAY_S)
        lines.readline()


@contextmanager
def client(proxy: CountingProxy) -> Iterator[tuple[Callable[[bytes], None], Callable[[], bytes]]]:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as lines:
            yield connection.sendall, lines.readline


@pytest.mark.parametrize("requests", [1, 3, 8])
def test_each_request_that_waits_for_its_answer_is_a_round_trip(requests: int) -> None:
    with server(echo) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            for _ in range(requests):
                say(b"question\n")
                assert hear() == b"question\n"
        counted = proxy.settle()
    assert counted.round_trips == 1 + requests
    assert counted.data_packets == 2 * requests
    assert (counted.bytes_out, counted.bytes_in) == (9 * requests, 9 * requests)


def test_requests_that_wait_for_nothing_are_one_round_trip() -> None:
    with server(echo) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            for _ in range(8):
                say(b"question\n")
                time.sleep(DELAY_S / 20)
            assert [hear() for _ in range(8)] == [b"question\n"] * 8
        assert proxy.settle().round_trips == 2


def test_two_chains_side_by_side_cost_as_much_as_one() -> None:
    """Two requests on their way, half a round trip apart, each followed up at its answer."""
    with server(echo) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            say(b"a\n")
            time.sleep(3 * DELAY_S)
            say(b"b\n")
            for _ in range(4):
                say(hear())
            hear(), hear()
        assert proxy.settle().round_trips == 4


def test_a_greeting_that_is_waited_for_is_a_round_trip_and_one_that_is_not_comes_along() -> None:
    with server(greet) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            assert hear() == b"welcome\n"
            say(b"question\n")
            hear()
        waited = proxy.settle()
        with client(proxy) as (say, hear):
            say(b"question\n")
            assert hear() == b"welcome\n"
            hear()
        meanwhile = proxy.settle().since(waited)
    assert waited.round_trips == 3
    assert meanwhile.round_trips == 2


def test_what_comes_unasked_costs_no_round_trip() -> None:
    with server(push) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            say(b"go on\n")
            assert [hear() for _ in range(5)] == [b"news\n"] * 5
            say(b"enough\n")
        assert proxy.settle().round_trips == 2


def test_connections_add_up_and_a_difference_is_what_came_since() -> None:
    with server(echo) as port, CountingProxy(port, DELAY_S) as proxy:
        before = proxy.counted()
        for _ in range(2):
            with client(proxy) as (say, hear):
                say(b"question\n")
                hear()
        after = proxy.settle()
    assert before == Counted()
    assert after.since(before) == after
    assert (after.connections, after.round_trips, after.bytes_out) == (2, 4, 18)
    # SYN or SYN and ACK, a segment of data and FIN from either end, at the least.
    assert after.packets >= 2 * 6


def test_large_data_passes_whole_in_segments_as_on_a_wire() -> None:
    line = b"x" * (2 * 1024 * 1024) + b"\n"
    with server(echo) as port, CountingProxy(port, DELAY_S) as proxy:
        with client(proxy) as (say, hear):
            threading.Thread(target=say, args=(line,), daemon=True).start()
            assert hear() == line
        counted = proxy.settle()
    assert (counted.bytes_out, counted.bytes_in) == (len(line), len(line))
    assert counted.round_trips == 2
    full = len(line) // 1448
    assert 2 * full <= counted.data_packets <= 2.5 * full


def test_the_delay_holds_each_way_and_does_not_add_up() -> None:
    delay_s = 0.1
    with server(echo) as port, CountingProxy(port, delay_s) as proxy:
        began = time.monotonic()
        with client(proxy) as (say, hear):
            say(b"question\n" * 50)
            for _ in range(50):
                hear()
        took_s = time.monotonic() - began
    # The handshake and one answer; fifty answers after one another would take 102 delays.
    assert 4 * delay_s <= took_s < 50 * delay_s


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with CountingProxy(unused.getsockname()[1]) as proxy, client(proxy) as (_, hear):
            assert hear() == b""
