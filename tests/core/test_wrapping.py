"""One log, however a tool has wrapped its lines: the same verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.core.diagnosis import diagnose
from remote.core.reading import read_log

CASES = Path(__file__).parents[1] / "cases" / "server_log"
TRAP = (CASES / "real/fp4-trap-fi063.log").read_bytes()
HEALTHY = (CASES / "real/piecewise.log").read_bytes()

Wrap = Callable[[int, bytes], bytes]
TIME = b"2026-11-29T19:00:12.123456789Z"


def in_json(_: int, line: bytes) -> bytes:
    record = {"log": line.decode() + "\n", "stream": "stderr", "time": TIME.decode()}
    return json.dumps(record, separators=(",", ":")).encode()


WRAPS: dict[str, Wrap] = {
    "kubectl --prefix": lambda n, line: b"[pod/sglang-0/server] " + line,
    "kubectl --prefix --timestamps": lambda n, line: b"[pod/sglang-0/server] %b %b" % (TIME, line),
    "journald": lambda n, line: b"Nov 29 19:00:12 gpu-host sglang[4711]: " + line,
    "journald, iso": lambda n, line: b"2026-11-29T19:00:12+0000 gpu-host python[4711]: " + line,
    "the kernel's clock": lambda n, line: b"[%5d.123456] %b" % (n, line),
    "docker json-file": in_json,
    "stern": lambda n, line: b"sglang-0 server " + line,
    "grep -n": lambda n, line: b"%d:%b" % (n, line),
    "cat -n": lambda n, line: b"%6d\t%b" % (n, line),
    "mpirun": lambda n, line: b"[1,0]<stderr>:" + line,
    "srun --label": lambda n, line: b"0: " + line,
    "a tab": lambda n, line: b"\t" + line,
    "compose": lambda n, line: b"sglang-1  | " + line,
}


def wrapped(log: bytes, wrap: Wrap) -> bytes:
    lines = enumerate(log.rstrip(b"\n").split(b"\n"), 1)
    return b"".join(wrap(number, line) + b"\n" for number, line in lines)


@pytest.mark.parametrize("name", WRAPS)
def test_a_crash_is_read_through_what_stands_in_front(name: str) -> None:
    bare = diagnose(read_log([TRAP]))
    found = diagnose(read_log([wrapped(TRAP, WRAPS[name])]))
    assert (found.kind, found.first_rank, found.phase, found.raised_in) == (
        bare.kind,
        bare.first_rank,
        bare.phase,
        bare.raised_in,
    )
    assert found.ranks == bare.ranks and found.spread == bare.spread
    assert [quote.line for quote in found.evidence] == [quote.line for quote in bare.evidence]


@pytest.mark.parametrize("name", WRAPS)
def test_a_healthy_log_stays_healthy(name: str) -> None:
    found = diagnose(read_log([wrapped(HEALTHY, WRAPS[name])]))
    assert (found.outcome.value, found.kind) == ("ready", None)


def test_chunks_change_nothing() -> None:
    log = wrapped(TRAP, WRAPS["grep -n"])
    chunks = [log[at : at + 777] for at in range(0, len(log), 777)]
    assert diagnose(read_log(chunks)) == diagnose(read_log([log]))


def test_a_log_that_is_not_wrapped_keeps_what_its_lines_share() -> None:
    lines = b"INFO:     Started server process [1]\nINFO:     Uvicorn running on http://x\n"
    assert read_log([lines * 3]).state.opened == 1
