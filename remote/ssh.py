"""A host over SSH: Fabric's connection, with host keys verified by rules of our own.

The only module that imports Fabric or Paramiko.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fabric
import paramiko

from remote import errors
from remote.agent import DEAD_AFTER_S, Agent
from remote.config import Address, HostSettings, SSHSettings
from remote.core import known_hosts
from remote.core.shell import join
from remote.core.ssh_options import SSHOptions
from remote.dialing import Dial, resolve, taken
from remote.host import Answer, Link, Piece, Request
from remote.starter import start_command

#: Paramiko's own name for the two signature schemes of an RSA key.
_RSA_SCHEMES = ("rsa-sha2-512", "rsa-sha2-256")

#: What may be under way to us on the session's channel. Paramiko's 2 MiB let no more than 20 MB/s
#: through at a round trip of 100 ms; much more costs it CPU and memory.
WINDOW_BYTES = 8 * 1024 * 1024

#: How often who is turned away at sshd's door tries; some eight seconds in all.
_TRIES = 6


# Its transport thread logs tracebacks to standard error; what they say is raised here as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SSHHost:
    """`remote.host.Host` over one SSH connection, opened at the first use."""

    def __init__(self, settings: HostSettings, ssh: SSHSettings) -> None:
        self._settings = settings
        self._ssh = ssh
        self._opened: fabric.Connection | None = None
        self._keys: _HostKeys | None = None
        self._agent: Agent | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def redial_s(self) -> float:
        return self._ssh.redial_s

    def link(self) -> Link:
        connection = self._connection()
        assert self._keys is not None
        transport = connection.transport
        method = getattr(transport.auth_handler, "auth_method", None) or "unknown method"
        offered = [Path(name).name for name in connection.connect_kwargs["key_filename"]]
        through = f" through {self._settings.address}" if connection.gateway else ""
        return Link(
            f"{connection.user}@{connection.host}:{connection.port}{through}",
            f"logged in by {method} ({', '.join(offered) or 'a key of the agent'})",
            self._keys.told(),
            self._keys.accepts_new,
        )

    def ahead(self, requests: Sequence[Request]) -> None:
        self._asked().ahead(requests)

    def call(self, function: str, data: bytes = b"", **params: Any) -> Answer:
        return self._asked().call(function, data, params)[0]

    def fetch(self, function: str, **params: Any) -> Piece:
        return Piece(*self._asked().call(function, b"", params))

    def stream(self, function: str, **params: Any) -> AbstractContextManager[Iterator[Piece]]:
        return self._asked().stream(function, params)

    def interact(self, command: Sequence[str]) -> int:
        connection = self._connection()
        line = join(command)
        if sys.stdin.isatty() and sys.stdout.isatty():
            result = connection.run(line, pty=True, warn=True, hide=False)
            return int(result.exited)
        return _pump(connection.transport.open_session(), line)

    @contextmanager
    def tunnel(self, local_port: int, remote_port: int) -> Iterator[int]:
        port = local_port or _free_port()
        with self._connection().forward_local(port, remote_port, remote_host="127.0.0.1"):
            yield port

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        if self._opened is not None:
            with contextlib.suppress(OSError), _broken_is_oserror():
                self._opened.close()
            self._opened = None

    def _asked(self) -> Agent:
        if self._agent is None:
            venv = self._settings.venv
            try:
                transport = self._connection().transport
                with _answered(transport):
                    channel = transport.open_session(WINDOW_BYTES, timeout=DEAD_AFTER_S)
                    # Quoted there.
                    channel.exec_command(start_command(f"{venv}/bin/python"))  # nosec B601
            except paramiko.ChannelException as error:
                raise errors.SSHError(
                    f"the host opens no session: {error}",
                    host=self.name,
                    hint="sshd may allow no more sessions (MaxSessions); close another one",
                ) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise errors.ConnectionLost(
                    f"the connection was lost while a session was opened: {error}",
                    host=self.name,
                    hint="nothing was begun on the host; run the task again",
                ) from error
            self._agent = Agent(_Channel(channel), self.name, venv, self._settings.state)
        return self._agent

    def _connection(self) -> fabric.Connection:
        if self._opened is None:
            settings = self._settings
            dial = taken(settings.address, settings.ssh_config, self._ssh.connect_timeout_s)
            self._opened, self._keys = _open(dial.options(), settings, self._ssh, dial)
        return self._opened


def _open(
    options: SSHOptions, settings: HostSettings, ssh: SSHSettings, dial: Dial | None = None
) -> tuple[fabric.Connection, _HostKeys]:
    """A connection that is up, its host key verified, and what judged that.

    Args:
        dial: what leads to that very host, as far as it has got.

    Raises:
        SSHError: the subclass says what stood in the way.
    """
    gateway: fabric.Connection | str | None = None
    if options.proxy_jump:
        *before, last = options.proxy_jump.split(",")
        hop = resolve(Address.parse(last.removeprefix("ssh://")), settings.ssh_config)
        if before:
            hop = replace(hop, proxy_jump=",".join(before))
        # Files named for the host itself say nothing of the machine before it.
        gateway, _ = _open(hop, replace(settings, identity_file=None, known_hosts=None), ssh)
    elif options.proxy_command:
        gateway = options.proxy_command
    where = f"{options.hostname}:{options.port}"
    policy = _HostKeys(options, settings, ssh)
    identity = [settings.identity_file] if settings.identity_file else options.identity_files
    keys = _existing(identity)
    if settings.identity_file and not keys:
        raise errors.ConfigError(
            f"hosts.{settings.name}.identity_file: {settings.identity_file} is not there",
            host=settings.name,
        )
    named = bool(settings.identity_file) or options.identities_only
    connection = fabric.Connection(
        options.hostname,
        user=options.user or None,
        port=options.port,
        config=fabric.Config(overrides={"load_ssh_configs": False}),
        gateway=gateway,
        connect_timeout=options.connect_timeout_s or ssh.connect_timeout_s,
        connect_kwargs={
            "key_filename": [*keys, *_existing(options.certificate_files)],
            # No sweep through an agent's keys where the configuration names the key.
            "allow_agent": options.agent and not named,
            "look_for_keys": False,
            "banner_timeout": ssh.connect_timeout_s,
            "auth_timeout": DEAD_AFTER_S,
            "transport_factory": policy.transport,
        },
    )
    connection.client.set_missing_host_key_policy(policy)
    try:
        _connect(connection, settings.name, where, dial)
    except BaseException:
        connection.close()
        raise
    connection.transport.set_keepalive(options.keepalive_s or ssh.keepalive_s)
    return connection, policy


def _dial(connection: fabric.Connection, dial: Dial | None) -> None:
    """Open it; who is turned away by MaxStartups tries again, not in step with others."""
    for attempt in range(_TRIES):
        try:
            if dial is not None and attempt == 0:
                connection.connect_kwargs["sock"] = dial.connection()
            connection.open()
            return
        except (paramiko.SSHException, OSError, EOFError) as error:
            if attempt == _TRIES - 1 or not _turned_away(error):
                raise
            connection.close()
            connection.connect_kwargs.pop("sock", None)
            time.sleep(random.uniform(0.5, 1.5) * 0.25 * 2**attempt)  # nosec B311: no secret


def _turned_away(error: Exception) -> bool:
    """Whether sshd hung up before it said a word, as it does with too many at its door."""
    if type(error) is paramiko.SSHException and "banner" in str(error):
        return isinstance(error.__context__, (EOFError, ConnectionResetError))
    return isinstance(error, (EOFError, ConnectionResetError))


def _connect(
    connection: fabric.Connection, host: str, where: str, dial: Dial | None = None
) -> None:
    try:
        try:
            _dial(connection, dial)
        except paramiko.PasswordRequiredException:
            if not sys.stdin.isatty():
                raise
            phrase = getpass.getpass(
                f"Passphrase for {connection.connect_kwargs['key_filename']}: "
            )
            connection.connect_kwargs["passphrase"] = phrase
            connection.connect_kwargs.pop("sock", None)
            connection.open()
    except paramiko.PasswordRequiredException as error:
        raise errors.AuthenticationFailed(
            "the key is encrypted and there is no terminal to ask for its passphrase",
            host=host,
            evidence=connection.connect_kwargs["key_filename"],
            hint="add it to an agent: ssh-add",
        ) from error
    except paramiko.AuthenticationException as error:
        tried = connection.connect_kwargs["key_filename"]
        raise errors.AuthenticationFailed(
            f"{connection.user}@{where} accepts none of our keys",
            host=host,
            evidence=[f"offered {path}" for path in tried] or ["no key file was found to offer"],
            hint=f"set hosts.{host}.identity_file, or put the public key into the host's"
            " ~/.ssh/authorized_keys",
        ) from error
    except socket.gaierror as error:
        raise errors.Unreachable(
            f"the name {connection.host} does not resolve: {error.strerror}",
            host=host,
            hint=f"check hosts.{host}.address, or the alias in ~/.ssh/config",
        ) from error
    except TimeoutError as error:
        raise errors.Unreachable(
            f"no answer from {where} in {connection.connect_timeout} s",
            host=host,
            hint="is the host up, and the way to it (VPN, jump host) open?",
        ) from error
    except (paramiko.ssh_exception.NoValidConnectionsError, ConnectionError) as error:
        raise errors.Unreachable(
            f"cannot connect to {where}",
            host=host,
            evidence=[str(error)],
            hint="is sshd running there, on that port?",
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise errors.Unreachable(
            f"{where} does not speak SSH to us",
            host=host,
            evidence=[f"{error or type(error).__name__}"],
            hint=f"try: ssh -v -p {connection.port} {connection.host} true",
        ) from error


def _existing(names: Iterable[str | Path]) -> list[str]:
    return [str(path) for name in names if (path := Path(name).expanduser()).exists()]


class _HostKeys(paramiko.MissingHostKeyPolicy):
    """Judges the host's key by known_hosts; Paramiko's own store stays empty, so that every key
    comes here.
    """

    def __init__(self, options: SSHOptions, settings: HostSettings, ssh: SSHSettings) -> None:
        self._host = settings.name
        self.accepts_new = ssh.accept_new_host_keys or options.accept_new
        if settings.known_hosts:
            users, systems = [settings.known_hosts], []
        else:
            users, systems = (
                [Path(name).expanduser() for name in names]
                for names in (options.known_hosts, options.system_known_hosts)
            )
        # A new key is recorded for the user alone, and accepted only where it can be recorded.
        self._record_to = users[0] if users else None
        name = options.host_key_alias or options.hostname
        self._name = known_hosts.host_name(name, 22 if options.host_key_alias else options.port)
        self._entries = [
            entry
            for path in (*users, *systems)
            for entry in known_hosts.parse(_text(path), str(path))
        ]
        self._shown = ""

    def told(self) -> str:
        """The key that was shown, why it was taken, and the rule for others."""
        rule = "accepted and recorded" if self.accepts_new else "refused"
        return f"{self._shown}; an unknown key is {rule}, a changed one always refused"

    def transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """A transport that asks first for a key of a type that is on record."""
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # Paramiko writes without a deadline; the kernel must end what nobody takes.
                limit_ms = int(DEAD_AFTER_S * 1000)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        on_record = known_hosts.key_types(self._entries, [self._name])
        if "ssh-rsa" in on_record:
            on_record.update(_RSA_SCHEMES)
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in on_record)
        return transport

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        shown, kind = key.asbytes(), key.get_name()
        judgement = known_hosts.judge(self._entries, [self._name], kind, shown)
        verdict = judgement.verdict
        print_of = f"{kind} {known_hosts.fingerprint(shown)}"
        where = ", ".join(judgement.sources)
        self._shown = f"{print_of}, on record in {where or self._record_to}"
        if verdict is known_hosts.Verdict.KNOWN:
            return
        changed_in = judgement.sources[0].rpartition(":")[0] if judgement.sources else ""
        if verdict is known_hosts.Verdict.UNKNOWN and self.accepts_new and self._record_to:
            self._record(self._record_to, kind, shown)
            return
        reasons = {
            known_hosts.Verdict.UNKNOWN: (
                f"the host key of {self._name} is not known",
                "compare the fingerprint with the host's; then record it with"
                " ssh.accept_new_host_keys: true in invoke.yaml, or by connecting once with ssh",
            ),
            known_hosts.Verdict.CHANGED: (
                f"the host key of {self._name} has CHANGED (on record in {where})",
                "somebody may be in between; only if the host was reinstalled:"
                f" ssh-keygen -f '{changed_in}' -R '{self._name}'",
            ),
            known_hosts.Verdict.REVOKED: (
                f"the host key of {self._name} is revoked (in {where})",
                "this key must not be trusted; the host needs a new one",
            ),
            known_hosts.Verdict.AUTHORITY: (
                f"{self._name} is known by a certificate authority only (in {where})",
                "host certificates are not verified here: record the host's own key as well",
            ),
        }
        message, hint = reasons[verdict]
        raise errors.HostKeyRefused(
            message, host=self._host, evidence=[f"it showed {print_of}"], hint=hint
        )

    def _record(self, path: Path, kind: str, key: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = _text(path)
        separator = "" if not text or text.endswith("\n") else "\n"
        with path.open("a") as file:
            file.write(separator + known_hosts.line(self._name, kind, key))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def _broken_is_oserror() -> Iterator[None]:
    """Paramiko's own two ways of saying that the connection broke, as Python's."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise ConnectionResetError(str(error) or "the connection broke") from error


@contextmanager
def _answered(transport: paramiko.Transport) -> Iterator[None]:
    """Close the transport where the block isn't over in time: Paramiko waits without end for the
    answer to some requests.
    """
    timer = threading.Timer(DEAD_AFTER_S, transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Channel:
    """Paramiko's channel as the agent's byte stream."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def send(self, data: bytes) -> None:
        self._channel.settimeout(DEAD_AFTER_S)
        with _broken_is_oserror():
            self._channel.sendall(data)

    def receive(self, timeout_s: float) -> bytes:
        self._channel.settimeout(timeout_s)
        with _broken_is_oserror():
            return self._channel.recv(256 * 1024)

    def close(self) -> None:
        # On a dead connection even the goodbye fails, and nothing is left to be done about it.
        with contextlib.suppress(OSError), _broken_is_oserror():
            self._channel.close()

    def ended(self) -> tuple[int | None, bytes]:
        known = self._channel.status_event.wait(5)
        stderr = b""
        while self._channel.recv_stderr_ready():
            stderr += self._channel.recv_stderr(65536)
        return (self._channel.recv_exit_status() if known else None), stderr


def _pump(channel: paramiko.Channel, line: str) -> int:
    """Run a command with this process's streams as its own, byte for byte."""
    # Every word of it is quoted by core/shell.py.
    channel.exec_command(line)  # nosec B601

    def stdin() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(0, 65536):
                channel.sendall(chunk)
            channel.shutdown_write()

    def stderr() -> None:
        while chunk := channel.recv_stderr(65536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()

    threading.Thread(target=stdin, daemon=True).start()
    errors_read = threading.Thread(target=stderr)
    errors_read.start()
    while chunk := channel.recv(65536):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    errors_read.join()
    return channel.recv_exit_status()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
