"""A file's new contents by its old ones: what travels is what changed.

Each block of the new contents is compressed with what stood about there as its dictionary, so text
that stayed, or moved a little, costs next to nothing.
"""

from __future__ import annotations

import struct
import zlib

_BLOCK = 16 * 1024
#: How far text may have moved and still be found; block and reach together are zlib's window.
_REACH = 8 * 1024
_LENGTH = struct.Struct(">I")


def packed(old: bytes, new: bytes) -> bytes:
    """What `unpacked` makes ``new`` of, where ``old`` is at hand."""
    parts = [_LENGTH.pack(len(new))]
    for start in range(0, len(new), _BLOCK):
        window = _window(old, start, len(new))
        packer = zlib.compressobj(9, zdict=window) if window else zlib.compressobj(9)
        part = packer.compress(new[start : start + _BLOCK]) + packer.flush()
        parts += [_LENGTH.pack(len(part)), part]
    return b"".join(parts)


def unpacked(old: bytes, change: bytes) -> bytes:
    """The new contents; ``old`` must be what `packed` was given.

    Raises:
        zlib.error, struct.error: it is not, or the change is damaged.
    """
    (size,) = _LENGTH.unpack_from(change)
    at, parts = _LENGTH.size, []
    for start in range(0, size, _BLOCK):
        (length,) = _LENGTH.unpack_from(change, at)
        at += _LENGTH.size
        window = _window(old, start, size)
        unpacker = zlib.decompressobj(zdict=window) if window else zlib.decompressobj()
        parts.append(unpacker.decompress(change[at : at + length], _BLOCK))
        at += length
    return b"".join(parts)


def _window(old: bytes, start: int, size: int) -> bytes:
    """What of the old contents a block of the new is told by: what stood as far on, and around."""
    middle = start * len(old) // size
    return old[max(0, middle - _REACH) : middle + _BLOCK + _REACH]
