"""Named profiles: what is wanted of the server, laid over one another in a known order.

Lowest to highest: the profiles along ``extends``, the host's ``want``, ``flags`` and ``env``,
its ``profiles.NAME``, and ``--set``. Every value keeps the layer it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from remote import config, secret_sources
from remote.config import HostSettings, Overrides
from remote.core.fields import Fields, Problems, described
from remote.core.intents import INTENTS, FlagValue, Want, read_flags, read_wants
from remote.core.layers import Sourced, overlay
from remote.core.nearest import did_you_mean
from remote.core.secret_values import SecretSource, read_sources
from remote.core.shell import is_secret, says_where
from remote.errors import ConfigError

T = TypeVar("T")
#: A layer's name, its settings that hold a value, and those that say where a secret is kept.
_Layer: TypeAlias = "tuple[str, Mapping[str, T | None], Mapping[str, SecretSource]]"

#: How long a start may take where no profile in the chain says it.
READY_TIMEOUT_S = 1800.0

_PATCH = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """A profile as it applies to one host.

    Attributes:
        chain: the profiles it is made of, the base first, itself last.
        patches: ``distribution/name``, in the order they apply.
        ready_timeout_s: the time a start may take.
        secret_flags, secret_env: those whose values came from where a secret is kept.
    """

    name: str
    description: str
    chain: tuple[str, ...]
    want: Mapping[str, Sourced[Want]]
    flags: Mapping[str, Sourced[FlagValue]]
    env: Mapping[str, Sourced[str]]
    patches: tuple[str, ...]
    ready_timeout_s: float
    secret_flags: frozenset[str] = frozenset()
    secret_env: frozenset[str] = frozenset()

    @property
    def environment(self) -> dict[str, str]:
        """The server's own variables, without where they came from."""
        return {name: setting.value for name, setting in self.env.items()}


@dataclass(frozen=True)
class _File:
    """One profile's file as it stands; None where it doesn't say."""

    name: str
    path: Path
    description: str
    extends: str | None
    want: Mapping[str, Want | None]
    flags: Mapping[str, FlagValue | None]
    env: Mapping[str, str | None]
    secret_flags: Mapping[str, SecretSource]
    secret_env: Mapping[str, SecretSource]
    patches: tuple[str, ...] | None
    ready_timeout_s: float | None


def names(folders: Sequence[Path]) -> list[str]:
    """The profiles in ``profiles/`` of these template folders, sorted."""
    found = {path.stem for folder in folders for path in (folder / "profiles").glob("*.yaml")}
    return sorted(found)


def description(name: str, folders: Sequence[Path]) -> str:
    """What a profile's file says it is.

    Raises:
        ConfigError: no such profile, or something is wrong in its file.
    """
    return _chain(name, folders)[-1].description


def require_known(raw: Mapping[str, object], project: Path, name: str) -> None:
    """Refuse a profile that there isn't, before anything else is looked at.

    Args:
        raw, project: see `config.load`.

    Raises:
        ConfigError: no such profile, with the nearest right name, or its file is wrong.
    """
    description(name, config.load(raw, project).template_folders)


def load(
    name: str, folders: Sequence[Path], host: HostSettings, sets: Sequence[str] = ()
) -> Profile:
    """The profile as it applies to ``host``.

    Args:
        folders: template folders; the first that holds ``profiles/NAME.yaml`` gives it.
        sets: ``key=value`` words; the key is ``want.x``, ``flags.x``, ``env.X``, or an intent's
            or a flag's bare name, the value a YAML scalar or list, ``null`` to take it away.

    Raises:
        ConfigError: no such profile, a cycle of ``extends``, or anything wrong in a file or word.
    """
    chain = _chain(name, folders)
    known = names(folders)
    for other in host.profiles:
        if other not in known:
            where = f"hosts.{host.name}.profiles.{other}"
            raise ConfigError(f"{where}: no such profile{did_you_mean(other, known)}")
    layers: list[tuple[str, _File | Overrides]] = [(f"profile {file.name}", file) for file in chain]
    layers.append((f"host {host.name}", host.overrides))
    if name in host.profiles:
        layers.append((f"host {host.name}, profile {name}", host.profiles[name]))
    layers.append(("--set", _sets(sets)))
    patches = [file.patches for file in chain if file.patches is not None]
    timeouts = [file.ready_timeout_s for file in chain if file.ready_timeout_s is not None]
    flag_layers: list[_Layer[FlagValue]] = [
        (source, each.flags, each.secret_flags) for source, each in layers
    ]
    env_layers: list[_Layer[str]] = [(source, each.env, each.secret_env) for source, each in layers]
    flags: dict[str, Sourced[FlagValue]]
    flags, secret_flags = _resolved(flag_layers, "flags", secret_sources.read)
    env, secret_env = _resolved(env_layers, "env", secret_sources.read)
    return Profile(
        name=name,
        description=chain[-1].description,
        chain=tuple(file.name for file in chain),
        want=overlay((source, layer.want) for source, layer in layers),
        flags=flags,
        env=env,
        secret_flags=secret_flags,
        secret_env=secret_env,
        patches=patches[-1] if patches else (),
        ready_timeout_s=timeouts[-1] if timeouts else READY_TIMEOUT_S,
    )


def _resolved(
    layers: Sequence[_Layer[T]], section: str, read: Callable[[SecretSource, str], T]
) -> tuple[dict[str, Sourced[T]], frozenset[str]]:
    """One section of all layers, every secret read from where it is kept; the names of those.

    Raises:
        ConfigError: one can't be read.
    """
    laid: list[tuple[str, dict[str, T | SecretSource | None]]] = []
    for source, values, kept in layers:
        both: dict[str, T | SecretSource | None] = dict(values.items())
        both.update(kept)
        laid.append((source, both))
    settings: dict[str, Sourced[T | SecretSource]] = overlay(laid)
    found: dict[str, Sourced[T]] = {}
    secret = set()
    for name, setting in settings.items():
        if isinstance(setting.value, SecretSource):
            where = f"{section}.{name} ({setting.source})"
            found[name] = Sourced(read(setting.value, where), setting.source)
            secret.add(name)
        else:
            found[name] = Sourced(setting.value, setting.source)
    return found, frozenset(secret)


def _chain(name: str, folders: Sequence[Path]) -> list[_File]:
    """The files along ``extends``, the base first.

    A profile that extends its own name means the one it hides, in a later folder.
    """
    chain: list[_File] = []
    wanted: str | None = name
    while wanted is not None:
        after = [file.path for file in chain if file.name == wanted]
        candidates = [folder / "profiles" / f"{wanted}.yaml" for folder in folders]
        if after and chain[-1].name == wanted:
            candidates = candidates[candidates.index(after[-1]) + 1 :]
        known = names(folders)
        # Asked of the list first: a name is not a path to look anything up by.
        path = next((path for path in candidates if wanted in known and path.is_file()), None)
        if path is None or path in after:
            trail = " → ".join([*(file.name for file in chain), wanted])
            if after:
                raise ConfigError(f"profiles extend one another in a circle: {trail}")
            by = f" (extended by {chain[-1].name})" if chain else ""
            raise ConfigError(
                f"no profile {wanted!r}{by}{did_you_mean(wanted, known)}",
                evidence=known,
                hint="profiles are templates/profiles/NAME.yaml",
            )
        file = _read(wanted, path)
        chain.append(file)
        wanted = file.extends
    return chain[::-1]


def _read(name: str, path: Path) -> _File:
    problems = Problems()
    fields = Fields("", _yaml(path), problems)
    want, flags, env = (fields.section(key) for key in ("want", "flags", "env"))
    timeout_given = fields.value("ready_timeout_s") is not None
    file = _File(
        name=name,
        path=path,
        description=fields.text("description", ""),
        extends=fields.optional_text("extends"),
        want=read_wants(want),
        flags=read_flags(flags),
        env=env.variables(),
        secret_flags=read_sources(flags),
        secret_env=read_sources(env),
        patches=_patches(fields),
        ready_timeout_s=fields.seconds("ready_timeout_s", 0.0) if timeout_given else None,
    )
    fields.refuse_unknown()
    problems.raise_any(f"profile {name}", hint=f"see {path}")
    return file


def _patches(fields: Fields) -> tuple[str, ...] | None:
    value = fields.value("patches")
    if value is None:
        return None
    if not isinstance(value, list):
        fields.problem("patches", f"wanted a list of dist/name, found {described(value)}")
        return None
    for patch in value:
        if not isinstance(patch, str) or not _PATCH.match(patch):
            fields.problem("patches", f"wanted dist/name, found {described(patch)}")
    return tuple(str(patch) for patch in value)


def _yaml(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as broken:
        raise ConfigError(
            f"can't read profile {path.stem}", evidence=[str(path), *str(broken).splitlines()]
        ) from broken


def _sets(words: Sequence[str]) -> Overrides:
    """``--set`` words as one more layer, checked as a file is."""
    sections: dict[str, dict[str, object]] = {"want": {}, "flags": {}, "env": {}}
    problems = Problems()
    for word in words:
        key, equals, text = word.partition("=")
        section, dot, inner = key.partition(".")
        if not equals or not key:
            problems.add(f"--set {word}", "wanted key=value")
        elif dot and section in sections:
            # A variable is text: 1 and off reach the server as they are written. A secret that
            # looks like a mapping was meant to say where it is kept.
            where = says_where(text) or (is_secret(inner) and text.startswith("{"))
            as_text = section == "env" and text != "null" and not where
            sections[section][inner] = text if as_text else _scalar(text)
        elif dot:
            problems.add(f"--set {key}", f"unknown section{did_you_mean(section, sections)}")
        elif key in INTENTS:
            sections["want"][key] = _scalar(text)
        elif "_" in key:
            # No flag of SGLang's has an underscore: this was meant to be an intent.
            problems.add(f"--set {key}", f"unknown intent{did_you_mean(key, INTENTS)}")
        else:
            sections["flags"][key] = _scalar(text)
    want, flags, env = (Fields(f"--set {name}", sections[name], problems) for name in sections)
    overrides = Overrides(
        want=read_wants(want),
        flags=read_flags(flags),
        env=env.variables(),
        secret_flags=read_sources(flags),
        secret_env=read_sources(env),
    )
    problems.raise_any("--set", hint="--set want.INTENT=…, flags.FLAG=… or env.NAME=…")
    return overrides


def _scalar(text: str) -> object:
    """``off``, ``null``, ``[1, 2]`` and ``"off"`` as YAML; anything else as it stands.

    So a value with `` #`` or ``: `` in it is not cut or split, and ``010`` is not 8.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if text[:1] in ("'", '"', "[", "{") or isinstance(value, bool):
        return value
    return None if text in ("null", "~") else text
