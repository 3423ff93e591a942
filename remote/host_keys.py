"""Whether the key that a host shows is the host's: known_hosts files, and what may be added."""

from __future__ import annotations

from pathlib import Path

import paramiko

from remote import errors
from remote.config import HostSettings, SSHSettings
from remote.core import known_hosts
from remote.core.known_hosts import Judgement, Verdict
from remote.core.ssh_options import SSHOptions

#: Paramiko's own name for the two signature schemes of an RSA key.
_RSA_SCHEMES = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Judges the host's key by known_hosts; Paramiko's own store stays empty, so that every key
    comes here.

    Args:
        files: the user's files and the system's; a new key is recorded in the first of the user's,
            and accepted only where it can be.
    """

    def __init__(
        self,
        options: SSHOptions,
        files: tuple[list[Path], list[Path]],
        settings: HostSettings,
        ssh: SSHSettings,
    ) -> None:
        users, systems = files
        self._host = settings.name
        self.accepts_new = ssh.accept_new_host_keys or options.accept_new
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

    def ask_first_for_known(self, transport: paramiko.Transport) -> None:
        """Let the host show a key of a type that is on record, if it has one."""
        on_record = known_hosts.key_types(self._entries, [self._name])
        if "ssh-rsa" in on_record:
            on_record.update(_RSA_SCHEMES)
        security = transport.get_security_options()
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in on_record)

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        shown, kind = key.asbytes(), key.get_name()
        judgement = known_hosts.judge(self._entries, [self._name], kind, shown)
        print_of = f"{kind} {known_hosts.fingerprint(shown)}"
        self._shown = f"{print_of}, on record in {', '.join(judgement.sources) or self._record_to}"
        if judgement.verdict is Verdict.KNOWN:
            return
        message, hint = self._refusal(judgement, kind)
        if judgement.verdict is Verdict.UNKNOWN and self.accepts_new:
            if self._record_to is None:
                message = f"there is no known_hosts file to record the host key of {self._name} in"
                hint = f"name one: hosts.{self._host}.known_hosts, or UserKnownHostsFile"
            else:
                try:
                    self._record(self._record_to, kind, shown)
                    return
                except OSError as error:
                    message = (
                        f"the new host key of {self._name} cannot be recorded in"
                        f" {self._record_to}: {error.strerror or error}"
                    )
                    hint = (
                        "a key that isn't recorded is accepted anew each time, whoever shows it:"
                        f" make the file writable, or set hosts.{self._host}.known_hosts"
                    )
        raise errors.HostKeyRefused(
            message, host=self._host, evidence=[f"it showed {print_of}"], hint=hint
        )

    def _refusal(self, judgement: Judgement, kind: str) -> tuple[str, str]:
        """What is said of a key that isn't known, and the next step."""
        where = ", ".join(judgement.sources)
        file = judgement.sources[0].rpartition(":")[0] if judgement.sources else ""
        known = "on record"
        if judgement.types and kind not in judgement.types:
            known = f"a key of another type, {' or '.join(judgement.types)}, is on record"
        return {
            Verdict.UNKNOWN: (
                f"the host key of {self._name} is not known",
                "compare the fingerprint with the host's; then record it with"
                " ssh.accept_new_host_keys: true in invoke.yaml, or by connecting once with ssh",
            ),
            Verdict.CHANGED: (
                f"the host key of {self._name} has CHANGED ({known} in {where})",
                "somebody may be in between; only if the host was reinstalled:"
                f" ssh-keygen -f '{file}' -R '{self._name}'",
            ),
            Verdict.REVOKED: (
                f"the host key of {self._name} is revoked (in {where})",
                "this key must not be trusted; the host needs a new one",
            ),
            Verdict.AUTHORITY: (
                f"{self._name} is known by a certificate authority only (in {where})",
                "host certificates are not verified here: record the host's own key as well",
            ),
        }[judgement.verdict]

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
