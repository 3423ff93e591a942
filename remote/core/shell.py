"""Commands are lists until the wire; here, and only here, they are quoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from remote.errors import ConfigError

#: Option, header and variable names whose value is never shown. A token is one at the name's end
#: (`HF_TOKEN`); SGLang's flags about tokens and tokenizers (`--max-total-tokens`) hold no secret.
_SECRET_NAME = re.compile(
    r"secret|passw|api[-_]?key|authorization|credential|(?<!per[-_])(?<!first[-_])token\Z",
    re.IGNORECASE,
)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SOURCE = re.compile(r"\{\s*(?:env|file|command)\s*:")
MASK = "***"


def quote(value: str) -> str:
    """One word for a POSIX shell, whatever it holds.

    Raises:
        ConfigError: the value holds a NUL, which no command can carry.
    """
    if "\0" in value:
        raise ConfigError("a value holds a NUL character, which no command line can carry")
    return shlex.quote(value)


def join(command: Sequence[str]) -> str:
    """A command as one line of shell, each word quoted once."""
    return " ".join(quote(word) for word in command)


def variable_name(name: str) -> str:
    """The name itself, where a shell takes it as a variable.

    Raises:
        ConfigError: it is not a name (``A-Z a-z 0-9 _``, not starting with a digit).
    """
    if not _VARIABLE_NAME.match(name):
        raise ConfigError(f"{name!r} is not a name for an environment variable")
    return name


def assignments(env: Mapping[str, str]) -> list[str]:
    """``NAME=quoted`` words in the order given."""
    return [f"{variable_name(name)}={quote(value)}" for name, value in env.items()]


def is_secret(name: str) -> bool:
    """Whether a variable or option of that name holds something not to be shown."""
    return _SECRET_NAME.search(name) is not None


def masked_env(env: Mapping[str, str], secret: Callable[[str], bool] = is_secret) -> dict[str, str]:
    """The environment as it may be shown; ``secret`` tells by its name what is one."""
    return {name: MASK if secret(name) and value else value for name, value in env.items()}


def masked_setting(word: str, secret: Callable[[str], bool] = is_secret) -> str:
    """A ``key=value`` word as it may be shown or kept; of ``env.NAME`` the name counts too."""
    name, equals, value = word.partition("=")
    # Where a secret is kept is none: the word is needed to do the same once more.
    hidden = not says_where(value) and (secret(name) or secret(name.rpartition(".")[2]))
    return f"{name}={MASK}" if equals and value and hidden else word


def says_where(value: str) -> bool:
    """Whether the value of such a word names where a secret is kept: ``{env: HF_TOKEN}``."""
    return _SOURCE.match(value) is not None


def masked(command: Sequence[str], secret: Callable[[str], bool] = is_secret) -> list[str]:
    """The command as it may be shown: the values of secret options replaced."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide_next:
            shown.append(MASK)
            hide_next = False
        elif word.startswith("-") and secret(name):
            shown.append(f"{name}={MASK}" if equals else word)
            hide_next = not equals
        else:
            shown.append(word)
    return shown
