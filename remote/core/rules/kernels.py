"""Kernels: building them, choosing them, running them."""

from __future__ import annotations

from remote.core.rules.model import Confidence, Rule, Sign, Where

_BUILD_NOTE = "the advice about memory that SGLang prints below does not apply"

JIT = Rule(
    kind="jit_build_failed",
    cause="Building a kernel on the host failed: {what}.",
    signs=(
        Sign(
            r"(?P<what>ptxas fatal.*|.*PTXASError.*|ptxas /tmp.*|.*nvcc fatal.*"
            r"|.*Unsupported gpu architecture.*|.*cannot find -lcuda.*|.*Python\.h: No such file.*"
            r"|.*fatal error: \S+: No such file.*)",
            Where.ANYWHERE,
        ),
        Sign(r"(?P<what>(?:^|\s):/\S+/nvcc\b)", Where.ANYWHERE),
        Sign(
            r"(?P<what>Ninja build failed.*|.*ninja exited with status.*|.*subcommand failed.*"
            r"|.*Error building extension.*|.*Command '\['?(?:\S*/)?(?:ninja|nvcc|ptxas)\b.*"
            r"|.*Command '(?:\S*/)?(?:ptxas|nvcc|ninja)\b.*|.*NVCC compilation failed.*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>.*\bcompilation (?:failed|error)\b.*|.*Failed to compile.*)",
            frames=r"(?:^|/)jit/|cpp_extension|compiler\.py|tvm_ffi|deep_gemm|triton/",
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "read the first `error:` line of the build: -lcuda wants the toolkit's stubs on"
        " LIBRARY_PATH, Python.h wants python3-dev, an unknown sm_1xx wants a newer CUDA or ptxas",
        "`inv run 'echo $CUDA_HOME $PATH'` shows what the server builds with; a `:` at the front"
        " of CUDA_HOME breaks every path",
    ),
    taken_for={
        "graph_capture_oom": _BUILD_NOTE,
        "no_kernel_image": "no kernel exists yet; the compiler refused it",
        "cuda_lib_missing": "the toolkit was found and ran",
    },
)

IMAGE = Rule(
    kind="no_kernel_image",
    cause="An installed wheel has no code for this GPU: {what}.",
    signs=(Sign(r"(?P<what>.*no kernel image is available.*)", Where.ANYWHERE),),
    advice=(
        "install the build of sgl-kernel, torch or FlashInfer for this GPU's architecture (CUDA"
        " 12.8 or 13 for sm_120)",
        "lowering memory settings changes nothing",
    ),
    taken_for={
        "graph_capture_oom": _BUILD_NOTE,
        "unsupported_combo": "the same code runs on another GPU; the wheel lacks this one",
    },
)

COMBINATION = Rule(
    kind="unsupported_combo",
    cause="This combination of GPU, model and backends is not supported: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:Unsupported architecture|backend is not supported on"
            r"|backends? (?:is|are) (?:only )?supported on|Only SM ?[\d.x]+"
            r"|expected sm\d+|failed to dispatch head_dim"
            r"|M(?:inimum|in) capability|Unsupported FusedMoe scheme"
            r"|unsupported weight_scale_vec_size|only supported on sm"
            r"|not supported on (?:sm|SM|this (?:GPU|device|architecture|platform))"
            r"|requires (?:SM|sm_?|compute capability)"
            r" ?\d+|[Oo]nly supports? (?:SM|sm_?|Hopper|Blackwell|[HB]\d+0)"
            r"|No compatible backend|No valid (?:attention|moe) backend"
            r"|[Uu]nsupported head(?:_| )(?:dim|size)).*)",
            unless=r"Model architectures",
        ),
        Sign(r"^(?P<what>NotImplementedError.*)", frames=r"moe|quant|attention|backend"),
        Sign(r"^(?P<what>NotImplementedError.*moe_runner.*)"),
    ),
    advice=(
        "choose another backend for this GPU and model: the attention, MoE or FP4 GEMM backend flag"
        " in the profile; `inv deploy PROFILE --dry` shows what is chosen",
        "SM120 is not SM100: data-centre Blackwell kernels do not run on workstation cards",
    ),
    taken_for={
        "no_kernel_image": "the wheel is right; the backend does not serve this GPU or model",
        "graph_capture_fault": "it fails outside of graphs as well",
    },
)

#: Tried when no kind of its own fits: the server's own checks of its arguments.
REFUSED_ARGUMENTS = Rule(
    kind="unsupported_combo",
    cause="SGLang refused this combination of settings: {what}.",
    signs=(
        Sign(
            r"^(?:AssertionError|ValueError|NotImplementedError)(?:: (?P<what>.*))?",
            frames=r"server_args\.py:(?:_handle\w*|check_server_args|__post_init__|\w*validate\w*)$",
            not_frames=r"get_model_config|get_config",
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "`inv deploy PROFILE --dry` shows the flags; the message names the pair that excludes each"
        " other",
    ),
)

SHARED_MEMORY = Rule(
    kind="triton_smem_limit",
    cause="A Triton kernel needs more shared memory than this GPU has per block: {what}.",
    signs=(
        Sign(r"(?P<what>.*OutOfResources.*|.*out of resource: shared memory.*)", Where.ANYWHERE),
    ),
    advice=(
        "another attention or MoE backend, or a tuned configuration for this GPU (99 KB on sm_86,"
        " sm_89 and sm_120)",
    ),
    taken_for={
        "serving_oom": "shared memory on the chip, not the GPU's memory",
        "host_oom_kill": "a kill behind it is the launcher's own",
    },
)

HARDWARE = Rule(
    kind="gpu_hardware",
    cause="A GPU failed, or its link or memory did: {what}.",
    signs=(
        Sign(
            # Those that NVIDIA's list gives to the hardware; 13, 31, 43 and 45 are programs' doing.
            r"(?P<what>.*\bXid\b[^:]*(?:\([^)]*\))?: "
            r"(?:48|6[34]|74|79|9[245]|119|120|140|143|154)\b.*"
            r"|.*(?:GPU has )?fallen off the bus.*|.*uncorrectable ECC error.*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "`inv run 'dmesg -T | grep -i xid; nvidia-smi -q'` names the GPU; leave it out with"
        " CUDA_VISIBLE_DEVICES, or have it reset",
        "a start elsewhere tells whether the host is at fault",
    ),
    taken_for={
        "illegal_memory_access": "the driver reports the GPU itself; on one that is gone all fails",
        "nccl_init_error": "a rank whose GPU is gone can't answer the others",
        "graph_capture_fault": "what was captured is not at fault",
    },
    foremost=True,
)

NATIVE = Rule(
    kind="native_crash",
    cause="A process of the server died in native code: {what}.",
    signs=(
        Sign(
            r"(?P<what>Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Illegal).*)",
            Where.LINE,
            alone=True,
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"(?P<what>.*[Ee]xit(?:ed with)?(?: an)?(?: exit)? code:? ?-(?:4|6|7|8|11)\b.*"
            r"|.*\(exit code: -(?:4|6|7|8|11)\).*)",
            Where.LINE,
            alone=True,
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "the stack in the evidence (`inv pull`) or under `Fatal Python error` tells which library",
        "`inv deploy PROFILE --set env.PYTHONFAULTHANDLER=1` prints that stack at the next death",
    ),
    taken_for={
        "nccl_init_error": "it had been serving: NCCL was set up long before",
        "process_killed": "the signal is the program's own; nobody sent it",
    },
)

DEVICE_ASSERT = Rule(
    kind="device_assert",
    cause="A kernel's own check failed on the GPU: {what}.",
    signs=(
        Sign(r"(?P<what>Assertion `.*` failed)", Where.LINE),
        Sign(r"(?P<what>.*device-side assert triggered.*)", Where.ANYWHERE),
    ),
    advice=(
        "the FIRST assertion line decides; an index out of bounds points at context length,"
        " vocabulary or the draft model's positions",
    ),
    taken_for={"illegal_memory_access": "a check caught it before memory was touched"},
)

ILLEGAL_ACCESS = Rule(
    kind="illegal_memory_access",
    cause="A kernel touched memory it must not: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:illegal memory access|misaligned address|unspecified launch failure"
            r"|illegal instruction was encountered).*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "the frame shown is where it surfaced: start once with CUDA_LAUNCH_BLOCKING=1:"
        " `inv deploy PROFILE --set env.CUDA_LAUNCH_BLOCKING=1`",
        "or switch speculation, hierarchical cache and graphs off one by one",
    ),
    taken_for={
        "nccl_init_error": "NCCL's watchdog only reports it",
        "collective_timeout": "nothing was waited for",
    },
)

JIT_HANG = Rule(
    kind="jit_lock_hang",
    cause="A kernel is being loaded or built and nothing is printed any more: {what}.",
    advice=(
        "`inv watch` shows nvcc, cicc and ninja: if they run, wait",
        "if none runs, a killed run left its lock: `inv run 'rm -r ~/.cache/flashinfer'`",
    ),
    taken_for={
        "distributed_hang": "a build or its lock stands last in the log",
        "perf_degraded": "no end of the build is in the log",
    },
)

SLOW = Rule(
    kind="perf_degraded",
    cause="Not a failure: kernels are compiled at this start, which can take many minutes: {what}.",
    signs=(
        Sign(
            r"(?P<what>Entering DeepGEMM JIT Pre-Compile.*|.*compiling flashinfer.*"
            r"|Using default MoE kernel config.*)",
            Where.LINE,
            alone=True,
        ),
    ),
    advice=(
        "keep the JIT caches (~/.cache/deep_gemm, ~/.cache/flashinfer, ~/.triton) on a disk that"
        " outlives the container",
    ),
    taken_for={"jit_lock_hang": "the line announces a long build"},
)
