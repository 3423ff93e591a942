"""What a rule is: a kind of failure, the signs it is known by, and what to tell about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from remote.core.phases import Phase


class Confidence(str, Enum):
    """How far a verdict may be trusted."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Where(str, Enum):
    """Which text a sign is looked for in."""

    #: The exceptions of the deciding traceback, each as ``type: message``, from the origin on.
    EXCEPTION = "exception"
    #: Its frames, one ``package/path.py:function`` a line, traced user code included.
    FRAMES = "frames"
    #: Lines outside tracebacks, stacks of native code included.
    LINE = "line"
    #: Exceptions first, then lines.
    ANYWHERE = "anywhere"


@dataclass(frozen=True)
class Sign:
    """One way in which a kind shows itself.

    A pattern may name groups: they fill the rule's sentence. All conditions must hold.
    """

    pattern: str
    where: Where = Where.EXCEPTION
    unless: str | None = None  #: not if this stands in the same text
    frames: str | None = None  #: only if the deciding traceback went through such a frame
    not_frames: str | None = None  #: not if it did
    phases: frozenset[Phase] | None = None  #: only if it happened in one of these
    whole: bool = False  #: only on lines that are not cut off in the middle
    alone: bool = False  #: only if no traceback explains the failure
    confidence: Confidence = Confidence.HIGH

    def find(self, text: str) -> re.Match[str] | None:
        """The sign in a text, if it is there and nothing forbids it."""
        found = _compiled(self.pattern).search(text)
        if found is None or (self.unless and _compiled(self.unless).search(text)):
            return None
        return found


_CACHE: dict[str, re.Pattern[str]] = {}


def _compiled(pattern: str) -> re.Pattern[str]:
    known = _CACHE.get(pattern)
    if known is None:
        known = _CACHE[pattern] = re.compile(pattern, re.MULTILINE)
    return known


@dataclass(frozen=True)
class Rule:
    """A kind of failure.

    ``cause`` and ``advice`` may use the groups of the sign that matched, in braces.
    """

    kind: str
    cause: str  #: one sentence
    advice: tuple[str, ...]  #: what to try next, best first
    signs: tuple[Sign, ...] = ()
    foremost: bool = False  #: explains whatever else there is a sign of
    #: Kinds it is easily taken for → why it isn't.
    taken_for: Mapping[str, str] = field(default_factory=dict)


def during(*phases: Phase) -> frozenset[Phase]:
    """A condition on the phase."""
    return frozenset(phases)


STARTING = frozenset(set(Phase) - {Phase.READY, Phase.SERVING})
CAPTURING = during(Phase.DECODE_CAPTURE, Phase.PREFILL_CAPTURE)
