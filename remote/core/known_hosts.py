"""OpenSSH's known_hosts: which keys a host may show, read with care of our own.

Handles hashed names, `[host]:port`, patterns with ``*`` and ``?``, negation, comments, and the
markers `@revoked` and `@cert-authority`. Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What known_hosts says of a key that a host shows."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"
    AUTHORITY = "authority"


@dataclass(frozen=True)
class Entry:
    """One line: who it is for, and the key as type and decoded bytes."""

    marker: str
    hosts: str
    key_type: str
    key: bytes
    source: str

    def covers(self, name: str) -> bool:
        """Whether the line is for that host; a negated pattern that matches excludes it."""
        if self.hosts.startswith("|1|"):
            return _hashed_matches(self.hosts, name)
        covered = False
        for pattern in self.hosts.split(","):
            negated = pattern.startswith("!")
            if _matches(pattern.removeprefix("!"), name):
                if negated:
                    return False
                covered = True
        return covered


@dataclass(frozen=True)
class Judgement:
    """The verdict and the lines that led to it (``file:line``).

    ``types`` are those of the keys on record where another one was shown.
    """

    verdict: Verdict
    sources: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


def host_name(host: str, port: int) -> str:
    """The name under which a host's key is kept."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def parse(text: str, source: str) -> list[Entry]:
    """The readable lines of a file; as in OpenSSH, one that makes no sense is passed over."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3:
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        entries.append(Entry(marker, fields[0], fields[1], key, f"{source}:{number}"))
    return entries


def judge(entries: Iterable[Entry], names: Iterable[str], key_type: str, key: bytes) -> Judgement:
    """What the entries say of a key shown under these names (the host's, its address).

    A revoked key is revoked whatever else is said. A host known by other keys only has changed,
    whatever their types: as in OpenSSH, who shows a key of a new type need not be that host. The
    lines named are those of the type shown, where there are any.
    """
    names = list(names)
    entries = list(entries)
    ours = [entry for entry in entries if any(entry.covers(name) for name in names)]
    revoked = [e.source for e in ours if e.marker == "@revoked" and e.key == key]
    if revoked:
        return Judgement(Verdict.REVOKED, tuple(revoked))
    plain = [entry for entry in ours if not entry.marker]
    known = [e.source for e in plain if e.key == key and e.key_type == key_type]
    if known:
        return Judgement(Verdict.KNOWN, tuple(known))
    if plain:
        alike = [entry for entry in plain if entry.key_type == key_type] or plain
        types = dict.fromkeys(entry.key_type for entry in alike)
        return Judgement(Verdict.CHANGED, tuple(e.source for e in alike), tuple(types))
    authority = [e.source for e in ours if e.marker == "@cert-authority"]
    if authority:
        return Judgement(Verdict.AUTHORITY, tuple(authority))
    return Judgement(Verdict.UNKNOWN)


def key_types(entries: Iterable[Entry], names: Iterable[str]) -> set[str]:
    """The types of the keys on record for a host, to ask it for one of these."""
    names = list(names)
    return {e.key_type for e in entries if not e.marker and any(e.covers(name) for name in names)}


def fingerprint(key: bytes) -> str:
    """A key's SHA-256 fingerprint as OpenSSH prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def line(name: str, key_type: str, key: bytes) -> str:
    """A line that records the key for that host."""
    return f"{name} {key_type} {base64.b64encode(key).decode()}\n"


def _matches(pattern: str, name: str) -> bool:
    # fnmatch also knows [...]; in known_hosts brackets are literal.
    literal = pattern.lower().replace("[", "[[]")
    return fnmatch.fnmatchcase(name.lower(), literal)


def _hashed_matches(field: str, name: str) -> bool:
    parts = field.split("|")
    if len(parts) != 4:
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    # SHA-1 is OpenSSH's format here: it hides names, it protects no key.
    found = hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
    return hmac.compare_digest(found, digest)
