"""A part of a file as one compressed stream, by the best coding that both ends have.

zstd comes from the interpreter (3.14 and newer) or from the program of that name; gzip is always
there. Never more than some hundred KiB are held, whatever the size of the part.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

#: Below this nothing is won: it fits into a packet or three.
_TINY_BYTES = 4096
#: Below this gzip is done before another process has started.
_WORTH_A_PROCESS_BYTES = 1024 * 1024
_BLOCK_BYTES = 256 * 1024
_PLACES = "/usr/local/bin:/usr/bin:/bin"
#: Of both codings: a log shrinks to a tenth at the fastest level, and the link outruns the others.
_LEVEL = 1


def choose(reads: Sequence[str], size: int) -> str:
    """The coding for so many bytes: ``zstd``, ``gzip`` or ``none``.

    Args:
        reads: what the client can read.
    """
    if size < _TINY_BYTES:
        return "none"
    process_pays = size >= _WORTH_A_PROCESS_BYTES
    if "zstd" in reads and (_zstd_module() or (process_pays and _zstd_program())):
        return "zstd"
    return "gzip" if "gzip" in reads else "none"


def compressed(fd: int, start: int, end: int, coding: str) -> Iterator[bytes]:
    """The bytes of an open file from ``start`` to ``end``, as pieces of one stream.

    A piece may be empty, so that whoever takes them can leave between any two.

    Raises:
        OSError: the program that compresses failed.
    """
    if coding == "none":
        yield from _blocks(fd, start, end)
    elif coding == "gzip":
        yield from _by(zlib.compressobj(_LEVEL), fd, start, end)
    elif module := _zstd_module():
        yield from _by(module.ZstdCompressor(level=_LEVEL), fd, start, end)
    else:
        yield from _by_program(fd, start, end)


def _zstd_module() -> Any:
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return None


def _zstd_program() -> str | None:
    return shutil.which("zstd", path=_PLACES)


def _blocks(fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (block := os.pread(fd, min(_BLOCK_BYTES, end - start), start)):
        start += len(block)
        yield block


def _by(compressor: Any, fd: int, start: int, end: int) -> Iterator[bytes]:
    for block in _blocks(fd, start, end):
        yield compressor.compress(block)
    yield compressor.flush()


def _by_program(fd: int, start: int, end: int) -> Iterator[bytes]:
    command = [_zstd_program() or "zstd", f"-{_LEVEL}", "--quiet", "--stdout"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        feeding = threading.Thread(target=_feed, args=(program, fd, start, end), daemon=True)
        feeding.start()
        try:
            while piece := os.read(program.stdout.fileno(), _BLOCK_BYTES):
                yield piece
        except GeneratorExit:
            program.kill()
            raise
        finally:
            feeding.join()
    if program.returncode != 0:
        raise OSError(f"zstd ended with status {program.returncode}")


def _feed(program: subprocess.Popen[bytes], fd: int, start: int, end: int) -> None:
    assert program.stdin is not None
    # It may have been killed, or have failed: then nobody reads.
    with contextlib.suppress(OSError), program.stdin as pipe:
        for block in _blocks(fd, start, end):
            pipe.write(block)
