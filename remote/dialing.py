"""Where a host is and a TCP connection to it: made while the rest of the tool is still imported.

Paramiko, whose import takes longer than a round trip, is imported only where there is no OpenSSH to
read ssh_config.
"""

from __future__ import annotations

import getpass
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from remote import config, errors
from remote.config import Address
from remote.core.ssh_options import SSHOptions, parse


class Dial:
    """An address that is being looked up and dialled, in a thread.

    Args:
        config_file: see `resolve`.
        timeout_s: for the TCP connection, where ssh_config names none.
    """

    def __init__(self, address: Address, config_file: str | None, timeout_s: float) -> None:
        self._options: SSHOptions | None = None
        self._socket: socket.socket | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(
            target=self._dial, args=(address, config_file, timeout_s), daemon=True
        )
        self._thread.start()

    def _dial(self, address: Address, config_file: str | None, timeout_s: float) -> None:
        try:
            self._options = found = resolve(address, config_file)
            if not found.proxy_jump and not found.proxy_command:
                at = (found.hostname, found.port)
                self._socket = socket.create_connection(at, found.connect_timeout_s or timeout_s)
        except (TimeoutError, socket.gaierror) as failure:
            self._failure = failure
        except OSError as failure:  # no route, nobody there: told alike
            self._failure = ConnectionError(*failure.args)
        except Exception as failure:
            self._failure = failure

    def options(self) -> SSHOptions:
        """What ssh_config says of the address.

        Raises:
            ConfigError: ssh_config cannot be read.
        """
        self._thread.join()
        if self._options is None:
            assert self._failure is not None
            raise self._failure
        return self._options

    def connection(self) -> socket.socket | None:
        """The connection, once; None where something else leads to the host.

        Raises:
            OSError: it can't be reached.
        """
        self._thread.join()
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

    Asked of `ssh -G` where OpenSSH is installed, otherwise of Paramiko's reader.

    Args:
        config: the file to read, ``none`` for no file, or None for the user's and the system's.
    """
    alias = address.host
    try:
        text = subprocess.run(
            ["ssh", "-G", *(["-F", config] if config else []), "--", alias],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        options = parse(text)
    except FileNotFoundError:
        options = parse(_without_openssh(alias, config))
    except subprocess.CalledProcessError as error:
        raise errors.ConfigError(
            f"ssh_config cannot be read for {alias}",
            evidence=error.stderr.strip().splitlines(),
            hint="try: ssh -G " + alias,
        ) from error
    return replace(options, user=address.user or options.user, port=address.port or options.port)


def _without_openssh(alias: str, config: str | None) -> str:
    import paramiko

    path = Path(config or "~/.ssh/config").expanduser()
    known = paramiko.SSHConfig()
    if config != "none" and path.exists():
        known = paramiko.SSHConfig.from_path(str(path))
    found: dict[str, Any] = {"hostname": alias, "user": getpass.getuser(), **known.lookup(alias)}
    found.setdefault("userknownhostsfile", "~/.ssh/known_hosts")
    found.setdefault("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
    if "identityfile" not in found:
        found["identityfile"] = [f"~/.ssh/{n}" for n in ("id_ed25519", "id_ecdsa", "id_rsa")]
    lines = []
    for keyword, value in found.items():
        values: list[str] = value if isinstance(value, list) else [value]
        lines += [f"{keyword} {each}" for each in values]
    return "\n".join(lines)
