"""Where everything of the embedded host lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: What an SSH client and the server insist on.
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


@dataclass(frozen=True)
class Layout:
    """The paths of one sandbox; ``folder`` is absolute and holds all of them."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.absolute())

    @property
    def home(self) -> Path:
        """``HOME`` of whoever logs in."""
        return self.folder / "home"

    @property
    def venv(self) -> Path:
        return self.home / "ml-env"

    @property
    def venv_python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def model(self) -> Path:
        return self.home / "models" / "tiny-qwen2"

    @property
    def ssh(self) -> Path:
        return self.folder / "ssh"

    @property
    def host_key(self) -> Path:
        return self.ssh / "host_ed25519"

    @property
    def client_key(self) -> Path:
        return self.ssh / "client_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.ssh / "known_hosts"

    @property
    def sglang_port(self) -> Path:
        """The port that its SGLang serves on, as text."""
        return self.folder / "sglang_port"

    @property
    def server_log(self) -> Path:
        return self.ssh / "server.log"

    @property
    def server_record(self) -> Path:
        """Pid, start and port of the SSH server last started."""
        return self.folder / "server.json"

    @property
    def setup_record(self) -> Path:
        """The set-up steps done, and from which inputs."""
        return self.folder / "setup.json"

    @property
    def setup_log(self) -> Path:
        """Everything pip and the checks printed."""
        return self.folder / "setup.log"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def foreign(self) -> tuple[Path, ...]:
        """What lies in the folder and is none of the above, nor half-written for one of them."""
        files = (
            self.server_record,
            self.setup_record,
            self.setup_log,
            self.sglang_port,
            self.lock,
        )
        ours = {self.home, self.ssh, *files}
        half_written = tuple(f".{path.name}." for path in files)
        return tuple(
            path
            for path in sorted(self.folder.iterdir())
            if path not in ours and not path.name.startswith(half_written)
        )
