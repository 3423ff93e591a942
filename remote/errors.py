"""Every failure this tool reports, as a tree; each class fixes the exit code of the task.

::

    ToolError (1)
    ├── ConfigError (2)            a setting, profile, template or argument is wrong
    ├── Regression (3)             slower than allowed, or the output differs
    ├── MeasurementInvalid (4)     a benchmark is invalid or incomplete
    ├── ServerCrashed (10)         the server died or printed a fatal line
    ├── ServerHung (11)            past its budget with no heartbeat
    ├── NotReady (12)              not ready in time
    ├── PatchRefused (13)          a patch does not apply, or its proof failed
    ├── PreflightFailed (14)       the host lacks something the start needs
    ├── Locked (15)                another person's task holds the host
    └── SSHError (255)
        ├── Unreachable            no TCP connection, or no SSH behind it
        ├── HostKeyRefused         unknown, changed or revoked host key
        ├── AuthenticationFailed   no key or password was accepted
        └── ConnectionLost         the link died in the middle of a task
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OK = 0
INTERRUPTED = 130


class ToolError(Exception):
    """One clear failure: what failed, where, the evidence, and the next step.

    Args:
        message: what failed, one sentence.
        host: the configured name of the host it failed on, if one was involved.
        evidence: lines quoted from the host or a file, verbatim.
        hint: the next step, as a sentence or a command.
        details: more for ``--json``, by key.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        evidence: Sequence[str] = (),
        hint: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.evidence = tuple(evidence)
        self.hint = hint
        self.details = dict(details or {})

    def as_dict(self) -> dict[str, object]:
        """The shape printed under ``error`` with ``--json``."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "host": self.host,
            "evidence": list(self.evidence),
            "hint": self.hint,
            "exit_code": self.exit_code,
            **self.details,
        }


class ConfigError(ToolError):
    """A setting, profile, template or argument is wrong."""

    exit_code = 2


class Regression(ToolError):
    """The candidate is slower than allowed, or its output differs."""

    exit_code = 3


class MeasurementInvalid(ToolError):
    """A benchmark is invalid or incomplete."""

    exit_code = 4


class ServerCrashed(ToolError):
    """The server process died, or printed a line after which it can't serve."""

    exit_code = 10


class ServerHung(ToolError):
    """The server passed its budget without a sign of work."""

    exit_code = 11


class NotReady(ToolError):
    """The server was still starting when the time allowed ran out."""

    exit_code = 12


class PatchRefused(ToolError):
    """A patch does not apply exactly, or its proof failed and it was rolled back."""

    exit_code = 13


class PreflightFailed(ToolError):
    """The host lacks something the start needs; nothing was touched."""

    exit_code = 14


class Locked(ToolError):
    """Another person's task holds the host."""

    exit_code = 15


class SSHError(ToolError):
    """Anything between here and a shell on the host."""

    exit_code = 255


class Unreachable(SSHError):
    """No TCP connection, or no SSH server behind it."""


class HostKeyRefused(SSHError):
    """The host's key is unknown, changed or revoked."""


class AuthenticationFailed(SSHError):
    """The server accepted none of the keys offered."""


class ConnectionLost(SSHError):
    """The link died in the middle of a task."""
