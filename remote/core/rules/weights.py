"""The checkpoint and what it is loaded into."""

from __future__ import annotations

from remote.core.phases import Phase
from remote.core.rules.model import Confidence, Rule, Sign, Where, during

_LOADING = (
    r"load_weights|weight_loader|load_model|_load_w|loader\.py|weight_utils|_initialize_model"
)

DIVISIBILITY = Rule(
    kind="tp_quant_divisibility",
    cause="A dimension cannot be split over the ranks in the quantisation's blocks: {what}.",
    signs=(
        Sign(r"(?P<what>.*\bis not divisible by .*(?:\d+|block\w*|tp_size|size).*)"),
        Sign(r"(?P<what>.*not divisible by (?:the )?(?:block|tensor|tp|weight).*)"),
        Sign(r"(?P<what>.*must be divisible by (?:the )?(?:tensor|tp|block|number of).*)"),
    ),
    advice=(
        "take a tensor-parallel size that divides the dimension by whole blocks:"
        " `inv deploy PROFILE --set tensor_parallel=N`",
        "or spread experts instead (expert parallel, dense layers at TP 1)",
        "if no TP fits, the checkpoint's quantization_config may be stale",
    ),
    taken_for={
        "weights_mismatch": "the tensors are as expected; the split is what does not work",
        "unsupported_combo": "the scheme is supported at another TP size",
    },
)

MISMATCH = Rule(
    kind="weights_mismatch",
    cause="The checkpoint does not fit the model class it was loaded into: {what}.",
    signs=(
        Sign(r"^KeyError: (?P<what>'\S*(?:weight|scale|proj|bias)\S*')"),
        Sign(r"^KeyError: (?P<what>.*)", frames=r":(?:load_weights|weight_loader)$"),
        Sign(r"(?P<what>Attempted to load weight.*|.*not initialized from checkpoint.*)"),
        Sign(r"(?P<what>size mismatch.*|shape mismatch.*)", frames=_LOADING),
        Sign(r"(?P<what>.*(?:size mismatch|shape mismatch) for \S+.*)"),
        Sign(
            r"(?P<what>.*not found in (?:params_dict|the checkpoint|checkpoint).*)", frames=_LOADING
        ),
        Sign(
            r"(?P<what>The (?:expanded )?size of (?:the )?tensor .*|start \(\d+\) \+ length \(\d+\)"
            r" exceeds dimension size.*|.*Error while deserializing header.*)",
            frames=_LOADING,
        ),
        Sign(
            r"^(?P<what>AssertionError.*)",
            frames=r":(?:load_weights|\w*weight_loader\w*|load_\w*weight\w*)$",
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"^AttributeError: (?P<what>.*has no attribute.*(?:weight|scale|proj|bias)\w*.*)",
            frames=_LOADING,
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "check that the checkpoint, its quantisation flag and the SGLang version belong together",
        "with speculation: check that the draft checkpoint is loaded as the draft, not the target",
    ),
    taken_for={
        "hf_access_or_path": "the files were found and read",
        "tp_quant_divisibility": "a tensor is missing or shaped otherwise, not merely split badly",
    },
)

WEIGHT_OOM = Rule(
    kind="weight_load_oom",
    cause="GPU memory ran out while the weights were being loaded: {what}.",
    signs=(
        Sign(
            r"(?P<what>(?:CUDA|HIP|NPU) out of memory.*)",
            frames=_LOADING + r"|create_weights",
            not_frames=r"cuda_graph|event_loop|run_batch|:capture",
        ),
        Sign(
            r"(?P<what>(?:CUDA|HIP|NPU) out of memory.*)",
            phases=during(Phase.WEIGHTS, Phase.DISTRIBUTED, Phase.ARGUMENTS),
            not_frames=r"cuda_graph|event_loop|run_batch|:capture",
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"(?P<what>CUDA out of memory.*)",
            Where.LINE,
            phases=during(Phase.WEIGHTS),
            alone=True,
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "more ranks or a smaller quantisation: `inv deploy PROFILE --set tensor_parallel=N`",
        "check that nothing else holds the GPUs: `inv status`, and which GPUs"
        " CUDA_VISIBLE_DEVICES names",
    ),
    taken_for={
        "graph_capture_oom": "no graph was being captured yet",
        "gpu_memory_occupied": "the log does not name another process as the holder",
        "kv_pool_no_memory": "the pool comes after the weights",
    },
)
