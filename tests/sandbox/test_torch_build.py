from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from remote.errors import ToolError
from remote.sandbox import torch_build
from remote.sandbox.lock import constraints_text, write_stand_in
from remote.sandbox.packages import TORCH_CPU_INDEX, parse_pins
from remote.sandbox.pip import Pip
from remote.sandbox.torch_build import DownloadSize, cuda_question, download_size, is_cuda_build

CPU = {"version": "2.13.0+cpu", "requires_dist": ["filelock", "sympy>=1.13.3"]}
CUDA = {
    "version": "2.13.0",
    "requires_dist": [
        "filelock",
        'cuda-toolkit[cublas]==13.0.3; platform_system == "Linux"',
        'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"',
        'triton==3.7.1; platform_system == "Linux"',
    ],
}


@pytest.mark.parametrize(
    ("metadata", "cuda"),
    [
        (CPU, False),
        (CUDA, True),
        ({"version": "2.13.0+cu130", "requires_dist": []}, True),
        ({"version": "2.13.0"}, False),
        ({"version": "2.13.0", "requires_dist": ["nvidia_nccl_cu13"]}, True),
        ({"version": "2.13.0", "requires_dist": ["cudatoolkit-not-it"]}, False),
    ],
)
def test_a_cuda_build_gives_itself_away(metadata: dict[str, Any], cuda: bool) -> None:
    assert is_cuda_build(metadata) is cuda


def test_sizes_are_added_and_what_is_not_told_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "a b.whl"
    wheel.write_bytes(bytes(1234))

    size = download_size([wheel.as_uri(), (tmp_path / "gone-1.whl").as_uri()])

    assert size == DownloadSize(1234, ("gone-1.whl",))


def test_the_question_does_not_pass_off_a_part_as_the_whole() -> None:
    assert "2.5 GB" in cuda_question("2.13.0", 20, DownloadSize(2_500_000_000))
    assert "at least 2.5 GB" in cuda_question("2.13.0", 20, DownloadSize(2_500_000_000, ("x",)))


class Index(Pip):
    """A pip that answers with fixed metadata: one build by PyTorch's index, one by the other."""

    def __init__(self, ours: dict[str, Any], pytorchs: dict[str, Any] | None = None) -> None:
        super().__init__(Path("python"), Path("log"))
        object.__setattr__(self, "builds", {False: ours, True: pytorchs})

    def report(self, arguments: Sequence[str]) -> dict[str, Any]:
        build = self.__dict__["builds"]["--index-url" in arguments]
        return {"install": [{"metadata": build, "download_info": {"url": "file:///gone/t.whl"}}]}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def set_to(value: bool) -> None:
        monkeypatch.setattr(torch_build, "index_answers", lambda url: value)

    return set_to


def choose(index: Index, confirm: bool = False) -> tuple[torch_build.TorchBuild, list[str]]:
    asked: list[str] = []

    def answer(question: str) -> bool:
        asked.append(question)
        return confirm

    return torch_build.choose(index, answer, lambda line: None), asked


def test_pytorchs_own_index_goes_first(answers: Callable[[bool], None]) -> None:
    answers(True)

    build, asked = choose(Index(CUDA, CPU))

    assert TORCH_CPU_INDEX in build.arguments
    assert (build.cuda, asked) == (False, [])


def test_a_cpu_build_of_the_configured_index_is_taken_unasked(
    answers: Callable[[bool], None],
) -> None:
    answers(False)

    build, asked = choose(Index(CPU))

    assert (build.arguments, build.cuda, asked) == (("--no-deps", "torch==2.13.0"), False, [])


def test_a_cuda_build_is_asked_about_and_a_no_says_how_to_go_on(
    answers: Callable[[bool], None],
) -> None:
    answers(False)

    build, asked = choose(Index(CUDA), confirm=True)
    assert build.cuda
    assert build.arguments == ("torch==2.13.0",)
    assert "CUDA build of torch 2.13.0" in asked[0]

    with pytest.raises(ToolError) as caught:
        choose(Index(CUDA), confirm=False)
    assert "PIP_FIND_LINKS" in str(caught.value.hint)


def test_the_stand_in_asks_for_all_but_cuda_and_triton(tmp_path: Path) -> None:
    requirement = write_stand_in(CUDA, tmp_path)

    assert requirement == "torch==2.13.0+standin"
    with zipfile.ZipFile(tmp_path / "torch-2.13.0+standin-py3-none-any.whl") as wheel:
        metadata = wheel.read("torch-2.13.0+standin.dist-info/METADATA").decode()
    assert metadata.count("Requires-Dist") == 1
    assert "Requires-Dist: filelock\n" in metadata


def test_what_is_written_is_what_is_read() -> None:
    text = constraints_text("3.11", ["torch==2.13.0", "pip==26.2"], "2026-11-29")

    assert parse_pins(text, "3.11").versions == {"pip": "26.2", "torch": "2.13.0"}
