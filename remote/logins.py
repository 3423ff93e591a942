"""Logging in: which keys are offered, in which order, and what a refusal means.

A key that the configuration names comes first: from its file where that needs no passphrase, else
from the agent, which may hold what is encrypted here or not here at all. Then, unless only named
keys may be offered, come the agent's others; encrypted files that no agent holds come last, as each
asks for its passphrase.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from remote import errors
from remote.core import key_files, known_hosts
from remote.core.log_lines import printable
from remote.fast_dial import Flight

#: How long an agent may take to list its keys.
_AGENT_S = 5.0

#: How long the host's questions may be looked at.
_ANSWER_S = 120.0

_KEY_CLASSES = (paramiko.Ed25519Key, paramiko.RSAKey, paramiko.ECDSAKey)


class Keyring:
    """The keys decrypted in this process: a passphrase is asked for once, and kept nowhere."""

    def __init__(self) -> None:
        self._opened: dict[Path, paramiko.PKey | str] = {}

    def open(self, path: Path) -> paramiko.PKey | str:
        """The key of an encrypted file, or why there is none."""
        if path not in self._opened:
            self._opened[path] = _decrypted(path)
        return self._opened[path]

    def held(self, path: Path) -> paramiko.PKey | str | None:
        """What `open` has found, None where nobody has asked for it."""
        return self._opened.get(path)


@dataclass(frozen=True)
class Identities:
    """What may be offered to a host.

    Attributes:
        files: private keys, or public ones of which an agent holds the private part.
        certificates: for these keys.
        only: no other key of the agent is offered.
        agent: the agent's socket, None where there is none.
    """

    files: tuple[Path, ...]
    certificates: tuple[Path, ...]
    only: bool
    agent: Path | None


class Login:
    """The strategy by which Paramiko's client authenticates, for one connection.

    Args:
        user: whom to log in as.
        where: the host and port, for errors.
        host: the host's name in the settings, for errors.
        flight: goes with the first login, where the configuration names the one key for it.
    """

    def __init__(
        self,
        identities: Identities,
        keyring: Keyring,
        user: str,
        where: str,
        host: str,
        flight: Flight | None = None,
    ) -> None:
        self._identities = identities
        self._keyring = keyring
        self._user = user
        self._where = where
        self._host = host
        self._flight = flight
        self._agent: _Agent | None = None
        self._offered: list[str] = []
        self._notes: list[str] = []
        self._locked: list[str] = []

    @property
    def used(self) -> str:
        """The key offered last; after a login, the one that was accepted."""
        return self._offered[-1] if self._offered else "no key"

    def authenticate(self, transport: Any) -> None:
        """Offer one key after the other until the host is content.

        Raises:
            AuthenticationFailed: it wants none of them, or no more.
            Unreachable: the connection ended meanwhile.
            Refused: the flight was; dial again.
            ConnectionLost: with the flight.
        """
        self._offered, self._notes, self._locked = [], [], []
        flight, self._flight = self._flight, None
        if flight is not None and flight.suits(transport) and (sole := self._sole()):
            self._offered.append(sole[0])
            flight.send(transport, self._user, sole[1])
            return
        try:
            for label, key in self._keys():
                self._offered.append(label)
                if self._accepted(transport, key):
                    return
        finally:
            if self._agent is not None:
                self._agent.close()
                self._agent = None
        if self._locked:
            self._fail(self._locked[0], "add the key to an agent (ssh-add), or try again")
        if not self._offered:
            self._fail(
                f"there is no key to offer to {self._user}@{self._where}",
                f"set hosts.{self._host}.identity_file, or load a key into an agent: ssh-add",
            )
        self._fail(
            f"{self._user}@{self._where} accepts none of our keys",
            f"set hosts.{self._host}.identity_file, or put the public key into the host's"
            " ~/.ssh/authorized_keys",
        )

    def _accepted(self, transport: Any, key: paramiko.PKey) -> bool:
        """Whether the login is complete with that key; false where others may be tried."""
        try:
            wanted = transport.auth_publickey(self._user, key)
        except paramiko.BadAuthenticationType as error:
            self._fail(
                f"{self._user}@{self._where} takes no keys",
                "allow PubkeyAuthentication in the host's sshd_config",
                f"it takes: {', '.join(map(printable, error.allowed_types))}",
            )
        except Exception as error:  # whatever broke in Paramiko's thread comes out here
            if not transport.is_active():
                self._closed(transport, error)
            if "timeout" in str(error).lower():
                transport.close()
                raise self._unreachable("no answer during the login", error) from error
            return False
        if "keyboard-interactive" in wanted and sys.stdin.isatty():
            transport.auth_timeout = _ANSWER_S
            try:
                return not transport.auth_interactive(self._user, _answers)
            except (paramiko.SSHException, EOFError) as error:
                self._fail(
                    f"{self._user}@{self._where} was not content with the answers",
                    "run the task again",
                    str(error),
                )
        if wanted and "publickey" not in wanted:
            self._fail(
                f"{self._user}@{self._where} wants more than a key",
                "run the task on a terminal, or let the host be content with a key",
                f"it wants: {', '.join(map(printable, wanted))}",
            )
        return not wanted

    def _closed(self, transport: Any, error: Exception) -> NoReturn:
        """The connection ended while a key was offered: say what it was."""
        said = printable(getattr(transport, "said", ""))
        count = len(self._offered)
        if "too many" in said.lower() or (count > 1 and not said and _is_end(error)):
            self._fail(
                f"{self._where} closed the connection after {count}"
                f" {'keys were' if count > 1 else 'key was'} offered",
                f"name the one that it knows: hosts.{self._host}.identity_file, or IdentityFile"
                " with IdentitiesOnly yes in ~/.ssh/config",
                *([f"it said: {said}"] if said else []),
            )
        if said or not _is_end(error):
            self._fail(
                f"{self._where} ended the login" if said else "the key could not be used",
                "the host's log says why (journalctl -u ssh)" if said else "try: ssh-add -l",
                said or str(error),
            )
        raise self._unreachable("closed the connection during the login", error) from error

    def _unreachable(self, what: str, error: Exception) -> errors.Unreachable:
        return errors.Unreachable(
            f"{self._where}: {what}",
            host=self._host,
            evidence=[str(error)],
            hint="is the way to it (VPN, jump host) open? run the task again",
        )

    def _fail(self, message: str, hint: str, *evidence: str) -> NoReturn:
        raise errors.AuthenticationFailed(
            message,
            host=self._host,
            evidence=[*evidence, *(f"offered {label}" for label in self._offered), *self._notes],
            hint=hint,
        )

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """What is offered, one by one; nothing is read or asked for before it is its turn."""
        certificates = [
            blob
            for path in self._identities.certificates
            if (blob := _public(path)) and key_files.is_certificate(blob)
        ]
        encrypted = []
        named = []
        for path in self._identities.files:
            found = _loaded(path)
            if isinstance(found, paramiko.PKey):
                yield from _with_certificates(str(path), found, certificates, path)
                continue
            public = _public(path, Path(f"{path}.pub"))
            held = [key for key in self._agents_keys() if _is_for(key, public)] if public else []
            named += held
            for key in held:
                yield from _with_certificates(f"{path}, by the agent", key, certificates, path)
            if not held and found == _ENCRYPTED:
                encrypted.append(path)
            elif not held and found:
                self._notes.append(f"{path}: {found}")
        if not self._identities.only:
            for key in self._agents_keys():
                if key not in named:
                    print_of = known_hosts.fingerprint(key.blob)
                    label = f"{printable(key.comment)} {print_of}, by the agent".lstrip()
                    yield from _with_certificates(label, key, certificates)
        for path in encrypted:
            opened = self._keyring.open(path)
            if isinstance(opened, str):
                self._locked.append(opened)
            else:
                yield from _with_certificates(str(path), opened, certificates, path)

    def _sole(self) -> tuple[str, paramiko.PKey] | None:
        """The one key that the configuration names, where nobody need be asked for it."""
        if len(self._identities.files) != 1 or self._identities.certificates:
            return None
        [path] = self._identities.files
        found = self._keyring.held(path) or _loaded(path)
        if isinstance(found, str):
            return None
        first, *others = _with_certificates(str(path), found, (), path)
        return None if others else first

    def _agents_keys(self) -> tuple[AgentKey, ...]:
        if self._agent is None and self._identities.agent is not None:
            self._agent = _Agent(self._identities.agent)
            if self._agent.failure:
                self._notes.append(f"the agent: {self._agent.failure}")
        return () if self._agent is None else self._agent.keys()


class _Agent:
    """The agent behind a socket, its keys listed; one that can't be asked has none."""

    def __init__(self, path: Path) -> None:
        self._agent = cast(Any, AgentSSH())
        self.failure = ""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_AGENT_S)
            connection.connect(str(path))
            # Paramiko itself only knows the agent of SSH_AUTH_SOCK, and waits for it without end.
            self._agent._connect(connection)
            # A signature may wait for somebody to confirm it.
            connection.settimeout(None)
        except Exception as error:  # what answers there need not be an agent
            connection.close()
            self.close()
            self.failure = f"{path} cannot be asked: {error or type(error).__name__}"

    def keys(self) -> tuple[AgentKey, ...]:
        found: tuple[AgentKey, ...] = self._agent.get_keys()
        return found

    def close(self) -> None:
        self._agent._close()


_ENCRYPTED = "it is encrypted"


def _loaded(path: Path, passphrase: str | None = None) -> paramiko.PKey | str:
    """The private key in a file, or why there is none; empty where there is no file."""
    for kind in _KEY_CLASSES:
        try:
            return kind.from_private_key_file(str(path), passphrase)
        except paramiko.PasswordRequiredException:
            return _ENCRYPTED
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        # Each class has ways of its own to say that it is none of its keys.
        except Exception:  # nosec B112
            continue
    if _public(path):
        return "it is a public key, and no agent holds the private one"
    return f"it holds no key that can be read; ssh-keygen -p -f {path} may rewrite it"


def _decrypted(path: Path) -> paramiko.PKey | str:
    """The key of an encrypted file, its passphrase asked for; or why there is none."""
    if not sys.stdin.isatty():
        return f"the key {path} is encrypted and there is no terminal to ask for its passphrase"
    passphrase = None
    with contextlib.suppress(EOFError):
        passphrase = getpass.getpass(f"Passphrase for {path}: ")
    if not passphrase:
        return f"the key {path} is encrypted and no passphrase was given"
    found = _loaded(path, passphrase)
    return f"the passphrase of {path} is wrong" if isinstance(found, str) else found


def _public(*paths: Path) -> bytes | None:
    """The public part that the first of these files shows that shows one."""
    for path in paths:
        try:
            found = key_files.public_part(path.read_text("ascii", "replace"))
        except OSError:
            continue
        if found:
            return found
    return None


def _is_for(key: AgentKey, public: bytes) -> bool:
    """Whether an agent's key, or the key of its certificate, is that one."""
    return key.blob == public or key_files.certifies(key.blob, public)


def _with_certificates(
    label: str, key: paramiko.PKey, certificates: Sequence[bytes], path: Path | None = None
) -> Iterator[tuple[str, paramiko.PKey]]:
    """A key with each certificate that is for it, then the key alone."""
    plain = key.blob if isinstance(key, AgentKey) else key.asbytes()
    beside = _public(Path(f"{path}-cert.pub")) if path else None
    for blob in dict.fromkeys([*([beside] if beside else []), *certificates]):
        if key_files.certifies(blob, plain):
            key.public_blob = PublicBlob(key_files.kind(blob), blob)
            yield f"{label}, with a certificate", key
    # A certificate that an agent holds is its own public part.
    key.public_blob = (
        PublicBlob(key_files.kind(plain), plain) if key_files.is_certificate(plain) else None
    )
    yield label, key


def _answers(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
    """What the user answers to the host's questions, e.g. for a one-time password."""
    for line in (title, instructions):
        if line.strip():
            print(printable(line.strip()), file=sys.stderr)
    return [
        input(printable(prompt)) if shown else getpass.getpass(printable(prompt))
        for prompt, shown in prompts
    ]


def _is_end(error: Exception) -> bool:
    """Whether the error says no more than that the connection ended."""
    return isinstance(error, (EOFError, OSError)) or "EOF" in str(error)


def agent_socket(named: str | None) -> Path | None:
    """The socket of the agent: as `IdentityAgent` names it, else of this environment."""
    if named and named.startswith("$"):
        named = os.environ.get(named.strip("${}"))
    named = named or os.environ.get("SSH_AUTH_SOCK")
    return Path(named) if named else None
