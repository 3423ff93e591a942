"""Deploy → ready → logs → rollback → stop with the real SGLang, over both SSH servers."""

from __future__ import annotations

import getpass
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Client, OpenSSH, free_port, newest_run, started, wait_for

from remote.sandbox.control import Sandbox
from remote.sandbox.entry import sglang_port

PATCHED = "lib/python3.*/site-packages/flashinfer/jit/cpp_ext.py"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def generate(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"text": "one two", "sampling_params": {"max_new_tokens": 3}})
    connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def sandbox_client(embedded: Sandbox, tmp_path: Path) -> Iterator[tuple[Client, Path, int]]:
    made = Client(tmp_path / "sandboxed", {}, {"sandbox": {"folder": str(embedded.folder)}})
    port = sglang_port(embedded.layout)
    yield made, embedded.layout.home / ".sglang-remote", port
    made.inv("stop")
    made.inv("rollback-patch")


@pytest.fixture(params=["openssh", "embedded"])
def any_host(request: pytest.FixtureRequest) -> tuple[Client, Path, int]:
    """A client with one host configured, or none; the host's state folder and server port."""
    if request.param == "embedded":
        found: tuple[Client, Path, int] = request.getfixturevalue("sandbox_client")
        return found
    client: Client = request.getfixturevalue("client")
    entry = request.getfixturevalue("entry")
    return client, Path(entry["state"]), entry["port"]


def test_the_whole_loop(any_host: tuple[Client, Path, int], embedded: Sandbox) -> None:
    client, state, port = any_host
    # What an earlier run of the tests has proven is proven again.
    for proof in (state / "cache").glob("proof-*"):
        proof.unlink()
    (patched,) = embedded.layout.venv.glob(PATCHED)
    original = sha256(patched)

    deploy = ("deploy", "piecewise", "--add-patch", "cuda-version")
    deployed = client.inv(*deploy)
    assert deployed.status == 0, deployed.output
    assert "needs a GPU" in deployed.output  # what a CPU can't do is said in the plan
    assert "patch flashinfer/fp4-opaque is applied and proven" in deployed.output
    assert "fp4_quantize: traces as sglang_remote.fp4_quantize" in deployed.output
    assert "cuda-version is known to fail" in deployed.output
    assert "is ready after" in deployed.output
    assert sha256(patched) != original
    run = newest_run(state)
    pid = int((run / "pid").read_text())
    assert generate(port)["meta_info"]["completion_tokens"] == 3
    # The very process that was launched holds the run's mark, and its start script is kept.
    assert f"SGLANG_REMOTE_RUN={run.name}" in Path(f"/proc/{pid}/environ").read_text()
    assert (client.runs / run.name / "launch.sh").read_bytes() == (run / "launch.sh").read_bytes()

    # The patch acts in every process of the server that could call FlashInfer.
    acting = {
        int(found)
        for found in re.findall(
            r"patch fp4-opaque acts on flashinfer 0\.6\.3 \(pid (\d+)\)",
            (run / "server.log").read_text("utf-8", "replace"),
        )
    }
    assert pid in acting
    assert len(acting) == 3  # with scheduler and detokenizer

    again = client.inv(*deploy)
    assert again.status == 0, again.output
    assert "nothing has changed" in again.output
    assert newest_run(state) == run
    assert alive(pid)

    piped = client.start("logs", "--tail", "200")
    assert piped.stdout is not None
    piped.stdout.close()  # as `| head -1` does
    assert piped.wait(60) == 0
    assert piped.stderr is not None and "Traceback" not in piped.stderr.read()

    logs = client.inv("logs", "--tail", "200")
    assert logs.status == 0, logs.output
    printed = logs.stdout.splitlines()
    assert len(printed) == min(200, (run / "server.log").read_bytes().count(b"\n"))
    assert any("The server is fired up and ready to roll!" in line for line in printed)

    status = client.inv("status", "--json").json()
    assert status["run"]["run"] == run.name
    assert (status["run"]["state"], status["run"]["phase"]) == ("ready", "serving")
    assert status["run"]["pid"] == pid
    assert status["run"]["profile"] == "piecewise"
    assert status["patches"]["applied"] == ["flashinfer/fp4-opaque", "flashinfer/cuda-version"]

    rolled = client.inv("rollback-patch", "--json")
    assert rolled.status == 0, rolled.output
    proofs = {Path(proof["path"]).name: proof for proof in rolled.json()["files"]}
    assert all(proof["proven"] for proof in proofs.values())
    edited = proofs["cpp_ext.py"]
    assert edited["sha256"] == edited["original_sha256"] == edited["record_sha256"] == original
    assert sha256(patched) == original
    assert proofs["sglang_remote_fp4_opaque.pth"]["sha256"] is None  # gone, as before
    flashinfer, sglang = rolled.json()["packages"]
    assert (flashinfer["distribution"], sglang["distribution"]) == ("flashinfer-python", "sglang")
    assert flashinfer["checked"] > 1000
    for package in (flashinfer, sglang):
        assert package["different"] == package["leftovers"] == []
    assert alive(pid)

    stopped = client.inv("stop")
    assert stopped.status == 0, stopped.output
    assert not alive(pid)
    assert client.inv("status", "--json").json()["run"]["processes"] == 0


def test_killed_during_its_start(client: Client, entry: dict[str, Any]) -> None:
    deploy = client.start("deploy", "baseline")
    run = started(deploy, entry["state"])
    pid = int((run / "pid").read_text())
    wait_for(run / "server.log")
    os.kill(pid, signal.SIGKILL)
    _, stderr = deploy.communicate(timeout=120)
    assert deploy.returncode == 10
    assert "killed by SIGKILL" in stderr
    # What was left was ended, which changes nothing: it crashed, and did not stop on request.
    waited = client.inv("wait")
    assert waited.status == 10, waited.output
    assert "on request" not in waited.output
    status = client.inv("status", "--json").json()
    assert status["run"]["state"] == "crashed"
    assert status["run"]["processes"] == 0


@pytest.mark.parametrize("said", ["starting run", "waiting for run"])
def test_interrupted_and_taken_up_again(client: Client, entry: dict[str, Any], said: str) -> None:
    """From the moment when the start is asked for, whatever the deploy does just then."""
    deploy = client.start("deploy", "baseline")
    assert deploy.stdout is not None
    before = ""
    while said not in (line := deploy.stdout.readline()):
        assert line, before
        before += line
    pid = int((started(deploy, entry["state"]) / "pid").read_text())
    deploy.send_signal(signal.SIGINT)
    stdout, stderr = deploy.communicate(timeout=60)
    assert deploy.returncode == 130, stdout + stderr
    assert "inv wait --run" in stdout
    assert alive(pid)
    other = Client(client.folder.parent / "another-client", client.hosts)
    waited = other.inv("wait")
    assert waited.status == 0, waited.output
    assert "is ready" in waited.output
    assert alive(pid)


def test_the_link_breaks_while_following(
    client: Client, entry: dict[str, Any], openssh: OpenSSH
) -> None:
    deploy = client.start("deploy", "baseline")
    wait_for(started(deploy, entry["state"]) / "server.log")
    assert openssh.drop()
    stdout, stderr = deploy.communicate(timeout=120)
    assert deploy.returncode == 0, stdout + stderr
    assert "the connection was lost" in stderr
    run = newest_run(entry["state"])
    kept = (client.runs / run.name / "server.log").read_bytes()
    assert (run / "server.log").read_bytes().startswith(kept)
    assert b"The server is fired up and ready to roll!" in kept


def test_what_a_user_sets_is_data(client: Client, entry: dict[str, Any], tmp_path: Path) -> None:
    hostile = f"a b; $(touch {tmp_path}/owned) `id` \"x\" 'y' ünï"
    done = client.inv("deploy", "baseline", "--set", f"flags.served-model-name={hostile}")
    assert done.status == 0, done.output
    connection = http.client.HTTPConnection("127.0.0.1", entry["port"], timeout=30)
    connection.request("GET", "/v1/models")
    models = json.loads(connection.getresponse().read())["data"]
    assert models[0]["id"] == hostile
    assert not (tmp_path / "owned").exists()


def test_a_foreign_process_on_the_port(client: Client, entry: dict[str, Any]) -> None:
    holder = subprocess.Popen(
        ["python3", "-m", "http.server", str(entry["port"]), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", entry["port"], timeout=5)
            try:
                connection.request("GET", "/")
                break
            except ConnectionRefusedError:
                assert holder.poll() is None
        refused = client.inv("deploy", "baseline")
        assert refused.status == 14
        assert f"pid {holder.pid} of {getpass.getuser()}" in refused.stderr
        assert "http.server" in refused.stderr
        assert client.inv("stop", "--pid", str(holder.pid)).status == 2  # nobody to confirm it
        assert holder.poll() is None
        assert client.inv("stop", "--pid", str(os.getpid()), "--yes").status == 2  # not on the port
        ended = client.inv("stop", "--pid", str(holder.pid), "--yes")
        assert ended.status == 0, ended.output
        assert "http.server" in ended.stdout
        assert holder.wait(10) == -signal.SIGTERM
    finally:
        holder.kill()


def test_logs_of_any_kind(client: Client, entry: dict[str, Any]) -> None:
    deployed = client.inv("deploy", "baseline")
    assert deployed.status == 0, deployed.output
    log = newest_run(entry["state"]) / "server.log"
    with log.open("ab") as file:
        file.write(b"caf\xe9 \x1b]0;title\x07\x1b[31mred\x1b[0m\n")
        file.write(b"bar:  10%\rbar:  50%\rbar: 100%\n")
    last = client.inv("logs", "--tail", "2").stdout.splitlines()
    assert last == ["caf\ufffd red", "bar: 100%"]
    found = client.inv("logs", "--grep", "fired up").stdout.splitlines()
    assert len(found) == 1
    assert found[0].endswith("The server is fired up and ready to roll!")
    assert client.inv("logs", "--since", "1h").stdout.count("\n") > 50
    assert client.inv("logs", "--since", "yesterday").status == 2
    assert client.inv("logs", "--run", "20200101-000000-none-0000").status == 2


def test_logs_follow_over_a_broken_link(
    client: Client, entry: dict[str, Any], openssh: OpenSSH
) -> None:
    assert client.inv("deploy", "baseline").status == 0
    log = newest_run(entry["state"]) / "server.log"
    wanted = [f"line {number}" for number in range(300)]
    with log.open("a", buffering=1) as file:
        file.write("the last so far\n")
        follow = client.start("logs", "--tail", "1", "--follow")
        assert follow.stdout is not None
        assert follow.stdout.readline() == "the last so far\n"
        for number, line in enumerate(wanted):
            file.write(line + "\n")
            if number == 150:
                assert openssh.drop()
    seen = [follow.stdout.readline().rstrip("\n") for _ in wanted]
    assert seen == wanted
    assert client.inv("stop").status == 0
    rest, stderr = follow.communicate(timeout=60)
    assert follow.returncode == 0
    assert "the server is gone" in rest + stderr


def test_tunnel_and_work_by_hand(client: Client, entry: dict[str, Any], embedded: Sandbox) -> None:
    assert client.inv("deploy", "baseline").status == 0
    local = free_port()
    tunnel = client.start("tunnel", "--local-port", str(local))
    try:
        assert tunnel.stdout is not None
        assert f"http://127.0.0.1:{local}" in tunnel.stdout.readline()
        assert generate(local)["meta_info"]["completion_tokens"] == 3
    finally:
        tunnel.send_signal(signal.SIGINT)
        tunnel.communicate(timeout=30)
    assert tunnel.returncode == 130

    venv = embedded.layout.venv
    ran = client.inv("run", "command -v python; echo $VIRTUAL_ENV; echo error >&2; exit 7")
    assert ran.status == 7
    assert ran.stdout.splitlines() == [f"{venv}/bin/python", str(venv)]
    assert "error" in ran.stderr
    assert client.inv("run", "kill -9 $$").status == 128 + signal.SIGKILL
    client.configure({"gpu": {**entry, "venv": "/nowhere"}}, {})
    elsewhere = client.inv("run", "python3 --version")
    assert elsewhere.status == 14  # another Python must not run instead
    assert "hosts.gpu.venv" in elsewhere.stderr
    client.configure({"gpu": entry}, {})
    echoed = client.inv("run", "cat", stdin="through\n")
    assert echoed.stdout == "through\n"
    # The same PATH and CUDA part as the server's own.
    pid = int((newest_run(entry["state"]) / "pid").read_text())
    served = dict(
        line.split("=", 1)
        for line in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if "=" in line
    )
    by_hand = client.inv("run", "echo $PATH; echo $CUDA_HOME").stdout.splitlines()
    assert by_hand == [served["PATH"], served["CUDA_HOME"]]


def test_dry_changes_nothing(client: Client, entry: dict[str, Any], embedded: Sandbox) -> None:
    (patched,) = embedded.layout.venv.glob(PATCHED)
    before = sha256(patched)
    dry = client.inv("deploy", "piecewise", "--dry", "--patch", "cuda-version")
    assert dry.status == 0, dry.output
    assert "-m sglang.launch_server" in dry.stdout
    assert "+    if torch.version.cuda is not None:" in dry.stdout
    assert sha256(patched) == before
    assert not (Path(entry["state"]) / "runs").exists()
    assert not client.runs.exists()
    assert client.inv("deploy", "piecewise", "--diff", "--json").json()["changed"] is False


def test_probe_and_the_sets_that_are_known_to_fail(client: Client) -> None:
    probed = client.inv("probe", "--json")
    assert probed.status == 0, probed.output
    ops = {op["op"]: op for op in probed.json()["ops"]}
    bare = ops["flashinfer.fp4_quantize"]
    assert (bare["outcome"], bare["step"], bare["freed_by"]) == ("trap", "A", "fp4-opaque")
    assert bare["at"]["file"] == "flashinfer/jit/cpp_ext.py"
    assert bare["called_from"]
    assert client.inv("probe", "--fail-on-trap").status == 13

    # The story as it was tried in the field: each set moves the trap, the last one ends it.
    story = (
        (("cuda-version",), "trap", "B"),
        (("cuda-version", "preload"), "trap", "C"),
        (("compiler-disable",), "trap", "D"),
        (("allow-in-graph",), "trap", "D2"),
        (("fp4-opaque",), "traces", None),
    )
    for sets, outcome, step in story:
        assert client.inv("rollback-patch").status == 0
        for name in sets:
            applied = client.inv("patch.apply", name, "--json")
            assert applied.status == 0, applied.output
        proof = applied.json()["proofs"][-1]
        assert proof["patch"] == f"flashinfer/{sets[-1]}" and not proof["proven_before"]
        trace = next(
            symbol["trace"]
            for symbol in proof["symbols"]
            if symbol["symbol"] == "flashinfer.fp4_quantize"
        )
        assert (trace["outcome"], trace["step"]) == (outcome, step), sets
        assert ("known to fail" in applied.stderr) == (outcome == "trap")
    states = {row["patch"]: row["state"] for row in client.inv("patch", "--json").json()}
    assert states["flashinfer/fp4-opaque"] == "applied"
    assert states["flashinfer/cuda-version"] == "not applied"
