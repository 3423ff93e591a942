"""Loads FlashInfer's FP4 kernels when FlashInfer is imported, before anything is traced.

The third thing that was tried: the call still asks the module's path whether it exists, and Dynamo
cannot trace that.
"""

import os

import sglang_remote_hook as hook

PATCH = "preload"


def _act(module):
    get = getattr(module, "get_fp4_quantization_module", None)
    # A module that re-exports shares the getter, and its cache, with the one that defines it.
    if get is None or get.__module__ != module.__name__:
        return
    get(_architecture())
    hook.tell(PATCH)


def _architecture():
    """The first GPU's, as `120`; by NVML, for asking torch would start CUDA in this process."""
    listed = os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if listed:
        return listed[0].replace(".", "").rstrip("af")
    import pynvml

    pynvml.nvmlInit()
    try:
        first = pynvml.nvmlDeviceGetHandleByIndex(0)
        return "".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(first)))
    finally:
        pynvml.nvmlShutdown()


hook.on_import(
    PATCH,
    ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization"),
    _act,
)
