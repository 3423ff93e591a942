"""The embedded host as a user would write a host in ``invoke.yaml``."""

from __future__ import annotations

import getpass
import socket

from remote.sandbox.keys import write_private
from remote.sandbox.layout import Layout
from remote.sandbox.record import LOOPBACK

NAME = "sandbox"
#: SGLang's own default, and where the look for a free port begins.
FIRST_PORT = 30000

#: Without the token limit the KV pool takes 17 GB of memory; the other flags choose CPU paths.
CPU_FLAGS: dict[str, str | int | bool] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "disable-overlap-schedule": True,
    "max-total-tokens": 8192,
    "max-running-requests": 16,
    # Otherwise an idle scheduler keeps a core busy.
    "sleep-on-idle": True,
}

#: Without Dynamo switched off the first request takes 36 s instead of 1.5 s.
CPU_ENV: dict[str, str] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}

#: A matrix that two cores get through in minutes; its figures say nothing of a GPU's.
CPU_BENCH: dict[str, object] = {
    "concurrency": "1,4",
    "input_len": 32,
    "output_len": 16,
    "repeats": 3,
    "prompts": 16,
}

#: Intent → why a CPU cannot do it.
UNAVAILABLE: dict[str, str] = {
    "cuda_graph": "needs a GPU",
    "piecewise_cuda_graph": "needs a GPU",
    "max_decode_batch": "sizes the decode CUDA graphs, which need a GPU",
    "tensor_parallel": "one CPU, no NCCL",
    "expert_parallel": "one CPU, no NCCL; the tiny model has no experts",
    "data_parallel": "one CPU, one copy of the model",
    "mscclpp": "needs NVLink between GPUs",
    "single_batch_overlap": "overlaps CUDA streams: needs a GPU",
    "two_batch_overlap": "overlaps CUDA streams: needs a GPU",
    "quantization": "the tiny model's weights are not quantized",
    "kv_cache_dtype": "FP8 and FP4 caches need a GPU",
    "moe_runner": "the tiny model has no experts",
    "attention_backend": "torch_native is the one that runs on a CPU",
    "fp4_gemm_backend": "needs a Blackwell GPU",
}


def sglang_port(layout: Layout, in_use: bool = False) -> int:
    """The port of this sandbox's SGLang: kept as long as it is free, or its own.

    Another sandbox of this machine may serve on the first.

    Args:
        in_use: something started through this sandbox lives, and may be what holds the port.
    """
    try:
        kept = int(layout.sglang_port.read_text())
        if in_use or _free(kept):
            return kept
    except (OSError, ValueError):
        pass
    port = next(port for port in range(FIRST_PORT, 2**16) if _free(port))
    write_private(layout.sglang_port, str(port).encode())
    return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # A server's own closed connections linger on its port, and don't hold it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def host_entry(layout: Layout, port: int, in_use: bool = False) -> dict[str, object]:
    """The host's settings, keys and values as under ``hosts:``.

    ``cuda_home`` is a folder that isn't there: no CUDA is installed, and one that another part of
    the machine may have is kept out of the sandbox.

    Args:
        port: where the sandbox's SSH server listens.
        in_use: see :func:`sglang_port`.
    """
    return {
        "address": f"{getpass.getuser()}@{LOOPBACK}:{port}",
        "identity_file": str(layout.client_key),
        "known_hosts": str(layout.known_hosts),
        "venv": str(layout.venv),
        "model": str(layout.model),
        "port": sglang_port(layout, in_use),
        "cuda_home": str(layout.home / "no-cuda"),
        "flags": dict(CPU_FLAGS),
        "env": dict(CPU_ENV),
        "unavailable": dict(UNAVAILABLE),
        "bench": dict(CPU_BENCH),
    }
