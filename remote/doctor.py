"""`inv doctor`: everything about a host that a start may trip over, looked at and told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote import venv
from remote.clock import Clock
from remote.config import HostSettings
from remote.core import checks, doctor, environment
from remote.core.checks import Level, Line, Start
from remote.core.doctor import Imports, Pin, Way
from remote.display import Display
from remote.errors import PreflightFailed, SSHError, ToolError
from remote.host import Host
from remote.session import Session

_IMPORTS_SCRIPT = Path(__file__).parent / "payload" / "doctor_imports.py"
#: Importing from a cold disk takes a minute or two.
_IMPORTS_S = 180.0
_PINGS = 3


def examine(session: Session) -> dict[str, Any]:
    """Look at everything, and show each check on a line.

    Returns:
        ``lines``, and ``failures`` and ``warnings`` by count.
    """
    lines = _looked_at(session)
    show(session.display, lines)
    count = {level: sum(line.level is level for line in lines) for level in Level}
    summary = f"{count[Level.FAILURE]} failures, {count[Level.WARNING]} warnings"
    tell = session.display.warn if count[Level.FAILURE] else session.display.good
    tell(f"{session.host_settings.name}: {summary}")
    return {
        "host": session.host_settings.name,
        "lines": [line.as_dict() for line in lines],
        "failures": count[Level.FAILURE],
        "warnings": count[Level.WARNING],
    }


def show(display: Display, lines: list[Line]) -> None:
    """Every line, its remedy and evidence below it."""
    for line in lines:
        display.judged(line.level.value, f"{line.check}: {line.text}")
        for quoted in line.evidence:
            display.say(f"           {quoted}")
        if line.remedy:
            display.say(f"         → {line.remedy}")


def _looked_at(session: Session) -> list[Line]:
    host, settings, display = session.host, session.host_settings, session.display
    lines: list[Line] = []
    try:
        with display.working(f"looking at {settings.name}"):
            display.tell("connecting")
            lines += doctor.way_lines(way(host, session.clock))
            display.tell("reading the host")
            facts = venv.survey(host, settings)
            env = {n: v for n, v in settings.overrides.env.items() if v is not None}
            start = _start(settings)
            found = {**facts.raw["model"], **_model(host, settings, env)}
            lines += [line for line in doctor.host_lines(facts, start) if line.check != "model"]
            lines += doctor.model(found, start)
            display.tell("importing torch, FlashInfer and SGLang there")
            lines += doctor.torch_lines(facts, imports(host, settings, env))
            if facts.version("sglang") is not None:
                pins = requirements(host, settings, facts.python_version)
                unmet = [pin for pin in pins if not met(pin)]
                lines.append(doctor.pin_line(pins, unmet))
    except SSHError as error:
        lines.append(_from_error("ssh", error))
    except PreflightFailed as error:
        lines.append(_from_error("venv", error))
    return lines


def _from_error(check: str, error: ToolError) -> Line:
    return checks.failure(check, error.message, error.hint, *error.evidence)


def _start(settings: HostSettings) -> Start:
    """A start that takes what the host's entry says, on all GPUs."""
    flags = settings.overrides.flags
    variables = {n: v for n, v in settings.overrides.env.items() if v is not None}
    words = [
        word
        for name, value in flags.items()
        if isinstance(value, (str, bool)) and value
        for word in (f"--{name}", *([value] if isinstance(value, str) else []))
    ]
    planned = Start.from_plan(settings.name, settings.port, words, variables)
    sized = {"tp-size", "tensor-parallel-size", "tp"} & flags.keys()
    return planned if sized else checks.on_all_gpus(planned)


def way(host: Host, clock: Clock) -> Way:
    """The connection, and the best of a few questions for the host's time."""
    link = host.link()
    best, off = float("inf"), 0.0
    for _ in range(_PINGS):
        asked, began = clock.wall_s(), clock.monotonic_s()
        there = float(host.call("doctor.clock")["now"])
        took = clock.monotonic_s() - began
        if took < best:
            best, off = took, there - (asked + took / 2)
    return Way(link.address, link.login, link.host_key, link.accepts_new_keys, best, off, best / 2)


def _model(host: Host, settings: HostSettings, env: Mapping[str, str]) -> dict[str, Any]:
    found = host.call("doctor.whole_model", model=settings.model, variables=dict(env))
    told = {"files": found["files"]}
    return {**told, "path": found["path"]} if found["path"] else told


def imports(
    host: Host, settings: HostSettings, env: Mapping[str, str], timeout_s: float = _IMPORTS_S
) -> Imports:
    """Import what a server imports, in the host's own interpreter."""
    fixed = environment.fixed(settings.venv, settings.cuda_home)
    answer = host.call(
        "doctor.imports",
        data=_IMPORTS_SCRIPT.read_bytes(),
        venv=settings.venv,
        env={**fixed, **env},
        timeout_s=timeout_s,
    )
    return doctor.read_imports(answer, timeout_s)


def requirements(host: Host, settings: HostSettings, python_version: str) -> list[Pin]:
    """What the installed SGLang requires there, without its extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    answer = host.call("doctor.requirements", venv=settings.venv)
    there = {
        "python_version": ".".join(python_version.split(".")[:2]),
        "python_full_version": python_version,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": answer["machine"],
        "extra": "",
    }
    pins = []
    for text in answer["requires"]:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is None or wanted.marker.evaluate(there):
            name = wanted.name.replace("_", "-").replace(".", "-").lower()
            pins.append(Pin(name, str(wanted.specifier), answer["installed"].get(name)))
    return pins


def met(pin: Pin) -> bool:
    """Whether what is installed is what is wanted; a build's own suffix (``+cu128``) is none."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    if pin.installed is None:
        return False
    try:
        return SpecifierSet(pin.wanted).contains(Version(pin.installed), prereleases=True)
    except InvalidVersion:
        return False
