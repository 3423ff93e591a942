"""The client's end of the payload: sends it, asks it, and tells a slow answer from a dead link.

One remote process over one session answers everything; a call costs one round trip. The payload's
modules travel as compressed source in front of the first request, so nothing is installed.
"""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from remote import errors
from remote.core.shell import quote
from remote.host import Answer, Piece
from remote.payload import frames

#: Seconds without any sign of life after which the link counts as dead. The host sends one every
#: two seconds while it works.
DEAD_AFTER_S = 15.0

#: Seconds between our own signs of life; the host gives a client up that shows none.
SIGN_S = 4.0

#: Exit status with which the starter says that there is no interpreter.
NO_INTERPRETER = 97

_PACKAGE = "sglang_remote_payload"

# Read raw: a buffered reader would swallow bytes that belong to the first request.
_BOOT = (
    "import os,zlib\n"
    "def r(n):\n"
    " b=b''\n"
    " while len(b)<n:\n"
    "  c=os.read(0,n-len(b))\n"
    "  if not c: raise SystemExit(0)\n"
    "  b+=c\n"
    " return b\n"
    "exec(zlib.decompress(r(int(r(8)))))\n"
)

_LOADER = """
import importlib.abc, importlib.util, json, sys
class _Loader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name == PACKAGE)
    def get_source(self, name):
        return SOURCES[name]
    def get_code(self, name):
        return compile(SOURCES[name], name, "exec")
sys.meta_path.insert(0, _Loader())
from {package}.agent import main
main()
"""


class ByteChannel(Protocol):
    """A two-way stream to a process."""

    def send(self, data: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes:
        """Some bytes; empty at the end.

        Raises:
            TimeoutError: nothing came in that time.
        """
        ...

    def close(self) -> None: ...

    def ended(self) -> tuple[int | None, bytes]:
        """After the end: exit status, if known, and what stood on standard error."""
        ...


@lru_cache(maxsize=1)
def bundle() -> bytes:
    """What the starter reads first: the length in 8 digits, then the payload's modules."""
    folder = Path(__file__).parent / "payload"
    sources = {
        _PACKAGE if path.stem == "__init__" else f"{_PACKAGE}.{path.stem}": path.read_text("utf-8")
        for path in sorted(folder.glob("*.py"))
        # Those run in interpreters of their own.
        if path.stem not in ("bench_flags", "doctor_imports", "parser_flags")
    }
    program = f"PACKAGE={_PACKAGE!r}\nSOURCES={json.dumps(sources)}\n"
    packed = zlib.compress((program + _LOADER.replace("{package}", _PACKAGE)).encode(), 9)
    return b"%08d" % len(packed) + packed


def start_command(python: str) -> str:
    """The line of shell that starts the payload; POSIX sh whatever the login shell is.

    It holds no newline and no exclamation mark, which csh would read even within quotes.
    """
    boot = base64.b64encode(_BOOT.encode()).decode()
    start = f'import base64;exec(base64.b64decode("{boot}"))'
    script = (
        f"p={quote(python)}; "
        f'if [ -x "$p" ]; then exec "$p" -I -S -c {quote(start)}; fi; '
        'echo "no interpreter at $p" >&2; '
        "for c in ~/*/bin/python ~/.venv/bin/python /opt/*/bin/python; do "
        '[ -x "$c" ] && echo "found: $c" >&2; done; '
        f"exit {NO_INTERPRETER}"
    )
    return f"/bin/sh -c {quote(script)}"


class Agent:
    """Asks the payload over a channel that runs `start_command`.

    Args:
        channel: the session's stream.
        host: the host's name, for errors.
        venv: where the interpreter is, for the error when it isn't there.
    """

    def __init__(self, channel: ByteChannel, host: str, venv: str) -> None:
        self._channel = channel
        self._host = host
        self._venv = venv
        self._splitter = frames.Splitter()
        self._before_greeting: bytes | None = b""
        self._arrived: list[tuple[dict[str, Any], bytes]] = []
        self._number = 0
        self._lost: errors.ToolError | None = None
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._write(bundle())
        threading.Thread(target=self._give_signs, daemon=True).start()

    def call(self, function: str, data: bytes, params: Mapping[str, Any]) -> tuple[Answer, bytes]:
        """One answer: JSON and bytes."""
        number = self._ask(function, data, params)
        while True:
            kind, piece = self._next(number)
            if kind == "done":
                return piece.body, piece.data

    @contextmanager
    def stream(self, function: str, params: Mapping[str, Any]) -> Iterator[Iterator[Piece]]:
        """The messages of one function; leaving the block makes it stop by asking for the next."""
        number = self._ask(function, b"", params)

        def pieces() -> Iterator[Piece]:
            while True:
                kind, piece = self._next(number)
                if kind == "done":
                    return
                if kind == "piece":
                    yield piece

        yield pieces()

    def close(self) -> None:
        self._closed.set()
        with self._writing:
            self._channel.close()

    def _give_signs(self) -> None:
        """Tell the host that we are there, also while a user is asked or nothing is."""
        while not self._closed.wait(SIGN_S) and self._lost is None:
            try:
                with self._writing:
                    if not self._closed.is_set():
                        self._channel.send(frames.pack({}, b""))
            except OSError:  # whoever asks next learns of it
                return

    def _ask(self, function: str, data: bytes, params: Mapping[str, Any]) -> int:
        self._number += 1
        request = {"id": self._number, "function": function, "params": dict(params)}
        self._write(frames.pack(request, data))
        return self._number

    def _write(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            with self._writing:
                self._channel.send(data)
        except OSError as error:
            # Before the greeting the reason is that nothing started, and the host says why.
            if self._before_greeting is not None:
                raise self._ended() from error
            raise self._dead(f"the connection broke: {error}") from error

    def _next(self, number: int) -> tuple[str, Piece]:
        """The next message for that request; those of an abandoned one are passed over."""
        while True:
            while self._arrived:
                message, data = self._arrived.pop(0)
                if message.get("id") != number:
                    continue
                if message["kind"] == "error":
                    raise self._refusal(message["error"])
                return message["kind"], Piece(message.get("body", {}), data)
            self._receive()

    def _receive(self) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            chunk = self._channel.receive(DEAD_AFTER_S)
        except TimeoutError as error:
            raise self._dead(f"no sign of life for {DEAD_AFTER_S:.0f} s") from error
        except OSError as error:
            raise self._dead(f"the connection broke: {error}") from error
        if not chunk:
            raise self._ended()
        if self._before_greeting is not None:
            seen = self._before_greeting + chunk
            _, greeting, rest = seen.partition(frames.GREETING)
            if not greeting:
                self._before_greeting = seen[-65536:]
                return
            self._before_greeting, chunk = None, rest
        try:
            self._arrived += self._splitter.feed(chunk)
        except frames.BrokenStream as error:
            raise self._dead(f"the host sent something else than answers: {error}") from error

    def _dead(self, why: str) -> errors.ToolError:
        self._lost = errors.ConnectionLost(
            f"the connection was lost: {why}",
            host=self._host,
            hint="what runs on the host goes on; run the task again, or inv wait",
        )
        return self._lost

    def _ended(self) -> errors.ToolError:
        status, stderr = self._channel.ended()
        lines = stderr.decode("utf-8", "replace").splitlines()
        if status == NO_INTERPRETER:
            found = [line.removeprefix("found: ") for line in lines if line.startswith("found: ")]
            self._lost = errors.PreflightFailed(
                f"there is no Python at {self._venv}/bin/python",
                host=self._host,
                evidence=[line for line in lines if not line.startswith("found: ")],
                hint=f"set hosts.{self._host}.venv in invoke.yaml"
                + (f"; interpreters seen there: {', '.join(found)}" if found else ""),
            )
        elif self._before_greeting is not None:
            said = self._before_greeting.decode("utf-8", "replace").splitlines()
            self._lost = errors.SSHError(
                f"the host's Python did not start (exit status {status})",
                host=self._host,
                evidence=[*said, *lines][-10:],
                hint=f"try: ssh to the host and run {self._venv}/bin/python -I -S -c 'print(1)'",
            )
        else:
            self._dead("the host closed the session")
        assert self._lost is not None
        return self._lost

    def _refusal(self, note: Mapping[str, Any]) -> errors.ToolError:
        kind = getattr(errors, str(note["kind"]), errors.ToolError)
        error: errors.ToolError = kind(
            note["message"], host=self._host, evidence=note["evidence"], hint=note["hint"]
        )
        return error
