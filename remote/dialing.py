"""Where a host is and a TCP connection to it: made while the rest of the tool is still imported.

Nothing here imports Paramiko, which takes longer than a round trip; least of all in the thread: a
package that two threads begin to import at once may come out broken for both.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from remote import config, errors, ssh_config
from remote.config import Address
from remote.core.ssh_config import BadConfig
from remote.core.ssh_options import SSHOptions, parse

#: How long `ssh -G` may take; a `Match exec` runs in it.
_CONFIG_READ_S = 30


class _NoOpenSSH(Exception):
    """There is no OpenSSH that could be asked."""


class Dial:
    """An address that is being looked up and dialled, in a thread; without OpenSSH only once it is
    asked for.

    Args:
        config_file: see `resolve`.
        timeout_s: for the TCP connection, where ssh_config names none.
    """

    def __init__(self, address: Address, config_file: str | None, timeout_s: float) -> None:
        self._options: SSHOptions | None = None
        self._socket: socket.socket | None = None
        self._failure: Exception | None = None
        self._asked = (address, config_file)
        self._timeout_s = timeout_s
        self._thread = threading.Thread(target=self._dial, args=(_of_openssh,), daemon=True)
        self._thread.start()

    def _dial(self, said: _Said) -> None:
        self._failure = None
        try:
            self._options = found = _options(*self._asked, said)
            if not found.proxy_jump and not found.proxy_command:
                at = (found.hostname, found.port)
                limit_s = found.connect_timeout_s or self._timeout_s
                self._socket = socket.create_connection(at, limit_s)
        except (TimeoutError, socket.gaierror, UnicodeError) as failure:
            self._failure = failure
        except OSError as failure:  # no route, nobody there: told alike
            self._failure = ConnectionError(*failure.args)
        except Exception as failure:
            self._failure = failure

    def _wait(self) -> None:
        self._thread.join()
        if isinstance(self._failure, _NoOpenSSH):
            self._dial(ssh_config.looked_up)

    def options(self) -> SSHOptions:
        """What ssh_config says of the address.

        Raises:
            ConfigError: ssh_config cannot be read.
        """
        self._wait()
        if self._options is None:
            assert self._failure is not None
            raise self._failure
        return self._options

    def connection(self) -> socket.socket | None:
        """The connection, once; None where something else leads to the host.

        Raises:
            OSError: it can't be reached.
        """
        self._wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        made, self._socket = self._socket, None
        return made


_begun: dict[tuple[Address, str | None], Dial] = {}


def begin(raw: Mapping[str, object], project: Path, host: str) -> None:
    """Dial the host that a task is going to ask for, in the background.

    Settings that are wrong, and the embedded host, which may have to be started first, are left to
    `remote/session.py`.

    Args:
        raw: what Invoke merged.
        host: as it was named, or empty.
    """
    try:
        settings = config.load(raw, project)
        name = settings.pick(host)
    except errors.ToolError:
        return
    if name != config.SANDBOX:
        chosen = settings.hosts[name]
        key = (chosen.address, chosen.ssh_config)
        _begun[key] = Dial(*key, settings.ssh.connect_timeout_s)


def taken(address: Address, config_file: str | None, timeout_s: float) -> Dial:
    """The dial that was begun for that address, else a new one."""
    key = (address, config_file)
    return _begun.pop(key, None) or Dial(*key, timeout_s)


def resolve(address: Address, config: str | None) -> SSHOptions:
    """What ssh_config says of an address, which itself goes before it.

    Asked of `ssh -G` where OpenSSH is installed, otherwise read by ourselves.

    Args:
        config: the file to read, ``none`` for no file, or None for the user's and the system's.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return _options(address, config, _of_openssh)
    except _NoOpenSSH:
        return _options(address, config, ssh_config.looked_up)


#: The settings of a host as `ssh -G` prints them, from a file's name, ``none``, or None.
_Said = Callable[[str, str | None], str]


def _options(address: Address, config: str | None, said: _Said) -> SSHOptions:
    """As `resolve`, from what ``said`` says."""
    alias = address.host
    try:
        options = parse(said(alias, config))
    except (BadConfig, ValueError) as error:
        raise errors.ConfigError(
            f"ssh_config cannot be read for {alias}",
            evidence=str(error).splitlines(),
            hint=f"look into {config or '~/.ssh/config and what it includes'}",
        ) from error
    return replace(options, user=address.user or options.user, port=address.port or options.port)


def _of_openssh(alias: str, config: str | None) -> str:
    """What `ssh -G` prints.

    Raises:
        BadConfig: the settings cannot be read.
        _NoOpenSSH: there is none.
    """
    try:
        done = subprocess.run(
            ["ssh", "-G", *(["-F", config] if config else []), "--", alias],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_CONFIG_READ_S,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise _NoOpenSSH from error
    except subprocess.TimeoutExpired as error:
        raise BadConfig(
            f"`ssh -G {alias}` took more than {_CONFIG_READ_S} s: does a Match exec wait?"
        ) from error
    if done.returncode:
        raise BadConfig(done.stderr.strip() or f"`ssh -G {alias}` ended with {done.returncode}")
    return done.stdout
