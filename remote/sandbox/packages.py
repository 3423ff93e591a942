"""What the embedded host's venv holds, and the constraints files that pin every bit of it.

The versions are those with which SGLang 0.5.9 and FlashInfer 0.6.3 (the pair in which FP4 breaks
piecewise CUDA graphs) were run on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remote.errors import ConfigError

SGLANG = "0.5.9"
FLASHINFER = "0.6.3"
TORCH = "torch==2.13.0"
#: The pip that reads the constraints: old ones lack ``--report`` and raw progress.
PIP = "pip==26.2"

#: PyTorch's own index of CPU builds.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: Resolved with their dependencies when the constraints are written.
REQUIREMENTS = (
    "transformers==4.57.1",
    "xgrammar==0.1.27",
    "openai==2.6.1",
    "triton==3.5.1",
    "fastapi==0.128.0",
    "datasets<5",
    "openai-harmony==0.0.4",
    "huggingface_hub<1",
    "IPython",
    "aiohttp",
    "compressed-tensors",
    "dill",
    "einops",
    "gguf",
    "hf_transfer",
    "jsonschema",
    "msgspec",
    "ninja",
    "orjson",
    "partial_json_parser",
    "pillow",
    "prometheus-client",
    "psutil",
    "pybase64",
    "python-multipart",
    "pyzmq",
    "requests",
    "scipy",
    "sentencepiece",
    "setproctitle",
    "soundfile",
    "tiktoken",
    "uvicorn",
    "uvloop",
    "watchfiles",
    "zstandard",
)

#: Taken without their dependencies, which would bring the CUDA builds.
SGLANG_GROUP = (f"sglang=={SGLANG}", "torchvision==0.28.0")
FLASHINFER_GROUP = (
    f"flashinfer-python=={FLASHINFER}",
    "apache-tvm-ffi==0.1.9",
    "nvidia-ml-py",
    "nvidia-cuda-runtime-cu12",  # 4 MB; flashinfer.comm wants a libcudart loaded
)

CONSTRAINTS_FOLDER = Path(__file__).resolve().parents[2] / "constraints"
_FILE_NAME = re.compile(r"ml-env-py(\d+\.\d+)\.txt\Z")


def normalized(name: str) -> str:
    """A distribution's name as indexes compare it: ``hf_transfer`` is ``hf-transfer`` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The normalized name that a requirement starts with."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    if match is None:
        raise ConfigError(f"{requirement!r} is not a requirement")
    return normalized(match.group())


@dataclass(frozen=True)
class Pins:
    """One constraints file: normalized name → exact version."""

    python: str
    versions: Mapping[str, str]

    def requirement(self, name: str) -> str:
        """``name==version``.

        Raises:
            ConfigError: the constraints file does not pin that name.
        """
        version = self.versions.get(name)
        if version is None:
            raise ConfigError(
                f"the constraints for Python {self.python} do not pin {name}",
                hint="write them anew: inv sandbox.lock",
            )
        return f"{name}=={version}"

    def group(self, requirements: tuple[str, ...]) -> tuple[str, ...]:
        """The pins of the distributions that these requirements name."""
        return tuple(self.requirement(name_of(each)) for each in requirements)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Every pin that no other step installs: what REQUIREMENTS and torch need."""
        apart = {name_of(each) for each in (TORCH, PIP, *SGLANG_GROUP, *FLASHINFER_GROUP)}
        return tuple(self.requirement(name) for name in sorted(self.versions) if name not in apart)


def constraints_file(python: str, folder: Path = CONSTRAINTS_FOLDER) -> Path:
    return folder / f"ml-env-py{python}.txt"


def pinned_pythons(folder: Path = CONSTRAINTS_FOLDER) -> tuple[str, ...]:
    """The Python minors that have a constraints file, oldest first."""
    found = [match[1] for path in folder.glob("*.txt") if (match := _FILE_NAME.match(path.name))]
    return tuple(sorted(found, key=lambda minor: [int(part) for part in minor.split(".")]))


def parse_pins(text: str, python: str) -> Pins:
    """Read a constraints file: ``name==version`` lines, comments and blanks.

    Raises:
        ConfigError: a line is something else.
    """
    versions: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        pin = line.partition("#")[0].strip()
        if not pin:
            continue
        name, equals, version = pin.partition("==")
        if not equals or not re.fullmatch(r"[A-Za-z0-9._+!-]+", version):
            raise ConfigError(
                f"line {number} of the constraints for Python {python} is not a pin",
                evidence=[line],
                hint="write them anew: inv sandbox.lock",
            )
        versions[normalized(name)] = version
    return Pins(python, versions)


def load_pins(python: str, folder: Path = CONSTRAINTS_FOLDER) -> Pins:
    """The pins for a Python minor such as ``3.11``.

    Raises:
        ConfigError: there is no constraints file for it.
    """
    path = constraints_file(python, folder)
    if not path.is_file():
        there = ", ".join(pinned_pythons(folder)) or "none"
        raise ConfigError(
            f"the embedded host has no pinned packages for Python {python}; there are: {there}",
            hint="run it from a venv of one of these versions, or add yours: inv sandbox.lock",
        )
    return parse_pins(path.read_text(encoding="utf-8"), python)
