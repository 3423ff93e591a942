"""Packs what a GPU machine lacks that can fetch nothing: ``python tests/gpu/bring.py --out .whl``.

Two folders of archives, one a package: those of the server's venv (SGLang and what it imports)
beside the machine's own torch, and those of the client. They are fetched as wheels for x86-64 Linux
and one Python, unpacked, and freed of what a run on Hopper GPUs never loads; ``run.py --here
--bundle`` lays them out there. What was packed before is kept. A host that has SGLang needs none of
this.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

#: manylinux tags; pip matches each exactly.
_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")

FLASHINFER = "0.6.3"

#: SGLang 0.5.12.post1 on CUDA 13, beside torch 2.11 with its own libraries, numpy, scipy, aiohttp,
#: requests, pillow and the like. Each line was found by importing, not taken from its metadata.
SERVER = (
    "sglang==0.5.12.post1",
    "sglang-kernel==0.4.2.post2",
    "transformers==5.6.0",
    "tokenizers==0.22.2",
    "huggingface_hub==1.33.0",
    "torchao==0.17.0",
    "xgrammar==0.2.0",
    "apache-tvm-ffi==0.1.9",
    "compressed-tensors==0.20.1",
    "fastapi==0.128.0",
    "starlette==0.50.0",
    "uvicorn==0.54.0",
    "pydantic==2.13.4",
    "pydantic-core==2.46.4",
    "annotated-types==0.7.0",
    "typing-inspection==0.4.2",
    "sniffio==1.3.1",
    "openai==2.6.1",
    "openai-harmony==0.0.4",
    "jiter==0.19.0",
    "distro==1.9.0",
    "orjson==3.13.0",
    "msgspec==0.23.0",
    "pyzmq==27.3.0",
    "setproctitle==1.3.8",
    "python-multipart==0.0.34",
    "pybase64==1.5.1",
    "partial_json_parser==0.2.1.1.post7",
    "gguf==0.19.0",
    "interegular==0.3.3",
    "watchfiles==1.3.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "loguru==0.7.3",
    "soundfile==0.14.0",
    "cffi==2.1.1",
    "pycparser==3.12",
    "dill==0.4.1",
    "datasets==5.2.0",
    "multiprocess==0.70.19",
    "ipython==9.18.1",
    "ipython-pygments-lexers==1.1.1",
    "traitlets==5.16.1",
    "prompt_toolkit==3.0.53",
    "wcwidth==0.9.4",
    "matplotlib-inline==0.2.2",
    "decorator==5.3.1",
    "pexpect==4.9.0",
    "ptyprocess==0.7.0",
    "stack_data==0.6.3",
    "asttokens==3.0.2",
    "executing==2.3.0",
    "pure_eval==0.2.4",
    "py-spy==0.4.3",
)

#: The tool itself, beside the machine's jinja2, pyyaml, rich, packaging, scipy and matplotlib.
CLIENT = (
    "invoke==2.2.1",
    "fabric==3.2.3",
    "paramiko==5.1.0",
    "asyncssh==2.24.1",
    "cryptography==50.0.2",
    "bcrypt==5.0.0",
    "pynacl==1.6.2",
    "cffi==2.1.1",
    "pycparser==3.12",
    "decorator==5.3.1",
    "deprecated==3.0.1",
)

#: Members that Hopper never loads, or nobody at run time, as regular expressions over their paths.
LEFT_OUT = (
    r"sgl_kernel/flash_ops\.",
    r"sgl_kernel/sm100/",
    r"sgl_kernel/flashmla_ops\.",
    r".*\.a$",
    r".*mscclpp.*\.so",
    r"include/.*",
    r"sglang/multimodal_gen/",
    r"sglang/test/",
    r".*/__pycache__/",
)


def platforms() -> list[str]:
    """pip's words for every Linux that a wheel may name."""
    tags = [f"manylinux_2_{minor}" for minor in _GLIBC] + list(_OLD_NAMES)
    return [word for tag in tags for word in ("--platform", f"{tag}_x86_64")]


def download(requirement: str, folder: Path, python: str) -> Path:
    """The wheel of exactly this, without what it asks for besides."""
    digits = python.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    command += ["--only-binary=:all:", "--python-version", python, *platforms()]
    command += ["--implementation", "cp", "--abi", f"cp{digits}", "--abi", "abi3", "--abi", "none"]
    subprocess.run([*command, requirement], check=True)
    return next(folder.glob("*.whl"))


def left_out(name: str, patterns: Sequence[str] = LEFT_OUT) -> bool:
    """Whether a member of a wheel stays behind."""
    return any(re.match(pattern, name) for pattern in patterns)


def unpack(wheel: Path, folder: Path) -> None:
    """Lay a wheel out as ``site/`` and ``bin/``; its RECORD names what was laid out."""
    with zipfile.ZipFile(wheel) as packed:
        for member in packed.infolist():
            if member.is_dir() or left_out(member.filename):
                continue
            target = folder / laid_out(member.filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            if target.parent.name == "bin" or member.external_attr >> 16 & 0o111:
                target.chmod(0o755)
            if target.name == "RECORD":
                target.write_text(kept_rows(target.read_text("utf-8")), "utf-8")


def laid_out(name: str) -> str:
    """Where a member of a wheel goes, below the archive's root."""
    head, data, rest = name.partition(".data/")
    if not data or "/" in head:
        return f"site/{name}"
    scheme, _, inner = rest.partition("/")
    return f"bin/{inner}" if scheme == "scripts" else f"site/{inner}"


def kept_rows(record: str) -> str:
    """A RECORD without the rows of what stays behind."""
    rows = record.splitlines(keepends=True)
    return "".join(row for row in rows if not left_out(row.partition(",")[0]))


def strip_symbols(folder: Path) -> None:
    """Take the symbols out of the largest libraries; they are most of some."""
    strip = shutil.which("strip")
    for path in folder.rglob("*.so"):
        if strip and path.stat().st_size > 10_000_000 and path.parent.name == "xgrammar":
            subprocess.run([strip, "--strip-unneeded", str(path)], check=True)


def pack(folder: Path, archive: Path) -> None:
    """The folder as one archive, put in place whole."""
    beside = archive.with_suffix(".part")
    with lzma.open(beside, "wb", preset=6) as file, tarfile.open(fileobj=file, mode="w") as packed:
        for path in sorted(folder.rglob("*"), key=lambda path: (path.suffix, str(path))):
            if path.is_file():
                packed.add(path, str(path.relative_to(folder)))
    beside.replace(archive)


def bring(requirement: str, folder: Path, python: str) -> int:
    """One package's archive, made where it is missing; its size in bytes."""
    archive = folder / f"{requirement.replace('==', '-')}.tar.xz"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as scratch:
            tree = Path(scratch, "tree")
            unpack(download(requirement, Path(scratch), python), tree)
            strip_symbols(tree)
            pack(tree, archive)
        print(f"{archive.name}: {archive.stat().st_size / 2**20:.1f} MiB", flush=True)
    return archive.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the archives")
    parser.add_argument("--python", default="3.12", help="the Python of the GPU machine")
    parser.add_argument("--flashinfer", default=FLASHINFER, help="its version")
    asked = parser.parse_args()
    total = 0
    lists = {"server": (*SERVER, f"flashinfer-python=={asked.flashinfer}"), "client": CLIENT}
    for name, requirements in lists.items():
        folder = asked.out / name
        folder.mkdir(parents=True, exist_ok=True)
        size = sum(bring(each, folder, asked.python) for each in requirements)
        total += size
        print(f"{name}: {len(requirements)} packages, {size / 2**20:.1f} MiB", flush=True)
    print(f"total {total / 2**20:.1f} MiB in {asked.out}")


if __name__ == "__main__":
    main()
