"""Puts `torch.compiler.allow_in_graph` around `flashinfer.fp4_quantize`.

The fifth thing that was tried: Dynamo then runs the function on fake tensors to learn the results'
shapes, and the kernel asks those for a data pointer that they don't have.
"""

import functools

import sglang_remote_hook as hook

PATCH = "allow-in-graph"


def _act(module):
    import torch

    original = module.fp4_quantize
    if getattr(original, hook.MARK, None) == PATCH:
        return

    @functools.wraps(original)
    def ours(*args, **kwargs):
        return original(*args, **kwargs)

    setattr(ours, hook.MARK, PATCH)
    torch.compiler.allow_in_graph(ours)
    hook.rebind(original, ours)
    hook.tell(PATCH)


hook.on_import(
    PATCH,
    ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization"),
    _act,
)
