"""Which build of torch an index offers: a CPU one, or one that brings gigabytes of CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from remote.errors import ToolError
from remote.sandbox.packages import TORCH, TORCH_CPU_INDEX, normalized
from remote.sandbox.pip import Pip

#: How long PyTorch's own index may take to answer before the configured one is asked.
INDEX_TIMEOUT_S = 4.0
_CUDA_PACKAGE = re.compile(r"(nvidia|cuda)[-_.]", re.IGNORECASE)


def cuda_requirements(requires_dist: Iterable[str]) -> tuple[str, ...]:
    """Those of a distribution's requirements that are CUDA's libraries."""
    return tuple(each for each in requires_dist if _CUDA_PACKAGE.match(each))


def is_cuda_build(metadata: Mapping[str, Any]) -> bool:
    """Whether torch's metadata is that of a CUDA build: its requirements or local version say so.

    Args:
        metadata: a distribution's core metadata as pip reports it.
    """
    local = str(metadata["version"]).partition("+")[2]
    return local.startswith("cu") or bool(cuda_requirements(metadata.get("requires_dist") or ()))


@dataclass(frozen=True)
class TorchBuild:
    """What to hand to ``pip install``, and whether it is a CUDA build."""

    arguments: tuple[str, ...]
    version: str
    cuda: bool


def choose(pip: Pip, confirm: Callable[[str], bool], detail: Callable[[str], None]) -> TorchBuild:
    """A CPU build from PyTorch's index where it answers, else what the configured index has.

    Raises:
        ToolError: only a CUDA build is to be had, and the user declined it; or pip failed.
    """
    if index_answers(TORCH_CPU_INDEX):
        detail(f"asking {TORCH_CPU_INDEX}")
        arguments: tuple[str, ...] = ("--no-deps", "--index-url", TORCH_CPU_INDEX, TORCH)
        metadata = pip.report(arguments)["install"][0]["metadata"]
        if not is_cuda_build(metadata):
            return TorchBuild(arguments, metadata["version"], cuda=False)
    detail("asking the configured index")
    arguments = ("--no-deps", TORCH)
    metadata = pip.report(arguments)["install"][0]["metadata"]
    if not is_cuda_build(metadata):
        return TorchBuild(arguments, metadata["version"], cuda=False)

    detail("a CUDA build: adding up what it would download")
    items = pip.report([TORCH])["install"]
    size = download_size([item["download_info"]["url"] for item in items])
    if not confirm(cuda_question(metadata["version"], len(items), size)):
        raise ToolError(
            "no CPU build of torch to be had, and the CUDA build was declined",
            hint=f"make {TORCH_CPU_INDEX} reachable, or give pip a folder with a CPU wheel: "
            "PIP_FIND_LINKS=/folder",
        )
    return TorchBuild((TORCH,), metadata["version"], cuda=True)


def index_answers(url: str, timeout_s: float = INDEX_TIMEOUT_S) -> bool:
    """Whether an index serves torch's page; proxies of the environment are used."""
    import urllib.request  # 40 ms, needed only while torch is missing

    try:
        request = urllib.request.Request(f"{url}/torch/", method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # nosec B310
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class DownloadSize:
    """A sum of file sizes, and the files whose size no server would tell."""

    known_bytes: int
    unknown: tuple[str, ...] = ()


def download_size(
    urls: Sequence[str], size_of: Callable[[str], int | None] | None = None
) -> DownloadSize:
    """Add up what these addresses would download."""
    known, unknown = 0, []
    for url in urls:
        size = (size_of or size_at)(url)
        if size is None:
            unknown.append(urlsplit(url).path.rpartition("/")[2])
        else:
            known += size
    return DownloadSize(known, tuple(unknown))


def size_at(url: str) -> int | None:
    """The size in bytes of a file by its address (``file:`` or by HEAD), None where untold."""
    import urllib.request

    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.stat().st_size if path.is_file() else None
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=INDEX_TIMEOUT_S) as answer:  # nosec B310
            length = answer.headers.get("Content-Length")
    except (OSError, ValueError):
        return None
    return int(length) if length and length.isdigit() else None


def cuda_question(version: str, files: int, size: DownloadSize) -> str:
    """The question put to the user before a CUDA build is taken."""
    amount = f"{size.known_bytes / 1e9:.1f} GB"
    if size.unknown:
        amount = f"at least {amount} (no size to be had for {len(size.unknown)} of the files)"
    return (
        f"The index offers only a CUDA build of torch {version}, of no use without a GPU: "
        f"{files} files, {amount} to download, about twice that on disk. Take it?"
    )


def replaced_by_cuda_build(pins: Iterable[str]) -> tuple[str, ...]:
    """The pins to leave out beside a CUDA build, which brings its own triton."""
    return tuple(pin for pin in pins if normalized(pin.partition("==")[0]) == "triton")
