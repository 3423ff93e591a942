"""A refusal that keeps its exit code on the way to the client."""

from __future__ import annotations

from collections.abc import Sequence


class Refused(Exception):
    """What a payload function will not do; the client raises ``kind`` of `remote/errors.py`."""

    def __init__(
        self, kind: str, message: str, evidence: Sequence[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.evidence = list(evidence)
        self.hint = hint
