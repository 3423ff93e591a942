"""Puts `torch.compiler.disable` around `flashinfer.fp4_quantize`.

The fourth thing that was tried: what is disabled breaks the graph, and `fullgraph=True`, which
piecewise CUDA graphs use, allows no break.
"""

import sglang_remote_hook as hook

PATCH = "compiler-disable"


def _act(module):
    import torch

    original = module.fp4_quantize
    if getattr(original, hook.MARK, None) == PATCH:
        return
    ours = torch.compiler.disable(original)
    setattr(ours, hook.MARK, PATCH)
    hook.rebind(original, ours)
    hook.tell(PATCH)


hook.on_import(
    PATCH,
    ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization"),
    _act,
)
