"""How each intent is said to the SGLang that is installed, by asking its own parser.

The parser decides which flag exists; the version decides what it means, where the same name
changed its meaning. Source: live parsers of SGLang 0.5.8, 0.5.9, 0.5.12, 0.5.15.post1 and 0.5.23.

===================  ================  ==============================================
prefill graphs       versions          on / off
===================  ================  ==============================================
opt-in               up to 0.5.9       ``--enable-piecewise-cuda-graph`` / leave out
on by default        0.5.10 – 0.5.13   leave out / ``--disable-piecewise-cuda-graph``
a named backend      0.5.14 – 0.5.21   ``--cuda-graph-backend-prefill tc_piecewise`` / ``disabled``
without Dynamo       from 0.5.22       ``--cuda-graph-backend-prefill breakable`` / ``disabled``
===================  ================  ==============================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from remote.core.intents import FlagValue, Want
from remote.core.nearest import did_you_mean
from remote.errors import PreflightFailed

_RELEASE = re.compile(r"\d+(?:\.\d+)*")

DECODE_BACKEND = "cuda-graph-backend-decode"
PREFILL_BACKEND = "cuda-graph-backend-prefill"


@dataclass(frozen=True)
class FlagSpec:
    """One option string of the parser, without its dashes.

    ``kind`` is the name of argparse's converter, ``flag`` for one that takes no value, None
    where there is none. ``nargs`` is argparse's; ``several`` says whether a list may follow.
    """

    name: str
    kind: str | None = None
    default: object = None
    choices: tuple[str, ...] = ()
    several: bool = True

    @property
    def takes_value(self) -> bool:
        return self.kind != "flag"

    def not_offered(self, value: str) -> str | None:
        """What to say where the value is none of its choices."""
        if not self.choices or value in self.choices:
            return None
        near = did_you_mean(value, self.choices) or f"; it offers {', '.join(self.choices)}"
        return f"--{self.name}: {value!r} is not offered{near}"


@dataclass(frozen=True)
class InstalledParser:
    """The command line that the installed SGLang understands."""

    version: str
    flags: Mapping[str, FlagSpec]

    @classmethod
    def from_answer(cls, answer: Mapping[str, object]) -> InstalledParser:
        """From the JSON of ``payload/parser_flags.py``.

        Raises:
            PreflightFailed: the parser could not be read there; its own error is the evidence.
        """
        raw = answer.get("flags")
        if not isinstance(raw, Mapping):
            raise PreflightFailed(
                "SGLang's own parser can't be read in the host's venv",
                evidence=str(answer.get("error") or "no answer").splitlines(),
                hint="inv run 'python -m sglang.launch_server --help' shows the same failure",
            )
        return cls(
            version=str(answer.get("sglang", "")),
            flags={str(name): _spec(str(name), spec) for name, spec in raw.items()},
        )

    @property
    def release(self) -> tuple[int, ...]:
        """``(0, 5, 15)`` of ``0.5.15.post1``; empty where the version is no number."""
        match = _RELEASE.match(self.version)
        return tuple(int(part) for part in match[0].split(".")) if match else ()

    def first(self, *names: str) -> FlagSpec | None:
        """The first of these flags that it knows."""
        return next((self.flags[name] for name in names if name in self.flags), None)


@dataclass(frozen=True)
class Expected:
    """What the started server must report.

    The first of ``paths`` that its report holds has one of ``values``. A path goes through
    ``server_args`` (``cuda_graph_config.prefill.backend``), or through the graph lines of the
    log, as ``captured.prefill``. What the report doesn't hold is not judged.
    """

    paths: tuple[str, ...]
    values: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.paths[0]}={' or '.join(str(value) for value in self.values)}"


@dataclass(frozen=True)
class Spelling:
    """An intent in this SGLang's own flags, none where its default already does it."""

    flags: Mapping[str, FlagValue]
    reason: str
    expects: tuple[Expected, ...] = ()


class CannotSay(Exception):
    """This SGLang has no way to be told; the message says what is missing."""


@dataclass(frozen=True)
class _Plain:
    """An intent with one flag of its own; older and shorter spellings come later."""

    flags: tuple[str, ...]
    reported: tuple[str, ...]
    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PLAIN: Mapping[str, _Plain] = {
    "tensor_parallel": _Plain(("tp-size", "tensor-parallel-size"), ("tp_size",)),
    "expert_parallel": _Plain(("ep-size", "expert-parallel-size"), ("ep_size",)),
    "data_parallel": _Plain(("dp-size", "data-parallel-size"), ("dp_size",)),
    "quantization": _Plain(("quantization",), ("quantization",)),
    "kv_cache_dtype": _Plain(
        ("kv-cache-dtype",),
        ("kv_cache_dtype",),
        same={"bf16": ("bf16", "bfloat16"), "bfloat16": ("bfloat16", "bf16")},
    ),
    "attention_backend": _Plain(("attention-backend",), ("attention_backend",)),
    "moe_runner": _Plain(("moe-runner-backend",), ("moe_runner_backend",)),
    "fp4_gemm_backend": _Plain(
        ("fp4-gemm-backend",), ("fp4_gemm_runner_backend", "fp4_gemm_backend")
    ),
    "max_decode_batch": _Plain(
        ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        ("cuda_graph_config.decode.max_bs", "cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
    ),
    "mscclpp": _Plain(("enable-mscclpp",), ("enable_mscclpp",)),
    "single_batch_overlap": _Plain(
        ("enable-single-batch-overlap",), ("enable_single_batch_overlap",)
    ),
    "two_batch_overlap": _Plain(("enable-two-batch-overlap",), ("enable_two_batch_overlap",)),
    "metrics": _Plain(("enable-metrics",), ("enable_metrics",)),
}

_GRAPH_FLAGS: Mapping[str, frozenset[str]] = {
    "cuda_graph": frozenset(
        {"disable-cuda-graph", "disable-decode-cuda-graph", DECODE_BACKEND, "cuda-graph-config"}
    ),
    "piecewise_cuda_graph": frozenset(
        {
            "enable-piecewise-cuda-graph",
            "disable-piecewise-cuda-graph",
            "enforce-piecewise-cuda-graph",
            "enable-breakable-cuda-graph",
            "disable-prefill-cuda-graph",
            PREFILL_BACKEND,
            "cuda-graph-config",
        }
    ),
}


def flags_of(intent: str) -> frozenset[str]:
    """Every flag, of any version, that says something about the intent."""
    plain = _PLAIN.get(intent)
    return frozenset(plain.flags) if plain else _GRAPH_FLAGS[intent]


def ignored(name: str, parser: InstalledParser) -> str | None:
    """Why this SGLang takes the flag and does nothing with it, if that is so."""
    if name == "enable-piecewise-cuda-graph" and "disable-piecewise-cuda-graph" in parser.flags:
        return "is accepted and ignored from 0.5.10 on: say want.piecewise_cuda_graph instead"
    return None


def say(intent: str, want: Want, parser: InstalledParser) -> Spelling:
    """The intent in the installed parser's own flags.

    Raises:
        CannotSay: it has no flag for this, or doesn't offer the value.
    """
    if intent == "cuda_graph":
        return _cuda_graph(bool(want), parser)
    if intent == "piecewise_cuda_graph":
        return _piecewise(bool(want), parser)
    return _plain(_PLAIN[intent], want, parser)


def _plain(plain: _Plain, want: Want, parser: InstalledParser) -> Spelling:
    spec = parser.first(*plain.flags)
    if want is False:
        switch = plain.flags[0].startswith("enable-")
        return Spelling(
            {},
            "off unless asked for" if switch else "left to SGLang",
            (Expected(plain.reported, (False,)),) if switch and spec else (),
        )
    if spec is None:
        raise CannotSay(_unknown(plain.flags[0], parser))
    if want is True:
        return Spelling({spec.name: True}, "as asked", (Expected(plain.reported, (True,)),))
    value = str(want)
    refused = spec.not_offered(value)
    if refused:
        raise CannotSay(refused)
    # "auto" is resolved during the start: anything may be reported.
    allowed = plain.same.get(value, (want,))
    expects = () if value == "auto" else (Expected(plain.reported, allowed),)
    return Spelling({spec.name: value}, "as asked", expects)


def _cuda_graph(on: bool, parser: InstalledParser) -> Spelling:
    """Decode's graphs; prefill's follow through the intent ``piecewise_cuda_graph``."""
    captured = Expected(("captured.decode",), (on,))
    backend = ("cuda_graph_config.decode.backend", DECODE_BACKEND.replace("-", "_"))
    if on:
        return Spelling(
            {}, "on by default", (Expected(("disable_cuda_graph",), (False,)), captured)
        )
    if DECODE_BACKEND in parser.flags:
        expects = (Expected(backend, ("disabled",)), captured)
        return Spelling({DECODE_BACKEND: "disabled"}, "decode's graphs have a backend", expects)
    if "disable-cuda-graph" in parser.flags:
        expects = (Expected(("disable_cuda_graph",), (True,)), captured)
        return Spelling({"disable-cuda-graph": True}, "on by default", expects)
    raise CannotSay(_unknown("disable-cuda-graph", parser))


def _piecewise(on: bool, parser: InstalledParser) -> Spelling:
    """Prefill's graphs, by whichever of the four ways of the module's table is installed."""
    captured = Expected(("captured.prefill",), (on,))
    prefill = parser.flags.get(PREFILL_BACKEND)
    if prefill is not None:
        backend, reason = _prefill_backend(prefill, parser) if on else ("disabled", "as asked")
        resolved = ("cuda_graph_config.prefill.backend", PREFILL_BACKEND.replace("-", "_"))
        return Spelling(
            {PREFILL_BACKEND: backend},
            reason,
            (
                Expected(resolved, (backend,)),
                captured,
                *([Expected(("captured.prefill_backend",), (backend,))] if on else []),
            ),
        )
    if "disable-piecewise-cuda-graph" in parser.flags:
        # --enforce-piecewise-cuda-graph would skip SGLang's own exclusions: never by itself.
        expects = (Expected(("disable_piecewise_cuda_graph",), (not on,)), captured)
        flags: dict[str, FlagValue] = {} if on else {"disable-piecewise-cuda-graph": True}
        return Spelling(flags, f"on by default in {parser.version}", expects)
    opt_in = parser.flags.get("enable-piecewise-cuda-graph")
    if opt_in is not None and parser.release < (0, 5, 10):
        expects = (Expected(("enable_piecewise_cuda_graph",), (on,)), captured)
        flags = {"enable-piecewise-cuda-graph": True} if on else {}
        return Spelling(flags, f"off unless asked for in {parser.version}", expects)
    if on:
        raise CannotSay(f"SGLang {parser.version} has no flag known to switch prefill graphs on")
    return Spelling({}, f"SGLang {parser.version} has no such graphs", (captured,))


def _prefill_backend(prefill: FlagSpec, parser: InstalledParser) -> tuple[str, str]:
    offered = "tc_piecewise" in prefill.choices
    if offered or (not prefill.choices and parser.release < (0, 5, 22)):
        return "tc_piecewise", "prefill by torch.compile is a backend's name"
    return "breakable", "tc_piecewise is gone: breakable captures prefill without Dynamo"


def _unknown(name: str, parser: InstalledParser) -> str:
    near = did_you_mean(name, parser.flags, prefix="--")
    return f"SGLang {parser.version} has no --{name}{near}"


def _spec(name: str, raw: object) -> FlagSpec:
    fields = raw if isinstance(raw, Mapping) else {}
    kind = fields.get("type")
    choices = fields.get("choices")
    return FlagSpec(
        name=name,
        kind=None if kind is None else str(kind),
        default=fields.get("default"),
        choices=tuple(str(choice) for choice in choices) if isinstance(choices, list) else (),
        several="nargs" not in fields or fields["nargs"] in ("+", "*") or _many(fields["nargs"]),
    )


def _many(nargs: object) -> bool:
    return isinstance(nargs, int) and nargs > 1
