"""Intents and raw flags to the command line of the SGLang that is installed, and back.

:func:`plan` makes the command line before the start; :func:`check_intent` asks afterwards
whether the server does what was wanted: that a parser knows a flag is not yet its meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.core.flag_table import (
    CannotSay,
    Expected,
    FlagSpec,
    InstalledParser,
    flags_of,
    ignored,
    say,
)
from remote.core.intents import INTENTS, FlagValue, Want, shown
from remote.core.layers import Sourced
from remote.core.log_events import GraphLines
from remote.core.nearest import did_you_mean
from remote.errors import PreflightFailed

_HUMAN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?[kKmMgGtT]?i?\Z")


@dataclass(frozen=True)
class ServerAddress:
    """What follows from the host's entry: the model and where the server listens."""

    model: str
    bind: str
    port: int


@dataclass(frozen=True)
class Decision:
    """What becomes of one intent on this host.

    Attributes:
        wanted: as the profile has it, None where nothing asked for it.
        source: the layer that asked, None as above.
        planned: what the command line now says; None leaves it to raw flags.
        flags: its words on the command line, none where SGLang's default does it.
        reason: why this flag, or why not as wanted.
        expects: what the started server must report.
    """

    intent: str
    wanted: Want | None
    source: str | None
    planned: Want | None
    flags: tuple[str, ...]
    reason: str
    expects: tuple[Expected, ...] = ()

    @property
    def as_wanted(self) -> bool:
        """Whether the server is going to be told what was wanted."""
        return self.wanted is None or self.wanted == self.planned

    def as_dict(self) -> dict[str, object]:
        """The shape printed with ``--json``."""
        return {
            "intent": self.intent,
            "wanted": self.wanted,
            "source": self.source,
            "planned": self.planned,
            "flags": list(self.flags),
            "reason": self.reason,
            "expects": [{"paths": e.paths, "values": e.values} for e in self.expects],
        }

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Decision:
        """From `as_dict`, also after a trip through JSON."""
        return cls(
            intent=known["intent"],
            wanted=known["wanted"],
            source=known["source"],
            planned=known["planned"],
            flags=tuple(known["flags"]),
            reason=known["reason"],
            expects=tuple(
                Expected(tuple(each["paths"]), tuple(each["values"])) for each in known["expects"]
            ),
        )


@dataclass(frozen=True)
class FlagPlan:
    """The words after ``python -m sglang.launch_server``, and why they are there."""

    argv: tuple[str, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Mismatch:
    """An intent that the started server does not follow."""

    intent: str
    wanted: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.intent}: wanted {self.wanted}, but the server has {self.found}"


def plan(
    wants: Mapping[str, Sourced[Want]],
    flags: Mapping[str, Sourced[FlagValue]],
    parser: InstalledParser,
    unavailable: Mapping[str, str],
    server: ServerAddress,
    *,
    host: str | None = None,
) -> FlagPlan:
    """The server's command line.

    A raw flag that speaks about an intent goes before the intent: it says exactly what it says.

    Args:
        wants: the profile's intents.
        flags: the profile's raw flags, without dashes.
        unavailable: intents that this host can't follow, and why.
        host: its name, for the error.

    Raises:
        PreflightFailed: flags the parser doesn't know, values it doesn't take, intents it can't
            be told; all of them, each with the nearest that it does know.
    """
    problems: list[str] = []
    raw = {name: flag for name, flag in flags.items() if flag.value is not False}
    decisions: list[Decision] = []
    words: dict[str, FlagValue] = {}
    for intent in INTENTS:
        decision, spelled = _decide(intent, wants, raw, parser, unavailable, decisions, problems)
        if decision is not None:
            decisions.append(decision)
            words.update(spelled)
    for name, flag in raw.items():
        problem = _problem(name, flag.value, parser)
        if problem:
            problems.append(f"{problem} ({flag.source})")
        words[name] = flag.value
    if problems:
        count = "a flag" if len(problems) == 1 else f"{len(problems)} flags"
        raise PreflightFailed(
            f"the installed SGLang {parser.version} does not take {count} of this profile",
            host=host,
            evidence=problems,
            hint="nothing was touched; change the profile, the host's entry or --set",
        )
    argv = [
        *_words("model-path", server.model),
        *_words("host", server.bind),
        *_words("port", str(server.port)),
    ]
    for name, value in words.items():
        argv += _words(name, value)
    return FlagPlan(tuple(argv), tuple(decisions))


def check_intent(
    decisions: Sequence[Decision], server_args: Mapping[str, object], captured: GraphLines
) -> tuple[Mismatch, ...]:
    """Where the started server does otherwise than planned.

    Args:
        decisions: the plan's.
        server_args: the ``server_args=`` line, as :mod:`remote.core.server_args` reads it.
        captured: the capture lines up to the ready line.
    """
    graphs: dict[str, object] = {
        "decode": bool(captured.decode),
        "prefill": bool(captured.prefill),
    }
    if captured.prefill_backend is not None:
        graphs["prefill_backend"] = captured.prefill_backend
    report = {**server_args, "captured": graphs}
    mismatches = []
    for decision in decisions:
        wrong = [
            (expected, path, found)
            for expected in decision.expects
            for path, found in _reported(report, expected.paths)
            if found not in expected.values
        ]
        if wrong:
            mismatches.append(
                Mismatch(
                    intent=decision.intent,
                    wanted=shown(decision.planned),
                    expected=", ".join(str(expected) for expected, _, _ in wrong),
                    found=", ".join(f"{path}={found}" for _, path, found in wrong),
                )
            )
    return tuple(mismatches)


def flag_lines(argv: Sequence[str]) -> list[list[str]]:
    """The command line by flag: each begins with its ``--name``, its values behind it."""
    lines: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return lines


def _decide(
    intent: str,
    wants: Mapping[str, Sourced[Want]],
    raw: Mapping[str, Sourced[FlagValue]],
    parser: InstalledParser,
    unavailable: Mapping[str, str],
    before: Sequence[Decision],
    problems: list[str],
) -> tuple[Decision | None, Mapping[str, FlagValue]]:
    """One intent's decision and its flags; no decision where there is nothing to say."""
    asked = wants.get(intent)
    want = None if asked is None else asked.value
    source = None if asked is None else asked.source
    told = [name for name in raw if name in flags_of(intent)]
    against = _against(intent, unavailable, before)
    if asked is None and (told or not against):
        return None, {}
    if told:
        left = ", ".join(f"--{name} ({raw[name].source})" for name in told)
        return Decision(intent, want, source, None, (), f"left to {left}"), {}
    target: Want = False if against or want is None else want
    try:
        spelling = say(intent, target, parser)
    except CannotSay as missing:
        problems.append(f"{intent}: {shown(target)}: {missing} ({source or against})")
        return None, {}
    if asked is None and not spelling.flags:
        return None, {}
    reason = against if against and want is not False else spelling.reason
    words = tuple(word for name, value in spelling.flags.items() for word in _words(name, value))
    return Decision(intent, want, source, target, words, reason, spelling.expects), spelling.flags


def _against(intent: str, unavailable: Mapping[str, str], before: Sequence[Decision]) -> str | None:
    """Why the intent can't be followed here."""
    if intent in unavailable:
        return unavailable[intent]
    if intent in ("piecewise_cuda_graph", "max_decode_batch") and any(
        decision.intent == "cuda_graph" and decision.planned is False for decision in before
    ):
        return "cuda_graph is off"
    return None


def _reported(report: Mapping[str, object], paths: Sequence[str]) -> list[tuple[str, object]]:
    """The first of these paths that the report holds, with its value; empty where none."""
    for path in paths:
        found: object = report
        for key in path.split("."):
            if not isinstance(found, Mapping) or key not in found:
                break
            found = found[key]
        else:
            return [(path, found)]
    return []


def _problem(name: str, value: FlagValue, parser: InstalledParser) -> str | None:
    """What the installed parser would say against this flag."""
    spec = parser.flags.get(name)
    if spec is None:
        return f"--{name}: unknown{did_you_mean(name, parser.flags, prefix='--')}"
    no_use = ignored(name, parser)
    if no_use:
        return f"--{name}: {no_use}"
    if isinstance(value, bool):
        return f"--{name}: wants a value" if spec.takes_value else None
    if not spec.takes_value:
        return f"--{name}: takes no value, only true or false"
    values = value if isinstance(value, tuple) else (value,)
    if len(values) > 1 and not spec.several:
        return f"--{name}: takes one value, not {len(values)}"
    for each in values:
        refused = spec.not_offered(each)
        if refused:
            return refused
        if not _converts(each, spec):
            return f"--{name}: {each!r} is no {spec.kind}"
        if isinstance(value, tuple) and each.startswith("-") and not _HUMAN_NUMBER.match(each):
            return f"--{name}: {each!r} in a list would be taken for a flag"
    return None


def _converts(text: str, spec: FlagSpec) -> bool:
    """Whether argparse's converter takes the text, for the converters known here."""
    if spec.kind == "human_readable_int":
        return _HUMAN_NUMBER.match(text.strip()) is not None
    converters: Mapping[str, Callable[[str], object]] = {
        "int": int,
        "float": float,
        "loads": json.loads,
    }
    converter = converters.get(spec.kind or "")
    if converter is None:
        return True
    try:
        converter(text)
    except ValueError:
        return False
    return True


def _words(name: str, value: FlagValue) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    if isinstance(value, tuple):
        return [f"--{name}", *value]
    # argparse takes a word that begins with a dash for a flag, unless it is tied to its own.
    return [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
