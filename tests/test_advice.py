"""What errors and diagnoses tell a user to run is something that this tool knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tasks
from remote import profile
from remote.config import TEMPLATES
from remote.core.intents import INTENTS

ROOT = Path(__file__).parents[1]
SOURCES = [*sorted((ROOT / "remote").rglob("*.py")), ROOT / "README.md", ROOT / "docs/fp4-story.md"]
TASKS = {"--list", "--help", *tasks.ns.task_names, "patch"} | {
    alias for aliases in tasks.ns.task_names.values() for alias in aliases
}
PLACEHOLDERS = {"PROFILE", "NAME", "TASK"}


def found(pattern: str) -> list[tuple[str, str]]:
    return [
        (path.name, match)
        for path in SOURCES
        for match in re.findall(pattern, " ".join(path.read_text("utf-8").split()))
    ]


def test_every_task_named_anywhere_exists() -> None:
    named = found(r"\binv(?:oke)? ((?:--)?[a-z][a-z.-]*[a-z])\b")
    assert len(named) > 50
    assert [each for each in named if each[1] not in TASKS] == []


def test_every_profile_named_in_a_deploy_exists() -> None:
    known = {*profile.names([TEMPLATES]), *PLACEHOLDERS}
    named = found(r"\binv deploy ([A-Za-z][A-Za-z-]*)")
    assert named and [each for each in named if each[1] not in known] == []


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.23"])
def test_every_setting_in_advice_is_an_intent_a_variable_or_a_flag(version: str) -> None:
    flags = json.loads((ROOT / "tests" / "cases" / "flags" / f"{version}.json").read_text())
    named = [key for _, key in found(r"--set ([a-zA-Z][\w.-]*)=[^\s…]")]
    assert len(named) > 5
    known = {*INTENTS, *(flags.get("flags") or flags)}
    unknown = [key for key in named if key not in known and not key.startswith("env.")]
    assert [key for key in unknown if key not in ("key", "want.x", "flags.x")] == []
