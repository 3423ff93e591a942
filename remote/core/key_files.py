"""The public part of a key file, also where its private part is encrypted.

Formats: a line of type, base64 and comment (sshd(8), AUTHORIZED_KEYS FILE FORMAT), OpenSSH's own
private keys (PROTOCOL.key), and certificates (PROTOCOL.certkeys).
"""

from __future__ import annotations

import base64
import binascii
import re

_PRIVATE = re.compile(r"-----BEGIN OPENSSH PRIVATE KEY-----(.+?)-----END", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"
_CERTIFICATE = "-cert-v01@openssh.com"


def public_part(text: str) -> bytes | None:
    """The public key or certificate, in SSH's wire format; None where the file shows none."""
    try:
        armoured = _PRIVATE.search(text)
        if armoured:
            data = base64.b64decode(armoured[1])
            if not data.startswith(_MAGIC):
                return None
            # Cipher, key derivation and its options go before the count of keys.
            _, at = _strings(data, len(_MAGIC), 3)
            blob = _strings(data, at + 4, 1)[0][0]
            return blob if kind(blob) else None
        words = text.split(None, 2)
        blob = base64.b64decode(words[1], validate=True)
        return blob if kind(blob) == words[0] else None
    except (binascii.Error, ValueError, IndexError):
        return None


def kind(blob: bytes) -> str:
    """The type of a public key or certificate.

    Raises:
        ValueError: it is neither.
    """
    return _strings(blob, 0, 1)[0][0].decode("ascii")


def is_certificate(blob: bytes) -> bool:
    try:
        return kind(blob).endswith(_CERTIFICATE)
    except ValueError:
        return False


def certifies(certificate: bytes, key: bytes) -> bool:
    """Whether a certificate was made for that public key, whose fields follow its nonce."""
    try:
        plain = kind(key)
        if kind(certificate) != plain.removesuffix("@openssh.com") + _CERTIFICATE:
            return False
        _, fields = _strings(certificate, 0, 2)
    except ValueError:
        return False
    return certificate.startswith(key[4 + len(plain) :], fields)


def _strings(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """So many strings, each after its length in four bytes, and where the next one begins.

    Raises:
        ValueError: the data ends before.
    """
    found = []
    for _ in range(count):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if at + 4 > len(data) or end > len(data):
            raise ValueError("the data ends in the middle of a string")
        found.append(data[at + 4 : end])
        at = end
    return found, at
