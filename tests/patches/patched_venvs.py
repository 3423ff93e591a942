"""Small venvs with one FlashInfer version and some patch sets in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote import probe
from remote.payload import probing

PROJECT = Path(__file__).parents[2]
SETS = PROJECT / "templates" / "patches" / "flashinfer"
WORKERS = Path(__file__).parent / "in_venv"

ALL_VERSIONS = (
    "0.5.3",
    "0.6.1",
    "0.6.3",
    "0.6.7.post3",
    "0.6.8.post1",
    "0.6.12",
    "0.6.13",
    "0.7.2.post1",
    "0.7.4",
)
#: Before, at and after the changes that the fakes know of.
FEW_VERSIONS = ("0.6.3", "0.6.8.post1", "0.7.4")
VERSIONS = ALL_VERSIONS if os.environ.get("SGLANG_REMOTE_FULL_MATRIX") == "1" else FEW_VERSIONS


@dataclass(frozen=True)
class PatchedVenv:
    """A venv with one FlashInfer and the patch sets given; torch comes from another."""

    python: Path
    site: Path

    def run(
        self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The interpreter with these arguments, in an environment of nothing but ``env``."""
        return subprocess.run(
            [str(self.python), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            env={"PATH": os.defpath, "HOME": str(self.site), "CUDA_HOME": "/none", **(env or {})},
            check=False,
        )

    def worker(self, name: str, request: object) -> Any:
        """What a script of `in_venv` answers."""
        done = self.run("-W", "ignore", str(WORKERS / f"{name}.py"), stdin=json.dumps(request))
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    def scan(self, request: dict[str, Any], **env: str) -> dict[str, Any]:
        """What the trace scanner answers here."""
        fixed = {"PATH": os.defpath, "CUDA_HOME": "/none"}
        told = probing.run(probe.script(), str(self.python), {**fixed, **env}, request)
        assert "answer" in told, told
        answer: dict[str, Any] = told["answer"]
        return answer


MakeVenv = Callable[..., PatchedVenv]


def install(name: str, site: Path) -> None:
    """A set's files as the tool puts them there."""
    for path in hook_files(name):
        shutil.copyfile(path, site / path.name)


def hook_files(name: str) -> list[Path]:
    return [path for path in (SETS / name).iterdir() if path.suffix in (".py", ".pth")]
