"""Arguments with which FlashInfer's functions can be traced: small, and such as SGLang passes.

A function that is not here is called with what its annotations ask for; when that isn't taken, the
scanner says that it has no arguments for it, not that there is a trap.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: Makes a tensor on the GPU that no memory stands behind: its shape, then its type's name.
Make = Callable[..., Any]
Arguments = tuple[list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    """How to call one function, and on which architecture where not on any.

    ``keywords`` that a version doesn't take are left out.
    """

    arguments: Callable[[Make], list[Any]]
    keywords: dict[str, Any] = field(default_factory=dict)
    capability: tuple[int, int] | None = None


_M, _K, _N = 64, 1024, 512

_SAMPLES: dict[str, Sample] = {
    "fp4_quantize": Sample(lambda t: [t(_M, _K), t(1, "float32")]),
    "nvfp4_quantize": Sample(lambda t: [t(_M, _K), t(1, "float32")]),
    "mxfp4_quantize": Sample(lambda t: [t(_M, _K)]),
    "mxfp8_quantize": Sample(lambda t: [t(_M, _K)]),
    "nvfp4_batched_quantize": Sample(lambda t: [t(4, _M, _K), t(1, "float32")], {}, (10, 0)),
    "nvfp4_kv_quantize": Sample(lambda t: [t(_M, _K), t(1, "float32")]),
    "scaled_fp4_grouped_quantize": Sample(
        lambda t: [t(4, _M, _K), t(4, "int32"), t(4, "float32")], {}, (10, 0)
    ),
    "silu_and_mul_scaled_nvfp4_experts_quantize": Sample(
        lambda t: [t(4, _M, _K), t(4, "int32"), t(4, "float32")], {}, (10, 0)
    ),
    "block_scale_interleave": Sample(lambda t: [t(128, 64, "uint8")]),
    "nvfp4_block_scale_interleave": Sample(lambda t: [t(128, 64, "uint8")]),
    "shuffle_matrix_a": Sample(lambda t: [t(256, 64, "uint8"), 128]),
    "shuffle_matrix_sf_a": Sample(lambda t: [t(256, 64, "uint8"), 128]),
    "reorder_rows_for_gated_act_gemm": Sample(lambda t: [t(256, 64)]),
    "layernorm": Sample(lambda t: [t(_M, _K), t(_K, "float32"), t(_K, "float32")]),
    "rmsnorm": Sample(lambda t: [t(_M, _K), t(_K)]),
    "gemma_rmsnorm": Sample(lambda t: [t(_M, _K), t(_K)]),
    "fused_add_rmsnorm": Sample(lambda t: [t(_M, _K), t(_M, _K), t(_K)]),
    "silu_and_mul": Sample(lambda t: [t(_M, 2 * _K)]),
    "gelu_and_mul": Sample(lambda t: [t(_M, 2 * _K)]),
    "gelu_tanh_and_mul": Sample(lambda t: [t(_M, 2 * _K)]),
    "fused_topk_deepseek": Sample(
        lambda t: [
            t(_M, 256, "float32"),
            t(256, "float32"),
            8,
            4,
            8,
            1.0,
            t(_M, 8, "float32"),
            t(_M, 8, "int32"),
            True,
        ]
    ),
    "gemm_fp8_nt_groupwise": Sample(
        lambda t: [
            t(_M, _K, "float8_e4m3fn"),
            t(_N, _K, "float8_e4m3fn"),
            t(_K // 128, _M, "float32"),
            t(_N // 128, _K // 128, "float32"),
        ],
        {"out_dtype": "bfloat16", "backend": "trtllm"},
        (10, 0),
    ),
    "fp8_blockscale_gemm_sm90": Sample(
        lambda t: [t(_M, _K), t(_N, _K, "float8_e4m3fn")],
        {"weight_scale": ("float32", _N // 128, _K // 128), "out_dtype": "bfloat16"},
        (9, 0),
    ),
    "tinygemm_bf16": Sample(lambda t: [t(8, _K), t(_N, _K), t(8, _N), t(_N)], {}, (9, 0)),
    "mm_M1_16_K7168_N256": Sample(
        lambda t: [t(8, 7168), t(256, 7168).transpose(0, 1), t(8, 256, "float32")], {}, (10, 0)
    ),
    "merge_state": Sample(
        lambda t: [t(_M, 8, 128), t(_M, 8, "float32"), t(_M, 8, 128), t(_M, 8, "float32")]
    ),
    "top_k_renorm_probs": Sample(lambda t: [t(_M, _K, "float32"), 8]),
    "softmax": Sample(lambda t: [t(_M, _K, "float32")]),
}


def sample(name: str, function: Callable[..., Any]) -> Sample:
    """The arguments for a function of that name."""
    return _SAMPLES.get(name) or Sample(lambda make: _annotated(function, make))


def known(name: str) -> bool:
    """Whether the arguments were chosen for that function rather than guessed."""
    return name in _SAMPLES


def _annotated(function: Callable[..., Any], make: Make) -> list[Any]:
    values = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            break
        wanted = str(parameter.annotation)
        plain = {"int": 1, "float": 1.0, "bool": False}
        values.append(next((v for k, v in plain.items() if k in wanted), None) or make(_M, _K))
    return values
