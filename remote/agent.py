"""The client's end of the payload: sends it, asks it, and tells a slow answer from a dead link.

One remote process over one session answers everything; a call costs one round trip, and calls that
are known beforehand can share one (`Agent.ahead`). `remote/starter.py` starts that process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from remote import errors, starter
from remote.host import Answer, Piece, Request
from remote.payload import frames
from remote.remembered import WORTH_IT, Remembered

#: Seconds without any sign of life after which the link counts as dead. The host sends one every
#: two seconds while it works.
DEAD_AFTER_S = 15.0

#: Seconds between our own signs of life; the host gives a client up that shows none.
SIGN_S = 4.0


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


class Agent:
    """Asks the payload over a channel that runs `starter.start_command`.

    Args:
        channel: the session's stream.
        host: the host's name, for errors.
        venv: where the interpreter is, for the error when it isn't there.
        state: the state folder, where the payload's code may be kept.
        remembered: answers of that host that need not travel again.
    """

    def __init__(
        self,
        channel: ByteChannel,
        host: str,
        venv: str,
        state: str,
        remembered: Remembered | None = None,
    ) -> None:
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
        self._remembered = remembered
        self._asked: dict[int, Request] = {}
        self._ahead: deque[tuple[int, Request]] = deque()
        # Goes with the first request.
        self._unsent = starter.code().head(state)
        threading.Thread(target=self._give_signs, daemon=True).start()

    def ahead(self, requests: Sequence[Request]) -> None:
        """Send what is going to be asked next, in one flight; see `remote.host.Host.ahead`."""
        self._ahead.clear()
        chain = self._number + 1
        flight = b""
        for request in requests:
            self._number += 1
            self._ahead.append((self._number, request))
            flight += self._frame(request, chain)
        self._write(flight)

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
                self._send(frames.pack({}, b""))
            except OSError:  # whoever asks next learns of it
                return

    def _ask(self, function: str, data: bytes, params: Mapping[str, Any]) -> int:
        request = Request(function, params, data)
        if self._ahead and self._ahead[0][1] == request:
            return self._ahead.popleft()[0]
        # Something else came up: the host drops what it has not begun.
        self._ahead.clear()
        self._number += 1
        self._write(self._frame(request))
        return self._number

    def _send(self, data: bytes) -> None:
        with self._writing:
            if not self._closed.is_set():
                unsent, self._unsent = self._unsent, b""
                self._channel.send(unsent + data)

    def _write(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            self._send(data)
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
                    self._ahead.clear()
                    raise self._refusal(message["error"])
                if message.get("holds"):
                    self._ahead.clear()
                return message["kind"], self._piece(number, message, data)
            self._receive()

    def _piece(self, number: int, message: Mapping[str, Any], data: bytes) -> Piece:
        """A message's contents, from here where the host has only confirmed them."""
        body = message.get("body", {})
        if self._remembered is not None and message["kind"] == "done":
            request = self._asked.pop(number, None)
            if "same" in message:
                return Piece(*self._remembered.answer(message["same"]))
            if request is not None:
                self._remembered.keep(request, body, data)
        return Piece(body, data)

    def _frame(self, request: Request, chain: int | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._number,
            "function": request.function,
            "params": dict(request.params),
        }
        if chain is not None:
            body["chain"] = chain
        if self._remembered is not None and request.function in WORTH_IT:
            self._asked[self._number] = request
            body["have"] = self._remembered.tags(request)
        return frames.pack(body, request.data, compress=True)

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
                _, wanted, rest = seen.partition(frames.WANTED)
                self._before_greeting = rest if wanted else seen[-65536:]
                if wanted:
                    self._write(frames.code(starter.code().packed))
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
        if status == starter.NO_INTERPRETER:
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
