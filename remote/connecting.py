"""A connection to a host: on the way that ssh_config says, its key verified, its user logged in.

Whether a key is trusted is decided in `remote/host_keys.py`, what is offered to the host in
`remote/logins.py`; here is what else can go wrong, as errors that say it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko

from remote import errors
from remote.agent import DEAD_AFTER_S
from remote.config import Address, HostSettings, SSHSettings
from remote.core import ssh_options
from remote.core.log_lines import printable
from remote.core.ssh_options import SSHOptions
from remote.dialing import Dial, resolve
from remote.fast_dial import Flight, Refused
from remote.host_keys import HostKeys
from remote.logins import Identities, Keyring, Login, agent_socket
from remote.proxy_command import ProxyCommand

#: How often who is turned away at sshd's door tries; some eight seconds in all.
_TRIES = 6

#: More machines than anybody jumps over, where each names another.
_MOST_JUMPS = 16

# Its transport thread logs tracebacks to standard error; what they say is raised here as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass(frozen=True)
class Opened:
    """A connection that is up, its host key verified and its user logged in."""

    connection: fabric.Connection
    keys: HostKeys
    login: Login
    indirect: bool


@dataclass(frozen=True)
class Route:
    """What a host and the jump hosts before it have in common.

    Attributes:
        closing: closes what was opened on the way, the nearest host last.
        passed: the hosts that jump hosts were looked up for, to know a circle.
    """

    settings: HostSettings
    ssh: SSHSettings
    keyring: Keyring
    closing: contextlib.ExitStack
    passed: tuple[str, ...] = ()

    def before(self, address: Address, jump: str) -> Route:
        """The route to the jump host of that one.

        Raises:
            ConfigError: it has been passed already, or there is no end of them.
        """
        here = f"{address} by {jump}"
        if here in self.passed or len(self.passed) == _MOST_JUMPS:
            hosts = [*(step.partition(" by ")[0] for step in self.passed), str(address)]
            raise errors.ConfigError(
                f"ProxyJump leads in a circle: {' -> '.join(hosts)}"
                if here in self.passed
                else f"ProxyJump leads through more than {_MOST_JUMPS} hosts: {hosts[-1]} and on",
                host=self.settings.name,
                hint=f"set ProxyJump none for {address.host} in ~/.ssh/config, or leave it out of"
                f" the pattern: Host ... !{address.host}",
            )
        # Files named for the host itself say nothing of the machine before it.
        settings = replace(self.settings, identity_file=None, known_hosts=None)
        return replace(self, settings=settings, passed=(*self.passed, here))


def opened(
    address: Address,
    options: SSHOptions,
    route: Route,
    dial: Dial | None = None,
    flight: Flight | None = None,
) -> Opened:
    """A connection to that address.

    Args:
        options: what ssh_config says of it.
        dial: what leads there, as far as it has got.
        flight: what goes with the login, where that can be.

    Raises:
        SSHError: the subclass says what stood in the way.
    """
    settings, ssh = route.settings, route.ssh
    timeout_s = options.connect_timeout_s or ssh.connect_timeout_s
    paths = _Paths(address, options)
    way = _Way(f"{options.hostname}:{options.port}", settings.name, timeout_s)
    identities = _identities(options, settings, paths)
    login = Login(identities, route.keyring, options.user, way.where, settings.name, flight)
    if options.proxy_jump:
        way.jump = _jump(address, paths.filled(options.proxy_jump), route)
    elif options.proxy_command:
        way.command = ProxyCommand(paths.filled(options.proxy_command))
        route.closing.callback(way.command.close)
    else:
        way.direct = dial
    files = paths.all(options.known_hosts), paths.all(options.system_known_hosts)
    if settings.known_hosts:
        files = ([settings.known_hosts], [])
    keys = HostKeys(options, files, settings, ssh)
    connection = fabric.Connection(
        options.hostname,
        user=options.user or None,
        port=options.port,
        config=fabric.Config(overrides={"load_ssh_configs": False}),
        connect_timeout=timeout_s,
        connect_kwargs={
            "auth_strategy": login,
            "banner_timeout": ssh.connect_timeout_s,
            "auth_timeout": DEAD_AFTER_S,
            "transport_factory": partial(_transport, keys),
        },
    )
    connection.client.set_missing_host_key_policy(keys)
    # Fabric's own way to close it passes over one whose login failed.
    route.closing.callback(connection.client.close)
    _connect(connection, way)
    connection.transport.set_keepalive(options.keepalive_s or ssh.keepalive_s)
    return Opened(connection, keys, login, way.jump is not None or way.command is not None)


def _jump(address: Address, jump: str, route: Route) -> fabric.Connection:
    """A connection to the last machine before that host."""
    *before, last = jump.split(",")
    try:
        hop = Address.parse(last.strip().removeprefix("ssh://").removesuffix("/"))
    except ValueError as error:
        raise errors.ConfigError(
            f"ProxyJump of {address}: {last!r} is no [user@]host[:port]",
            host=route.settings.name,
            hint="look into ~/.ssh/config",
        ) from error
    further = route.before(address, jump)
    found = resolve(hop, route.settings.ssh_config)
    if before:
        found = replace(found, proxy_jump=",".join(before))
    return opened(hop, found, further).connection


class _Paths:
    """Paths of ssh_config as they are meant for one host: tokens, variables and `~` replaced."""

    def __init__(self, address: Address, options: SSHOptions) -> None:
        home = str(Path("~").expanduser())
        local = socket.gethostname()
        self._tokens = {
            "d": home,
            "h": options.hostname,
            "i": str(os.getuid()),
            "k": options.host_key_alias or options.hostname,
            "L": local.partition(".")[0],
            "l": local,
            "n": address.host,
            "p": str(options.port),
            "r": options.user,
            "u": os.environ.get("USER") or options.user,
        }

    def filled(self, value: str) -> str:
        return ssh_options.filled(value, self._tokens, os.environ)

    def one(self, name: str) -> Path:
        path = Path(self.filled(name))
        # A user that isn't there makes it a path that isn't there.
        with contextlib.suppress(RuntimeError):
            return path.expanduser()
        return path

    def all(self, names: Iterable[str]) -> list[Path]:
        return [self.one(name) for name in names]


def _identities(options: SSHOptions, settings: HostSettings, paths: _Paths) -> Identities:
    named = settings.identity_file
    if named and not (named.exists() or Path(f"{named}.pub").exists()):
        raise errors.ConfigError(
            f"hosts.{settings.name}.identity_file: {named} is not there", host=settings.name
        )
    socket_named = paths.filled(options.agent_socket) if options.agent_socket else None
    agent = agent_socket(socket_named) if options.agent else None
    return Identities(
        files=(named,) if named else tuple(paths.all(options.identity_files)),
        certificates=tuple(paths.all(options.certificate_files)),
        # No sweep through an agent's keys where the configuration names the key.
        only=named is not None or options.identities_only,
        agent=agent and paths.one(str(agent)),
    )


@dataclass
class _Way:
    """What leads to a host: a connection that is being made, a machine before it, a command; else
    Paramiko dials.

    Attributes:
        where: the host and port.
        host: the host's name in the settings.
    """

    where: str
    host: str
    timeout_s: float
    direct: Dial | None = None
    jump: fabric.Connection | None = None
    command: ProxyCommand | None = None

    def dial(self) -> Any:
        """A socket, or what is like one; None where Paramiko is to dial.

        Raises:
            Unreachable: the machine before it does not get there.
            OSError: it can't be reached.
        """
        if self.direct is not None:
            return self.direct.connection()
        if self.command is not None:
            return self.command.dial()
        if self.jump is None:
            return None
        hostname, _, port = self.where.rpartition(":")
        try:
            return self.jump.transport.open_channel(
                "direct-tcpip", (hostname, int(port)), ("", 0), timeout=self.timeout_s
            )
        except (paramiko.SSHException, EOFError) as error:
            raise errors.Unreachable(
                f"{self.jump.host}, which is to lead to {self.where}, does not get there",
                host=self.host,
                evidence=[str(error) or type(error).__name__],
                hint="is the host up, and does the jump host's sshd allow AllowTcpForwarding?",
            ) from error

    def check(self) -> None:
        """
        Raises:
            Unreachable: the command has failed.
        """
        status = self.command and self.command.failed()
        if status:
            raise errors.Unreachable(
                f"the ProxyCommand to {self.where} ended with {status}",
                host=self.host,
                hint="what it said stands above; try it by itself",
            )


#: What sshd itself may say instead of its version, before it hangs up.
_SSHD_REFUSES = ("Exceeded MaxStartups", "Not allowed at this time")


class _Silent(TimeoutError):
    """There is a connection, but nothing comes over it."""


class _Transport(paramiko.Transport):
    """Keeps what Paramiko lets go: the host's last words, what speaks there instead of SSH, and
    that nothing comes.
    """

    said = ""
    _greeting: str | None = None

    def start_client(self, event: Any = None, timeout: float | None = None) -> None:
        """
        Raises:
            SSHException: the keys can't be exchanged, or something else than SSH answers.
            _Silent: nothing came in time.
        """
        super().start_client(event, timeout)
        if event is None and not self.initial_kex_done:
            self._not_ssh()
            raise _Silent("no answer while the keys were exchanged")

    def _check_banner(self) -> None:
        readline = self.packetizer.readline

        def noted(timeout: float) -> str:
            line: str = readline(timeout)
            # sshd may say other lines before its version.
            if not line.startswith(("SSH-", *_SSHD_REFUSES)):
                self._greeting = self._greeting or line
            return line

        self.packetizer.readline = noted  # type: ignore[method-assign]
        try:
            super()._check_banner()  # type: ignore[misc]  # not in the stubs
        except paramiko.SSHException:
            self._not_ssh()
            raise
        finally:
            self.packetizer.readline = readline  # type: ignore[method-assign]

    def _not_ssh(self) -> None:
        if self._greeting and not self.remote_version:
            raise paramiko.SSHException(f"it says: {printable(self._greeting)[:200]}")

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.said = message.get_text()


def _transport(keys: HostKeys, sock: Any, **options: Any) -> paramiko.Transport:
    """A transport that asks first for a key of a type that is on record."""
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Paramiko writes without a deadline; the kernel must end what nobody takes.
            limit_ms = int(DEAD_AFTER_S * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
    transport = _Transport(sock, **options)
    keys.ask_first_for_known(transport)
    return transport


def _dial(connection: fabric.Connection, way: _Way) -> None:
    """Open it; who is turned away by MaxStartups tries again, not in step with others."""
    for attempt in range(_TRIES):
        try:
            connection.connect_kwargs["sock"] = way.dial()
            connection.open()
            return
        except Refused:
            # What stands in its way is found out step by step.
            connection.client.close()
            _dial(connection, way)
            return
        except (paramiko.SSHException, OSError, EOFError) as error:
            way.check()
            if attempt == _TRIES - 1 or not _turned_away(error):
                raise
            connection.client.close()
            time.sleep(random.uniform(0.5, 1.5) * 0.25 * 2**attempt)  # nosec B311: no secret


def _turned_away(error: Exception) -> bool:
    """Whether sshd hung up before it said a word, as it does with too many at its door."""
    return isinstance(_beneath(error), (EOFError, ConnectionResetError))


def _silent(error: Exception) -> bool:
    """Whether there is a connection, but neither sshd's first line nor its key came in time."""
    if isinstance(error, _Silent):
        return True
    beneath = _beneath(error)
    # With nothing above it, it is TCP's own: there is no connection.
    return beneath is not error and isinstance(beneath, TimeoutError)


def _beneath(error: Exception) -> BaseException | None:
    """What kept sshd's first line away, where Paramiko only says that; else the error itself."""
    in_banner = type(error) is paramiko.SSHException and "banner" in str(error)
    return error.__context__ if in_banner else error


def _connect(connection: fabric.Connection, way: _Way) -> None:
    where, host = way.where, way.host
    by_hand = f"try: ssh -v -p {connection.port} {connection.host} true"

    def unreachable(message: str, hint: str, *evidence: object) -> errors.Unreachable:
        return errors.Unreachable(message, host=host, evidence=[*map(str, evidence)], hint=hint)

    try:
        _dial(connection, way)
    except (socket.gaierror, UnicodeError) as error:
        raise unreachable(
            f"the name {connection.host} does not resolve:"
            f" {getattr(error, 'strerror', None) or error}",
            f"check hosts.{host}.address, or the alias in ~/.ssh/config",
        ) from error
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise unreachable(
            f"{where} and we have no algorithm of SSH in common",
            "its SSH server is very old, or allows very little: see its sshd_config",
            error,
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if _turned_away(error):
            raise unreachable(
                f"{where} hangs up at once",
                "too many may be logging in at once (MaxStartups), or it refuses this machine;"
                f" {by_hand}",
                error or type(error).__name__,
            ) from error
        if _silent(error):
            raise unreachable(
                f"{where} takes the connection, but no SSH server answers in"
                f" {connection.connect_timeout} s",
                f"the host may be overloaded or frozen, or the port somebody else's; {by_hand}",
            ) from error
        if isinstance(error, TimeoutError):
            raise unreachable(
                f"no answer from {where} in {connection.connect_timeout} s",
                "is the host up, and the way to it (VPN, jump host) open?",
            ) from error
        if isinstance(error, OSError):
            raise unreachable(
                f"cannot connect to {where}", "is sshd running there, on that port?", error
            ) from error
        raise unreachable(
            f"{where} does not speak SSH to us",
            by_hand,
            error,
        ) from error
