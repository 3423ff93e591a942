"""The other end of `payload/compressing.py`: one compressed stream as it was, piece by piece."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import lru_cache
from typing import Any, Protocol

from remote.errors import ToolError

#: No piece is longer, however well it was compressed.
_MOST_BYTES = 1024 * 1024


class _Zstd(Protocol):
    """A way of reading zstd that was found here."""

    def __call__(self, chunks: Iterator[bytes]) -> Iterator[bytes]: ...


def readable() -> tuple[str, ...]:
    """The codings that can be read here, best first."""
    return ("zstd", "gzip") if _zstd() else ("gzip",)


def decoded(coding: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """What the chunks of a stream hold; each piece as soon as it can be had.

    Args:
        coding: ``zstd``, ``gzip`` or ``none``.

    Raises:
        ToolError: the stream is damaged.
    """
    if coding == "none":
        return chunks
    read = _zstd() if coding == "zstd" else _gzip
    if read is None:
        raise ToolError(f"the host sent {coding}, which cannot be read here")
    return read(chunks)


@lru_cache(maxsize=1)
def _zstd() -> _Zstd | None:
    for name, read in (("compression.zstd", _by_interpreter), ("zstandard", _by_package)):
        try:
            importlib.import_module(name)
            return read
        except ImportError:
            continue
    return _by_program if shutil.which("zstd") else None


def _gzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    for chunk in chunks:
        while chunk:
            try:
                piece = stream.decompress(chunk, _MOST_BYTES)
            except zlib.error as error:
                raise _damaged(error) from error
            if piece:
                yield piece
            chunk = stream.unconsumed_tail
    yield stream.flush()


def _by_interpreter(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Python 3.14 and newer."""
    zstd: Any = importlib.import_module("compression.zstd")
    stream = zstd.ZstdDecompressor()
    for chunk in chunks:
        rest = chunk
        while rest or not (stream.needs_input or stream.eof):
            try:
                piece = stream.decompress(rest, _MOST_BYTES)
            except zstd.ZstdError as error:
                raise _damaged(error) from error
            rest = b""
            if piece:
                yield piece


def _by_package(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The package ``zstandard``."""
    zstandard: Any = importlib.import_module("zstandard")
    with zstandard.ZstdDecompressor().stream_reader(_Source(chunks)) as stream:
        while True:
            try:
                piece = stream.read(_MOST_BYTES)
            except zstandard.ZstdError as error:
                raise _damaged(error) from error
            if not piece:
                return
            yield piece


class _Source:
    """Chunks as a file that is read from; it gives a chunk at a time, whatever its length."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size: int = -1) -> bytes:
        return next(filter(None, self._chunks), b"")


def _by_program(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The program ``zstd``, as a filter."""
    with closing(_Filter(["zstd", "--decompress", "--quiet", "--stdout"])) as program:
        for chunk in chunks:
            yield from program.feed(chunk)
        yield from program.rest()


class _Filter:
    """A program between two pipes, neither of which may fill up while the other is waited for."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pipesize=_MOST_BYTES)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give it all of ``data``; what comes out meanwhile."""
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self._stdout], [self._stdin], [])
            if readable:
                piece = os.read(self._stdout.fileno(), _MOST_BYTES)
                if not piece:
                    raise _damaged("zstd ended early")
                yield piece
            elif writable:
                try:
                    view = view[os.write(self._stdin.fileno(), view) :]
                except BrokenPipeError as error:
                    raise _damaged("zstd ended early") from error

    def rest(self) -> Iterator[bytes]:
        """What still comes out once nothing more is given."""
        self._stdin.close()
        while piece := os.read(self._stdout.fileno(), _MOST_BYTES):
            yield piece
        if self._process.wait() != 0:
            raise _damaged(f"zstd ended with status {self._process.returncode}")

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):  # nobody reads any more
                pipe.close()
        self._process.wait()


def _damaged(why: object) -> ToolError:
    return ToolError(
        f"what the host sent compressed cannot be read: {why}", hint="pull it once more"
    )
