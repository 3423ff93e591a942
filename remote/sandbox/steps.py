"""The steps that make the embedded host; each says whether it is done by looking."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remote.errors import ToolError
from remote.sandbox import torch_build
from remote.sandbox.keys import have_keys, make_keys
from remote.sandbox.layout import Layout
from remote.sandbox.packages import (
    FLASHINFER_GROUP,
    PIP,
    SGLANG_GROUP,
    TORCH,
    Pins,
    normalized,
)
from remote.sandbox.pip import Pip, pip_environment

Detail = Callable[[str], None]
_HERE = Path(__file__).resolve().parent
SHIMS = _HERE / "shims"
MB = 1_000_000


@dataclass(frozen=True)
class Work:
    """What a step works with."""

    layout: Layout
    pip: Pip
    pins: Pins
    confirm: Callable[[str], bool]


class Step(Protocol):
    """One step of the set-up.

    ``inputs`` identifies what it is made from: when that changes, the step is done again.
    Sizes were measured on 2026-11-29 with Python 3.11 on x86-64.
    """

    @property
    def name(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def inputs(self) -> str: ...
    @property
    def download_bytes(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...

    def found(self, layout: Layout) -> bool:
        """Whether what it makes is there, whole."""
        ...

    def run(self, work: Work, detail: Detail) -> None: ...


@dataclass(frozen=True)
class Keys:
    """An SSH key pair for the host and one for its client."""

    name: str = "keys"
    purpose: str = "SSH keys for the host and its client"
    inputs: str = "ed25519"
    download_bytes: int = 0
    disk_bytes: int = 0

    def found(self, layout: Layout) -> bool:
        return have_keys(layout) and layout.home.is_dir()

    def run(self, work: Work, detail: Detail) -> None:
        make_keys(work.layout)
        work.layout.home.mkdir(exist_ok=True)


@dataclass(frozen=True)
class Venv:
    """``ml-env``, by the Python that runs this, with the pip of the constraints."""

    name: str = "venv"
    purpose: str = f"a venv by {sys.executable}"
    inputs: str = PIP
    download_bytes: int = 2 * MB
    disk_bytes: int = 25 * MB

    def found(self, layout: Layout) -> bool:
        # venv writes the activate scripts last; pip's own upgrade comes after them.
        return (
            (layout.venv / "bin" / "activate").is_file()
            and os.access(layout.venv_python, os.X_OK)
            and installed(layout).get("pip") == PIP.partition("==")[2]
        )

    def run(self, work: Work, detail: Detail) -> None:
        command = [sys.executable, "-m", "venv", "--clear", str(work.layout.venv)]
        _logged(command, work, "apt install python3-venv (or your system's name for it) may help")
        work.pip.install([PIP], detail, raw_progress=False)


@dataclass(frozen=True)
class Torch:
    """torch, a CPU build if one is to be had."""

    name: str = "torch"
    purpose: str = "a CPU build of torch"
    inputs: str = TORCH
    download_bytes: int = 192 * MB
    disk_bytes: int = 730 * MB

    def found(self, layout: Layout) -> bool:
        version = installed(layout).get("torch", "")
        return version.partition("+")[0] == TORCH.partition("==")[2]

    def run(self, work: Work, detail: Detail) -> None:
        remove_half_installed(work.layout)
        build = torch_build.choose(work.pip, work.confirm, detail)
        work.pip.install(build.arguments, detail)


@dataclass(frozen=True)
class Packages:
    """Packages at their pinned versions, and nothing that they ask for besides."""

    name: str
    purpose: str
    requirements: tuple[str, ...]
    download_bytes: int
    disk_bytes: int

    @property
    def inputs(self) -> str:
        return _digest("\n".join(self.requirements).encode())

    def found(self, layout: Layout) -> bool:
        there = installed(layout)
        return all(there.get(name) == version for name, version in self._wanted(layout))

    def run(self, work: Work, detail: Detail) -> None:
        remove_half_installed(work.layout)
        wanted = [f"{name}=={version}" for name, version in self._wanted(work.layout)]
        work.pip.install(["--no-deps", *wanted], detail)

    def _wanted(self, layout: Layout) -> Iterator[tuple[str, str]]:
        left_out: Sequence[str] = ()
        if torch_is_cuda_build(layout):
            left_out = torch_build.replaced_by_cuda_build(self.requirements)
        for pin in self.requirements:
            if pin not in left_out:
                name, _, version = pin.partition("==")
                yield normalized(name), version


@dataclass(frozen=True)
class Shims:
    """The files that let CUDA-only packages be imported without a GPU."""

    name: str = "shims"
    purpose: str = "stand-ins for what only a GPU can load"
    download_bytes: int = 0
    disk_bytes: int = 0

    @property
    def inputs(self) -> str:
        return _digest(b"\0".join(path.read_bytes() for path in shim_files()))

    def found(self, layout: Layout) -> bool:
        site = site_packages(layout)
        return site is not None and all(
            _same(path, site / path.relative_to(SHIMS)) for path in shim_files()
        )

    def run(self, work: Work, detail: Detail) -> None:
        site = site_packages(work.layout)
        if site is None:
            raise ToolError(f"{work.layout.venv} has no site-packages")
        for path in shim_files():
            target = site / path.relative_to(SHIMS)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)


@dataclass(frozen=True)
class TinyModel:
    """A Qwen2 of two layers with random weights, a tokenizer of its own, in three shards."""

    name: str = "model"
    purpose: str = "a tiny Qwen2 with random weights"
    download_bytes: int = 0
    disk_bytes: int = 1 * MB

    @property
    def script(self) -> Path:
        return _HERE / "tiny_model.py"

    @property
    def inputs(self) -> str:
        return _digest(self.script.read_bytes())

    def found(self, layout: Layout) -> bool:
        # The script writes into a folder beside it and renames it when whole.
        return (layout.model / "model.safetensors.index.json").is_file()

    def run(self, work: Work, detail: Detail) -> None:
        work.layout.model.parent.mkdir(parents=True, exist_ok=True)
        _logged([str(work.layout.venv_python), str(self.script), str(work.layout.model)], work)


@dataclass(frozen=True)
class Check:
    """The proof: SGLang's server and FlashInfer import in that venv."""

    made_from: str
    name: str = "check"
    purpose: str = "importing SGLang and FlashInfer"
    download_bytes: int = 0
    disk_bytes: int = 110 * MB  # bytecode

    @property
    def inputs(self) -> str:
        return _digest(self.made_from.encode())

    def found(self, layout: Layout) -> bool:
        return True  # having passed is all it leaves

    def run(self, work: Work, detail: Detail) -> None:
        modules = ("torch", "flashinfer", "sglang.srt.entrypoints.http_server")
        for module in modules:
            detail(f"import {module}")
            program = f"import {module}"
            _logged([str(work.layout.venv_python), "-c", program], work)


def all_steps(pins: Pins) -> tuple[Step, ...]:
    """Every step, in order."""
    steps: list[Step] = [
        Keys(),
        Venv(),
        Torch(),
        Packages("libraries", "Python packages", pins.libraries, 382 * MB, 1380 * MB),
        Packages("sglang", "SGLang and torchvision", pins.group(SGLANG_GROUP), 13 * MB, 47 * MB),
        Packages("flashinfer", "FlashInfer", pins.group(FLASHINFER_GROUP), 14 * MB, 67 * MB),
        Shims(),
        TinyModel(),
    ]
    return (*steps, Check("\n".join(step.inputs for step in steps)))


def python_minor(layout: Layout) -> str:
    """The venv's Python as ``3.11``; that of the running interpreter while there is no venv."""
    site = site_packages(layout)
    if site is not None and Venv().found(layout):
        return site.parent.name.removeprefix("python")
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def site_packages(layout: Layout) -> Path | None:
    """The venv's site-packages, or None."""
    return next(iter((layout.venv / "lib").glob("python3.*/site-packages")), None)


def installed(layout: Layout) -> dict[str, str]:
    """Normalized name → version of the distributions installed whole."""
    site = site_packages(layout)
    if site is None:
        return {}
    whole = (path for path in site.glob("*.dist-info") if is_whole(path))
    pairs = (path.name.removesuffix(".dist-info").rpartition("-") for path in whole)
    return {normalized(name): version for name, _, version in pairs}


def is_whole(dist_info: Path) -> bool:
    """Whether pip finished unpacking a distribution: it writes INSTALLER after all its files."""
    return (dist_info / "INSTALLER").is_file()


def remove_half_installed(layout: Layout) -> None:
    """Forget what pip was unpacking when it was killed.

    Its metadata is there already, so that pip would take it for installed; without the metadata
    pip unpacks it over what lies there.
    """
    site = site_packages(layout)
    for path in site.glob("*.dist-info") if site is not None else ():
        if not is_whole(path):
            shutil.rmtree(path)


def torch_is_cuda_build(layout: Layout) -> bool:
    """Whether the torch in the venv is one; False where there is none."""
    from email.parser import HeaderParser

    site = site_packages(layout)
    for path in site.glob("torch-*.dist-info/METADATA") if site is not None else ():
        with path.open(encoding="utf-8") as file:
            headers = HeaderParser().parse(file, headersonly=True)
        needs = [str(need) for need in headers.get_all("Requires-Dist", [])]
        return torch_build.is_cuda_build({"version": headers["Version"], "requires_dist": needs})
    return False


def shim_files() -> list[Path]:
    return sorted(path for path in SHIMS.rglob("*") if path.suffix in {".py", ".pth"})


def _same(ours: Path, theirs: Path) -> bool:
    return theirs.is_file() and ours.read_bytes() == theirs.read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _logged(command: Sequence[str], work: Work, hint: str | None = None) -> None:
    """Run a program of the set-up, its output to the log.

    Raises:
        ToolError: it failed; its last lines are the evidence.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=work.pip.inherited,
        env={**pip_environment(os.environ), "HF_HUB_OFFLINE": "1"},
        cwd=work.layout.home,
        text=True,
        errors="replace",
        check=False,
    )
    with work.layout.setup_log.open("a", encoding="utf-8") as log:
        log.write(f"$ {json.dumps(command)}\n{done.stdout}")
    if done.returncode != 0:
        raise ToolError(
            f"{Path(command[0]).name} ended with status {done.returncode} in the set-up",
            evidence=done.stdout.splitlines()[-6:],
            hint=hint or f"the whole output is in {work.layout.setup_log}",
        )
