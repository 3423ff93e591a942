"""Ansible: the job as a playbook, as it comes, and with pipelining and without facts."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from benchmarks.peers import Scripted, close_masters, installed
from benchmarks.rig import Target


class Ansible(Scripted):
    """As it comes."""

    def __init__(self, target: Target, cache: Path) -> None:
        self._make(target, cache, "ansible", "ansible-playbook", tuned=False)

    def _make(self, target: Target, cache: Path, name: str, words: str, *, tuned: bool) -> None:
        # A socket's path has to be short.
        self._sockets = target.folder / name[-2:]
        self._sockets.mkdir()
        program = installed(cache, "ansible", "ansible-core", "ansible-playbook")
        super().__init__(target, name, words, [str(program), "-i", "inventory.yml", "job.yml"])
        self.write("inventory.yml", json.dumps(_inventory(target)))
        self.write("job.yml", yaml.safe_dump(_playbook(target, facts=not tuned)))
        self.env = {
            "ANSIBLE_PIPELINING": str(tuned),
            "ANSIBLE_REMOTE_TMP": str(target.home / ".ansible" / "tmp"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._sockets),
        }

    def close(self) -> None:
        close_masters(self._sockets)


class AnsiblePipelining(Ansible):
    """With pipelining and without facts."""

    def __init__(self, target: Target, cache: Path) -> None:
        words = "ansible-playbook, pipelining, no facts"
        self._make(target, cache, "ansible-pipelining", words, tuned=True)


def _inventory(target: Target) -> dict[str, object]:
    host = {
        "ansible_host": "127.0.0.1",
        "ansible_user": target.user,
        "ansible_port": target.link.port,
        "ansible_ssh_private_key_file": str(target.identity),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={target.known_hosts}"
        " -o IdentitiesOnly=yes",
        "ansible_python_interpreter": "auto_silent",
    }
    return {"all": {"hosts": {"gpu": host}}}


def _playbook(target: Target, *, facts: bool) -> list[dict[str, object]]:
    steps = target.steps
    changed = "script is changed or patches is changed"

    def shell(line: str, **more: object) -> dict[str, object]:
        return {"ansible.builtin.shell": line, "changed_when": False, **more}

    tasks = [
        shell(steps.check_venv),
        {"ansible.builtin.file": {"path": f"{steps.run}/patches", "state": "directory"}},
        {
            "ansible.builtin.copy": {
                "src": str(target.files.script),
                "dest": f"{steps.run}/launch.sh",
                "mode": "0755",
            },
            "register": "script",
        },
        {
            "ansible.builtin.copy": {"src": "{{ item }}", "dest": f"{steps.run}/patches/"},
            "loop": [str(path) for path in target.files.diffs],
            "register": "patches",
        },
        shell(steps.check_patches, when=changed),
        shell(steps.apply_patches, when=changed),
        shell(steps.stop, when=changed),
        shell(steps.start, when=changed),
        shell(steps.wait),
        shell(steps.serves),
    ]
    return [{"hosts": "all", "gather_facts": facts, "tasks": tasks}]
