"""The loop on the host: a request in, messages out, until the connection's input ends."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from . import (
    authoring,
    bench,
    bundle,
    cache,
    doctor,
    evidence,
    facts,
    follow,
    frames,
    gpus,
    integrity,
    logfile,
    own_code,
    patches,
    probing,
    procs,
    quality,
    readiness,
    restore,
    runs,
)
from . import lock as host_lock
from .refusal import Refused

#: Seconds between signs of life while a request is being worked on; the client counts on them to
#: tell a slow answer from a dead link.
BEAT_S = 2.0

#: A client that waits, asks or thinks gives a sign of life every few seconds. Without any for so
#: long it is gone, even where the network never said so: its lock must not outlive it.
SILENT_S = 15.0

#: Seconds between looks whether the client is still there.
_HANG_UP_S = 0.2

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
        self.ended = False

    def next_request(self) -> tuple[dict[str, Any], bytes] | None:
        """The next request; None when the client is gone, or silent for too long."""
        while not self._requests and not self.ended:
            if select.select([self._read_fd], [], [], SILENT_S)[0]:
                self._take()
            else:
                self.ended = True
        return self._requests.pop(0) if self._requests else None

    def pause(self, seconds: float) -> bool:
        """Wait; True as soon as the client asks for something else or is gone."""
        if not self._requests and not self.ended:
            if not select.select([self._read_fd], [], [], seconds)[0]:
                return False
            self._take()
        return bool(self._requests) or self.ended

    def _take(self) -> None:
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

    def hung_up(self) -> bool:
        """Whether the client's end is closed; takes nothing from the input."""
        poller = select.poll()
        poller.register(self._read_fd, select.POLLRDHUP)
        return bool(poller.poll(0))

    def send(self, body: dict[str, Any], data: bytes = b"", *, compress: bool = False) -> None:
        """One message, whole, whichever thread sends it."""
        packed = frames.pack(body, data, compress=compress)
        with self._writing:
            view = memoryview(packed)
            while view:
                view = view[os.write(self._write_fd, view) :]


def serve(link: Link, functions: dict[str, Callable[..., Any]]) -> None:
    """Answer requests one after another; ends with the client.

    Those of one chain were sent ahead: each is begun only after the one before it went well.
    """
    broken: int | None = None
    os.write(1, frames.GREETING)
    link.send({"hello": {"pid": os.getpid(), "boot_id": procs.boot_id()}})
    while (request := link.next_request()) is not None:
        body, data = request
        chain = body.get("chain")
        if chain is not None and (chain == broken or link.wants_otherwise(chain)):
            broken = chain
            continue
        working = threading.Event()
        beat = threading.Thread(target=_beat, args=(link, body, working), daemon=True)
        beat.start()
        try:
            if not _answer(link, functions, body, data):
                broken = chain
        finally:
            working.set()
            beat.join()


def _beat(link: Link, request: dict[str, Any], done: threading.Event) -> None:
    """Signs of life while a request is worked on; looks that nobody waits for any more end here."""
    began = time.monotonic()
    while not done.wait(_HANG_UP_S):
        if link.hung_up():
            link.ended = True
            # Its lock goes with it; what changes something on the host is carried to its end.
            if request["function"] in _ONLY_LOOKS:
                os._exit(0)
            return
        if time.monotonic() - began >= BEAT_S:
            began = time.monotonic()
            link.send({"id": request["id"], "kind": "beat"})


def _answer(
    link: Link, functions: dict[str, Callable[..., Any]], body: dict[str, Any], data: bytes
) -> bool:
    """Answer one request; False where it was refused, or holds up what was sent behind it."""
    number = body["id"]
    try:
        function = functions[body["function"]]
        params = dict(body["params"])
        if data:
            params["data"] = data
        answer = function(**params)
        if isinstance(answer, Iterator):
            for message in answer:
                piece, blob = message if isinstance(message, tuple) else (message, b"")
                link.send({"id": number, "kind": "piece", "body": piece}, blob)
            answer = {}
        piece, blob = answer if isinstance(answer, tuple) else (answer, b"")
        holds = bool(piece.pop("holds", False))
        told = {"holds": True} if holds else {}
        link.send({"id": number, "kind": "done", **told, "body": piece}, blob, compress=True)
        return not holds
    except Refused as refused:
        error = {
            "kind": refused.kind,
            "message": refused.message,
            "evidence": refused.evidence,
            "hint": refused.hint,
        }
        link.send({"id": number, "kind": "error", "error": error})
    except BrokenPipeError:
        raise
    except OSError as error:
        link.send({"id": number, "kind": "error", "error": _system_error(error)})
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        note = {"kind": "ToolError", "message": repr(error), "evidence": lines, "hint": None}
        link.send({"id": number, "kind": "error", "error": note})
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


def _functions(link: Link, code: own_code.OwnCode) -> dict[str, Callable[..., Any]]:
    """What a client may ask for, by name."""
    lock = host_lock.HostLock()

    def take_lock(**params: Any) -> dict[str, Any]:
        taken = lock.take(**params)
        code.keep()  # there is a state folder now
        return taken

    return {
        "lock.take": take_lock,
        "lock.release": lock.release,
        "lock.look": host_lock.look,
        "lock.break": host_lock.break_it,
        "proofs.require": _require_proofs,
        "proofs.keep": lambda state, key, proof: cache.keep(state, "proof", key, proof),
        "facts.python": lambda: {"path": sys.executable},
        "facts.read": facts.read,
        "facts.parser": lambda data, **params: facts.parser(script=data, **params),
        "facts.port_owner": lambda port: {"owner": facts.port_owner(port)},
        "bench.start": bench.start,
        "bench.require_idle": bench.require_idle,
        "bench.look": bench.look,
        "bench.follow": lambda **params: bench.follow(pause=link.pause, **params),
        "bench.stop": bench.stop,
        "bundle.bring_spy": lambda data, **params: bundle.bring_spy(packed=data, **params),
        "bundle.collect": bundle.collect,
        "bundle.wants_spy": bundle.wants_spy,
        "doctor.clock": doctor.clock,
        "doctor.imports": lambda data, **params: doctor.imports(script=data, **params),
        "doctor.requirements": doctor.requirements,
        "doctor.whole_model": doctor.whole_model,
        "evidence.look": evidence.look,
        "gpus.ask": gpus.ask,
        "restore.look": restore.look,
        "restore.end": restore.end,
        "restore.remove": restore.remove,
        "restore.prove": restore.prove,
        "runs.look": runs.look,
        "runs.ids": lambda state: {"ids": runs.ids(state)},
        "runs.script": runs.script,
        "runs.start": lambda data, **params: runs.start(script=data, **params),
        "runs.stop": runs.stop,
        "runs.stop_foreign": runs.stop_foreign,
        "runs.note_outcome": runs.note_outcome,
        "quality.ask": lambda **params: quality.ask(pause=link.pause, **params),
        "readiness.check": readiness.check,
        "follow.follow": lambda **params: follow.follow(pause=link.pause, **params),
        "log.select": lambda **params: logfile.select(pause=link.pause, **params),
        "log.pull": lambda **params: logfile.pull(pause=link.pause, **params),
        "probe.run": lambda data, **params: probing.run(script=data, **params),
        "integrity.differences": integrity.differences,
        "patches.look": patches.look,
        "patches.commit": lambda data=b"", **params: patches.commit(data=data, **params),
        "patches.recover": patches.recover,
        "authoring.read": authoring.read,
        "authoring.adopt": lambda data=b"", **params: authoring.adopt(data=data, **params),
    }


def _require_proofs(state: str, keys: list[str]) -> dict[str, Any]:
    """Which of these proofs are kept; where one is missing, what was sent behind this waits."""
    known = [cache.load(state, "proof", key) is not None for key in keys]
    return {"known": known, "holds": not all(known)}


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
        serve(link, _functions(link, code))
    # Not through interpreter shutdown: a readiness check may still wait in its thread.
    os._exit(0)
