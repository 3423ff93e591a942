"""Paramiko with everything in one command and its input: what a script made for speed can do.

It does the steps and nothing else: no journal, no lock, no record, no verdict but the ready line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers import Scripted
from benchmarks.rig import Target

_REMOTE = """\
set -e
{check_venv}
mkdir -p {run}; cd {run}; mkdir new; tar xzf - -C new
if test -d patches && diff -rq new/patches patches >/dev/null && cmp -s new/launch.sh launch.sh
then rm -r new; ( {patches_hold} ); {serves}; exit; fi
rm -rf patches; mv new/* .; rmdir new
( {check_patches} )
( {apply_patches} )
{stop}
( {start} )
{wait}
"""

_SCRIPT = """\
import io, socket, tarfile
import paramiko

packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    tar.add({sources!r}, arcname=".")
client = paramiko.SSHClient()
client.load_host_keys({known_hosts!r})
sock = socket.create_connection(("127.0.0.1", {port}))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
client.connect("127.0.0.1", {port}, {user!r}, key_filename={identity!r}, sock=sock,
               look_for_keys=False, allow_agent=False)
channel = client.get_transport().open_session()
channel.exec_command({remote!r})
channel.sendall(packed.getvalue())
channel.shutdown_write()
while piece := channel.recv(65536):
    print(piece)
status = channel.recv_exit_status()
client.close()
raise SystemExit(status)
"""


class OneExec(Scripted):
    def __init__(self, target: Target, cache: Path) -> None:
        words = "Paramiko, one exec for all, a bare script"
        super().__init__(target, "one-exec", words, [sys.executable, "job.py"])
        steps = target.steps
        remote = _REMOTE.format(
            run=steps.run,
            **{
                name: getattr(steps, name)
                for name in (
                    *("check_venv", "check_patches", "apply_patches", "patches_hold"),
                    *("stop", "start", "wait", "serves"),
                )
            },
        )
        self.write(
            "job.py",
            _SCRIPT.format(
                sources=str(target.files.folder),
                known_hosts=str(target.known_hosts),
                port=target.link.port,
                user=target.user,
                identity=str(target.identity),
                remote=remote,
            ),
        )
