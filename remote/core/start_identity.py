"""When two starts are the same start: script, environment and patches, compared exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remote.core.host_facts import HostFacts

_RUN, _FOLDER = "<run>", "<run folder>"


def normal_script(script: str, run: str, folder: str = "") -> str:
    """A start script without what differs from run to run: its id and its folder.

    Args:
        folder: the run's folder on the host, where it is known.
    """
    if folder:
        script = script.replace(folder, _FOLDER)
    return script.replace(run, _RUN)


def script_identity(script: str, run: str) -> str:
    """A hash that is equal for two starts of the same script; secrets must be masked already."""
    return _hash(normal_script(script, run))


def fingerprint(facts: HostFacts, patches: Mapping[str, str]) -> dict[str, Any]:
    """The environment of a start, by name; what the host lacks is left out.

    Args:
        patches: each set that is applied, in their order, with the hash of what it writes.

    Returns:
        ``driver``, ``cuda``, ``gpus`` (their names), ``python``, every known distribution's
        version, ``<distribution> commit`` for a checkout, ``venv`` (a hash of what is installed)
        and ``patches``.
    """
    found: dict[str, Any] = {
        "driver": facts.gpus[0].driver if facts.gpus else None,
        "cuda": facts.raw.get("cuda", {}).get("version"),
        "gpus": [gpu.name for gpu in facts.gpus],
        "python": facts.python_version,
    }
    for name, distribution in sorted(facts.distributions.items()):
        found[name] = distribution["version"]
        if distribution.get("commit"):
            found[f"{name} commit"] = distribution["commit"]
    found["venv"] = facts.identity
    found["patches"] = dict(patches)
    return {name: value for name, value in found.items() if value is not None}


def identity(host: str, script: str, environment: Mapping[str, Any]) -> str:
    """Equal for two starts of one script in one environment on one host.

    Args:
        script: its `script_identity`.
        environment: its `fingerprint`; the order of the patches counts.
    """
    patches = list(environment.get("patches", {}).items())
    return _hash(json.dumps([host, script, {**environment, "patches": patches}], sort_keys=True))


def unseen(facts: HostFacts) -> str:
    """What a fingerprint can't tell apart on this host, to be said where two are called equal."""
    edited = [name for name, found in facts.distributions.items() if found.get("editable")]
    if not edited:
        return ""
    return f" (as far as the last commit of {', '.join(sorted(edited))} tells; edits since don't)"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in two environments; None where one of them lacks it."""

    what: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.what}: {self.was or 'none'} → {self.now or 'none'}"

    def as_dict(self) -> dict[str, str | None]:
        return {"what": self.what, "was": self.was, "now": self.now}


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What differs between two fingerprints, patches one by one."""
    before, after = dict(_flat(was)), dict(_flat(now))
    found = [
        Difference(what, before.get(what), after.get(what))
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    ]
    order = [list(each.get("patches", {})) for each in (was, now)]
    if order[0] != order[1] and sorted(order[0]) == sorted(order[1]):
        found.append(Difference("order of patches", *(", ".join(names) for names in order)))
    return tuple(found)


def _flat(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if name == "patches":
            yield from ((f"patch {patch}", digest[:12]) for patch, digest in value.items())
        elif name == "gpus":
            yield "GPUs", in_words(value) if value else ""
        elif name == "venv":
            yield "what is installed in the venv", str(value)[:12]
        else:
            yield name, str(value)


def in_words(gpus: list[str]) -> str:
    """GPUs by name and number: ``2 × NVIDIA H200``."""
    return ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)) or "none"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
