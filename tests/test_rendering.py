"""Rendering: every value arrives as it is, and the launch script does what its lines say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote import rendering
from remote.config import TEMPLATES
from remote.core import environment
from remote.errors import ConfigError

#: Stands in for the venv's python: what it was started with, byte for byte, and as which process.
FAKE_PYTHON = """#!{python} -IS
import json, os, resource, sys
started = {{
    "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "env": {{name.hex(): value.hex() for name, value in os.environb.items()}},
    "pid": os.getpid(),
    "cwd": os.getcwd(),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
}}
print(json.dumps(started))
"""


class Started:
    """What the launch script started, decoded."""

    def __init__(self, text: str) -> None:
        raw = json.loads(text)
        self.argv = [bytes.fromhex(word).decode() for word in raw["argv"]]
        self.env = {
            bytes.fromhex(name).decode(): bytes.fromhex(value).decode()
            for name, value in raw["env"].items()
        }
        self.pid = int(raw["pid"])
        self.cwd = str(raw["cwd"])
        self.files_soft, self.files_hard = raw["files"]


def script(
    run_folder: Path,
    venv: Path,
    *,
    argv: Sequence[str] = ("--port", "30000"),
    env: Mapping[str, str] | None = None,
    run: str = "r-1",
    profile: str = "piecewise",
    cuda_home: str = "/usr/local/cuda",
) -> str:
    return rendering.launch_script(
        (TEMPLATES,),
        run=run,
        profile=profile,
        run_folder=str(run_folder),
        venv=str(venv),
        fixed_env=environment.fixed(str(venv), cuda_home),
        server_env=env or {},
        argv=argv,
    )


def make_venv(venv: Path) -> Path:
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    python = venv / "bin" / "python"
    if not python.exists():
        python.write_text(FAKE_PYTHON.format(python=sys.executable), encoding="utf-8")
        python.chmod(0o755)
    return venv


def start(text: str, run_folder: Path, **env: str) -> Started:
    """Run the script with bash as a host would, its own text in the run folder."""
    run_folder.mkdir(parents=True, exist_ok=True)
    path = run_folder / "launch.sh"
    path.write_bytes(text.encode())
    done = subprocess.run(
        ["bash", str(path)],
        capture_output=True,
        check=False,
        env={"PATH": os.defpath, **env},
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return Started(done.stdout.decode())


def test_the_server_takes_the_scripts_place(tmp_path: Path) -> None:
    folder, venv = tmp_path / "run", make_venv(tmp_path / "venv")
    started = start(script(folder, venv), folder)
    assert started.argv == ["-m", "sglang.launch_server", "--port", "30000"]
    assert (folder / "pid").read_text(encoding="utf-8") == f"{started.pid}\n"
    assert started.cwd == str(folder)
    assert started.env["SGLANG_REMOTE_RUN"] == "r-1"
    assert started.env["SPT_NOENV"] == "1"
    assert started.env["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize("hard", ["4096", "$(ulimit -Hn)"])
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(tmp_path: Path, hard: str) -> None:
    folder, venv = tmp_path / "run", make_venv(tmp_path / "venv")
    folder.mkdir()
    (folder / "launch.sh").write_text(script(folder, venv), encoding="utf-8")
    limited = f"ulimit -Sn 256; ulimit -Hn {hard}; exec bash {folder}/launch.sh"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, check=True)
    started = Started(done.stdout.decode())
    unlimited = started.files_hard < 0
    assert started.files_soft == (65536 if unlimited else min(started.files_hard, 65536))


def test_the_environment_is_fixed_whoever_starts_it(tmp_path: Path) -> None:
    folder, venv = tmp_path / "run", make_venv(tmp_path / "venv")
    text = script(folder, venv, cuda_home="/opt/cuda")
    bare = start(text, folder)
    dressed = start(text, folder, PATH="/evil:/usr/bin:/bin", PYTHONPATH="/x", PYTHONHOME="/y")
    assert bare.env["PATH"] == f"{venv}/bin:/opt/cuda/bin:{environment.SYSTEM_PATH}"
    assert (bare.env["VIRTUAL_ENV"], bare.env["CUDA_HOME"]) == (str(venv), "/opt/cuda")
    assert dressed.env == bare.env


def test_the_servers_own_variables_come_on_top(tmp_path: Path) -> None:
    folder, venv = tmp_path / "run", make_venv(tmp_path / "venv")
    env = {"CUDA_HOME": "/mine", "PYTHONPATH": "/patched", "EMPTY": ""}
    started = start(script(folder, venv, env=env), folder)
    assert {name: started.env[name] for name in env} == env


def test_the_script_reads_well(tmp_path: Path) -> None:
    argv = ["--model-path", "M", "--enable-metrics", "--cuda-graph-bs", "1", "2"]
    text = script(Path("/s/runs/r-1"), Path("/root/ml-env"), argv=argv)
    assert text.startswith("#!/bin/bash\n# SGLang server, profile piecewise, run r-1.\n")
    assert "Rerun by hand: bash /s/runs/r-1/launch.sh\n" in text
    assert text.endswith(
        "exec /root/ml-env/bin/python -m sglang.launch_server \\\n"
        "  --model-path M \\\n"
        "  --enable-metrics \\\n"
        "  --cuda-graph-bs 1 2\n"
    )


HOSTILE = "a b'c\"d;touch pwned;$(touch pwned)`touch pwned`\n#é\\\t*~$HOME !x\r&|<>"


def test_hostile_values_in_every_setting_arrive_verbatim(tmp_path: Path) -> None:
    # A folder's name can hold all of it but the slash; a colon would split PATH.
    folder = tmp_path / f"run {HOSTILE}"
    venv = make_venv(tmp_path / f"venv {HOSTILE}")
    text = script(
        folder,
        venv,
        argv=["--model-path", HOSTILE, f"--served-model-name=-{HOSTILE}", HOSTILE],
        env={"TOKEN": HOSTILE},
        run=HOSTILE,
        profile=HOSTILE,
        cuda_home=f"/cuda {HOSTILE}",
    )
    started = start(text, folder)
    assert started.argv[-4:] == [
        "--model-path",
        HOSTILE,
        f"--served-model-name=-{HOSTILE}",
        HOSTILE,
    ]
    assert started.env["TOKEN"] == started.env["SGLANG_REMOTE_RUN"] == HOSTILE
    assert started.env["CUDA_HOME"] == f"/cuda {HOSTILE}"
    assert started.env["VIRTUAL_ENV"] == str(venv)
    assert sorted(path.name for path in folder.iterdir()) == ["launch.sh", "pid"]
    assert not list(tmp_path.rglob("pwned"))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NAMES = st.from_regex(r"X_[A-Z0-9_]{0,8}", fullmatch=True)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(TEXT, max_size=6),
    env=st.dictionaries(NAMES, TEXT, max_size=4),
    run=TEXT,
    profile=TEXT,
)
def test_any_value_arrives_verbatim(
    tmp_path: Path, words: list[str], env: dict[str, str], run: str, profile: str
) -> None:
    folder, venv = tmp_path / "run", make_venv(tmp_path / "venv")
    started = start(script(folder, venv, argv=words, env=env, run=run, profile=profile), folder)
    assert started.argv[len(started.argv) - len(words) :] == words
    assert {name: started.env[name] for name in env} == env
    assert started.env["SGLANG_REMOTE_RUN"] == run
    assert sorted(path.name for path in folder.iterdir()) == ["launch.sh", "pid"]


def test_bash_finds_no_fault_in_it(tmp_path: Path) -> None:
    text = script(tmp_path / HOSTILE, tmp_path / "venv", env={"A": HOSTILE}, argv=[HOSTILE])
    checked = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_a_run_folder_that_is_gone_starts_nothing(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    text = script(tmp_path / "gone", venv)
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize("name", ["UID", "RANDOM", "SGLANG_REMOTE_RUN"])
def test_variables_that_a_script_cannot_give_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} belongs to"):
        script(tmp_path, tmp_path, env={name: "1"})


def test_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NUL"):
        script(tmp_path, tmp_path, argv=["--model-path", "a\0b"])


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def render(folder: Path, text: str, **values: object) -> str:
    (folder / "own.sh.j2").write_text(text, encoding="utf-8")
    return rendering.render("own.sh.j2", (folder, TEMPLATES), values)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("echo {{ value }}", "echo 'a; b'"),
        ("echo {{ value | quote }}", "echo 'a; b'"),
        ("echo {{ value | upper }}", "echo 'A; B'"),
        ("echo {{ value | safe }}", "echo 'a; b'"),
        ("echo {{ [value, 1] | words }}", "echo 'a; b' 1"),
        ("# {{ value | comment }}", "# a; b"),
        ("echo {{ 7 }}", "echo 7"),
    ],
)
def test_whatever_a_template_prints_is_quoted(mine: Path, text: str, rendered: str) -> None:
    assert render(mine, text, value="a; b") == rendered


def test_a_comment_stays_on_its_line(mine: Path) -> None:
    assert render(mine, "# {{ value | comment }}", value="a\nrm -r x") == "# a?rm -r x"


def test_an_undefined_name_is_said_with_its_place_and_the_nearest(mine: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        render(mine, "#!/bin/bash\necho\necho {{ run_foldr }}", run_folder="/x")
    assert caught.value.message == (
        "template own.sh.j2, line 3: 'run_foldr' is undefined; did you mean run_folder?"
    )
    assert list(caught.value.evidence) == [f"{mine / 'own.sh.j2'}:3: echo {{{{ run_foldr }}}}"]
    assert caught.value.hint == "it may use run_folder"


def test_an_undefined_name_in_a_condition_is_no_silent_no(mine: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: 'missing' is undefined"):
        render(mine, "{% if missing %}x{% endif %}")


def test_a_broken_template_is_said_with_its_line(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"template own\.sh\.j2, line 2: "):
        render(mine, "echo\n{% fro x in y %}")


@pytest.mark.parametrize("value", [["a"], {"a": 1}, None])
def test_what_is_not_one_word_is_refused_with_its_place(mine: Path, value: object) -> None:
    with pytest.raises(ConfigError, match=r"template own\.sh\.j2, line 2: a \w+ can't be printed"):
        render(mine, "echo\necho {{ value }}", value=value)


def test_a_missing_template_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'lunch\.sh\.j2'; did you mean launch\.sh\.j2"):
        rendering.render("lunch.sh.j2", (TEMPLATES,), {})


def test_ones_own_launch_script_goes_before_the_built_in(mine: Path) -> None:
    (mine / "launch.sh.j2").write_text("# mine, {{ profile | comment }}\n", encoding="utf-8")
    text = rendering.launch_script(
        (mine, TEMPLATES),
        run="r",
        profile="p",
        run_folder="/r",
        venv="/v",
        fixed_env={},
        server_env={},
        argv=[],
    )
    assert text == "# mine, p\n"
