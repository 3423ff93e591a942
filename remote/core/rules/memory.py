"""GPU and host memory, outside of loading weights."""

from __future__ import annotations

from remote.core.phases import Phase
from remote.core.rules.model import CAPTURING, Confidence, Rule, Sign, Where, during

_OOM = r"(?P<what>(?:CUDA|HIP|NPU) out of memory.*|OutOfMemoryError.*)"

OCCUPIED = Rule(
    kind="gpu_memory_occupied",
    cause="The GPUs are not empty at the start: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*memory capacity is unbalanced.*"
            r"|Free memory on device .* less than desired.*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "`inv status` lists the processes on the GPUs; stop the old server:"
        " `inv stop --pid N --yes`",
        "GPUs of different sizes in one group trip the same check",
    ),
    taken_for={
        "weight_load_oom": "memory was short before the first weight",
        "kv_pool_no_memory": "the model did not take it: another process did",
    },
)

KV_POOL = Rule(
    kind="kv_pool_no_memory",
    cause="The weights leave no room for the KV cache: {what}.",
    signs=(
        Sign(r"(?P<what>Not enough memory\. Please try to increase.*)"),
        Sign(r"(?P<what>Not enough memory.*)", not_frames=r"event_loop|run_batch"),
        Sign(r"(?P<what>.*leave no GPU memory for the KV cache.*)"),
        Sign(r"(?P<what>.*larger than the profiled value -?(?:\d|<).*)"),
        Sign(r"(?P<what>No available memory for the cache blocks.*)"),
        Sign(r"(?P<what>Memory pool size is too small.*)"),
        Sign(
            _OOM,
            frames=r"memory_pool|init_memory_pool|kv_cache",
            not_frames=r"cuda_graph|event_loop|run_batch",
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "RAISE the static fraction: `inv deploy PROFILE --set mem-fraction-static=0.9`",
        "or the model does not fit: more ranks, a smaller quantisation",
    ),
    taken_for={
        "weight_load_oom": "the weights were loaded to the end",
        "serving_oom": "the advice for it, lowering the fraction, makes this one worse",
    },
)

LEAK = Rule(
    kind="kv_pool_leak",
    cause="SGLang's own check of its KV pool failed, an allocator bug: {what}.",
    signs=(Sign(r"(?P<what>.*memory leak detected.*)", Where.ANYWHERE),),
    advice=(
        "note page size, speculation and mixed chunks from server_args; upgrade SGLang",
        "until then disable the feature that the pool's name points at",
    ),
    taken_for={"serving_oom": "no allocation failed; the books do not balance"},
)

CAPTURE_OOM = Rule(
    kind="graph_capture_oom",
    cause="GPU memory ran out while CUDA graphs were being captured: {what}.",
    signs=(
        Sign(r"(?P<what>Capture (?:cuda|CUDA) graph failed: (?:CUDA|HIP) out of memory.*)"),
        Sign(r"(?P<what>out of memory during CUDA graph capture.*|.*ESTIMATE_CUDAGRAPHS.*)"),
        Sign(
            _OOM,
            frames=r"cuda_graph|graph_runner|init_device_graphs|:capture",
            not_frames=r"event_loop|run_batch|:replay",
        ),
        Sign(_OOM, phases=CAPTURING, not_frames=r"event_loop|load_weights"),
        Sign(
            r"(?P<what>Piecewise CUDA Graph failed with error: .*out of memory.*)", Where.ANYWHERE
        ),
    ),
    advice=(
        "capture fewer sizes: `inv deploy PROFILE --set max_decode_batch=16`",
        "then lower the static fraction: `inv deploy PROFILE --set mem-fraction-static=0.8`",
    ),
    taken_for={
        "weight_load_oom": "the weights and the pool were in place",
        "graph_capture_fault": "the allocation failed, not an operation inside the capture",
    },
)

SERVING_OOM = Rule(
    kind="serving_oom",
    cause="Memory ran out while serving: {what}.",
    signs=(
        Sign(
            r"(?P<what>(?:Decode|Prefill|Extend) out of memory.*"
            r"|alloc_req_slots runs out of memory.*)",
            Where.ANYWHERE,
        ),
        Sign(
            _OOM,
            frames=r"event_loop|run_batch|forward_batch_generation|process_batch|forward_extend"
            r"|forward_decode|handle_request",
        ),
        Sign(_OOM, phases=during(Phase.SERVING, Phase.READY, Phase.WARM_UP, Phase.HTTP)),
        Sign(
            _OOM, not_frames=r"load|init|capture|<module>", frames=r".", confidence=Confidence.LOW
        ),
    ),
    advice=(
        "LOWER the static fraction, the concurrency or the prefill chunk:"
        " `inv deploy PROFILE --set chunked-prefill-size=4096`",
        "a token or request slot that ran out is no GPU memory: lower the concurrency",
    ),
    taken_for={
        "kv_pool_no_memory": "the pool was allocated; the need came with requests",
        "kv_pool_leak": "an allocation failed; the pool's books were not in question",
    },
)

HOST_OOM = Rule(
    kind="host_oom_kill",
    cause=(
        "A process was killed with SIGKILL before the server was ready, and nothing explains it:"
        " most likely the host's memory ran out ({what})."
    ),
    signs=(
        Sign(r"(?P<what>Errno 12\] Cannot allocate memory.*)", Where.ANYWHERE),
        Sign(
            r"(?P<what>.*[Ee]xit(?:ed with)?(?: an exit)? (?:code|status):? ?-?9\b.*"
            r"|.*\(exit code: -9\).*|.*\bkilled by signal 9\b.*"
            r"|.*Out of memory: Killed process.*|.*oom-kill.*)",
            Where.LINE,
            alone=True,
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"(?P<what>workers missing from ps.*)",
            Where.LINE,
            alone=True,
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "ask the kernel: `inv run 'dmesg -T | grep -i -E \"oom|killed process\"'`; look at the"
        " container's memory limit",
        "lower host buffers (hierarchical cache, pinned weights) or the ranks on the host",
    ),
    taken_for={
        "triton_smem_limit": "no traceback speaks of shared memory",
        "watchdog_or_health": "no watchdog line stands before the kill",
    },
)
