"""Splitting, peeling and showing lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.core import log_lines
from remote.core.log_lines import (
    MAX_LINE_BYTES,
    Collapser,
    LogLine,
    SegmentSplitter,
    collapse,
    parse_line,
    printable,
)

_BYTES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"ab", b"\xff\xe2\x96", b"\x1b[0m", b"[2026-", b" "]),
    max_size=40,
).map(b"".join)


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(_BYTES, st.lists(st.integers(0, 200), max_size=8))
def test_segments_do_not_depend_on_chunks(data: bytes, cuts: list[int]) -> None:
    whole, pieces = SegmentSplitter(), SegmentSplitter()
    expected = whole.feed(data) + whole.finish()
    got = [segment for chunk in _chunks(data, cuts) for segment in pieces.feed(chunk)]
    assert got + pieces.finish() == expected
    assert pieces.number == data.count(b"\n") + 1


@given(_BYTES, st.lists(st.integers(0, 200), max_size=8))
def test_collapsed_lines_do_not_depend_on_chunks(data: bytes, cuts: list[int]) -> None:
    pieces = Collapser()
    got = [line for chunk in _chunks(data, cuts) for line in pieces.feed(chunk)]
    assert got + pieces.finish() == collapse(data)


def test_a_bar_is_handed_out_before_its_line_ends() -> None:
    splitter = SegmentSplitter()
    assert splitter.feed(b"one\n\r 0%| | 0/2\r 50%|") == [(1, b"one"), (2, b" 0%| | 0/2")]


def test_memory_is_bounded_on_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINE_BYTES", 100)
    splitter, collapser = SegmentSplitter(), Collapser()
    for _ in range(50):
        assert splitter.feed(b"x" * 60) == []
        assert collapser.feed(b"x" * 60) == []
    assert splitter.feed(b"\nnext\n") == [(1, b"x" * 100), (2, b"next")]
    assert collapser.feed(b"\nnext\n") == ["x" * 100 + "…", "next"]


def test_a_long_line_in_one_chunk_is_cut_like_one_in_many() -> None:
    data = b"y" * (MAX_LINE_BYTES + 5) + b"\nend\n"
    splitter = SegmentSplitter()
    assert [len(raw) for _, raw in splitter.feed(data)] == [MAX_LINE_BYTES, 3]


def test_collapse_leaves_what_a_terminal_shows() -> None:
    assert collapse(b"\r  0%|   | 0/2\r 50%|#  | 1/2\r100%|###| 2/2\ndone\r\nlonger\rsho\n") == [
        "100%|###| 2/2",
        "done",
        "shoger",
    ]
    assert collapse(b"a bar with a tail\rshort            \n") == ["short"]
    assert collapse(b"") == []
    assert collapse(b"no newline") == ["no newline"]
    assert collapse(b"kept  \n\n") == ["kept  ", ""]


def test_printable_leaves_nothing_that_moves_a_cursor() -> None:
    assert printable("plain text, ünïcode █") == "plain text, ünïcode █"
    assert printable("\x1b[1;33mwarned\x1b[0m \x1b]0;title\x07x") == "warned x"
    assert printable("a\tb\x08\x1b\u202e\x9b31m") == "a\tb\\x08\\x1b\\x202e\\x9b31m"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[2026-11-29 19:00:14 TP1] Load", LogLine(7, "Load", "TP1", "2026-11-29 19:00:14")),
        ("[2026-11-29 19:00:14] Load", LogLine(7, "Load", "", "2026-11-29 19:00:14")),
        (
            "[2026-11-29 19:00:14.123 DP1 TP13 EP13] x",
            LogLine(7, "x", "DP1 TP13 EP13", "2026-11-29 19:00:14.123"),
        ),
        ("[09-18 10:09:48] Loading", LogLine(7, "Loading", "", "09-18 10:09:48")),
        (
            "sglang-1  | [2026-11-29 19:00:14 PP1 TP0] x",
            LogLine(7, "x", "PP1 TP0", "2026-11-29 19:00:14", "sglang-1  |"),
        ),
        (
            '[sglang]     |   File "a.py", line 1, in f',
            LogLine(7, '  File "a.py", line 1, in f', source="[sglang]     |"),
        ),
        (
            "(Engine pid=25, ip=10.0.0.1) [2026-11-29 19:00:14 TP0] x [repeated 2x across cluster]",
            LogLine(7, "x", "TP0", "2026-11-29 19:00:14", "(Engine pid=25, ip=10.0.0.1)"),
        ),
        (
            "\x1b[36m(Engine pid=7)\x1b[0m     <source>",
            LogLine(7, "    <source>", source="(Engine pid=7)"),
        ),
        ('[rank19]:   File "a.py"', LogLine(7, '  File "a.py"', "rank19")),
        (
            "2026-11-29T19:00:14.1Z stdout F [2026-11-29 18:00:14 TP0] x",
            LogLine(7, "x", "TP0", "2026-11-29 18:00:14", "stdout F"),
        ),
        (
            "2026-06-26 17:21:56 | ERROR | stderr |   File",
            LogLine(7, "  File", "", "2026-06-26 17:21:56"),
        ),
        (
            "2026-06-21 08:57:31,785 - INFO - flashinfer.jit: Loading",
            LogLine(7, "flashinfer.jit: Loading", "", "2026-06-21 08:57:31,785"),
        ),
        ("ERROR 2026-03-03T08:40:11.2Z   File", LogLine(7, "  File", "", "2026-03-03T08:40:11.2Z")),
        (">   File", LogLine(7, "  File")),
        (
            "2026-05-17 18:09:43 ERROR 13359 [ DP10 TP10 EP10 scheduler.py:2655]   File",
            LogLine(7, "  File", "DP10 TP10 EP10", "2026-05-17 18:09:43"),
        ),
        (
            "(Core pid=9) ERROR 08-19 14:31:55 [core.py:718] ValueError: x",
            LogLine(7, "ValueError: x", "", "08-19 14:31:55", "(Core pid=9)"),
        ),
        (
            "(APIServer pid=1) (Core_DP6 pid=2) (Worker_DP6_EP6 pid=3) ERROR 10-30 17:32:00"
            " [v1/executor/multiproc_executor.py:671]   File",
            LogLine(
                7,
                "  File",
                "DP6 EP6",
                "10-30 17:32:00",
                "(APIServer pid=1) (Core_DP6 pid=2) (Worker_DP6_EP6 pid=3)",
            ),
        ),
        (
            "[rank0]:W0430 10:21:34.351000 58757 torch/_dynamo/convert_frame.py:1233]   File",
            LogLine(7, "  File", "rank0"),
        ),
        (
            "[rank8]:[W516 12:46:57.498 ProcessGroupNCCL.cpp:1826] [PG ID 0] Failed",
            LogLine(7, "[PG ID 0] Failed", "rank8"),
        ),
        ("[Errno 98] taken", LogLine(7, "[Errno 98] taken")),
        ("[Autotuner]: Autotuning", LogLine(7, "[Autotuner]: Autotuning")),
        ("    value = a | b", LogLine(7, "    value = a | b")),
    ],
)
def test_prefixes_are_peeled(raw: str, expected: LogLine) -> None:
    line = parse_line(7, raw.encode())
    assert line._replace(headed=False) == expected
    assert line.headed == ("[2026-11-29" in raw or "[09-18" in raw)


def test_bytes_that_are_not_utf8_stay_a_line() -> None:
    assert parse_line(1, b"[2026-11-29 19:00:14] \xff\xfe x").text == "\ufffd\ufffd x"
