"""A plan as a person reads it, and as `--json` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remote.core.intents import shown
from remote.core.unified_diff import between
from remote.display import Display
from remote.planning import Plan
from remote.planning import files as in_words
from remote.proving import PatchProof, described


def show_plan(display: Display, made: Plan) -> None:
    """What is going to be done, with the reason for every intent."""
    facts = made.facts
    versions = ", ".join(
        f"{label} {version}"
        for label, name in (
            ("SGLang", "sglang"),
            ("FlashInfer", "flashinfer-python"),
            ("torch", "torch"),
        )
        if (version := facts.version(name)) is not None
    )
    display.say(f"{made.settings.name} ({facts.user}@{facts.hostname}): {versions}")
    display.table(
        ("intent", "wanted", "planned", "flags", "why"),
        [
            (
                decision.intent,
                "" if decision.wanted is None else shown(decision.wanted),
                "" if decision.planned is None else shown(decision.planned),
                " ".join(decision.flags),
                decision.reason,
            )
            for decision in made.flags.decisions
        ],
    )
    for patch in made.patches.sets:
        files = [step for step in made.patches.steps if patch.name in step.sets]
        state = f"{in_words(len(files))} to write" if files else "applied already"
        display.say(f"patch {patch.name}: {patch.summary} ({state})")
        if patch.verdict == "fails":
            display.warn(f"{patch.name} is known to fail: {patch.outcome.strip()}")
    for step in made.patches.steps:
        if not step.sets:
            display.say(f"unpatch {step.path}: back to its original")
    for name, reason in made.patches.left_out:
        display.say(f"patch {name} left out: {reason}")
    if made.unchanged is None:
        for run in made.stops:
            display.say(f"stop run {run.run} ({run.state})")
    for warning in made.warnings:
        display.warn(warning)


def show_patch_diffs(display: Display, made: Plan) -> None:
    """Every file's diff."""
    for step in made.patches.steps:
        text = between(made.seen.found[step.path].base or b"", step.content or b"", step.path[1:])
        display.diff(text)


def show_proofs(display: Display, proofs: Sequence[PatchProof]) -> None:
    """What was proven of the patches just applied."""
    for proof in proofs:
        if proof.before:
            display.say(f"patch {proof.patch} is applied, and was proven for what is installed now")
            continue
        display.good(f"patch {proof.patch} is applied and proven")
        for line in described(proof):
            display.say(f"  {line}")


def plan_dict(made: Plan) -> dict[str, Any]:
    """The plan as `--json` prints it; secrets masked."""
    return {
        **made.record(),
        "run": made.run,
        "host": made.settings.name,
        "environment": made.record()["environment"],
        "patch_files": [
            {"path": s.path, "before": s.before, "after": s.after, "sets": list(s.sets)}
            for s in made.patches.steps
        ],
        "patches_left_out": dict(made.patches.left_out),
        "stops": [run.run for run in made.stops],
        "warnings": list(made.warnings),
    }
