"""Messages between client and host: a JSON object and, beside it, raw bytes.

A frame is two lengths (big-endian, 4 bytes each), the JSON in UTF-8, then the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

_LENGTHS = struct.Struct(">II")

#: What the host prints before its first frame. Everything before it on the stream is the login
#: shell's own talk (a banner, an `echo` in .bashrc) and is passed over.
GREETING = b"\x00\x02sglang-remote\x03\x00"

#: A frame above this is a broken stream, not a message.
MAX_BYTES = 256 * 1024 * 1024


class BrokenStream(Exception):
    """The bytes are no frame."""


def pack(body: Mapping[str, Any], data: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


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
            json_bytes, data_bytes = _LENGTHS.unpack_from(self._pending)
            if json_bytes + data_bytes > MAX_BYTES:
                raise BrokenStream(f"a message of {json_bytes + data_bytes} bytes was announced")
            end = _LENGTHS.size + json_bytes + data_bytes
            if len(self._pending) < end:
                break
            middle = _LENGTHS.size + json_bytes
            try:
                body = json.loads(bytes(self._pending[_LENGTHS.size : middle]))
            except ValueError as error:
                raise BrokenStream(f"a message is not JSON: {error}") from error
            frames.append((body, bytes(self._pending[middle:end])))
            del self._pending[:end]
        return frames
