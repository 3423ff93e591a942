"""What a trace needs of a GPU and of built kernels, without either.

A trace runs no kernel, but FlashInfer asks what the GPU is and builds or loads its kernels on the
way. Here it gets answers that Dynamo treats as it treats the real ones, nothing is built, no GPU is
touched, and FlashInfer's own cache on the host is left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Beginnings of the variables that switch Dynamo off or change what it does.
_DYNAMO_VARIABLES = ("TORCHDYNAMO", "TORCH_DYNAMO", "TORCH_COMPILE", "TORCH_LOGS", "TORCH_TRACE")
#: What is taken for the GPU where there is none: the one that takes SGLang's bare FP4 path.
_ASSUMED = (12, 0)
_ASSUMED_CUDA = "12.9"


@dataclass(frozen=True)
class Device:
    """The GPU that FlashInfer is told of; ``seen`` where there is one."""

    seen: bool
    name: str
    capability: tuple[int, int]


def strip(environ: MutableMapping[str, str]) -> list[str]:
    """Remove the variables with which a trap would look traceable; the names that were set."""
    found = sorted(name for name in environ if name.startswith(_DYNAMO_VARIABLES))
    for name in found:
        del environ[name]
    return found


@contextmanager
def workspace(environ: MutableMapping[str, str]) -> Iterator[None]:
    """FlashInfer's cache in a folder of this process, and a `ninja` that builds nothing."""
    folder = tempfile.mkdtemp(prefix="sglang-remote-probe-")
    try:
        ninja = Path(folder, "bin", "ninja")
        ninja.parent.mkdir()
        ninja.write_text("#!/bin/sh\nexit 0\n")
        ninja.chmod(0o700)
        environ["PATH"] = f"{ninja.parent}:{environ.get('PATH', os.defpath)}"
        environ["FLASHINFER_WORKSPACE_BASE"] = folder
        environ.setdefault("CUDA_HOME", "/usr/local/cuda")
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Hardware:
    """Torch's answers about the GPU, replaced; before FlashInfer and Dynamo are imported."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        import torch  # type: ignore[import-not-found]

        self._torch = torch
        self._cpu_build = torch.version.cuda is None
        self.device = self._look()
        self._capability = self.device.capability
        self._install()
        major, minor = self.device.capability
        suffix = "a" if major >= 9 else ""
        environ["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{suffix}"

    def _look(self) -> Device:
        cuda = self._torch.cuda
        try:
            if cuda.is_available():
                self._properties = cuda.get_device_properties(0)
                found = (self._properties.major, self._properties.minor)
                return Device(True, self._properties.name, found)
        except (RuntimeError, AssertionError):
            pass  # a GPU that doesn't answer is none
        # Dynamo looks at the exact type, whose constructor refuses in a CPU build.
        kind = cuda._CudaDeviceProperties
        self._properties = object.__new__(kind) if self._cpu_build else None
        if self._properties is not None:
            values = {"multi_processor_count": 188, "total_memory": 96 << 30, "name": "none"}
            for name, value in values.items():
                setattr(self._properties, name, value)
        return Device(False, "", _ASSUMED)

    def _install(self) -> None:
        cuda = self._torch.cuda
        cuda.get_device_capability = lambda device=None: self._capability
        if self._properties is not None:
            cuda.get_device_properties = lambda device=None: self._properties
        cuda.current_device = lambda: 0
        if not self.device.seen:
            cuda._lazy_init = lambda: None
            self._torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor
        if self._cpu_build:
            self._torch.version.cuda = _ASSUMED_CUDA

    def assume(self, capability: tuple[int, int] | None) -> None:
        """Answer with another architecture, where no GPU was seen; None: with the usual one."""
        if self.device.seen:
            return
        self._capability = capability or self.device.capability
        if self._cpu_build:
            self._properties.major, self._properties.minor = self._capability
        import flashinfer.utils as utils  # type: ignore[import-not-found]

        for name in ("get_compute_capability", "device_support_pdl"):
            forget = getattr(getattr(utils, name, None), "cache_clear", None)
            if forget is not None:
                forget()


class Kernels:
    """Loaded kernel libraries, replaced by objects whose functions take what real ones take.

    ``called`` counts the calls that got as far as a kernel.
    """

    def __init__(self) -> None:
        import tvm_ffi  # type: ignore[import-not-found]

        self.called = 0
        # A function of tvm's own kind: Dynamo refuses to look into it, as into the real one, and
        # a fake tensor's missing memory is noticed where the real one notices it.
        function = tvm_ffi.convert(self._count)

        class Library:
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return function

        tvm_ffi.load_module = lambda *args, **kwargs: Library()

    def _count(self, *arguments: Any) -> None:
        self.called += 1


def download_nothing() -> None:
    """FlashInfer fetches some kernels when they are first needed; a trace needs none."""
    from flashinfer.jit import cubin_loader  # type: ignore[import-not-found]

    cubin_loader.download_file = lambda *args, **kwargs: False
