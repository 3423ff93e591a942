"""Writing the constraints files: one resolution for a Python minor, every version pinned."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from remote.errors import ToolError
from remote.sandbox.packages import (
    CONSTRAINTS_FOLDER,
    FLASHINFER_GROUP,
    PIP,
    REQUIREMENTS,
    SGLANG_GROUP,
    TORCH,
    constraints_file,
    name_of,
    normalized,
)
from remote.sandbox.pip import Pip
from remote.sandbox.torch_build import cuda_requirements


def lock_constraints(
    python: Path | None = None,
    folder: Path = CONSTRAINTS_FOLDER,
    detail: Callable[[str], None] = lambda line: None,
) -> Path:
    """Resolve everything the embedded host installs, for one interpreter, and write it down.

    Nothing is installed but pip itself, in a venv that goes away again.

    Args:
        python: the interpreter to resolve for; the running one where left out.
        folder: where the constraints file goes.
        detail: told what is being done.

    Returns:
        The file written, ``ml-env-pyX.Y.txt``.

    Raises:
        ToolError: the venv could not be made, or pip found no solution.
    """
    with tempfile.TemporaryDirectory() as scratch:
        venv = Path(scratch) / "venv"
        detail("a venv to resolve in")
        _make_venv(python or Path(sys.executable), venv)
        pip = Pip(venv / "bin" / "python", Path(scratch) / "log")
        pip.install([PIP], detail, raw_progress=False)

        detail(TORCH)
        torch = pip.report(["--no-deps", TORCH])["install"][0]["metadata"]
        links = Path(scratch) / "links"
        links.mkdir()
        stand_in = write_stand_in(torch, links)
        detail("the libraries")
        libraries = pip.report(["--find-links", str(links), stand_in, *REQUIREMENTS])
        detail("SGLang and FlashInfer")
        alone = pip.report(["--no-deps", *SGLANG_GROUP, *FLASHINFER_GROUP])
        minor = str(libraries["environment"]["python_version"])

    pins = {name_of(TORCH): TORCH, name_of(PIP): PIP}
    for item in [*libraries["install"], *alone["install"]]:
        name = normalized(item["metadata"]["name"])
        pins.setdefault(name, f"{name}=={item['metadata']['version']}")
    path = constraints_file(minor, folder)
    path.write_text(constraints_text(minor, pins.values(), _today()), encoding="utf-8")
    return path


def constraints_text(python: str, pins: Iterable[str], day: str) -> str:
    """The file as written: a heading, then one pin a line in order."""
    heading = (
        f"# The embedded host's ml-env on Python {python}: every package, pinned.\n"
        f"# Resolved on {day} by `inv sandbox.lock`; torch's CUDA packages are left out.\n"
    )
    return heading + "".join(f"{pin}\n" for pin in sorted(pins))


def write_stand_in(torch: Mapping[str, Any], folder: Path) -> str:
    """A wheel of metadata alone that takes torch's place while the libraries are resolved.

    A CUDA build of torch insists on gigabytes of packages and on a triton that SGLang does not
    take. The stand-in asks for the rest of what torch asks for, so the same pins come out
    whichever build the index offers.

    Args:
        torch: the metadata of the real one, as pip reports it.
        folder: where the wheel goes; to be given to pip as a place to find links.

    Returns:
        The requirement that only the stand-in satisfies.
    """
    version = f"{torch['version'].partition('+')[0]}+standin"
    needs: Sequence[str] = torch.get("requires_dist", ())
    cuda = set(cuda_requirements(needs))
    kept = [need for need in needs if need not in cuda and not need.startswith("triton")]
    info = f"torch-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in kept)
    wheel = "Wheel-Version: 1.0\nGenerator: lock\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    record = "".join(f"{path},{_record_hash(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return f"torch=={version}"


def _record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _make_venv(python: Path, venv: Path) -> None:
    made = subprocess.run(
        [str(python), "-m", "venv", str(venv)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise ToolError(
            f"{python} could not make a venv",
            evidence=(made.stdout + made.stderr).splitlines()[-5:],
        )


def _today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")
