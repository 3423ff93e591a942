"""Takes the place of SGLang's CUDA kernels where there is no GPU.

Any name, at any depth, can be imported; calling it raises an error that says what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

__version__ = "0.0.0+cpu"


class MissingKernel:
    """A kernel, or a holder of kernels, that isn't there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}: needs a GPU>"

    def __getattr__(self, name: str) -> MissingKernel:
        return _missing(self._name, name)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{self._name} is a CUDA kernel, and this host has no GPU")


class Kernels(ModuleType):
    """A module in which every public name is a missing kernel."""

    def __getattr__(self, name: str) -> MissingKernel:
        return _missing(self.__name__, name)


class KernelFinder(MetaPathFinder, Loader):
    """Makes up every submodule of this package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(f"{__name__}."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Kernels(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _missing(holder: str, name: str) -> MissingKernel:
    # Names with an underscore are asked for by the import system, inspect and Dynamo.
    if name.startswith("_"):
        raise AttributeError(f"{holder} has no attribute {name!r}")
    return MissingKernel(f"{holder}.{name}")


def __getattr__(name: str) -> MissingKernel:
    return _missing(__name__, name)


sys.meta_path.append(KernelFinder())
