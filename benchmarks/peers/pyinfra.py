"""pyinfra: the job as a deploy of operations."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import Scripted, installed
from benchmarks.rig import Target

_DEPLOY = """\
from pyinfra.operations import files, server
from pyinfra.operations.util import any_changed

server.shell(name="venv", commands=[{check_venv!r}])
put = [files.put(name="script", src={script!r}, dest={run!r} + "/launch.sh", mode="755")]
for source in {diffs!r}:
    put.append(files.put(
        name=source, src=source, dest={run!r} + "/patches/" + source.rpartition("/")[2]))
changed = any_changed(*put)
server.shell(name="check", commands=[{check_patches!r}], _if=changed)
server.shell(name="apply", commands=[{apply_patches!r}], _if=changed)
server.shell(name="stop", commands=[{stop!r}], _if=changed)
server.shell(name="start", commands=[{start!r}], _if=changed)
server.shell(name="ready", commands=[{wait!r}])
server.shell(name="serves", commands=[{serves!r}])
"""


class Pyinfra(Scripted):
    def __init__(self, target: Target, cache: Path) -> None:
        program = installed(cache, "pyinfra", "pyinfra", "pyinfra")
        words = [str(program), "-y", "inventory.py", "job.py"]
        super().__init__(target, "pyinfra", "pyinfra -y inventory.py job.py", words)
        connection = {
            "ssh_user": target.user,
            "ssh_port": target.link.port,
            "ssh_key": str(target.identity),
            "ssh_known_hosts_file": str(target.known_hosts),
            "ssh_strict_host_key_checking": "yes",
        }
        steps = target.steps
        self.write("inventory.py", f"hosts = [('127.0.0.1', {connection!r})]\n")
        self.write(
            "job.py",
            _DEPLOY.format(
                script=str(target.files.script),
                diffs=[str(path) for path in target.files.diffs],
                run=str(steps.run),
                check_venv=steps.check_venv,
                check_patches=steps.check_patches,
                apply_patches=steps.apply_patches,
                stop=steps.stop,
                start=steps.start,
                wait=steps.wait,
                serves=steps.serves,
            ),
        )
