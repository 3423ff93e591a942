"""What every step works with, and what several of them ask."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass
from typing import Any

from gpu import logs
from gpu.place import Here, There
from gpu.results import Results, Step
from gpu.settings import HERE, MODELS, Asked, Shape, hosts, shape, too_large
from gpu.tool import Task, Tool

_MEMORY = """
PATH=$PATH:/usr/local/nvidia/bin nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits
"""
#: What a driver may keep or give back between two looks, MiB.
SLACK_MIB = 64


@dataclass
class Work:
    """One call of the test."""

    asked: Asked
    place: Here | There
    tool: Tool
    results: Results

    @property
    def facts(self) -> dict[str, Any]:
        return self.results.facts

    @property
    def left_s(self) -> float:
        return self.tool.deadline - time.time()

    def configure(self) -> None:
        """Settings for this call: the SSH server's port may be another than last time."""
        entry = self.place.entry()
        self.facts["port"] = entry["port"]
        home = "/root"
        if isinstance(self.place, Here):
            home = str(self.place.host_folder / "home")
        models = self.facts.get("models", f"{home}/{MODELS}")
        environment = self.place.environment()
        self.facts["environment"] = environment
        self.tool.configure(hosts(entry, self.asked, models, environment))

    def deploy(self, profile: str, *words: str, host: str = "") -> Task:
        """`inv deploy` to its end."""
        return self.tool.inv("deploy", profile, *words, *_host(host))

    def there(self, script: str, *arguments: str, env: bool = False) -> str:
        """One of the scripts beside this file, run by the host's interpreter."""
        given = self.facts["environment"] if env else {}
        return self.tool.python_there((HERE / script).read_text(), *arguments, env=given)

    def memory(self) -> list[int]:
        """MiB used on each GPU; empty where there is none."""
        done = self.tool.inv("run", " ".join(_MEMORY.split()))
        lines = "".join(done.stdout).split()
        return [int(word) for word in lines if word.isdigit()] if done.status == 0 else []

    def memory_back(self, step: Step) -> None:
        """Check that no GPU holds more than before the first start."""
        before, now = self.facts.get("memory_before", []), self.memory()
        if not before:
            step.needs_gpu("GPU memory is back")
            return
        back = len(now) == len(before) and all(
            n <= b + SLACK_MIB for n, b in zip(now, before, strict=True)
        )
        step.check("GPU memory is back", back, f"{now} MiB", f"{before} MiB")

    def log(self, run: str) -> str:
        """The log's copy here."""
        path = self.tool.runs / run / "server.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def keep_log(self, name: str, run: str) -> None:
        """Beside the results, for a case."""
        folder = self.results.path.parent / "logs"
        folder.mkdir(exist_ok=True)
        source = self.tool.runs / run
        for file, suffix in (("server.log", "log"), ("diagnosis.json", "diagnosis.json")):
            if (source / file).exists():
                shutil.copyfile(source / file, folder / f"{name}.{suffix}")

    def ready(self, step: Step, task: Task, name: str) -> str | None:
        """The checks of a start that must get ready; its run, None where it did not."""
        step.equal("exit code", task.status, 0)
        run = str(task.data.get("run") or failed_run(task) or "")
        if run:
            self.keep_log(name, run)
        if task.status != 0:
            step.figure("said", task.prose[-600:])
            return None
        step.equal("mismatches between plan and server", task.data.get("intent_mismatches", []), [])
        step.figure("deploy took, s", round(task.seconds, 1))
        verdict = task.data.get("verdict") or {}
        if verdict:
            # A second look at the same start finds nothing to do, and times nothing.
            self.facts[f"start_{name}"] = start_times(task, self.log(run))
        return run

    def graphs(self, step: Step, run: str, *, prefill: bool) -> None:
        """Which graphs were captured."""
        if self.asked.cpu:
            step.needs_gpu("CUDA graphs are captured")
            return
        log = self.log(run)
        found = logs.captured(log)
        step.check("decode sizes captured", found.decode > 0, found.decode, "some")
        step.figure("decode capture, s", found.decode_s)
        if prefill:
            step.check("prefill sizes captured", found.prefill > 0, found.prefill, "some")
            step.figure("prefill capture, s", found.prefill_s)
        else:
            step.equal("prefill sizes captured", found.prefill, 0)
        if self.asked.tp > 1:
            step.equal("ranks in the log", len(logs.ranks(log)), self.asked.tp)

    def failed_as(self, step: Step, task: Task, name: str, code: int, *kinds: str) -> None:
        """The checks of a failure: exit code and kind; its log is kept."""
        step.equal("exit code", task.status, code)
        kind = task.diagnosis.get("kind")
        step.check("kind", kind in kinds, kind or task.prose[-400:], " or ".join(kinds))
        for key in ("first_rank", "phase", "raised_in"):
            step.figure(key, task.diagnosis.get(key))
        run = failed_run(task)
        if run:
            self.keep_log(name, run)

    def all_ranks_failed(self, step: Step, task: Task) -> None:
        """Every rank that could print its failure is told, in one account.

        SGLang ends the others when the first is gone: some never get to print theirs.
        """
        found = dict(task.diagnosis.get("ranks") or {})
        failed = [rank for rank, role in found.items() if role == "failed"]
        if self.asked.tp > 1:
            log = self.tool.runs / str(failed_run(task) or "") / "server.log"
            printed = log.read_text("utf-8", "replace").count("hit an exception: Traceback")
            step.check("ranks that failed", len(failed) == printed > 0, len(failed), printed)
        spread = re.search(r"\d+ of \d+ ranks[^;\n]*", task.prose)
        step.figure("spread", spread[0] if spread else "not told")

    @property
    def last_rank(self) -> str:
        return f"TP{self.asked.tp - 1}" if self.asked.tp > 1 else "scheduler"

    def shapes(self) -> dict[str, Shape]:
        served = shape(self.asked.tp, self.asked.cpu, self.asked.wide)
        return {"served": served, "too-large": too_large(self.asked.tp)}


def failed_run(task: Task) -> str | None:
    """The run that a failed task speaks of."""
    run = (task.data.get("error") or {}).get("run")
    return None if run is None else str(run)


def start_times(task: Task, log: str) -> dict[str, Any]:
    """What of a deploy was the tool's and what SGLang's; seconds.

    ``before``: to the moment when the server is started; ``server``: from there to its own ready
    line (whole seconds of its log's clock); ``after``: from that line to the end of the task.
    """
    launched = task.said("starting run") or task.began
    ready = logs.at(log, "The server is fired up")
    found: dict[str, Any] = {"whole": round(task.seconds, 1)}
    found["before"] = round(launched - task.began, 1)
    if ready is not None:
        found["server"] = round(ready - launched, 1)
        found["after"] = round(task.ended - ready, 1)
    return found


def _host(name: str) -> list[str]:
    return ["--host", name] if name else []


def read_json(text: str) -> dict[str, Any]:
    """The last line of what a script printed."""
    found = json.loads(text.strip().splitlines()[-1])
    return found if isinstance(found, dict) else {"answer": found}
