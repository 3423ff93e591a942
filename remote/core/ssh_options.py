"""What ssh_config says of a host, from the text of `ssh -G`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TIME_PART = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_TIME = re.compile(rf"(?:{_TIME_PART.pattern})+", re.IGNORECASE)
_TOKEN = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class SSHOptions:
    """The settings that a connection needs; paths are as written, `~` not expanded.

    ``agent`` is false where no agent is to be asked; ``agent_socket`` names another than the one of
    ``SSH_AUTH_SOCK``.
    """

    hostname: str
    port: int = 22
    user: str = ""
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: bool = True
    agent_socket: str | None = None
    known_hosts: tuple[str, ...] = ("~/.ssh/known_hosts",)
    system_known_hosts: tuple[str, ...] = ("/etc/ssh/ssh_known_hosts",)
    host_key_alias: str | None = None
    accept_new: bool = False
    proxy_jump: str | None = None
    proxy_command: str | None = None
    connect_timeout_s: float | None = None
    keepalive_s: int = 0


def parse(text: str) -> SSHOptions:
    """The options in the output of `ssh -G HOST`: a lower-case keyword and its value a line."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword.lower(), []).append(value.strip())

    def first(keyword: str) -> str | None:
        found = values.get(keyword, [None])[0]
        return None if found in (None, "none", "") else found

    def words(keyword: str) -> tuple[str, ...]:
        return tuple(first(keyword).split()) if first(keyword) else ()  # type: ignore[union-attr]

    agent = first("identityagent")
    timeout = _seconds(first("connecttimeout"))
    return SSHOptions(
        hostname=first("hostname") or "",
        port=int(first("port") or 22),
        user=first("user") or "",
        identity_files=tuple(v for v in values.get("identityfile", []) if v != "none"),
        certificate_files=tuple(v for v in values.get("certificatefile", []) if v != "none"),
        identities_only=(first("identitiesonly") or "").lower() in ("yes", "true"),
        agent=values.get("identityagent", [""])[0] != "none",
        agent_socket=None if agent == "SSH_AUTH_SOCK" else agent,
        known_hosts=words("userknownhostsfile"),
        system_known_hosts=words("globalknownhostsfile"),
        host_key_alias=first("hostkeyalias"),
        accept_new=first("stricthostkeychecking") in ("accept-new", "no", "off", "false"),
        proxy_jump=first("proxyjump"),
        proxy_command=first("proxycommand"),
        connect_timeout_s=None if timeout is None else float(timeout),
        keepalive_s=_seconds(first("serveraliveinterval")) or 0,
    )


def filled(text: str, tokens: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """A value with its tokens (``%h``) and variables (``${HOME}``) replaced; see ssh_config(5).

    Those that are not given stay as they are.
    """
    text = _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)
    return _TOKEN.sub(lambda found: {**tokens, "%": "%"}.get(found[1], found[0]), text)


def _seconds(text: str | None) -> int | None:
    """A time as ssh_config writes it, ``90`` or ``1m30s``; None where it is none."""
    if text is None or not _TIME.fullmatch(text):
        return None
    return sum(int(number) * _UNIT_S[unit.lower()] for number, unit in _TIME_PART.findall(text))
