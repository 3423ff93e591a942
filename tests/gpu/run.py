"""The whole loop on a GPU host, step by step; see the README beside this.

    python tests/gpu/run.py --host gpu --results out                 # a host of invoke.yaml
    python tests/gpu/run.py --here --bundle .whl --results out       # this machine, without sshd

The same command goes on: a step that is done is not done again. Exit status: 0 all done and right,
1 something is wrong, 3 steps are left.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.place import Here, There
from gpu.results import DONE, FAILED, PART, Results, Step, chosen
from gpu.settings import PROJECT, Asked
from gpu.steps import STEPS, Made
from gpu.tool import OutOfTime, Tool
from gpu.work import Work

#: Kept for writing results and packing them.
_RESERVE_S = 10.0


def arguments(words: list[str]) -> argparse.Namespace:
    steps = ", ".join(f"{name} ({made.seconds:.0f} s)" for name, made in STEPS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"steps: {steps}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--host", help="a host of the settings")
    place.add_argument("--here", action="store_true", help="this machine is the GPU host")
    parser.add_argument("--config", type=Path, default=PROJECT / "invoke.yaml", help="the settings")
    parser.add_argument("--bundle", type=Path, help="with --here: what bring.py packed")
    parser.add_argument("--venv", type=Path, help="with --here: a venv that has SGLang")
    parser.add_argument("--work", type=Path, default=Path("/tmp/sglang-remote-gpu"))
    parser.add_argument("--results", type=Path, required=True, help="results.json, table.md, logs")
    parser.add_argument("--pack", type=Path, help="also everything as one archive, here")
    parser.add_argument("--unpack", type=Path, help="begin from such an archive, where one is lost")
    parser.add_argument("--steps", default="", help="a,b,fault: these; empty: all")
    parser.add_argument("--budget-s", type=float, default=540, help="of this call")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--wide", action="store_true", help="the model for eight GPUs, on fewer")
    parser.add_argument("--levels", default="1,16,64,256")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--cpu", action="store_true", help="a rehearsal without a GPU")
    parser.add_argument("--again", action="store_true", help="the steps named are done again")
    return parser.parse_args(words)


def place(asked: argparse.Namespace) -> Here | There:
    if asked.here:
        bundle = None if asked.bundle is None else asked.bundle.absolute()
        venv = None if asked.venv is None else asked.venv.absolute()
        if (bundle is None) == (venv is None):
            raise SystemExit("--here wants --bundle or --venv")
        return Here(asked.work.absolute(), bundle, venv, asked.cpu)
    import yaml

    settings = yaml.safe_load(asked.config.read_text("utf-8"))
    if asked.host not in (settings.get("hosts") or {}):
        raise SystemExit(f"no host {asked.host!r} in {asked.config}")
    return There(asked.host, settings, asked.config.absolute().parent)


def do(work: Work, name: str, made: Made) -> Step:
    """One step to its end, however that is."""
    step = Step(name)
    began = time.time()
    print(f"== {name}", flush=True)
    try:
        made.do(work, step)
        step.state = DONE
    except OutOfTime as late:
        step.state, step.note = PART, f"out of time: {late}"
    except Exception as error:
        step.state, step.note = FAILED, f"{type(error).__name__}: {error}"[:800]
        traceback.print_exc()
        step.check("ended without an error", False, step.note, "no error")
    step.seconds = time.time() - began
    for row in step.rows:
        print(f"   {row.mark:5} {row.check}: {row.saw[:300]}", flush=True)
    print(f"   {name}: {step.state} after {step.seconds:.0f} s {step.note}", flush=True)
    return step


def main() -> int:
    asked = arguments(sys.argv[1:])
    deadline = time.time() + asked.budget_s - _RESERVE_S
    names = chosen(asked.steps, list(STEPS))
    asked.results.mkdir(parents=True, exist_ok=True)
    project = (asked.work / "project").absolute()
    if asked.unpack is not None and not (asked.results / "results.json").exists():
        unpack(asked.unpack, asked.results, project / "runs")
    results = Results.read((asked.results / "results.json").absolute())
    if asked.again and asked.steps:
        for name in names:
            results.steps.pop(name, None)
    where = place(asked)
    options = Asked(
        asked.tp,
        asked.cpu,
        asked.levels,
        asked.repeats,
        asked.input_len,
        asked.output_len,
        asked.wide,
    )
    work = Work(options, where, Tool(project, where.client_python, deadline), results)
    if not where.installed:
        for name in ("install", "model"):  # done on another machine
            results.steps.pop(name, None)
        names = [name for name in STEPS if name in ("install", "model", *names)]
    left = [name for name in names if not results.done(name)]
    if left and left[0] != "install":
        work.configure()
    for name in left:
        made = STEPS[name]
        # A step that was cut short may not be cut short again for want of the time it takes.
        if work.left_s < made.seconds and name != left[0]:
            print(f"== {name}: wants {made.seconds:.0f} s, {work.left_s:.0f} s are left")
            break
        results.steps[name] = do(work, name, made)
        results.write()
        (asked.results / "table.md").write_text(results.table(), "utf-8")
        if results.steps[name].state == PART:
            break
    if asked.pack is not None:
        pack(asked.results, project / "runs", asked.pack)
    for name, row in results.wrong:
        print(f"WRONG {name}: {row.check}: {row.saw[:200]}, wanted {row.wanted[:200]}")
    left = [name for name in names if not results.done(name)]
    print(f"left: {', '.join(left) or 'nothing'}")
    return 3 if left else 1 if results.wrong else 0


def pack(results: Path, runs: Path, archive: Path) -> None:
    """Results and the runs' records as one file."""
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        packed.add(results, "results")
        if runs.is_dir():
            packed.add(runs, "runs")
    print(f"packed: {archive} ({archive.stat().st_size >> 10} KiB)")


def unpack(archive: Path, results: Path, runs: Path) -> None:
    """What `pack` made, put back where it was."""
    with tarfile.open(archive) as packed:
        for member in packed:
            head, _, rest = member.name.partition("/")
            if rest and ".." not in rest and member.isfile():
                member.name = rest
                packed.extract(member, results if head == "results" else runs)


if __name__ == "__main__":
    sys.exit(main())
