"""Secrets read on this machine: from a variable, a file, or what a command prints."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from remote.core.secret_values import SecretSource
from remote.errors import ConfigError

#: A password manager may ask for its own passphrase first.
_COMMAND_S = 120.0


def read(source: SecretSource, where: str) -> str:
    """The secret, without the newline at its end.

    Args:
        where: the setting that names the source, for the error.

    Raises:
        ConfigError: there is none; what a failed command printed is not repeated.
    """
    text = {"env": _variable, "file": _file, "command": _printed}[source.kind](source.what, where)
    value = text[:-1] if text.endswith("\n") else text
    value = value[:-1] if value.endswith("\r") else value
    if not value.strip():
        raise ConfigError(f"{where}: {source} is empty")
    return value


def _variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise ConfigError(
            f"{where}: the environment here has no {name}", hint=f"export {name}=… first"
        )
    return os.environ[name]


def _file(name: str, where: str) -> str:
    try:
        return Path(name).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{where}: {name} can't be read: {reason}") from error


def _printed(command: str, where: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_COMMAND_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{where}: {command!r} ended with {error.returncode}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = "took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ConfigError(f"{where}: {command!r} can't be run: {reason}") from None
    return done.stdout
