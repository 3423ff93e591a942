"""The client's end: what it makes of a dead link, a silent one, and a host without its Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hosts import LocalHost, Pipes

from remote import agent, errors, starter
from remote.config import HostSettings
from remote.payload import frames


def test_a_call_is_answered_by_the_payload(lab: HostSettings, local_host: LocalHost) -> None:
    assert local_host.call("runs.ids", state=lab.state) == {"ids": []}


def test_a_refusal_arrives_as_its_own_class_with_evidence_and_hint(
    lab: HostSettings, local_host: LocalHost
) -> None:
    with pytest.raises(errors.ConfigError) as refusal:
        local_host.call("runs.look", state=lab.state, run="20261129-120000-none-0000")
    assert refusal.value.host == "lab"
    assert refusal.value.hint
    assert local_host.call("runs.ids", state=lab.state) == {"ids": []}


def test_what_the_system_refuses_is_said_with_the_file(local_host: LocalHost) -> None:
    with pytest.raises(errors.ToolError, match=r"/dev/full/runs.*Not a directory") as refusal:
        local_host.call("runs.ids", state="/dev/full")
    assert refusal.value.exit_code == 1


def test_a_defect_on_the_host_shows_its_traceback(local_host: LocalHost) -> None:
    with pytest.raises(errors.ToolError) as defect:
        local_host.call("runs.ids", state=7)
    assert any("Traceback" in line for line in defect.value.evidence)


def test_leaving_a_stream_early_leaves_the_connection_usable(
    lab: HostSettings, local_host: LocalHost
) -> None:
    run = "20261129-120000-early-0001"
    local_host.call(
        "runs.start",
        data=b"echo $$ > pid; echo one; exec sleep 300\n",
        state=lab.state,
        run=run,
        note={},
    )
    with local_host.stream(
        "follow.follow", state=lab.state, run=run, offset=0, probe=None
    ) as pieces:
        next(pieces)
    assert local_host.call("runs.ids", state=lab.state) == {"ids": [run]}
    assert local_host.connections == 1


def test_a_lost_connection_says_that_what_runs_goes_on(
    lab: HostSettings, local_host: LocalHost
) -> None:
    local_host.call("runs.ids", state=lab.state)
    local_host.cut()
    for _ in range(2):
        with pytest.raises(errors.ConnectionLost) as lost:
            local_host.call("runs.ids", state=lab.state)
        assert lost.value.exit_code == 255
        assert "goes on" in str(lost.value.hint)


def test_talk_of_the_login_shell_is_passed_over(lab: HostSettings, tmp_path: Path) -> None:
    noise = "printf 'Welcome!\\n\\000\\002sglang'; echo 'stderr talk' >&2; "
    pipes = Pipes(noise + starter.start_command(sys.executable), tmp_path)
    answer, _ = agent.Agent(pipes, "lab", "/venv", lab.state).call(
        "runs.ids", b"", {"state": lab.state}
    )
    assert answer == {"ids": []}
    pipes.close()


def test_a_missing_interpreter_is_named_with_those_that_are_there(
    lab: HostSettings, home: Path, tmp_path: Path
) -> None:
    for venv in ("ml env", "other"):
        (home / venv / "bin").mkdir(parents=True)
        (home / venv / "bin" / "python").symlink_to(sys.executable)
    host = LocalHost(lab, home, python=f"{lab.venv}-gone/bin/python")
    with pytest.raises(errors.PreflightFailed) as missing:
        host.call("runs.ids", state=lab.state)
    assert missing.value.exit_code == 14
    assert f"{lab.venv}-gone/bin/python" in "".join(missing.value.evidence)
    assert f"{home}/ml env/bin/python" in str(missing.value.hint)
    host.close()


def test_a_python_that_does_not_start_shows_what_it_said(
    lab: HostSettings, home: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'error while loading shared libraries' >&2\nexit 127\n")
    broken.chmod(0o755)
    host = LocalHost(lab, home, python=str(broken))
    with pytest.raises(errors.SSHError) as failure:
        host.call("runs.ids", state=lab.state)
    assert any("shared libraries" in line for line in failure.value.evidence)
    host.close()


class Silent:
    """A channel on which nothing ever comes."""

    def send(self, data: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes:
        assert timeout_s == agent.DEAD_AFTER_S
        raise TimeoutError

    def close(self) -> None: ...

    def ended(self) -> tuple[int | None, bytes]:
        return None, b""


def test_silence_without_a_sign_of_life_is_a_lost_connection() -> None:
    with pytest.raises(errors.ConnectionLost, match="no sign of life"):
        agent.Agent(Silent(), "lab", "/venv", "/state").call("facts.read", b"", {})


class Garbled(Silent):
    def receive(self, timeout_s: float) -> bytes:
        return frames.GREETING + b"\xff" * 64


def test_garbage_after_the_greeting_is_a_lost_connection() -> None:
    with pytest.raises(errors.ConnectionLost, match="something else"):
        agent.Agent(Garbled(), "lab", "/venv", "/state").call("facts.read", b"", {})


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_the_start_command_quotes_the_interpreter(shell: str, tmp_path: Path) -> None:
    python = tmp_path / "a b; touch pwned $(touch pwned) '\"" / "python"
    line = starter.start_command(str(python))
    assert "\n" not in line and "!" not in line
    done = subprocess.run([shell, "-c", line], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == starter.NO_INTERPRETER
    assert str(python) in done.stderr.decode()
    assert not (tmp_path / "pwned").exists()
