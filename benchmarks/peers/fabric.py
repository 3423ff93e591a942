"""Fabric: the job step by step, with `put` and `run`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers import Scripted
from benchmarks.rig import Target

_SCRIPT = """\
import hashlib
from fabric import Config, Connection
from paramiko import RejectPolicy

config = Config(overrides={{"load_ssh_configs": False}})
options = {{"key_filename": {identity!r}, "look_for_keys": False, "allow_agent": False}}
c = Connection("127.0.0.1", {user!r}, {port}, config=config, connect_kwargs=options)
c.client.load_host_keys({known_hosts!r})
c.client.set_missing_host_key_policy(RejectPolicy())
run, files = {run!r}, {files!r}
c.run({check_venv!r})
names = ["launch.sh", *("patches/" + name.rpartition("/")[2] for name in files[1:])]
sums = c.run(f"mkdir -p {{run}}/patches; cd {{run}}; sha256sum {{' '.join(names)}}",
             hide=True, warn=True).stdout
wanted = "".join(f"{{hashlib.sha256(open(file, 'rb').read()).hexdigest()}}  {{name}}\\n"
                 for file, name in zip(files, names))
if sums == wanted:
    c.run({patches_hold!r})
    c.run({serves!r})
else:
    for file, name in zip(files, names):
        c.put(file, f"{{run}}/{{name}}")
    c.run({check_patches!r})
    c.run({apply_patches!r})
    c.run({stop!r})
    c.run({start!r})
    c.run({wait!r})
c.close()
"""


class Fabric(Scripted):
    def __init__(self, target: Target, cache: Path) -> None:
        words = [sys.executable, "job.py"]
        super().__init__(target, "fabric", "Fabric, `put` and `run` step by step", words)
        steps = target.steps
        self.write(
            "job.py",
            _SCRIPT.format(
                identity=str(target.identity),
                user=target.user,
                port=target.link.port,
                known_hosts=str(target.known_hosts),
                run=str(steps.run),
                files=[str(path) for path in (target.files.script, *target.files.diffs)],
                **{
                    name: getattr(steps, name)
                    for name in (
                        *("check_venv", "check_patches", "apply_patches", "patches_hold"),
                        *("stop", "start", "wait", "serves"),
                    )
                },
            ),
        )
