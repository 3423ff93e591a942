from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.errors import ToolError
from remote.sandbox import setup
from remote.sandbox.layout import Layout
from remote.sandbox.packages import PIP, Pins, load_pins
from remote.sandbox.pip import Pip
from remote.sandbox.setup import Plan, Progress, Record, StepState
from remote.sandbox.steps import (
    Packages,
    Shims,
    Torch,
    Venv,
    Work,
    all_steps,
    installed,
    remove_half_installed,
    torch_is_cuda_build,
)


@dataclass
class Touch:
    """A step that leaves a file."""

    name: str
    inputs: str = "1"
    purpose: str = "leave a file"
    download_bytes: int = 10
    disk_bytes: int = 20
    runs: int = 0
    failure: BaseException | None = None
    leaves: bool = True

    def found(self, layout: Layout) -> bool:
        return (layout.folder / self.name).exists()

    def run(self, work: Work, detail: Callable[[str], None]) -> None:
        self.runs += 1
        if self.failure:
            raise self.failure
        detail("working")
        if self.leaves:
            (work.layout.folder / self.name).touch()


@pytest.fixture
def work(layout: Layout) -> Work:
    pip = Pip(layout.venv_python, layout.setup_log)
    return Work(layout, pip, Pins("3.11", {}), lambda question: False)


def do(work: Work, *steps: Touch) -> list[Progress]:
    shown: list[Progress] = []
    setup.run(work, steps, shown.append)
    return shown


def test_the_cost_is_said_first_then_each_step_by_its_number(work: Work) -> None:
    shown = do(work, Touch("a"), Touch("b"))

    assert shown[0].step == 0
    assert "20 MB" not in shown[0].detail
    assert str(work.layout.folder) in shown[0].detail
    assert shown[1:] == [
        Progress(1, 2, "a", "leave a file"),
        Progress(1, 2, "a", "working"),
        Progress(2, 2, "b", "leave a file"),
        Progress(2, 2, "b", "working"),
    ]


def test_the_second_time_there_is_nothing_to_do(work: Work) -> None:
    steps = (Touch("a"), Touch("b"))
    do(work, *steps)

    shown: list[Progress] = []
    assert setup.run(work, steps, shown.append) is False
    assert shown == []
    assert [step.runs for step in steps] == [1, 1]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ToolError("no network")])
def test_an_interrupted_set_up_goes_on_where_it_was(work: Work, failure: BaseException) -> None:
    first, second = Touch("a"), Touch("b", failure=failure)
    with pytest.raises(type(failure)):
        do(work, first, second)
    second.failure = None

    shown = do(work, first, second)

    assert (first.runs, second.runs) == (1, 2)
    assert {progress.name for progress in shown} == {"plan", "b"}


def test_what_was_removed_by_hand_or_is_made_from_something_else_is_made_again(work: Work) -> None:
    first, second, third = Touch("a"), Touch("b"), Touch("c")
    do(work, first, second, third)
    (work.layout.folder / "a").unlink()
    second.inputs = "2"

    do(work, first, second, third)

    assert (first.runs, second.runs, third.runs) == (2, 2, 1)


def test_what_is_there_but_was_never_finished_is_not_trusted(work: Work) -> None:
    (work.layout.folder / "a").touch()
    step = Touch("a")

    do(work, step)

    assert step.runs == 1


def test_a_step_that_leaves_nothing_is_an_error(work: Work) -> None:
    with pytest.raises(ToolError, match="step 'a'"):
        do(work, Touch("a", leaves=False))

    assert setup.states(work.layout, [Touch("a")]) == (StepState("a", False),)


def test_a_spoilt_record_remembers_nothing(work: Work) -> None:
    step = Touch("a")
    do(work, step)
    work.layout.setup_record.write_text('{"steps": ')

    assert Record.read(work.layout.setup_record).steps == {}
    do(work, step)
    assert step.runs == 2


def test_too_little_disk_is_said_before_anything_begins() -> None:
    plan = Plan(Path("/x"), ("torch",), 500_000_000, 2_500_000_000)

    setup.check_disk(plan, 3_000_000_000)
    with pytest.raises(ToolError, match=r"2\.9 GB free, 3\.0 GB needed"):
        setup.check_disk(plan, 2_900_000_000)


def test_the_whole_plan_fits_what_was_measured(layout: Layout) -> None:
    plan = setup.plan(layout, all_steps(load_pins("3.11")))

    assert plan.steps == (
        "keys",
        "venv",
        "torch",
        "libraries",
        "sglang",
        "flashinfer",
        "shims",
        "model",
        "check",
    )
    assert 400e6 < plan.download_bytes < 700e6
    assert 2.0e9 < plan.disk_bytes < 3.0e9


def distribution(layout: Layout, name: str, version: str, *, whole: bool = True) -> Path:
    info = layout.venv / "lib/python3.11/site-packages" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    if whole:
        (info / "INSTALLER").write_text("pip\n")
    return info


def test_a_package_that_pip_did_not_finish_is_not_installed(layout: Layout) -> None:
    distribution(layout, "hf_transfer", "0.1.9")
    half = distribution(layout, "scipy", "1.17.1", whole=False)

    assert installed(layout) == {"hf-transfer": "0.1.9"}
    remove_half_installed(layout)
    assert not half.exists()
    assert installed(layout) == {"hf-transfer": "0.1.9"}


def test_packages_are_found_at_their_very_versions(layout: Layout) -> None:
    distribution(layout, "hf_transfer", "0.1.9")

    def group(*pins: str) -> Packages:
        return Packages("x", "x", pins, 0, 0)

    assert group("hf-transfer==0.1.9").found(layout)
    assert not group("hf-transfer==0.1.8").found(layout)
    assert not group("hf-transfer==0.1.9", "scipy==1.17.1").found(layout)


def test_beside_a_cuda_build_its_own_triton_is_left_in_peace(layout: Layout) -> None:
    group = Packages("x", "x", ("triton==3.5.1",), 0, 0)
    info = distribution(layout, "torch", "2.13.0")
    assert not torch_is_cuda_build(layout)
    assert not group.found(layout)

    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
        'Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"\n\n'
    )
    assert torch_is_cuda_build(layout)
    assert group.found(layout)


@pytest.mark.parametrize(
    ("version", "found"), [("2.13.0+cpu", True), ("2.13.0", True), ("2.9.1+cpu", False)]
)
def test_torch_is_found_by_its_public_version(layout: Layout, version: str, found: bool) -> None:
    distribution(layout, "torch", version)

    assert Torch().found(layout) is found


def test_a_half_made_venv_is_not_trusted(layout: Layout) -> None:
    bin_folder = layout.venv / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to("/bin/sh")
    assert not Venv().found(layout)

    (bin_folder / "activate").touch()
    assert not Venv().found(layout)

    distribution(layout, "pip", PIP.partition("==")[2])
    assert Venv().found(layout)

    (bin_folder / "python").unlink()
    (bin_folder / "python").symlink_to("/gone/python3")
    assert not Venv().found(layout)


def test_the_shims_are_copied_and_an_altered_one_is_noticed(work: Work) -> None:
    distribution(work.layout, "pip", "1")
    shims = Shims()
    assert not shims.found(work.layout)

    shims.run(work, lambda line: None)
    assert shims.found(work.layout)

    site = work.layout.venv / "lib/python3.11/site-packages"
    (site / "sgl_kernel/__init__.py").write_text("")
    assert not shims.found(work.layout)
