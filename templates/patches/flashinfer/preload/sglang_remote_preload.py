"""Loads FlashInfer's FP4 kernels when FlashInfer is imported, before anything is traced.

The third thing that was tried: the call still asks the module's path whether it exists, and Dynamo
cannot trace that.
"""

import sglang_remote_hook as hook

PATCH = "preload"


def _act(module):
    import torch

    get = getattr(module, "get_fp4_quantization_module", None)
    # A module that re-exports shares the getter, and its cache, with the one that defines it.
    if get is None or get.__module__ != module.__name__:
        return
    # FlashInfer has asked torch the same while it was imported: CUDA starts no earlier for it.
    get("".join(map(str, torch.cuda.get_device_capability())))
    hook.tell(PATCH)


hook.on_import(
    PATCH,
    ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization"),
    _act,
)
