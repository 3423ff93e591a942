"""What must not be taken for a cause: consequences, harmless tracebacks, noise."""

from __future__ import annotations

import re

from remote.core.tracebacks import Traceback

#: Exceptions that only tell of a failure in another process.
_SECONDARY = re.compile(
    r"^(?:\S*\.)?(?:EOFError|CancelledError|SystemExit|KeyboardInterrupt|BrokenPipeError"
    r"|ConnectionResetError)\b"
    r"|Connection (?:closed|reset) by peer|[Ss]ee root cause above|Broken pipe"
    r"|reached monitoredBarrier, but received errors"
    r"|ncclRemoteError|remote process exited or there was a network error"
)
#: Headers of tracebacks that a server survives.
_HARMLESS = (
    "Can not initialize OpenAIServingResponses",
    "Exception ignored",
    "Task exception was never",
    "--- Logging error",
    "ERROR:    Exception in ASGI",
)
#: Headers of a traceback that ends the process which prints it; so does one without a header.
_FATAL = re.compile(
    r"hit an exception|warmup error|failed with error|Initialization failed|Exception in thread"
)
#: Lines that healthy servers print too, and that look like causes.
_NOISE = re.compile(
    r"Ignore import error|Setup Custom allreduce failed|To silence this warning|warnings\.warn"
    r"|Warning: |^server_args=|Can not initialize|flashinfer\.comm is not|\"should dump\" flag"
    r"|[Ff]alling back to|^Possible solutions|^\d\. (?:set|disable) "
)
#: Warnings that are the cause all the same.
_TELLING = re.compile(r"driver|CUDA initialization|NVCC|nvcc|accelerator")


def is_secondary(traceback: Traceback) -> bool:
    """Whether the whole chain only tells of a failure elsewhere."""
    named = [block for block in traceback.chain if block.type]
    return bool(named) and all(_SECONDARY.search(block.headline) for block in named)


def ends_its_process(traceback: Traceback, opened: int) -> bool:
    """Whether the traceback is more than something a server survives.

    Args:
        traceback: as it was printed.
        opened: the line on which the HTTP server started, 0 for none: a server that went that far
            outlived a traceback without a header above it.
    """
    if traceback.header.startswith(_HARMLESS):
        return False
    if not traceback.header:
        return opened <= traceback.last_line
    return _FATAL.search(traceback.header) is not None


def names_an_exception(traceback: Traceback) -> bool:
    """Whether it was read far enough to say anything but frames."""
    return any(block.type or block.message for block in traceback.chain)


def is_noise(text: str) -> bool:
    """Whether a line must not decide anything."""
    return _NOISE.search(text) is not None and _TELLING.search(text) is None
