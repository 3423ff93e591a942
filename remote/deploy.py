"""One deploy carried out: push, patch, stop, start, follow to a verdict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from remote import patching, proving, server
from remote.clock import Clock
from remote.config import HostSettings
from remote.core.budgets import Budgets
from remote.core.host_facts import HostFacts
from remote.core.phases import READY_LINE
from remote.errors import PatchRefused, SSHError, ToolError
from remote.host import Host, Request
from remote.host_lock import RELEASE
from remote.patching import PatchPlan, PatchView
from remote.planning import Plan, files
from remote.proving import PatchProof
from remote.redial import through_losses
from remote.store import LocalRun

Tell = Callable[[str], None]


def carry_out(
    host: Host, made: Plan, local: LocalRun, clock: Clock, tell: Tell, timeout_s: float
) -> tuple[PatchProof, ...]:
    """Push, patch and prove, stop what makes way, start; the host's lock must be held.

    It asks for all of it in one flight, and behind it for what a deploy does next: to give the lock
    back and to follow the start.

    Raises:
        ToolError: a step failed. Patches are all or none; a server that was stopped stays so.
    """
    settings = made.settings
    local.scrubber.learn_script(made.script)
    local.scrubber.learn(made.secrets.values)
    local.write("launch.sh", local.scrubber.data(made.script.encode()))
    local.write_json("plan.json", {"run": made.run, "host": settings.name, **made.record()})
    local.write_json("facts.json", made.facts.raw)
    start = server.start_request(
        settings, made.run, made.script.encode(), made.record(), made.secrets.files()
    )
    stops = [server.stop_request(settings, previous) for previous in made.stops]
    check = server.readiness(settings, timeout_s, after=READY_LINE)
    follow = server.follow_request(settings, made.run, probe=check)
    restarting = [*stops, start, RELEASE, follow]
    host.ahead([*patch_requests(settings, made.facts, made.patches), *restarting])
    proofs = apply_patches(host, settings, made.facts, made.patches, made.seen, tell)
    if any(proof.symbols for proof in proofs):  # made now: what was sent behind it has waited
        host.ahead(restarting)
    for previous in made.stops:
        tell(f"stopping run {previous.run}")
        server.stop(host, settings, previous, clock, tell)
    tell(f"starting run {made.run}")
    start.of(host)
    return proofs


def follow(
    host: Host,
    settings: HostSettings,
    run: str,
    local: LocalRun,
    clock: Clock,
    timeout_s: float,
    watch: server.Watcher,
    budgets: Budgets | None = None,
) -> server.Verdict:
    """Follow a start to its verdict, keep its log here, and note the verdict on both sides."""
    with local.log() as log:
        verdict = server.until_ready(
            host, settings, run, clock, timeout_s, watch, log.write, budgets
        )
        log.reached(*verdict.log_end)
    verdict = verdict.scrubbed(local.scrubber.text)
    with suppress(ToolError):  # the host's disk may be full, and that be the very reason
        through_losses(host, clock, lambda: server.note(host, settings, run, verdict))
    local.write_json("verdict.json", verdict.as_dict())
    return verdict


def clear_away(
    host: Host, settings: HostSettings, run: str, clock: Clock, tell: Tell
) -> server.Stopped | None:
    """End what is left of a crashed server: it can't serve, and holds port and memory."""
    left = server.look(host, settings, run)
    if not left.alive:
        return None
    tell(f"ending the {len(left.pids)} processes left of it")
    return server.stop(host, settings, left, clock, tell)


def patch_requests(settings: HostSettings, facts: HostFacts, made: PatchPlan) -> list[Request]:
    """What `apply_patches` is going to ask, in its order."""
    requests = []
    if made.steps:
        requests.append(patching.commit_request(settings, made.steps, made.names))
    if proving.asks(made):
        requests.append(proving.known_request(settings, facts, made))
    return requests


def apply_patches(
    host: Host,
    settings: HostSettings,
    facts: HostFacts,
    made: PatchPlan,
    seen: PatchView,
    tell: Tell,
) -> tuple[PatchProof, ...]:
    """Write what the plan says and prove it; the host's lock must be held.

    Returns:
        A proof for each set, made now or before.

    Raises:
        PatchRefused: a file is not what the plan was made for, and nothing was changed; or the
            proof failed, and what was written now was put back.
    """
    if made.steps:
        tell(f"patching {files(len(made.steps))}")
        patching.commit(host, settings, made)
    try:
        proofs = proving.prove_all(host, settings, facts, made, tell)
        failed = [f"{proof.patch}: {each}" for proof in proofs for each in proof.against]
        if failed:
            raise PatchRefused(
                f"the patch is not proven{', and was put back' if made.steps else ''}",
                host=settings.name,
                evidence=failed,
                hint="inv probe shows what traces; inv patch lists the sets",
            )
    except SSHError:
        raise
    except Exception:
        if made.steps:
            patching.undo(host, settings, made, seen)
        raise
    return proofs
