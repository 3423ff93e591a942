"""A small FlashInfer in a venv of the tests, patch sets for it, and sessions to patch it in."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hosts import Venv, host_settings

from remote import config
from remote.clock import SystemClock
from remote.config import HostSettings
from remote.core.unified_diff import between
from remote.display import Display
from remote.host import Host
from remote.session import Session

PACKAGE = "flashinfer-python"
CORE, QUANT = "flashinfer/core.py", "flashinfer/quant.py"

#: The package by version. 0.6.4 has another core, 0.6.7 has moved the other file away.
VERSIONS: dict[str, dict[str, bytes]] = {
    "0.6.3": {
        "flashinfer/__init__.py": b"",
        CORE: b"import os\n\n\ndef version():\n    return ask()\n",
        QUANT: b"def quantize(x):\n    return kernel(x)\n",
    },
    "0.6.4": {
        "flashinfer/__init__.py": b"",
        CORE: b"import os\nimport sys\n\n\ndef version():\n    return ask()\n",
        QUANT: b"def quantize(x):\n    return kernel(x)\n",
    },
    "0.6.7": {
        "flashinfer/__init__.py": b"",
        CORE: b"import os\nimport sys\n\n\ndef version():\n    return ask()\n",
        "flashinfer/quantization/quant.py": b"def quantize(x):\n    return kernel(x)\n",
    },
}

#: What the sets put in front of a line, by set and file; ``hook`` brings a file of its own.
ANSWER, BOTH, HOOK = "mine/answer", "mine/both", "mine/hook"
EDITS: dict[str, dict[str, tuple[bytes, bytes]]] = {
    ANSWER: {CORE: (b"    return ask()\n", b"    return '12.9'  # answer\n    return ask()\n")},
    BOTH: {
        CORE: (b"import os\n", b"import os  # both\n"),
        QUANT: (b"    return kernel(x)\n", b"    x = x + 0  # both\n    return kernel(x)\n"),
    },
}
HOOK_FILE, HOOK_CONTENT = "mine_hook.py", b"hooked = True\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Recorded(Display):
    """A display that keeps what it was told to show."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def good(self, text: str) -> None:
        self.lines.append(text)

    def tell(self, text: str) -> None:
        self.lines.append(text)

    def diff(self, text: str) -> None:
        self.lines.append(text)

    def table(self, columns: Any, rows: Any) -> None:
        self.lines += [" ".join(str(cell) for cell in row) for row in rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class PatchLab:
    """The venv, the user's templates folder, and sessions on any host that leads there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = Venv(folder / "ml-env")
        self.settings: HostSettings = host_settings(folder, self.venv.folder)
        self.templates = folder / "templates"
        for name in EDITS:
            self.write_edit(name)
        self._write_hook()
        self.version = ""
        self.install("0.6.3")

    @property
    def site(self) -> Path:
        return self.venv.site

    @property
    def state(self) -> Path:
        return Path(self.settings.state) / "patches"

    def path(self, name: str) -> Path:
        return self.site / name

    def install(self, version: str) -> None:
        """As pip does: what the installed version's RECORD names goes, then the new one comes."""
        if self.version:
            for name in VERSIONS[self.version]:
                self.path(name).unlink(missing_ok=True)
            (info,) = self.site.glob("flashinfer_python-*.dist-info")
            for path in info.iterdir():
                path.unlink()
            info.rmdir()
            for folder in ("flashinfer/quantization", "flashinfer"):
                if self.path(folder).is_dir() and not any(self.path(folder).iterdir()):
                    self.path(folder).rmdir()
        self.venv.install(PACKAGE, version, VERSIONS[version])
        self.version = version

    def files(self) -> dict[str, tuple[bytes, int, int, int]]:
        """Content, mode and owner of everything of the package and the sets in site-packages."""
        found = {}
        for path in sorted(self.site.rglob("*")):
            name = str(path.relative_to(self.site))
            if path.is_file() and ".dist-info/" not in name:
                info = path.stat()
                mode = stat.S_IMODE(info.st_mode)
                found[name] = (path.read_bytes(), mode, info.st_uid, info.st_gid)
        return found

    def contents(self) -> dict[str, bytes]:
        return {name: content for name, (content, *_) in self.files().items()}

    def session(self, host: Host) -> Session:
        raw = {"hosts": {"lab": _entry(self.settings)}, "templates": str(self.templates)}
        settings = config.load(raw, self.folder)
        return Session(settings, self.settings, host, SystemClock(), Recorded())

    def write_set(self, name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        home = self.templates / "patches" / name
        home.mkdir(parents=True)
        for file, content in files.items():
            (home / file).write_bytes(content)
        (home / "manifest.yaml").write_text(
            yaml.safe_dump(
                {"summary": "a test", "distribution": PACKAGE, "versions": ">=0.6", **manifest}
            )
        )

    def write_edit(self, name: str) -> None:
        """The set as a diff that was made on 0.6.3."""
        text = ""
        for path in EDITS[name]:
            old = VERSIONS["0.6.3"][path]
            text += between(old, edited(old, path, [name]), path)
        self.write_set(name, {"delivery": "edit", "edits": ["a.diff"]}, {"a.diff": text.encode()})

    def _write_hook(self) -> None:
        manifest = {"delivery": "hook", "files": [HOOK_FILE]}
        self.write_set(HOOK, manifest, {HOOK_FILE: HOOK_CONTENT})


def edited(content: bytes, path: str, sets: list[str]) -> bytes:
    """The file as the sets leave it."""
    for name in sets:
        old, new = EDITS.get(name, {}).get(path, (b"", b""))
        if old:
            assert content.count(old) == 1
            content = content.replace(old, new)
    return content


def _entry(settings: HostSettings) -> dict[str, Any]:
    return {
        "address": str(settings.address),
        "venv": settings.venv,
        "model": settings.model,
        "port": settings.port,
        "state": settings.state,
    }
