"""Lets torchvision and FlashInfer be imported beside a CPU build of torch.

``sandbox_shims.pth`` imports this at every start of the interpreter, so it costs next to nothing
until one of the modules below is imported: then, and once, what that module misses is provided.
"""

import sys


class _BeforeImport:
    """A finder that finds nothing: it only acts just before a module is looked for."""

    def __init__(self) -> None:
        self._actions = {
            "flashinfer": _load_cuda_runtime,
            "torchvision._autograd_registrations": _define_operators,
            "torchvision._meta_registrations": _define_operators,
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            action()


def _load_cuda_runtime() -> None:
    """``flashinfer.comm`` asserts that a libcudart is mapped; this one needs no driver to load."""
    import ctypes
    from pathlib import Path

    path = Path(__file__).with_name("nvidia") / "cuda_runtime/lib/libcudart.so.12"
    if path.exists():
        ctypes.CDLL(str(path))


def _define_operators() -> None:
    """Declare the operators that torchvision describes but, without its library, lacks."""
    torch = sys.modules["torch"]  # torchvision has imported it by now
    for name, schema in (
        ("nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
        ("qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
    ):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


sys.meta_path.insert(0, _BeforeImport())
