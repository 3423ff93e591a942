"""OpenSSH's own client from a script: a connection for each command, or all over one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import Scripted, close_masters
from benchmarks.rig import Target

_SCRIPT = """\
set -euo pipefail
remote() {{ ssh "${{options[@]}}" {user}@127.0.0.1 "$1"; }}
options=({options})
remote {check_venv}
there=$(remote {sums})
here=$(cd {sources} && sha256sum launch.sh patches/*.diff)
if [ "$there" = "$here" ]; then
  remote {patches_hold}
  remote {serves}
  exit
fi
remote {mkdir}
scp -q "${{options[@]}}" {sources}/launch.sh {user}@127.0.0.1:{run}/
scp -q "${{options[@]}}" {sources}/patches/*.diff {user}@127.0.0.1:{run}/patches/
remote {check_patches}
remote {apply_patches}
remote {stop}
remote {start}
remote {wait}
"""


class ByHand(Scripted):
    """A connection for each command."""

    def __init__(self, target: Target, cache: Path) -> None:
        self._make(target, "by-hand", "scp and ssh, a connection a command", [])

    def _make(self, target: Target, name: str, command: str, extra: list[str]) -> None:
        super().__init__(target, name, command, ["bash", "job.sh"])
        steps = target.steps
        options = [
            *("-F", "none", "-i", str(target.identity), "-o", f"Port={target.link.port}"),
            *("-o", f"UserKnownHostsFile={target.known_hosts}", "-o", "IdentitiesOnly=yes"),
            *extra,
        ]
        lines = {
            name: _quoted(getattr(steps, name))
            for name in (
                *("check_venv", "check_patches", "apply_patches", "patches_hold"),
                *("stop", "start", "wait", "serves"),
            )
        }
        self.write(
            "job.sh",
            _SCRIPT.format(
                user=target.user,
                options=" ".join(options),
                sources=target.files.folder,
                run=steps.run,
                sums=_quoted(
                    f"cd {steps.run} && sha256sum launch.sh patches/*.diff 2>/dev/null || true"
                ),
                mkdir=_quoted(f"mkdir -p {steps.run}/patches"),
                **lines,
            ),
        )


class ControlMaster(ByHand):
    """The same over one connection, which stays open for the second time."""

    def __init__(self, target: Target, cache: Path) -> None:
        # A socket's path has to be short.
        self._sockets = target.folder / "cm"
        self._sockets.mkdir()
        keep = ["-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
        words = "the same over ControlMaster (warm the second time)"
        path = ["-o", f"ControlPath={self._sockets}/s"]
        self._make(target, "control-master", words, [*path, *keep])

    def close(self) -> None:
        close_masters(self._sockets)


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
