"""The proof after a patch was applied: in the host's own interpreter, by importing and tracing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote.config import HostSettings
from remote.core.host_facts import HostFacts
from remote.host import Host, Request
from remote.patch_sets import PatchSet
from remote.patching import PatchPlan

if TYPE_CHECKING:
    from remote.core.trace_report import SymbolProof


@dataclass(frozen=True)
class PatchProof:
    """One set: what its functions are now, and what speaks against it (empty: it is proven).

    ``before``: the proof of an earlier task holds, for nothing has changed since.
    """

    patch: str
    symbols: tuple[SymbolProof, ...]
    against: tuple[str, ...]
    before: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The shape printed with ``--json``."""
        return {
            "patch": self.patch,
            "proven": not self.against,
            "proven_before": self.before,
            "against": list(self.against),
            "symbols": [symbol.as_dict() for symbol in self.symbols],
        }


def prove_all(
    host: Host,
    settings: HostSettings,
    facts: HostFacts,
    made: PatchPlan,
    tell: Callable[[str], None],
) -> tuple[PatchProof, ...]:
    """Prove each set of the plan that isn't proven yet; its files must have been written.

    A proof is kept on the host for as long as neither the venv nor the sets nor any patched file
    change, so that one that was cut short, by Ctrl-C or a lost connection, is made up for by the
    next deploy.

    Raises:
        PreflightFailed: the scanner can't run there.
    """
    keys = _keys(facts, made)
    known: dict[str, bool] = {}
    if keys:
        answer = known_request(settings, facts, made).of(host)
        known = dict(zip(keys, answer["known"], strict=True))
    proofs = []
    for patch in made.sets:
        if known.get(patch.name):
            proofs.append(PatchProof(patch.name, (), (), before=True))
            continue
        if patch.name in keys:
            tell(f"proving {patch.name} in the host's own interpreter")
        proof = prove(host, settings, facts, patch)
        if not proof.against and patch.name in keys:
            key, value = keys[patch.name], proof.as_dict()
            host.call("proofs.keep", state=settings.state, key=key, proof=value)
        proofs.append(proof)
    return tuple(proofs)


def known_request(settings: HostSettings, facts: HostFacts, made: PatchPlan) -> Request:
    """What asks for the proofs that are kept; it holds up what is sent behind it where one isn't.

    ``made`` must have sets that something is to be proven of, see `asks`.
    """
    keys = list(_keys(facts, made).values())
    return Request("proofs.require", {"state": settings.state, "keys": keys})


def asks(made: PatchPlan) -> bool:
    """Whether the plan has sets whose proof needs the interpreter."""
    return any(patch.symbols or patch.traces for patch in made.sets)


def _keys(facts: HostFacts, made: PatchPlan) -> dict[str, str]:
    """For each set that has something to prove, all that its proof depends on."""
    return {
        patch.name: json.dumps(
            [facts.identity, made.names, patch.name, patch.digest, sorted(made.after.items())]
        )
        for patch in made.sets
        if patch.symbols or patch.traces
    }


def prove(host: Host, settings: HostSettings, facts: HostFacts, patch: PatchSet) -> PatchProof:
    """Import what the set patches, and trace it as piecewise CUDA graphs would.

    A set that names no function is proven by its files' hashes alone.

    Raises:
        PreflightFailed: the scanner can't run there, for instance because the package no longer
            imports.
    """
    asked = (*patch.symbols, *patch.traces)
    if not asked:
        return PatchProof(patch.name, (), ())
    short = patch.name.rpartition("/")[2]
    from remote import probe  # hardly ever: proofs are kept

    symbols = probe.prove(host, settings, facts, asked, short)
    return PatchProof(patch.name, symbols, tuple(_against(patch, symbols)))


def _against(patch: PatchSet, symbols: Sequence[SymbolProof]) -> list[str]:
    from remote.core.trace_report import Outcome

    against = []
    for found in symbols:
        if found.symbol not in patch.symbols:
            continue
        trace = found.trace
        if not found.ours:
            against.append(f"{found.symbol} is not the patch's own: {trace.reason}")
        elif patch.verdict == "works" and trace.outcome is not Outcome.TRACES:
            against.append(f"{found.symbol}: {trace.outcome.value}: {trace.reason}")
    return against


def described(proof: PatchProof) -> list[str]:
    """A proof as lines for a person."""
    lines = []
    for found in proof.symbols:
        trace = found.trace
        step = f" (step {trace.step})" if trace.step else ""
        at = f" at {trace.at}" if trace.at else ""
        nodes = f" as {', '.join(trace.nodes)}" if trace.nodes else ""
        lines.append(f"{found.symbol}: {trace.outcome.value}{step}{at}{nodes}")
    return lines
