from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from remote.errors import ToolError
from remote.sandbox.pip import Pip, ProgressReader, pip_environment


def test_a_download_is_told_in_whole_percents_of_its_file() -> None:
    reader = ProgressReader()
    lines = [
        "Collecting torch==2.13.0 (from -r x)",
        "  Downloading https://x/torch-2.13.0.whl (191.8 MB)",
        "Progress 1000 of 200000000",
        "Progress 100000000 of 200000000",
        "Progress 100000001 of 200000000",
        "Installing collected packages: a, b, c",
        "Requirement already satisfied: d",
    ]

    assert [reader.read(line) for line in lines] == [
        "torch==2.13.0",
        "Downloading https://x/torch-2.13.0.whl (191.8 MB)",
        "torch-2.13.0.whl: 0 of 200 MB",
        "torch-2.13.0.whl: 100 of 200 MB",
        None,
        "unpacking 3 packages",
        None,
    ]


def test_the_users_index_is_honoured_and_what_would_misplace_packages_is_not() -> None:
    found = pip_environment(
        {"PIP_INDEX_URL": "https://mirror", "PIP_TARGET": "/x", "PYTHONPATH": "/y", "A": "b"}
    )

    assert found["PIP_INDEX_URL"] == "https://mirror"
    assert found["A"] == "b"
    assert not {"PIP_TARGET", "PYTHONPATH"} & set(found)


def fake_python(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_failure_quotes_pips_errors_and_names_the_log(tmp_path: Path) -> None:
    python = fake_python(
        tmp_path, "print('Collecting x'); print('ERROR: No matching distribution'); sys.exit(1)"
    )
    said: list[str] = []

    with pytest.raises(ToolError) as caught:
        Pip(python, tmp_path / "log").install(["x"], said.append)

    assert said == ["x"]
    assert caught.value.evidence == ("ERROR: No matching distribution",)
    assert str(tmp_path / "log") in str(caught.value.hint)
    assert "ERROR: No matching" in (tmp_path / "log").read_text()


def test_a_report_comes_back_as_values(tmp_path: Path) -> None:
    python = fake_python(
        tmp_path, "open(sys.argv[sys.argv.index('--report') + 1], 'w').write('{\"install\": []}')"
    )

    assert Pip(python, tmp_path / "log").report(["x"]) == {"install": []}
