"""A part of a file compressed there and read here: the same bytes, in pieces, by every coding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from remote import decoding
from remote.errors import ToolError
from remote.payload import compressing

CONTENT = b"".join(b"[2026-11-29 12:00:%02d] line %d\n" % (n % 60, n * 7919) for n in range(90_000))
PIECE_BYTES = 1024 * 1024


class Interpreter(ModuleType):
    """``compression.zstd`` as Python 3.14 has it, with zlib's bytes in place of zstd's."""

    ZstdError = zlib.error

    class ZstdCompressor:
        def __init__(self, level: int) -> None:
            stream = zlib.compressobj(level)
            self.compress, self.flush = stream.compress, stream.flush

    class ZstdDecompressor:
        def __init__(self) -> None:
            self._stream = zlib.decompressobj()

        @property
        def eof(self) -> bool:
            return self._stream.eof

        @property
        def needs_input(self) -> bool:
            return not self._stream.unconsumed_tail

        def decompress(self, data: bytes, max_length: int) -> bytes:
            return self._stream.decompress(self._stream.unconsumed_tail + data, max_length)


def use_interpreter(patch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    patch.setitem(sys.modules, "compression", ModuleType("compression"))
    patch.setitem(sys.modules, "compression.zstd", Interpreter("compression.zstd"))


#: In place of zstd's program where the machine has none.
STAND_IN = f"""#!{sys.executable}
import sys, zlib
stream = zlib.decompressobj() if "--decompress" in sys.argv else zlib.compressobj(1)
turn = stream.decompress if "--decompress" in sys.argv else stream.compress
while data := sys.stdin.buffer.raw.read(65536):
    sys.stdout.buffer.write(turn(data))
    sys.stdout.flush()
sys.stdout.buffer.write(stream.flush())
"""


def use_program(patch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    """No module: the program is left."""
    for name in ("compression.zstd", "zstandard"):
        patch.setitem(sys.modules, name, None)
    if shutil.which("zstd") is None:
        assert folder is not None
        (folder / "zstd").write_text(STAND_IN)
        (folder / "zstd").chmod(0o755)
        patch.setenv("PATH", str(folder))
        patch.setattr(compressing, "_PLACES", str(folder))


def use_nothing(patch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    use_program(patch, folder)
    patch.setenv("PATH", "/nonexistent")
    patch.setattr(compressing, "_PLACES", "/nonexistent")


@pytest.fixture
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    found: Callable[[pytest.MonkeyPatch, Path], None] = request.param
    found(monkeypatch, tmp_path)
    decoding._zstd.cache_clear()
    yield
    decoding._zstd.cache_clear()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "server.log"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def sent(fd: int, start: int, end: int, coding: str) -> list[bytes]:
    return [piece for piece in compressing.compressed(fd, start, end, coding) if piece]


@pytest.mark.parametrize(
    ("way", "wanted"),
    [(use_interpreter, "zstd"), (use_program, "zstd"), (use_nothing, "gzip")],
    indirect=["way"],
)
def test_the_best_that_both_have_brings_the_same_bytes(way: None, wanted: str, log: int) -> None:
    start, end = 12_345, len(CONTENT) - 678
    coding = compressing.choose(decoding.readable(), end - start)
    assert coding == wanted
    pieces = sent(log, start, end, coding)
    assert sum(map(len, pieces)) < len(CONTENT) / 3
    assert b"".join(decoding.decoded(coding, iter(pieces))) == CONTENT[start:end]


@pytest.mark.parametrize("way", [use_interpreter, use_program], indirect=True)
@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_what_shrinks_to_nothing_is_still_read_in_pieces(
    way: None, coding: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.log"
    with path.open("wb") as file:
        file.truncate(20 * PIECE_BYTES)
    fd = os.open(path, os.O_RDONLY)
    lengths = [
        len(piece)
        for piece in decoding.decoded(coding, iter(sent(fd, 0, 20 * PIECE_BYTES, coding)))
    ]
    os.close(fd)
    assert sum(lengths) == 20 * PIECE_BYTES and max(lengths) <= PIECE_BYTES


@pytest.mark.parametrize("way", [use_interpreter, use_program], indirect=True)
@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_stream_that_is_damaged_is_refused(way: None, coding: str, log: int) -> None:
    pieces = sent(log, 0, len(CONTENT), coding)
    pieces[0] = b"\xff" * 40 + pieces[0][40:]
    with pytest.raises(ToolError, match="compressed"):
        list(decoding.decoded(coding, iter(pieces)))


@pytest.mark.parametrize("way", [use_program], indirect=True)
def test_what_came_before_a_cut_is_right_as_far_as_it_goes(way: None, log: int) -> None:
    pieces = sent(log, 0, len(CONTENT), "zstd")

    def cut() -> Iterator[bytes]:
        yield from pieces[: len(pieces) // 2]
        raise ConnectionResetError

    got = b""
    with pytest.raises(ConnectionResetError):
        for piece in decoding.decoded("zstd", cut()):
            got += piece
    assert CONTENT.startswith(got)


@pytest.mark.parametrize("way", [use_program], indirect=True)
def test_leaving_early_ends_the_program(
    way: None, monkeypatch: pytest.MonkeyPatch, log: int
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    pieces = compressing.compressed(log, 0, len(CONTENT), "zstd")
    next(pieces)
    del pieces
    assert started[0].returncode is not None


@pytest.mark.parametrize("way", [use_program], indirect=True)
def test_little_is_not_worth_a_process_and_less_not_worth_compressing(way: None) -> None:
    assert compressing.choose(("zstd", "gzip"), 2_000_000) == "zstd"
    assert compressing.choose(("zstd", "gzip"), 200_000) == "gzip"
    assert compressing.choose(("zstd", "gzip"), 2_000) == "none"
    assert compressing.choose((), 2_000_000) == "none"
