"""The job that every peer is given: a start script, five patches, an old server, a new one.

Each does it in its own manner; what the steps are on the host is told here once, as lines of shell.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from remote.core.unified_diff import between

DISTRIBUTION, VERSION = "flashinfer-python", "0.6.3"
#: What the server itself takes until it is ready; taken off every time.
SERVER_S = 3.0
READY = "The server is fired up and ready to roll!"
#: All six files together, as in a patch set of the field.
PAYLOAD_BYTES = 38_000

_WORDS = (
    *("scale", "block", "tensor", "quantize", "kernel", "layout", "swizzle", "expert", "gate"),
    *("weight", "hidden", "group", "stride", "cache", "plan", "workspace", "stream", "device"),
    *("dtype", "rows", "columns", "padded", "global_scale", "local", "module"),
)


@dataclass(frozen=True)
class Sources:
    """What lies on the client's disk, and what must become of the host's files.

    Attributes:
        folder: ``launch.sh`` and ``patches/NN.diff``.
        package: the installed files, by path in site-packages, before.
        patched: the same after.
    """

    folder: Path
    package: dict[str, bytes]
    patched: dict[str, bytes]

    @property
    def script(self) -> Path:
        return self.folder / "launch.sh"

    @property
    def diffs(self) -> list[Path]:
        return sorted((self.folder / "patches").iterdir())

    def holds(self, site: Path) -> bool:
        """Whether the host's files are what the patches make of them."""
        return all(
            _sha256((site / path).read_bytes()) == _sha256(content)
            for path, content in self.patched.items()
        )


def sources(folder: Path, venv: Path, port: int, patches: int = 5) -> Sources:
    """Write them; the same bytes each time but for the host's paths.

    Args:
        patches: how many files are patched. Each diff is a fifth of the payload, however many.
    """
    made = random.Random(8)
    package, patched = {"flashinfer/__init__.py": b""}, {"flashinfer/__init__.py": b""}
    (folder / "patches").mkdir(parents=True)
    script = _script(venv, port)
    for number in range(patches):
        path = f"flashinfer/part_{number:03}.py"
        package[path] = _code(made, 20_000)
        patched[path], diff = _edited(made, package[path], path, (PAYLOAD_BYTES - len(script)) // 5)
        (folder / "patches" / f"{number:03}.diff").write_bytes(diff)
    (folder / "launch.sh").write_bytes(script)
    return Sources(folder, package, patched)


def _script(venv: Path, port: int) -> bytes:
    flags = " \\\n".join(f"  --{word}-{other} {len(word)}" for word, other in pairwise(_WORDS))
    return (
        "#!/bin/bash\n# A start script as an engineer keeps it.\nset -u\n"
        f"export PATH={venv}/bin:/usr/local/cuda/bin:$PATH\nexport VIRTUAL_ENV={venv}\n"
        f"exec {venv}/bin/python -m sglang.launch_server --port {port} \\\n{flags}\n"
    ).encode()


def _line(made: random.Random) -> bytes:
    name, owner, function, *arguments = made.choices(_WORDS, k=made.randint(4, 9))
    call = f"{owner}.{function}({', '.join(arguments)})"
    return f"    {name}_{made.randint(0, 99)} = {call}\n".encode()


def _code(made: random.Random, size: int) -> bytes:
    """Python that compresses as Python does."""
    lines: list[bytes] = []
    while sum(map(len, lines)) < size:
        lines.append(f"\n\ndef {'_'.join(made.choices(_WORDS, k=3))}(tensor, scale):\n".encode())
        lines += [_line(made) for _ in range(12)]
    return b"".join(lines)


def _edited(made: random.Random, content: bytes, path: str, size: int) -> tuple[bytes, bytes]:
    """The content with new lines at some places, and the diff, which is about ``size`` long."""
    lines = content.splitlines(keepends=True)
    diff = b""
    while len(diff) < size:
        at = made.randrange(10, len(lines) - 10)
        lines[at:at] = [_line(made) for _ in range(4)]
        diff = between(content, b"".join(lines), path).encode()
    return b"".join(lines), diff


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Steps:
    """The host's part as lines of POSIX shell, for peers that are told what to run.

    Args:
        run: the folder on the host that holds script, patches, log and pid.
    """

    run: Path
    site: Path
    venv: Path

    @property
    def check_venv(self) -> str:
        return f"test -x {self.venv}/bin/python && {self.venv}/bin/python -c 'import sys'"

    @property
    def check_patches(self) -> str:
        return self._each("patch -p1 -s -f --dry-run")

    @property
    def apply_patches(self) -> str:
        return self._each("patch -p1 -s -f -b -z .before")

    @property
    def patches_hold(self) -> str:
        return self._each("patch -p1 -s -f -R --dry-run")

    @property
    def stop(self) -> str:
        pid = f"$(cat {self.run}/pid)"
        return (
            f"if test -f {self.run}/pid && kill {pid} 2>/dev/null; then"
            f" while kill -0 {pid} 2>/dev/null; do sleep 0.02; done; fi"
        )

    @property
    def start(self) -> str:
        return (
            f"cd {self.run} && {{ setsid nohup bash launch.sh >server.log 2>&1 </dev/null &"
            " echo $! >pid; }"
        )

    @property
    def wait(self) -> str:
        return f"until grep -q '{READY}' {self.run}/server.log; do sleep 0.05; done"

    @property
    def serves(self) -> str:
        return f"kill -0 $(cat {self.run}/pid) && grep -q '{READY}' {self.run}/server.log"

    def _each(self, command: str) -> str:
        return (
            f"cd {self.site} && for p in {self.run}/patches/*.diff; do"
            f" {command} <$p >/dev/null || exit 1; done"
        )
