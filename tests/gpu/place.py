"""Where the test runs: this very machine behind the embedded SSH server, or a configured host."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.results import Step
from gpu.settings import HERE, PROJECT, passed_on

#: Where SGLang's port is looked for; far from a server that somebody has on 30000.
PORT = 31000


@dataclass(frozen=True)
class Here:
    """This machine as the GPU host, served by the embedded SSH server.

    Attributes:
        folder: all of it: two venvs, keys, the host's home.
        bundle: what `bring.py` packed; None where ``venv`` is given.
        venv: a venv with SGLang and the tool's packages instead.
    """

    folder: Path
    bundle: Path | None
    venv: Path | None
    cpu: bool

    @property
    def host_folder(self) -> Path:
        return self.folder / "host"

    @property
    def server_venv(self) -> Path:
        return self.host_folder / "home" / "ml-env"

    @property
    def client_venv(self) -> Path:
        return self.folder / "client"

    @property
    def client_python(self) -> str:
        return sys.executable if self.bundle is None else str(self.client_venv / "bin" / "python")

    @property
    def installed(self) -> bool:
        venvs = (self.server_venv, self.client_venv)
        return self.bundle is None or all((venv / "complete").exists() for venv in venvs)

    def install(self, step: Step) -> None:
        """Lay the packages out beside this interpreter's own; what is there already stays."""
        if self.bundle is None:
            step.figure("venv", str(self.venv))
            return
        for venv, name in ((self.server_venv, "server"), (self.client_venv, "client")):
            mark = venv / "complete"
            if not mark.exists():
                shutil.rmtree(venv, ignore_errors=True)
                lay_out(venv, sorted((self.bundle / name).glob("*.tar.xz")))
                mark.touch()
            step.figure(name, f"{len(list(site(venv).glob('*.dist-info')))} packages in {venv}")
        if self.cpu:
            stub_kernels(site(self.server_venv))

    def entry(self) -> dict[str, Any]:
        """Bring the SSH server up, where it isn't; the host's entry."""
        words = [self.client_python, str(HERE / "embedded.py"), str(self.host_folder)]
        done = subprocess.run(
            [*words, *(["--cpu"] if self.cpu else [])],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the SSH server does not start: {done.stderr[-800:]}")
        entry: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if self.venv is not None:
            entry["venv"] = str(self.venv)
        entry["port"] = PORT
        entry["cuda_home"] = cuda_home() or str(self.host_folder / "no-cuda")
        return entry

    def environment(self) -> dict[str, str]:
        """What every server needs of this machine's own environment."""
        found = passed_on()
        libraries = None if self.bundle is None else self.bundle / "lib"
        if libraries is not None and libraries.is_dir() and not loads("libnuma.so.1"):
            paths = [str(libraries.absolute()), found.get("LD_LIBRARY_PATH", "")]
            found["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        return found


@dataclass(frozen=True)
class There:
    """A host of a user's settings, reached as ever."""

    name: str
    settings: Mapping[str, Any]
    project: Path
    client_python: str = sys.executable
    installed: bool = True

    def install(self, step: Step) -> None:
        step.figure("host", self.name)

    def entry(self) -> dict[str, Any]:
        """Its entry as it stands, local paths made absolute."""
        entry = dict(self.settings["hosts"][self.name])
        for key in ("identity_file", "known_hosts", "ssh_config"):
            path = entry.get(key)
            if path and path != "none":
                entry[key] = str(self.project / Path(path).expanduser())
        return entry

    def environment(self) -> dict[str, str]:
        return {}


def lay_out(venv: Path, archives: list[Path]) -> None:
    """A venv of this interpreter with the archives' packages, this one's own behind them.

    Packages that the tool looks for in the venv itself (torch) are linked there by their metadata.
    """
    if not archives:
        raise RuntimeError("nothing to lay out: tests/gpu/bring.py packs it")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    target = site(venv)
    for archive in archives:
        with tarfile.open(archive) as packed:
            for member in packed:
                head, _, rest = member.name.partition("/")
                if head in ("site", "bin") and rest and ".." not in member.name:
                    member.name = rest
                    packed.extract(member, target if head == "site" else venv / "bin")
    behind = [path for path in own_packages() if path != str(target)]
    (target / "behind.pth").write_text("".join(f"{path}\n" for path in behind), "utf-8")
    for path in behind:
        for name in ("torch", "triton"):
            for found in Path(path).glob(f"{name}-[0-9]*.dist-info"):
                if not (target / found.name).exists():
                    (target / found.name).symlink_to(found)
    beside = Path(sys.executable).with_name("ninja")
    ninja = str(beside) if beside.exists() else shutil.which("ninja")
    if ninja:
        (venv / "bin" / "ninja").symlink_to(ninja)


def site(venv: Path) -> Path:
    """The venv's folder of packages."""
    major, minor = sys.version_info[:2]
    return venv / "lib" / f"python{major}.{minor}" / "site-packages"


def own_packages() -> list[str]:
    """This interpreter's folders of packages, in its own order."""
    kept = ("site-packages", "dist-packages")
    return [path for path in sys.path if path.endswith(kept) and Path(path).is_dir()]


def stub_kernels(target: Path) -> None:
    """The embedded host's stand-in for CUDA kernels, for a rehearsal without a GPU."""
    stub = PROJECT / "remote" / "sandbox" / "shims"
    shutil.rmtree(target / "sgl_kernel", ignore_errors=True)
    shutil.copytree(stub / "sgl_kernel", target / "sgl_kernel")


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def cuda_home() -> str | None:
    """The toolkit: as CUDA_HOME says, at its usual place, or where the nvcc on PATH stands."""
    found = shutil.which("nvcc")
    places = [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda"), Path("/usr/local/cuda")]
    places += [Path(found).resolve().parents[1]] if found else []
    return next((str(path) for path in places if (path / "bin" / "nvcc").exists()), None)
