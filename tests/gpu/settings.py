"""The test's own settings: host entries, the model's shape, and the matrix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
#: Where the test's models lie, below the home of the host's user.
MODELS = "sglang-remote-gpu-test"

#: Variables of this machine that every program on it needs: where the driver's libraries are, and
#: what its owner has turned off.
_PASSED_ON = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "NVIDIA_", "CUDA_VISIBLE_", "CUDA_DEVICE_")

#: A Qwen2 has neither experts nor quantized weights: the profiles wish for both.
_UNAVAILABLE = {
    "quantization": "the test's weights are dummies, not quantized",
    "moe_runner": "the test's model has no experts",
    "fp4_gemm_backend": "the test's model has no FP4 layers",
}


@dataclass(frozen=True)
class Shape:
    """A Qwen2's size."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int


@dataclass(frozen=True)
class Asked:
    """What the command line said."""

    tp: int
    cpu: bool
    levels: str
    repeats: int
    input_len: int
    output_len: int
    wide: bool = False

    @property
    def bench_words(self) -> list[str]:
        return [
            *("--quick", "--concurrency", self.levels, "--repeats", str(self.repeats)),
            *("--input-len", str(self.input_len), "--output-len", str(self.output_len)),
        ]


def shape(tp: int, cpu: bool, wide: bool = False) -> Shape:
    """The model that is served: small where one or two GPUs are, wide for eight or when asked."""
    if cpu:
        return Shape(2, 64, 128, 4, 2, 1024)
    if wide or tp > 4:
        return Shape(32, 4096, 14336, 32, 8, 8192)
    return Shape(28, 1536, 8960, 12, 4 if tp == 4 else 2, 8192)


def too_large(tp: int) -> Shape:
    """One whose weights no GPU holds: 8.4 GB a layer, 200 GB for each of ``tp`` GPUs."""
    return Shape(24 * tp, 16384, 73728, 128, 8, 8192)


def entry(
    base: Mapping[str, Any], asked: Asked, model: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The host's entry of the test's own invoke.yaml.

    Args:
        base: where the host is (address, keys, venv, port) and what it needs for any server.
        model: the folder of the test's model there.
        environment: variables for every server.
    """
    made = {**base, "model": model}
    made["env"] = {**(base.get("env") or {}), **environment, "HF_HUB_OFFLINE": "1"}
    made.pop("profiles", None)
    made["bench"] = {"concurrency": asked.levels}
    flags = {"load-format": "dummy", "reasoning-parser": None, "tool-call-parser": None}
    if asked.cpu:
        made["flags"] = {**(base.get("flags") or {}), **flags, "grammar-backend": "none"}
        return made
    made["want"] = {"tensor_parallel": asked.tp, "attention_backend": "triton"}
    made["unavailable"] = {**(base.get("unavailable") or {}), **_UNAVAILABLE}
    made["flags"] = {**flags, "sampling-backend": "pytorch", "grammar-backend": "none"}
    return made


def hosts(
    base: Mapping[str, Any], asked: Asked, models: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """All entries: the host itself, and the same with a fault in its settings."""
    gpu = entry(base, asked, f"{models}/served", environment)
    # FlashInfer older than SGLang asks for is refused before it could look for a compiler.
    unchecked = {**gpu["env"], "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}
    wanted = {**gpu.get("want", {}), "attention_backend": "flashinfer"}
    return {
        "gpu": gpu,
        "too-large": {**gpu, "model": f"{models}/too-large"},
        "no-nvcc": {**gpu, "cuda_home": "/nowhere/cuda", "env": unchecked, "want": wanted},
    }


def passed_on(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of this machine that belong to every program on it."""
    return {
        name: value
        for name, value in environment.items()
        if name == "LD_LIBRARY_PATH" or name.startswith(_PASSED_ON)
    }
