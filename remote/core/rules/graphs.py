"""CUDA graphs and what Dynamo makes of the model."""

from __future__ import annotations

from dataclasses import replace

from remote.core.rules.model import CAPTURING, Confidence, Rule, Sign, Where

NO_META = Rule(
    kind="dynamo_no_meta_kernel",
    cause="Dynamo could not trace an operation without running it: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:no fake impl or Meta kernel|Failed running call_(?:function|method)"
            r"|FAILED INLINING|graph break in an active context manager"
            r"|Graph break in GenericContextWrapping).*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>.*(?:Cannot access data pointer of Tensor|fake tensors? .*not supported).*)"
        ),
    ),
    advice=(
        "upgrade the package whose operation it is, or run without compiled prefill graphs:"
        " `inv deploy PROFILE --set piecewise_cuda_graph=off`",
        "where an earlier graph break is hinted at, look for that one first",
    ),
    taken_for={"dynamo_host_call": "a custom operation lacks a fake, rather than host code traced"},
)

HOST_CALL = Rule(
    kind="dynamo_host_call",
    cause="Code that Dynamo traced does something only the host can do: {what}.",
    signs=(
        Sign(
            r"_dynamo\.exc\.\w+: (?P<what>.*)",
            unless=r"assert positions\.ndim",
            whole=True,
        ),
        Sign(
            r"(?P<what>self\._waitpid_lock = threading\.Lock.*|.*nvcc in a subprocess.*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>(?:Attempted to call function marked as skipped"
            r"|Unsupported (?:method|function) call|torch\.\* op returned non-Tensor).*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "the last frame of the traced code decides: upgrade that package, or"
        " `inv deploy PROFILE --set piecewise_cuda_graph=off`",
        "warnings about lru_cache above it are noise",
    ),
    taken_for={
        "dynamo_no_meta_kernel": "no operation lacks a fake: plain Python was traced",
        "jit_build_failed": "the build never began; Dynamo refused the code around it",
    },
)

#: The trap this tool has a patch for.
FP4_TRAP = Rule(
    kind="dynamo_host_call",
    cause=(
        "Under piecewise CUDA graphs Dynamo traced into `flashinfer.fp4_quantize`, which builds or"
        " loads its kernel on the host inside the call."
    ),
    signs=(
        Sign(
            r"_dynamo\.exc\.\w+|marked as skipped",
            frames=r"^flashinfer/(?:quantization/)?fp4_quantization\.py:",
        ),
    ),
    advice=(
        "`inv deploy piecewise --patch fp4-opaque` routes the call through an operation that Dynamo"
        " does not enter",
        "without the patch: `inv deploy baseline`, which captures no piecewise graphs",
    ),
    taken_for=HOST_CALL.taken_for,
)

CAPTURE_FAULT = Rule(
    kind="graph_capture_fault",
    cause="An operation does not work inside a CUDA graph: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:stream is capturing|capturing stream|during CUDA graph capture"
            r"|PCG capture stream is not set|CUBLAS_STATUS_EXECUTION_FAILED"
            r"|invalid resource handle|assert positions\.ndim"
            r"|previous error during capture|cudaErrorStreamCapture\w*).*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>Tensor match failed.*|.*Size mismatch for shape#.*)",
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "without compiled or piecewise graphs: `inv deploy PROFILE --set piecewise_cuda_graph=off`",
        "else once with `--disable-cuda-graph`, which shows the operation's own error",
    ),
    taken_for={
        "graph_capture_oom": "the advice about memory that SGLang prints below does not apply",
    },
)

#: Tried when no kind of its own fits: something failed while a graph was being captured.
CAPTURE_FAILED = replace(
    CAPTURE_FAULT,
    signs=(
        Sign(
            r"(?P<what>Piecewise CUDA Graph failed with error.*)",
            Where.ANYWHERE,
            whole=True,
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"(?P<what>Capture (?:cuda|CUDA) graph failed.*)",
            unless=r"out of memory|Connection (?:closed|reset) by peer",
            whole=True,
            confidence=Confidence.LOW,
        ),
        Sign(
            r"^(?P<what>(?:\S+Error|AssertionError|RuntimeError)\b.*)",
            frames=r"cuda_graph_runner|cuda_graph_backend|piecewise_cuda_graph",
            phases=CAPTURING,
            unless=r"out of memory|Connection (?:closed|reset) by peer",
            whole=True,
            confidence=Confidence.LOW,
        ),
    ),
)
