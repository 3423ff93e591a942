"""Messages between client and host: a JSON object and, beside it, raw bytes.

A frame is two lengths (big-endian, 4 bytes each), the JSON in UTF-8, then the bytes. The highest
bit of a length says that the part is compressed (zlib).
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

_LENGTHS = struct.Struct(">II")

#: What the host prints before its first frame. Everything before it on the stream is the login
#: shell's own talk (a banner, an `echo` in .bashrc) and is passed over.
GREETING = b"\x00\x02sglang-remote\x03\x00"

#: What the host prints instead, at first, where it has not kept this payload.
WANTED = b"\x00\x02sglang-remote wants its code\x03\x00"

#: In place of a JSON's length: this frame is the payload itself.
CODE = 0xFFFFFFFF

#: A frame above this is a broken stream, not a message.
MAX_BYTES = 256 * 1024 * 1024

_COMPRESSED = 0x80000000
#: Below this a part fits a packet as it is.
_WORTH_BYTES = 1024


class BrokenStream(Exception):
    """The bytes are no frame."""


def pack(body: Mapping[str, Any], data: bytes = b"", *, compress: bool = False) -> bytes:
    """One frame; ``compress``: the bytes too, where that is worth it."""
    text_bytes, text = _packed(_text(body))
    data_bytes, data = _packed(data) if compress else (len(data), data)
    return _LENGTHS.pack(text_bytes, data_bytes) + text + data


def tag(body: Mapping[str, Any], data: bytes) -> str:
    """What tells an answer from another."""
    return hashlib.sha256(_text(body) + data).hexdigest()[:32]


def code(packed: bytes) -> bytes:
    """The frame that carries the payload's own code."""
    return _LENGTHS.pack(CODE, len(packed)) + packed


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()


def _packed(part: bytes) -> tuple[int, bytes]:
    """A part as it travels, and its length with what that says."""
    if len(part) >= _WORTH_BYTES:
        smaller = zlib.compress(part, 6)
        if len(smaller) < len(part):
            return len(smaller) | _COMPRESSED, smaller
    return len(part), part


class Splitter:
    """Bytes in, frames out; any chunking gives the same frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The frames that are complete now.

        Raises:
            BrokenStream: the lengths or the JSON make no sense.
        """
        self._pending += chunk
        frames = []
        while len(self._pending) >= _LENGTHS.size:
            text_bytes, data_bytes = _LENGTHS.unpack_from(self._pending)
            middle = _LENGTHS.size + (text_bytes & ~_COMPRESSED)
            end = middle + (data_bytes & ~_COMPRESSED)
            if end - _LENGTHS.size > MAX_BYTES:
                raise BrokenStream(f"a message of {end - _LENGTHS.size} bytes was announced")
            if len(self._pending) < end:
                break
            text = _unpacked(self._pending[_LENGTHS.size : middle], text_bytes)
            try:
                body = json.loads(text)
            except ValueError as error:
                raise BrokenStream(f"a message is not JSON: {error}") from error
            frames.append((body, _unpacked(self._pending[middle:end], data_bytes)))
            del self._pending[:end]
        return frames


def _unpacked(part: bytearray, length: int) -> bytes:
    if not length & _COMPRESSED:
        return bytes(part)
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(part, MAX_BYTES)
    except zlib.error as error:
        raise BrokenStream(f"a message cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise BrokenStream("a message cannot be unpacked: it is cut, or too large")
    return whole
