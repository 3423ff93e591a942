"""Ready is: our own process holds the port, /health says 200, and tokens come out."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hosts import eventually, free_port

from remote.payload import procs, readiness

GENERATION = '{"text": " 4 5", "meta_info": {"completion_tokens": 4}}'
RUN = "20261129-120000-ready-0001"

Serve = Callable[[int, int, str], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer /health with one status, /generate with another and a text; gives the port."""
    servers = []

    def start(health: int, generate: int, text: str) -> int:
        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self) -> None:
                self.reply(health if self.path == "/health" else 404, "")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(generate if self.path == "/generate" else 404, text)

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def as_our_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as the run's: it holds the ports of these tests."""
    monkeypatch.setattr(procs, "run_of", lambda pid: RUN if pid == os.getpid() else None)


@pytest.mark.usefixtures("as_our_run")
def test_a_generation_with_tokens_is_ready(serve: Serve) -> None:
    found = readiness.check(RUN, "127.0.0.1", serve(200, 200, GENERATION), 5.0)
    assert found == {"ok": True, "text": " 4 5", "tokens": 4, "ranks": found["ranks"]}


@pytest.mark.usefixtures("as_our_run")
@pytest.mark.parametrize(
    ("health", "generate", "text", "why"),
    [
        (503, 200, GENERATION, "/health answers 503"),
        (200, 500, "CUDA error", "/generate answers 500"),
        (200, 200, "<html>", "no generation"),
        (200, 200, "[]", "no generation"),
        (200, 200, '{"text": "", "meta_info": {"completion_tokens": 0}}', "no token"),
        (200, 200, '{"text": "", "meta_info": {"completion_tokens": null}}', "no generation"),
    ],
)
def test_less_than_that_is_not(
    serve: Serve, health: int, generate: int, text: str, why: str
) -> None:
    found = readiness.check(RUN, "127.0.0.1", serve(health, generate, text), 5.0)
    assert not found["ok"] and why in found["why"]
    assert "stranger" not in found


def test_a_strangers_answer_does_not_count(serve: Serve) -> None:
    port = serve(200, 200, GENERATION)
    found = readiness.check(RUN, "127.0.0.1", port, 5.0)
    assert not found["ok"]
    assert found["stranger"]["pid"] == os.getpid()


def test_a_free_port_is_said_so() -> None:
    found = readiness.check(RUN, "127.0.0.1", free_port(), 5.0)
    assert not found["ok"] and "nothing listens" in found["why"]


@pytest.mark.usefixtures("as_our_run")
def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        found = readiness.check(RUN, "127.0.0.1", mute.getsockname()[1], 0.05)
    assert not found["ok"] and "timed out" in found["why"]


@pytest.mark.usefixtures("as_our_run")
def test_a_server_that_talks_no_http_is_no_crash_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=talk, daemon=True).start()
        found = readiness.check(RUN, "127.0.0.1", server.getsockname()[1], 5.0)
    assert not found["ok"] and "BadStatusLine" in found["why"]


def test_a_process_that_is_just_ending_has_no_key() -> None:
    """Its command line is empty, as a zombie's is."""
    pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
    eventually(lambda: procs.command_line(pid) == [])
    assert readiness.api_key([pid]) is None
    os.waitpid(pid, 0)
