"""Secrets given to a server: where they come from, and the two files they travel in.

A setting names where a secret is kept here instead of holding it: ``{env: HF_TOKEN}``,
``{file: ~/.hf-token}`` or ``{command: pass show hf}``. On the host variables stand in
``secrets.env``, which the start script reads, and flags in ``secrets.yaml``, which SGLang reads
by ``--config``; so none stands in a script or on a command line.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remote.core.fields import Fields, described, is_source
from remote.core.shell import assignments
from remote.errors import ConfigError

#: The file of variables, and the one of flags: SGLang takes only names that end so.
ENV_FILE = "secrets.env"
CONFIG_FILE = "secrets.yaml"
#: A flag that SGLang can't read from a file reaches the command line by such a variable.
VARIABLE = "SGLANG_REMOTE_SECRET_{}"


@dataclass(frozen=True)
class SecretSource:
    """Where a secret is kept on this machine: a variable, a file, or what a command prints."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{{{self.kind}: {self.what}}}"


@dataclass(frozen=True)
class Secrets:
    """The secrets of one start; never shown.

    Attributes:
        environment: variables.
        flags: without dashes, for SGLang's config file.
        words: values on the command line, by the variable that they are put there with.
    """

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    flags: Mapping[str, str] = field(default_factory=dict, repr=False)
    words: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def values(self) -> tuple[str, ...]:
        return (*self.environment.values(), *self.flags.values(), *self.words.values())

    def files(self) -> dict[str, bytes]:
        """The files by name; one that would be empty is left out.

        Raises:
            ConfigError: a value that no variable can hold.
        """
        found = {}
        variables = {**self.environment, **self.words}
        if variables:
            lines = [f"export {each}\n" for each in assignments(variables)]
            found[ENV_FILE] = "".join(lines).encode("utf-8", "surrogateescape")
        if self.flags:
            found[CONFIG_FILE] = json.dumps(dict(self.flags)).encode()  # YAML reads JSON
        return found


def read_sources(fields: Fields) -> dict[str, SecretSource]:
    """Those of the section's settings that say where a secret is; wrong ones are noted."""
    read = {}
    for name, value in fields.entries().items():
        if not (is_source(value) and isinstance(value, Mapping)):
            continue
        kind, what = next(iter(value.items()))
        if isinstance(what, str) and what.strip():
            read[name] = SecretSource(str(kind), what.strip())
        else:
            fields.problem(f"{name}.{kind}", f"wanted text, found {described(what)}")
    return read


def divided(
    argv: Sequence[str], secret: Callable[[str], bool], *, by_file: bool
) -> tuple[list[str | None], Secrets]:
    """A command line without its secrets, and those.

    Args:
        secret: tells by a flag's name, without dashes.
        by_file: the installed SGLang reads flags from a file.

    Returns:
        The words, None in place of each secret that must stand on the command line (in the order
        of ``words``); and the secrets.
    """
    shown: list[str | None] = []
    flags: dict[str, str] = {}
    words: dict[str, str] = {}
    for name, value, tied in _flags(argv):
        if name is None or value is None or not secret(name):
            shown += _said(name, value, tied)
        elif by_file and _fits_a_file(value):
            flags[name] = value
        else:
            words[VARIABLE.format(len(words) + 1)] = value
            shown += [f"--{name}", None]
    return shown, Secrets(flags=flags, words=words)


def _flags(argv: Sequence[str]) -> Iterator[tuple[str | None, str | None, bool]]:
    """Each flag with its value, and whether they were one word; other words as values alone."""
    position = 0
    while position < len(argv):
        word = argv[position]
        following = argv[position + 1] if position + 1 < len(argv) else None
        position += 1
        if not word.startswith("--"):
            yield None, word, False
        elif "=" in word:
            name, _, value = word.partition("=")
            yield name[2:], value, True
        elif following is not None and not following.startswith("--"):
            position += 1
            yield word[2:], following, False
        else:
            yield word[2:], None, False


def _said(name: str | None, value: str | None, tied: bool) -> list[str]:
    if name is None:
        return [value or ""]
    if value is None:
        return [f"--{name}"]
    return [f"--{name}={value}"] if tied else [f"--{name}", value]


def _fits_a_file(value: str) -> bool:
    """Whether SGLang's reader hands it on as it is: it makes words of a command line of them."""
    return value.isascii() and value.isprintable() and not value.startswith("-")


def values_in(files: Mapping[str, str]) -> list[str]:
    """The secrets that such files hold; damaged ones as far as they can be read."""
    found = []
    with contextlib.suppress(ValueError):
        for word in shlex.split(files.get(ENV_FILE, "")):
            _, equals, value = word.partition("=")
            found += [value] if equals else []
    with contextlib.suppress(ValueError, AttributeError):
        found += [str(value) for value in json.loads(files.get(CONFIG_FILE) or "{}").values()]
    return found


def refuse_template(script: str, secrets: Secrets) -> None:
    """Refuse a start script that would start the server without its secrets.

    Raises:
        ConfigError: the template reads no file of secrets.
    """
    if (secrets.environment or secrets.words) and ENV_FILE not in script:
        raise ConfigError(
            f"the template launch.sh.j2 does not read {ENV_FILE}, in which secrets travel",
            hint=f"put `. ./{ENV_FILE} || exit 1` before the server's start, as templates/ has it",
        )
