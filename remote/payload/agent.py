"""The loop on the host: a request in, messages out, until the connection's input ends."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from . import frames, own_code
from .refusal import Refused

#: Seconds between signs of life while a request is being worked on; the client counts on them to
#: tell a slow answer from a dead link.
BEAT_S = 2.0

#: A client that waits, asks or thinks gives a sign of life every few seconds. Without any for so
#: long it is gone, even where the network never said so: its lock must not outlive it.
SILENT_S = 15.0

#: Seconds for which answers are held for each other at most, and up to how many bytes.
_HELD_S = 0.2
_HELD_BYTES = 64 * 1024

#: What may be dropped half way when the client is gone: it takes long and changes nothing.
_ONLY_LOOKS = frozenset(
    {
        "bundle.collect",
        "doctor.imports",
        "doctor.whole_model",
        "evidence.look",
        "facts.parser",
        "facts.read",
        "gpus.ask",
        "probe.run",
        "readiness.check",
    }
)


class Link:
    """The session's standard input and output."""

    def __init__(self, read_fd: int = 0, write_fd: int = 1, early: bytes = b"") -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._splitter = frames.Splitter()
        self._requests: list[tuple[dict[str, Any], bytes]] = []
        self._learn(early)
        self._writing = threading.Lock()
        self._heard_s = self.sent_s = time.monotonic()
        self._held = bytearray(frames.GREETING)
        self.ended = False

    def next_request(self) -> tuple[dict[str, Any], bytes] | None:
        """The next request; None when the client is gone, or silent for too long."""
        while not self._requests and not self.ended:
            if select.select([self._read_fd], [], [], SILENT_S)[0]:
                self._take()
            else:
                self.ended = True
        return self._requests.pop(0) if self._requests else None

    def pause(self, seconds: float, also: Sequence[int] = ()) -> bool:
        """Wait; True as soon as the client asks for something else, is gone or silent for too long.

        Ends early, too, where one of the descriptors ``also`` can be read.
        """
        until = time.monotonic() + seconds
        poller = select.poll()  # what a server of many ranks has is beyond select's reach
        for fd in (self._read_fd, *also):
            poller.register(fd, select.POLLIN)
        while not self._requests and not self.ended:
            left_s = max(0.0, until - time.monotonic())
            ready = {fd for fd, _ in poller.poll(math.ceil(left_s * 1000))}
            if self._read_fd in ready:
                self._take()
            elif time.monotonic() - self._heard_s > SILENT_S:
                self.ended = True
            # The client's sign of life is nothing to wake the caller for.
            if ready != {self._read_fd}:
                break
        return bool(self._requests) or self.ended

    def _take(self) -> None:
        self._heard_s = time.monotonic()
        chunk = os.read(self._read_fd, 65536)
        if not chunk:
            self.ended = True
        self._learn(chunk)

    def _learn(self, chunk: bytes) -> None:
        self._requests += [each for each in self._splitter.feed(chunk) if "function" in each[0]]

    def wants_otherwise(self, chain: int) -> bool:
        """Whether the client is gone, or has asked for something beside that chain."""
        if not self.ended and select.select([self._read_fd], [], [], 0)[0]:
            self._take()
        return self.ended or any(body.get("chain") != chain for body, _ in self._requests)

    def hung_up(self, also: Sequence[int], seconds: float) -> set[int]:
        """Wait until the client's end is closed or one of the descriptors ``also`` can be read;
        those that are. Takes nothing from the input.
        """
        poller = select.poll()
        poller.register(self._read_fd, select.POLLRDHUP)
        for fd in also:
            poller.register(fd, select.POLLIN)
        return {fd for fd, _ in poller.poll(math.ceil(seconds * 1000))}

    def send(self, body: dict[str, Any], data: bytes = b"") -> None:
        """One message, whole, whichever thread sends it, and those that were held before it."""
        packed = frames.pack(body, data)
        with self._writing:
            self._held += packed
            self._flush()

    def answer(self, body: dict[str, Any], data: bytes = b"") -> None:
        """The last message of a request; held while more requests wait, to go with their answers.

        Every write is a packet, and packets are what a slow link counts.
        """
        packed = frames.pack(body, data, compress=True)
        with self._writing:
            self._held += packed
            if not self._requests or len(self._held) > _HELD_BYTES:
                self._flush()

    def flush(self) -> None:
        """Send what is held: what comes next may take long."""
        with self._writing:
            self._flush()

    @property
    def holds(self) -> bool:
        """Whether answers are held."""
        return bool(self._held)

    def _flush(self) -> None:
        while self._held:
            self.sent_s = time.monotonic()
            del self._held[: os.write(self._write_fd, self._held)]


def serve(link: Link, functions: Functions) -> None:
    """Answer requests one after another; ends with the client.

    Those of one chain were sent ahead: each is begun only after the one before it went well.
    """
    broken: int | None = None
    # At once: whoever dies in the first request has started.
    link.flush()
    while (request := link.next_request()) is not None:
        body, data = request
        chain = body.get("chain")
        if chain is not None and (chain == broken or link.wants_otherwise(chain)):
            broken = chain
            link.flush()
            continue
        done = os.eventfd(0, os.EFD_CLOEXEC)
        beat = threading.Thread(target=_beat, args=(link, body, done), daemon=True)
        beat.start()
        try:
            if not _answer(link, functions, body, data):
                broken = chain
        finally:
            os.eventfd_write(done, 1)
            beat.join()
            os.close(done)


def _beat(link: Link, request: dict[str, Any], done: int) -> None:
    """Signs of life while a request is worked on; looks that nobody waits for any more end here.

    Wakes for nothing else: a follow may last for days.
    """
    while True:
        wait_s = _HELD_S if link.holds else link.sent_s + BEAT_S - time.monotonic()
        happened = link.hung_up((done,), max(0.0, wait_s))
        if done in happened:
            return
        if happened:
            link.ended = True
            # Its lock goes with it; what changes something on the host is carried to its end.
            if request["function"] in _ONLY_LOOKS:
                os._exit(0)
            return
        link.flush()
        if time.monotonic() - link.sent_s >= BEAT_S:
            link.send({"id": request["id"], "kind": "beat"})


def _answer(link: Link, functions: Functions, body: dict[str, Any], data: bytes) -> bool:
    """Answer one request; False where it was refused, or holds up what was sent behind it."""
    number = body["id"]
    try:
        answer = functions.run(body["function"], dict(body["params"]), data)
        if isinstance(answer, Iterator):
            link.flush()
            for message in answer:
                piece, blob = message if isinstance(message, tuple) else (message, b"")
                link.send({"id": number, "kind": "piece", "body": piece}, blob)
            answer = {}
        piece, blob = answer if isinstance(answer, tuple) else (answer, b"")
        holds = bool(piece.pop("holds", False))
        told = {"id": number, "kind": "done", **({"holds": True} if holds else {})}
        known = body.get("have", ())
        if known and (tag := frames.tag(piece, blob)) in known:
            link.answer({**told, "same": tag})
        else:
            link.answer({**told, "body": piece}, blob)
        return not holds
    except Refused as refused:
        error = {
            "kind": refused.kind,
            "message": refused.message,
            "evidence": refused.evidence,
            "hint": refused.hint,
        }
        link.answer({"id": number, "kind": "error", "error": error})
    except BrokenPipeError:
        raise
    except OSError as error:
        link.answer({"id": number, "kind": "error", "error": _system_error(error)})
    except Exception as error:
        import traceback  # costs a third of this program's start, and is hardly ever needed

        lines = traceback.format_exc().splitlines()
        note = {
            "kind": "ToolError",
            "message": repr(error),
            "evidence": lines,
            "hint": None,
        }
        link.answer({"id": number, "kind": "error", "error": note})
    return False


def _system_error(error: OSError) -> dict[str, Any]:
    where = f" {error.filename}" if error.filename else ""
    hints = {28: "free some disk space on the host, then run this again"}
    return {
        "kind": "ToolError",
        "message": f"the host's system refused:{where} {error.strerror or error}",
        "evidence": [repr(error)],
        "hint": hints.get(error.errno or 0),
    }


class _Function(NamedTuple):
    """What a client may ask for: ``module.name`` here, and what it is given beside the parameters.

    ``data`` is the parameter that takes the bytes of the request; ``pauses``: it is given
    `Link.pause`, because it goes on until the client asks for something else.
    """

    where: str
    data: str | None = None
    pauses: bool = False


#: By the name that travels. Modules are imported when they are first asked for: a deploy needs few.
_FUNCTIONS = {
    "authoring.adopt": _Function("authoring.adopt", "data"),
    "authoring.read": _Function("authoring.read"),
    "bench.follow": _Function("bench.follow", pauses=True),
    "bench.look": _Function("bench.look"),
    "bench.require_idle": _Function("bench.require_idle"),
    "bench.start": _Function("bench.start"),
    "bench.stop": _Function("bench.stop"),
    "bundle.bring_spy": _Function("bundle.bring_spy", "packed"),
    "bundle.collect": _Function("bundle.collect"),
    "bundle.wants_spy": _Function("bundle.wants_spy"),
    "doctor.clock": _Function("doctor.clock"),
    "doctor.imports": _Function("doctor.imports", "script"),
    "doctor.requirements": _Function("doctor.requirements"),
    "doctor.whole_model": _Function("doctor.whole_model"),
    "evidence.look": _Function("evidence.look"),
    "facts.parser": _Function("facts.parser", "script"),
    "facts.port_owner": _Function("facts.who_listens"),
    "facts.python": _Function("facts.python"),
    "facts.read": _Function("facts.read"),
    "follow.follow": _Function("follow.follow", pauses=True),
    "gpus.ask": _Function("gpus.ask"),
    "integrity.differences": _Function("integrity.differences"),
    "lock.break": _Function("lock.break_it"),
    "lock.look": _Function("lock.look"),
    "log.pull": _Function("logfile.pull", pauses=True),
    "log.select": _Function("logfile.select", pauses=True),
    "patches.commit": _Function("patches.commit", "data"),
    "patches.look": _Function("patches.look"),
    "patches.recover": _Function("patches.recover"),
    "probe.run": _Function("probing.run", "script"),
    "proofs.keep": _Function("proofs.keep"),
    "proofs.require": _Function("proofs.require"),
    "quality.ask": _Function("quality.ask", pauses=True),
    "readiness.check": _Function("readiness.check"),
    "restore.end": _Function("restore.end"),
    "restore.look": _Function("restore.look"),
    "restore.prove": _Function("restore.prove"),
    "restore.remove": _Function("restore.remove"),
    "runs.ids": _Function("runs.all_ids"),
    "runs.look": _Function("runs.look"),
    "runs.note_outcome": _Function("runs.note_outcome"),
    "runs.script": _Function("runs.script"),
    "runs.start": _Function("runs.start", "script"),
    "runs.stop": _Function("runs.stop"),
    "runs.stop_foreign": _Function("runs.stop_foreign"),
}


class Functions:
    """Runs what a client asks for."""

    def __init__(self, link: Link, code: own_code.OwnCode) -> None:
        self._link = link
        self._code = code
        self._lock: Any = None

    def run(self, name: str, params: dict[str, Any], data: bytes) -> Any:
        """The answer, or an iterator of messages.

        Raises:
            KeyError: there is no such function.
        """
        if name in ("lock.take", "lock.release"):
            return self._hold(name, params)
        function = _FUNCTIONS[name]
        module, _, called = function.where.partition(".")
        if function.data is not None:
            params[function.data] = data
        if function.pauses:
            params["pause"] = self._link.pause
        return getattr(import_module(f".{module}", __package__), called)(**params)

    def _hold(self, name: str, params: dict[str, Any]) -> Any:
        """The host's lock, which this process has from one request to another."""
        if self._lock is None:
            self._lock = import_module(".lock", __package__).HostLock()
        if name == "lock.release":
            return self._lock.release()
        taken = self._lock.take(**params)
        self._code.keep()  # there is a state folder now
        return taken


def main(state: str, name: str, parts: dict[str, Any] | None, early: bytes) -> None:
    """Serve the client on standard input and output.

    Args:
        state, name, parts: see `own_code.OwnCode`.
        early: requests that came before this code did.
    """
    link = Link(early=early)
    code = own_code.OwnCode(state, name, parts)
    code.keep()
    with contextlib.suppress(BrokenPipeError):
        serve(link, Functions(link, code))
    # Not through interpreter shutdown: a readiness check may still wait in its thread.
    os._exit(0)
