"""Makes FlashInfer's FP4 quantisers traceable; `sglang_remote_fp4_ops` says how.

Nothing but this runs at the start of an interpreter: torch is imported by FlashInfer, not by us.
"""

import sglang_remote_hook as hook

PATCH = "fp4-opaque"


def _act(module):
    from sglang_remote_fp4_ops import route

    if route(module, PATCH):
        hook.tell(PATCH)


# The file moved after 0.6.4; what stays under the old name re-exports.
hook.on_import(
    PATCH,
    ("flashinfer.fp4_quantization", "flashinfer.quantization.fp4_quantization"),
    _act,
)
