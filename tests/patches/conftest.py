"""FlashInfer versions from their wheels, and venvs with patch sets in them.

They need a Python with CPU torch and FlashInfer's dependencies: SGLANG_REMOTE_ML_PYTHON, or the
embedded host's. Wheels come from the package index once, into SGLANG_REMOTE_WHEELS (by default a
folder of the user's cache).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from patches.patched_venvs import PROJECT, MakeVenv, PatchedVenv, install


@pytest.fixture(scope="session")
def ml_python() -> Path:
    named = os.environ.get("SGLANG_REMOTE_ML_PYTHON")
    python = Path(named) if named else PROJECT / ".sandbox" / "home" / "ml-env" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"no Python with CPU torch at {python}; make it: inv sandbox.up", pytrace=False)
    return python


@pytest.fixture(scope="session")
def ml_site(ml_python: Path) -> Path:
    told = subprocess.run(
        [str(ml_python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(told.stdout.strip())


@pytest.fixture(scope="session")
def wheel() -> Callable[[str], Path]:
    """The wheel of a FlashInfer version."""
    default = Path.home() / ".cache" / "sglang-remote" / "wheels"
    cache = Path(os.environ.get("SGLANG_REMOTE_WHEELS", default))
    cache.mkdir(parents=True, exist_ok=True)

    def get(version: str) -> Path:
        path = cache / f"flashinfer_python-{version}-py3-none-any.whl"
        if not path.exists():
            # Into a folder of its own first: two test processes may fetch the same.
            with_partial = cache / f".{os.getpid()}"
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run(
                [*pip, f"flashinfer-python=={version}", "-d", str(with_partial)], check=True
            )
            (with_partial / path.name).replace(path)
            shutil.rmtree(with_partial)
        return path

    return get


@pytest.fixture(scope="session")
def unpacked(
    wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A version's Python files; what only a build reads is left out."""
    folder = tmp_path_factory.mktemp("flashinfer")

    def get(version: str) -> Path:
        target = folder / version
        if not target.exists():
            with zipfile.ZipFile(wheel(version)) as archive:
                wanted = [
                    name
                    for name in archive.namelist()
                    if name.endswith(".py") or ".dist-info/" in name
                ]
                archive.extractall(target, wanted)
        return target

    return get


@pytest.fixture
def make_venv(
    tmp_path: Path, ml_python: Path, ml_site: Path, unpacked: Callable[[str], Path]
) -> MakeVenv:
    """Makes a venv: of a FlashInfer version (None: none), and with the hooks of the sets."""

    def make(version: str | None, *sets: str) -> PatchedVenv:
        folder = tmp_path / f"venv-{len(list(tmp_path.iterdir()))}"
        made = [str(ml_python), "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(made, check=True)
        (site,) = folder.glob("lib/python3.*/site-packages")
        # By a path that is read first, so that the other venv's own FlashInfer comes later.
        (site / "a-other-venv.pth").write_text(f"{ml_site}\n")
        if version is not None:
            for entry in unpacked(version).iterdir():
                (site / entry.name).symlink_to(entry)
        for name in sets:
            install(name, site)
        return PatchedVenv(folder / "bin" / "python", site)

    return make
