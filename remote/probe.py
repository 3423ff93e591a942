"""Which FlashInfer calls torch.compile can't trace on a host, found before a start finds them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from remote.config import HostSettings
from remote.core import environment, trace_report
from remote.core.host_facts import HostFacts
from remote.core.trace_report import ProbeReport, SymbolProof
from remote.errors import PreflightFailed
from remote.host import Host

_PACKAGE = "sglang_remote_probe"
#: Zip files carry no time before this one; a fixed time gives the same bytes for the same source.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def script() -> bytes:
    """The scanner as a zip that Python runs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, text: str) -> None:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)

        for path in sorted((Path(__file__).parent / "payload" / "probe").glob("*.py")):
            add(f"{_PACKAGE}/{path.name}", path.read_text("utf-8"))
        add("__main__.py", f"from {_PACKAGE}.main import main\n\nmain()\n")
    return packed.getvalue()


def probe(
    host: Host,
    settings: HostSettings,
    facts: HostFacts,
    tell: Callable[[str], None],
    *,
    every: bool = False,
    frees: Mapping[str, str] = trace_report.FREES,
) -> ProbeReport:
    """Trace what the installed SGLang calls bare in its compiled region.

    Args:
        every: all of its FlashInfer calls, those kept out of the region included.
        frees: the patch set that would free a function, by the function's name.

    Raises:
        PreflightFailed: the scanner can't run there: FlashInfer or torch can't be imported.
    """
    tell("tracing the FlashInfer calls of the installed SGLang")
    answer = _ask(host, settings, facts, {"mode": "scan", "every": every})
    return trace_report.read(answer, frees)


def prove(
    host: Host, settings: HostSettings, facts: HostFacts, symbols: Sequence[str], patch: str
) -> tuple[SymbolProof, ...]:
    """What each of a patch's symbols is now: imported, the patch's own, and what it traces to.

    Args:
        symbols: full names, ``flashinfer.fp4_quantize``.
        patch: the set's name without its package, as its functions carry it.

    Raises:
        PreflightFailed: the scanner can't run there: FlashInfer or torch can't be imported.
    """
    answer = _ask(host, settings, facts, {"mode": "trace", "ops": list(symbols)})
    return trace_report.proofs(answer, patch)


def _ask(
    host: Host, settings: HostSettings, facts: HostFacts, request: Mapping[str, Any]
) -> Mapping[str, Any]:
    fixed = environment.fixed(settings.venv, settings.cuda_home)
    server = {name: value for name, value in settings.overrides.env.items() if value is not None}
    answer = host.call(
        "probe.run",
        data=script(),
        python=facts.python,
        env={**fixed, **server},
        request=dict(request),
    )
    error = answer.get("error") or answer["answer"].get("error")
    if error:
        raise PreflightFailed(
            f"FlashInfer can't be traced in the venv: {error}",
            host=settings.name,
            evidence=answer.get("evidence") or answer.get("stderr") or (),
            hint=f"try by hand: inv run --host {settings.name} 'python -c \"import flashinfer\"'",
        )
    found: Mapping[str, Any] = answer["answer"]
    return found
