"""Starts the payload on a host: one line of shell, and its modules' source where they are missing.

The line runs a small program in the host's own interpreter. That takes the payload's hash from its
standard input, starts what the host has kept under it (`payload/own_code.py`), or asks for the code
first; requests that came meanwhile are kept.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from remote.core.shell import quote
from remote.payload import frames

#: Exit status with which the starter says that there is no interpreter.
NO_INTERPRETER = 97

_PACKAGE = "sglang_remote_payload"

# Read raw: a buffered reader would swallow bytes that belong to the first request. What has arrived
# before the code, where that had to be asked for, are requests.
_BOOT = """
import hashlib, marshal, os, struct, zlib
from _frozen_importlib_external import MAGIC_NUMBER
def take(n):
    got = b""
    while len(got) < n:
        chunk = os.read(0, n - len(got))
        if not chunk:
            raise SystemExit(0)
        got += chunk
    return got
key, state = take(int(take(4))).decode().split("\\n", 1)
name = "agent-%s-%s" % (key, MAGIC_NUMBER[:2].hex())
early, parts = b"", None
try:
    path = os.path.join(os.path.expanduser(state), "cache", name)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as kept:
        info = os.fstat(kept.fileno())
        if info.st_uid == os.geteuid() and not info.st_mode & 0o022:
            digest, body = kept.read(32), kept.read()
            if hashlib.sha256(body).digest() == digest:
                parts = marshal.loads(body)
except OSError:
    pass
fresh = parts is None
if fresh:
    os.write(1, {wanted})
    while True:
        head = take(8)
        first, second = struct.unpack(">II", head)
        if first == {code}:
            break
        early += head + take((first & 0x7FFFFFFF) + (second & 0x7FFFFFFF))
    packed = take(second)
    import json
    parts = dict(sources=json.loads(zlib.decompress(packed)))
    parts["codes"] = {each: compile(text, each, "exec") for each, text in parts["sources"].items()}
exec(parts["codes"]["loader"], dict(parts=parts, fresh=fresh, early=early, state=state, name=name))
"""

_LOADER = f"""
import sys
from _frozen_importlib import ModuleSpec
class Loader:
    def find_spec(self, name, path=None, target=None):
        if name in parts["codes"]:
            return ModuleSpec(name, self, is_package=name == {_PACKAGE!r})
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(parts["codes"][module.__name__], module.__dict__)
    def get_source(self, name):
        return parts["sources"][name]
sys.meta_path.insert(0, Loader())
from {_PACKAGE}.agent import main
main(state, name, parts if fresh else None, early)
"""


@dataclass(frozen=True)
class Code:
    """The payload's modules; ``key`` is the hash by which a host knows them."""

    sources: bytes

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.sources).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        return zlib.compress(self.sources, 9)

    def head(self, state: str) -> bytes:
        """What the starter reads first.

        Args:
            state: the state folder, where the code may be kept.
        """
        text = f"{self.key}\n{state}".encode()
        return b"%04d" % len(text) + text


@lru_cache(maxsize=1)
def code() -> Code:
    """This version's."""
    folder = Path(__file__).parent / "payload"
    sources = {
        _PACKAGE if path.stem == "__init__" else f"{_PACKAGE}.{path.stem}": path.read_text("utf-8")
        for path in sorted(folder.glob("*.py"))
        # Those run in interpreters of their own.
        if path.stem not in ("bench_flags", "doctor_imports", "parser_flags")
    }
    return Code(json.dumps({**sources, "loader": _LOADER}).encode())


def start_command(python: str) -> str:
    """The line of shell that starts the payload; POSIX sh whatever the login shell is.

    It holds no newline and no exclamation mark, which csh would read even within quotes.
    """
    program = _BOOT.replace("{wanted}", repr(frames.WANTED)).replace("{code}", str(frames.CODE))
    boot = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    start = f'import binascii,zlib;exec(zlib.decompress(binascii.a2b_base64("{boot}")))'
    script = (
        f"p={quote(python)}; "
        f'if [ -x "$p" ]; then exec "$p" -I -S -c {quote(start)}; fi; '
        'echo "no interpreter at $p" >&2; '
        "for c in ~/*/bin/python ~/.venv/bin/python /opt/*/bin/python; do "
        '[ -x "$c" ] && echo "found: $c" >&2; done; '
        f"exit {NO_INTERPRETER}"
    )
    return f"/bin/sh -c {quote(script)}"
