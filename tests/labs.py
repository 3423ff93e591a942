"""A host without SSH with profiles and a patch set, and the ledger of what is done to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hosts import LocalHost, Venv
from sessions import Task

from remote import experiment
from remote.core.run_record import RunRow
from remote.experiment import DeployOptions
from remote.ledger import EventRow, Ledger

SERVES = "serve(); ready(); wait()"
FILE = "flashinfer/jit/cpp_ext.py"
CODE = b"import torch\n\n\ndef get_cuda_version() -> Version:\n    return nvcc()\n"


class Lab(Task):
    """A host with profiles and a patch set, and the ledger of what is done to it."""

    def __init__(self, host: LocalHost, venv: Venv, folder: Path) -> None:
        templates = folder / "templates"
        profiles = templates / "profiles"
        profiles.mkdir(parents=True)
        (profiles / "plain.yaml").write_text("description: nothing\nready_timeout_s: 60\n")
        patch = templates / "patches" / "mine" / "first"
        patch.mkdir(parents=True)
        (patch / "a.diff").write_text(
            f"--- a/{FILE}\n+++ b/{FILE}\n@@ -4,2 +4,3 @@\n"
            " def get_cuda_version() -> Version:\n+    first()\n     return nvcc()\n"
        )
        (patch / "manifest.yaml").write_text(
            "summary: a test\ndistribution: flashinfer-python\nversions: '>=0.6'\n"
            "delivery: edit\nedits:\n  - a.diff\n"
        )
        venv.install("flashinfer-python", "0.6.3", {FILE: CODE})
        super().__init__(host, venv, folder, templates=str(templates))
        self.runs = folder / "runs"

    def deploy(self, play: str = SERVES, *sets: str, **options: object) -> str:
        """Deploy until it is ready; the run."""
        self.venv.play(play)
        told = replace(DeployOptions(sets=tuple(sets), bundle=False), **options)  # type: ignore[arg-type]
        return str(experiment.deploy_profile(self.session, "plain", told).get("run"))

    def again(self) -> None:
        """Another task of the same user: a session of its own."""
        self.session = replace(self.session)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.runs)

    @property
    def newest(self) -> RunRow:
        return self.ledger.runs()[0]

    def happened(self, run: str | None = None) -> list[str]:
        return [event.what for event in self.ledger.events(run)]

    def event(self, what: str) -> EventRow:
        return [event for event in self.ledger.events() if event.what == what][-1]
