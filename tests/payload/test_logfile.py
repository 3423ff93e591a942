"""Windows onto a log: its last lines, since when, what matches; whatever its size."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hosts import new_run
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.payload import logfile

RUN = new_run()
BLOCK = 256 * 1024


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "runs" / RUN).mkdir(parents=True)
    return folder


EVERYTHING: dict[str, Any] = {
    "start": None,
    "tail": None,
    "since": None,
    "ago_s": None,
    "grep": None,
    "whole_lines": False,
}


def selected(state: Path, content: bytes | None, **wanted: Any) -> bytes:
    path = state / "runs" / RUN / "server.log"
    if content is not None:
        path.write_bytes(content)
    asked = {**EVERYTHING, **wanted}
    messages = list(logfile.select(str(state), RUN, pause=lambda seconds: False, **asked))
    size = path.stat().st_size
    assert asked["whole_lines"] or messages[-1] == ({"next": size, "end": size}, b"")
    return b"".join(data for _, data in messages)


LINES = st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=30)


def split(content: bytes) -> list[bytes]:
    *whole, last = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def last(lines: list[bytes], wanted: int) -> bytes:
    return b"".join(lines[max(0, len(lines) - wanted) :])


@given(LINES, st.booleans(), st.integers(0, 35))
def test_tail_is_the_last_lines(state: Path, lines: list[bytes], closed: bool, wanted: int) -> None:
    content = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    assert selected(state, content, tail=wanted) == last(split(content), wanted)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([0, 1, BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1]), max_size=5),
    st.booleans(),
)
def test_tail_across_the_blocks_it_is_read_in(state: Path, sizes: list[int], closed: bool) -> None:
    content = b"\n".join(b"x" * size for size in sizes) + (b"\n" if closed else b"")
    for wanted in (1, 2, 3, 9):
        assert selected(state, content, tail=wanted) == last(split(content), wanted)


def test_tail_of_an_empty_log_is_empty(state: Path) -> None:
    assert selected(state, b"", tail=200) == b""


def stamped(number: int) -> bytes:
    moment = datetime(2026, 11, 29, 12, 0, 0) + timedelta(seconds=number)
    return f"[{moment:%Y-%m-%d %H:%M:%S} TP0] line {number}\n".encode()


#: Each stamped line with the unstamped ones that follow it: a traceback, a progress bar.
BODIES = st.sampled_from(
    [b"", b"Traceback (most recent call last):\n  File\n", b"1%|\r2%|\n", b"\n"]
)


@given(
    st.lists(st.tuples(st.integers(0, 3), BODIES), max_size=25),
    st.integers(-2, 60),
    st.sampled_from([b"", b"no stamp yet\n", b"x" * BLOCK + b"\n"]),
)
def test_since_begins_at_the_first_line_stamped_then_or_later(
    state: Path, entries: list[tuple[int, bytes]], since: int, head: bytes
) -> None:
    now, lines = 0, []
    for gap, body in entries:
        now += gap
        lines.append((now, stamped(now) + body))
    expected = b"".join(line for number, line in lines if number >= since)
    moment = datetime(2026, 11, 29, 12, 0, 0) + timedelta(seconds=since)
    content = head + b"".join(line for _, line in lines)
    assert selected(state, content, since=f"{moment:%Y-%m-%d %H:%M:%S}") == expected


def test_since_in_a_log_of_many_blocks(state: Path) -> None:
    lines = [stamped(number) + b"unstamped\n" * (number % 3) for number in range(60_000)]
    content = b"".join(lines)
    assert len(content) > 8 * BLOCK
    for number in (0, 1, 29_999, 30_000, 59_999):
        moment = datetime(2026, 11, 29, 12, 0, 0) + timedelta(seconds=number)
        found = selected(state, content, since=f"{moment:%Y-%m-%d %H:%M:%S}")
        assert found == b"".join(lines[number:])


def test_a_stamp_in_the_middle_of_a_line_is_none(state: Path) -> None:
    content = stamped(0) + b"quoted " + stamped(50) + stamped(100)
    assert selected(state, content, since="2026-11-29 12:00:30") == stamped(100)


def test_ago_counts_back_from_the_hosts_now(state: Path) -> None:
    def at(seconds_ago: float) -> bytes:
        moment = time.localtime(time.time() - seconds_ago)
        return time.strftime("[%Y-%m-%d %H:%M:%S] line\n", moment).encode()

    content = at(7200) + at(60) + at(1)
    assert selected(state, content, ago_s=600.0) == content[len(at(0)) :]


def test_since_and_tail_together_take_the_narrower(state: Path) -> None:
    content = b"".join(map(stamped, range(10)))
    since = "2026-11-29 12:00:05"
    assert selected(state, content, since=since, tail=2) == stamped(8) + stamped(9)
    assert selected(state, content, since=since, tail=8) == b"".join(map(stamped, range(5, 10)))


def test_grep_with_tail_counts_the_lines_that_match(state: Path) -> None:
    content = b"".join(b"Decode %d\nPrefill %d\n" % (n, n) for n in range(50)) + b"Decode last"
    assert selected(state, content, grep=r"^Decode \d+", tail=2) == b"Decode 48\nDecode 49\n"
    assert selected(state, content, grep="last") == b"Decode last\n"
    assert selected(state, content, grep="nowhere") == b""


@settings(max_examples=20)
@given(st.lists(st.sampled_from([5, BLOCK - 3, BLOCK]), max_size=4))
def test_grep_finds_lines_across_blocks(state: Path, sizes: list[int]) -> None:
    content = b"".join(b"x" * size + b"\n<hit>\n" for size in sizes)
    assert selected(state, content, grep="<hit>") == b"<hit>\n" * len(sizes)


def test_grep_passes_bytes_that_are_not_utf8(state: Path) -> None:
    assert selected(state, b"\xff\xfe hit\nno\n", grep="hit") == b"\xff\xfe hit\n"


def test_leaving_ends_a_search(state: Path) -> None:
    path = state / "runs" / RUN / "server.log"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    asked = {**EVERYTHING, "grep": "x"}
    messages = logfile.select(str(state), RUN, pause=lambda seconds: True, **asked)
    assert [data for _, data in messages] == [b"", b""]


_MEASURE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from remote.payload import logfile
def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = memory()
wanted = dict(start=None, tail=200, since=None, ago_s=None, grep=None, whole_lines=False)
for message, data in logfile.select(sys.argv[2], sys.argv[3], pause=lambda s: False, **wanted):
    sys.stdout.buffer.write(data)
sys.stdout.flush()
sys.stderr.write(str(memory() - before))
"""


def test_the_end_of_ten_gigabytes_in_constant_memory(state: Path) -> None:
    path = state / "runs" / RUN / "server.log"
    lines = [b"line %d\n" % number for number in range(500)]
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(lines))
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, root, str(state), RUN], capture_output=True, check=True
    )
    assert done.stdout == b"".join(lines[-200:])
    assert int(done.stderr) < 16 * 2**20


@given(LINES, st.sampled_from([None, "a"]), st.integers(1, 400))
def test_a_selection_cut_short_goes_on_where_it_broke_off(
    state: Path, lines: list[bytes], grep: str | None, block: int
) -> None:
    """Whichever message was the last to arrive, a second call brings the rest, nothing twice."""
    content = b"".join(line + b"a\n" for line in lines) + b"no end yet a"
    path = state / "runs" / RUN / "server.log"
    path.write_bytes(content)
    asked = {**EVERYTHING, "grep": grep, "whole_lines": True}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logfile, "_BLOCK", block)
        whole = list(logfile.select(str(state), RUN, pause=lambda seconds: False, **asked))
        assert b"".join(data for _, data in whole) == content.rpartition(b"\n")[0] + b"\n" * bool(
            lines
        )
        for cut in range(len(whole)):
            first = whole[: cut + 1]
            asked["start"] = first[-1][0]["next"]
            rest = logfile.select(str(state), RUN, pause=lambda seconds: False, **asked)
            joined = b"".join(data for _, data in [*first, *rest])
            assert joined == b"".join(data for _, data in whole)
