"""A server that does as the test says: `fake_server.py PLAY … --port N`; PLAY holds Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

port = int(sys.argv[sys.argv.index("--port") + 1])


def say(text: str) -> None:
    """A line of log."""
    os.write(2, text.encode("utf-8", "surrogateescape") + b"\n")


def ready() -> None:
    say("[2026-11-29 12:00:01] The server is fired up and ready to roll!")


_GENERATION = '{"text": " 4 5", "meta_info": {"completion_tokens": 4}}'


def serve(
    health: int = 200, answer: str = _GENERATION, after: int = 0, answers: int = 10**9
) -> None:
    """Answer /health and /generate.

    `after` so many requests to /health fail first; after `answers` generations there are no more.
    """
    import http.server
    import threading

    left = [after, answers]

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            left[0] -= 1
            self.reply(503 if left[0] >= 0 else health, "")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            left[1] -= 1
            self.reply(200, answer if left[1] >= 0 else "{}")

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def orphan() -> None:
    """A grandchild in a session of its own whose parent is gone: what a scheduler becomes."""
    child = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    subprocess.run([sys.executable, "-S", "-c", child], check=True)


def rank(name: str, lingers: bool = False) -> subprocess.Popen[bytes]:
    """A process that stands in the process table as SGLang's do: `rank("scheduler_TP0")`.

    One that ``lingers`` takes longer to end than to close its connections, as with a GPU's memory:
    the kernel puts its watches away one by one, and those that were opened first last.
    """
    watches = (
        "import ctypes, os; libc = ctypes.CDLL(None);"
        " [libc.inotify_add_watch(libc.inotify_init1(0), b'/tmp', 2) for _ in range(10)];"
        " os.dup2(1, 900); os.close(1); "
    )
    code = (
        "import time; open('/proc/self/comm', 'w').write('sglang::schedul'); print(flush=True);"
        f"{watches if lingers else ''}time.sleep(300)"
    )
    words = [f"sglang::{name}", "-S", "-c", code]
    child = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def hold(path: str) -> None:
    """Wait until that file is there."""
    while not Path(path).exists():
        time.sleep(0.02)


def wait() -> None:
    while True:
        time.sleep(60)


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


exec(Path(sys.argv[1]).read_text())  # noqa: S102
