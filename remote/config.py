"""``invoke.yaml``, ``INVOKE_…`` variables and defaults as frozen values, unknown keys refused.

Invoke merges the sources into one mapping; :func:`load` turns it into :class:`Settings`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remote.core import defaults, from_environment
from remote.core.defaults import DEFAULTS as DEFAULTS
from remote.core.fields import Fields, Problems, described, whole_number
from remote.core.intents import FlagValue, Want, read_flags, read_reasons, read_wants
from remote.core.loopback import is_address
from remote.core.nearest import did_you_mean
from remote.core.secret_values import SecretSource, read_sources
from remote.errors import ConfigError

#: The templates that come with the tool.
TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
#: The embedded host's name; no host of that name can be configured.
SANDBOX = "sandbox"

#: Top-level keys that are Invoke's.
INVOKE_KEYS = frozenset({"debug", "run", "runners", "sudo", "tasks", "timeouts"})

#: A host's settings that are one value each.
_SCALARS = (
    *("address", "bind", "cuda_home", "identity_file", "known_hosts", "model", "port"),
    *("ssh_config", "state", "venv"),
)

_LARGEST = 2**31 - 1
_BRACKETED = re.compile(r"\[(?P<host>[^\]]+)\](?::(?P<port>.*))?\Z", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """``[user@]host-or-alias[:port]``; what is left out comes from ``~/.ssh/config``."""

    host: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``[user@]host-or-alias[:port]``; a bare IPv6 address stands in brackets.

        Raises:
            ValueError: it is none.
        """
        user, at, rest = text.rpartition("@")
        bracketed = _BRACKETED.match(rest)
        if bracketed:
            host, port = bracketed["host"], bracketed["port"]
        elif rest.count(":") == 1:
            host, _, port = rest.partition(":")
        else:
            host, port = rest, None
        number = None if port is None else whole_number(port)
        words = [host, user] if at else [host]
        # OpenSSH takes a leading dash for an option.
        if (
            any(not word or word.startswith("-") for word in words)
            or any(not character.isprintable() or character == " " for character in text)
            or (port is not None and (number is None or not 0 < number < 65536))
        ):
            raise ValueError(text)
        return cls(host=host, user=user or None, port=number)

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{user}{host}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True)
class BenchSettings:
    """The benchmark matrix: lengths in tokens, concurrency in requests in flight.

    ``prompts`` is how many a level gets; 0 leaves it to the level.
    """

    concurrency: tuple[int, ...]
    input_len: int
    output_len: int
    repeats: int
    prompts: int


@dataclass(frozen=True)
class SSHSettings:
    """How connections are made; ``redial_s`` is how long a lost one is dialled again, ``fast_dial``
    whether the first command goes with the login (`remote/fast_dial.py`).
    """

    connect_timeout_s: float
    accept_new_host_keys: bool
    keepalive_s: float
    redial_s: float
    fast_dial: bool = False


@dataclass(frozen=True)
class Overrides:
    """What a host changes of a profile; None takes a value away.

    ``secret_flags`` and ``secret_env`` say where a secret is kept here.
    """

    want: Mapping[str, Want | None] = field(default_factory=dict)
    flags: Mapping[str, FlagValue | None] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    secret_flags: Mapping[str, SecretSource] = field(default_factory=dict)
    secret_env: Mapping[str, SecretSource] = field(default_factory=dict)


@dataclass(frozen=True)
class HostSettings:
    """One configured host.

    ``venv``, ``cuda_home`` and ``state`` are paths there (``state`` may begin with ``~/``);
    ``identity_file``, ``known_hosts`` and ``ssh_config`` are paths here (``ssh_config`` may be
    ``none``: no file is read). ``bind`` and ``port`` are the server's.
    """

    name: str
    address: Address
    venv: str
    model: str
    port: int
    bench: BenchSettings
    bind: str = "127.0.0.1"
    cuda_home: str = "/usr/local/cuda"
    state: str = "~/.sglang-remote"
    identity_file: Path | None = None
    known_hosts: Path | None = None
    ssh_config: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Overrides] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """All of it.

    ``default_host`` is the ``host`` setting, None where it is empty; ``secrets`` are names of
    variables and flags whose values are masked beside those whose name tells it.
    """

    hosts: Mapping[str, HostSettings]
    default_host: str | None
    templates: Path | None
    runs: Path
    sandbox_folder: Path
    cache: Path
    ssh: SSHSettings
    bench: BenchSettings
    secrets: tuple[str, ...] = ()

    @property
    def template_folders(self) -> tuple[Path, ...]:
        """Where templates and profiles are looked for, in order."""
        return (TEMPLATES,) if self.templates is None else (self.templates, TEMPLATES)

    def pick(self, name: str | None = None) -> str:
        """The host a task works on: the one named, else ``host``, else the only one there is.

        With none configured it is the embedded host.

        Raises:
            ConfigError: no such host, or several and none chosen.
        """
        wanted = name or self.default_host
        if wanted:
            if wanted != SANDBOX and wanted not in self.hosts:
                raise ConfigError(
                    f"no host {wanted!r} in the settings"
                    f"{did_you_mean(wanted, [*self.hosts, SANDBOX])}",
                    evidence=_listed(self.hosts),
                    hint="inv hosts lists them; hosts.NAME in invoke.yaml adds one",
                )
            return wanted
        if len(self.hosts) > 1:
            raise ConfigError(
                f"{len(self.hosts)} hosts are configured and none is chosen",
                evidence=_listed(self.hosts),
                hint="name one with --host NAME, or set host: NAME in invoke.yaml",
            )
        return next(iter(self.hosts), SANDBOX)


def load(settings: Mapping[str, object], project: Path) -> Settings:
    """Settings from what Invoke merged.

    Args:
        settings: the merged mapping; Invoke's own keys in it are passed over.
        project: the folder that relative local paths start from.

    Raises:
        ConfigError: everything that is wrong, a line of evidence each.
    """
    problems = Problems()
    plain = _plain(settings)
    if isinstance(plain, dict) and isinstance(plain.get("hosts"), dict):
        plain["hosts"] = from_environment.filled(plain["hosts"], _SCALARS, os.environ)
    top = Fields("", plain, problems)
    bench = _bench(top.section("bench"), _DEFAULT_BENCH)
    secrets = _secrets(top)
    ssh = top.section("ssh")
    sandbox = top.section("sandbox")
    templates = top.optional_text("templates")
    hosts = top.section("hosts")
    read = Settings(
        hosts={
            name: _host(name, Fields(hosts.where(name), raw, problems), project, bench, secrets)
            for name, raw in hosts.entries().items()
        },
        default_host=top.optional_text("host"),
        templates=None if templates is None else _local(templates, project),
        runs=_local(top.text("runs", defaults.RUNS), project),
        sandbox_folder=_local(sandbox.text("folder", defaults.SANDBOX_FOLDER), project),
        cache=_cache(),
        ssh=SSHSettings(
            connect_timeout_s=ssh.seconds("connect_timeout_s", defaults.CONNECT_TIMEOUT_S),
            accept_new_host_keys=ssh.switch("accept_new_host_keys", False),
            keepalive_s=ssh.seconds("keepalive_s", defaults.KEEPALIVE_S),
            redial_s=ssh.seconds("redial_s", defaults.REDIAL_S),
            fast_dial=ssh.switch("fast_dial", False),
        ),
        bench=bench,
        secrets=secrets,
    )
    for name in read.hosts:
        if name == SANDBOX:
            hosts.problem(name, "is the embedded host's own name; choose another")
        elif not re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", name):
            hosts.problem(name, "wanted a name of letters, digits, dots, dashes and underscores")
    if read.templates is not None and not read.templates.is_dir():
        top.problem("templates", f"no such folder: {read.templates}")
    for variable in from_environment.passed_over(hosts.entries(), os.environ):
        problems.add(variable, "names no setting of a host in invoke.yaml")
    for section in (ssh, sandbox):
        section.refuse_unknown()
    top.refuse_unknown(INVOKE_KEYS)
    problems.raise_any("the settings", hint="see invoke.yaml and the INVOKE_… variables")
    return read


def host_from(
    name: str,
    mapping: Mapping[str, object],
    bench: BenchSettings,
    secrets: tuple[str, ...] = (),
) -> HostSettings:
    """One host's entry, checked as in :func:`load`; for the embedded host.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    problems = Problems()
    entry = Fields(f"hosts.{name}", _plain(mapping), problems)
    host = _host(name, entry, Path(), bench, secrets)
    problems.raise_any(f"the entry of host {name}")
    return host


def _host(
    name: str, entry: Fields, project: Path, bench: BenchSettings, secrets: tuple[str, ...]
) -> HostSettings:
    identity_file = entry.optional_text("identity_file")
    known_hosts = entry.optional_text("known_hosts")
    ssh_config = entry.optional_text("ssh_config")
    if ssh_config not in (None, "none"):
        ssh_config = str(_local(ssh_config, project))
    unavailable = entry.section("unavailable")
    profiles = entry.section("profiles")
    host = HostSettings(
        name=name,
        address=_address(entry),
        venv=_remote_path(entry, "venv", None),
        model=entry.text("model"),
        port=entry.whole("port", low=1, high=65535),
        bench=_bench(entry.section("bench"), bench),
        bind=_bind(entry),
        cuda_home=_remote_path(entry, "cuda_home", "/usr/local/cuda"),
        state=_remote_path(entry, "state", "~/.sglang-remote"),
        identity_file=None if identity_file is None else _local(identity_file, project),
        known_hosts=None if known_hosts is None else _local(known_hosts, project),
        ssh_config=ssh_config,
        overrides=_overrides(entry),
        unavailable=read_reasons(unavailable),
        profiles={
            profile: _profile_overrides(Fields(profiles.where(profile), raw, entry.problems))
            for profile, raw in profiles.entries().items()
        },
        secrets=secrets,
    )
    entry.refuse_unknown()
    return host


def _cache() -> Path:
    """Where this user's programs keep what they can do without."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path("~/.cache").expanduser()
    return folder / "sglang-remote"


def _bind(entry: Fields) -> str:
    bind = entry.text("bind", "127.0.0.1")
    if not is_address(bind):
        entry.problem("bind", f"wanted an IP address or a name to listen on, found {bind!r}")
    return bind


def _secrets(top: Fields) -> tuple[str, ...]:
    """Names as a list, or as one text with commas (from the environment)."""
    value = top.value("secrets")
    names = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        top.problem("secrets", f"wanted names as [A, B] or 'A,B', found {described(value)}")
        return ()
    return tuple(name.strip() for name in names if name.strip())


def _overrides(section: Fields) -> Overrides:
    flags, env = section.section("flags"), section.section("env")
    return Overrides(
        want=read_wants(section.section("want")),
        flags=read_flags(flags),
        env=env.variables(),
        secret_flags=read_sources(flags),
        secret_env=read_sources(env),
    )


def _profile_overrides(section: Fields) -> Overrides:
    overrides = _overrides(section)
    section.refuse_unknown()
    return overrides


def _bench(section: Fields, default: BenchSettings) -> BenchSettings:
    bench = BenchSettings(
        concurrency=_concurrency(section, default.concurrency),
        input_len=section.whole("input_len", default.input_len, low=1, high=_LARGEST),
        output_len=section.whole("output_len", default.output_len, low=1, high=_LARGEST),
        repeats=section.whole("repeats", default.repeats, low=1, high=1000),
        prompts=section.whole("prompts", default.prompts, low=0, high=_LARGEST),
    )
    section.refuse_unknown()
    return bench


def _concurrency(section: Fields, default: tuple[int, ...]) -> tuple[int, ...]:
    value = section.value("concurrency")
    if value is None:
        return default
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        words = [words]
    levels = [whole_number(word) for word in words]
    if not levels or any(level is None or level < 1 for level in levels):
        section.problem("concurrency", f'wanted levels as "1,10,256", found {described(value)}')
        return default
    return tuple(dict.fromkeys(level for level in levels if level is not None))


def _address(entry: Fields) -> Address:
    text = entry.text("address")
    try:
        return Address.parse(text)
    except ValueError:
        if text:
            entry.problem("address", f"wanted [user@]host-or-alias[:port], found {described(text)}")
        return Address(host="")


def _remote_path(entry: Fields, key: str, default: str | None) -> str:
    path = entry.text(key, default)
    home = key == "state" and (path == "~" or path.startswith("~/"))
    if path and not home and not path.startswith("/"):
        entry.problem(key, f"wanted an absolute path on the host, found {described(path)}")
    elif ":" in path and key != "state":
        entry.problem(key, "holds a colon, which would split it on PATH")
    return posixpath.normpath(path) if path else path


def _local(path: str, project: Path) -> Path:
    return project / Path(path).expanduser()


def _plain(value: object) -> object:
    """Invoke's proxies, which are no Mappings, as dictionaries."""
    keys = getattr(value, "keys", None)
    if keys is None:
        return value
    return {key: _plain(value[key]) for key in keys()}  # type: ignore[index]


def _listed(hosts: Mapping[str, HostSettings]) -> list[str]:
    return [f"{name}: {host.address}" for name, host in hosts.items()]


_DEFAULT_BENCH = BenchSettings(
    concurrency=tuple(int(level) for level in defaults.CONCURRENCY.split(",")),
    input_len=defaults.INPUT_LEN,
    output_len=defaults.OUTPUT_LEN,
    repeats=defaults.REPEATS,
    prompts=defaults.PROMPTS,
)
