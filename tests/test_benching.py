"""`inv bench` on a host without SSH: the real runner, a client and a server that do as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import LocalHost, Venv, eventually, new_run
from sessions import Task

from remote import bench, benching, locking, server, venv
from remote.bench import End, Link, Measured, Progress
from remote.benching import BenchOptions
from remote.clock import SystemClock
from remote.core.bench_plan import Asked
from remote.core.bench_result import Point
from remote.errors import Locked, MeasurementInvalid, ServerCrashed, ToolError
from remote.payload import bench_folder, bench_runner, procs

_SAID = '{"text": " 4", "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-1, 5]]}}'
SERVE = f"serve(answer={_SAID!r}); ready(); wait()"
#: Two levels, one repeat: the points c1-r1 and c4-r1.
ASKED = Asked(concurrency="1,4", input_len="8", output_len="4", prompts="8", repeats="1")


class Bench:
    """A serving run on the test's host, and a bench client that does as told."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder
        self.session = task.session
        self.host, self.settings = task.host, task.host.settings
        self.plays("result()")

    def plays(self, part: str) -> None:
        self.task.venv.measure(part)

    def serve(self, *words: str) -> str:
        """A run that serves; ``words`` go on its command line."""
        run = new_run()
        self.task.venv.play(SERVE)
        script = self.task.venv.launch_script(self.settings.port).rstrip(b"\n")
        script += b"".join(b" " + word.encode() for word in words) + b"\n"
        note = {"profile": "test", "argv": ["--tp-size", "1"]}
        server.start_request(self.settings, run, script, note).of(self.host)
        eventually(lambda: server.answers(self.host, self.settings, run) is None)
        note = {"outcome": "ready", "reason": "serving"}
        self.host.call("runs.note_outcome", state=self.settings.state, run=run, note=note)
        return run

    def measure(self, run: str, **options: Any) -> dict[str, Any]:
        options.setdefault("asked", ASKED)
        return benching.run_bench(self.session, run, BenchOptions(bundle=False, **options))

    def in_background(self, run: str) -> tuple[threading.Thread, list[Any]]:
        """`measure` beside the test, on a connection of its own; its answer or error."""
        found: list[Any] = []
        host = LocalHost(self.settings, self.host.home)
        session = Task(host, self.task.venv, self.folder / "other").session

        def work() -> None:
            try:
                found.append(benching.run_bench(session, run, BenchOptions(ASKED, bundle=False)))
            except ToolError as error:
                found.append(error)
            host.close()

        thread = threading.Thread(target=work)
        thread.start()
        return thread, found

    def there(self, run: str) -> Path:
        """The folder on the host of the run's newest bench."""
        (*_, newest) = sorted((self.task.folder(run) / "bench").glob("2*"))
        return newest

    def begun(self, run: str, name: str) -> Callable[[], bool]:
        """Whether that point is being measured."""

        def look() -> bool:
            try:
                point = bench_folder.read_json(str(self.there(run) / "points" / f"{name}.json"))
                log = self.there(run) / "raw" / f"{name}.log"
            except ValueError:
                return False
            return point is not None and point["state"] == "running" and log.exists()

        return look

    def main_process(self, run: str) -> procs.Process:
        process = procs.find(int((self.task.folder(run) / "pid").read_text()))
        assert process is not None
        return process


@pytest.fixture
def lab_bench(local_host: LocalHost, fake_venv: Venv, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(Task(local_host, fake_venv, tmp_path / "client"), tmp_path)
    yield made
    state = Path(made.settings.state)
    for begun in state.glob("runs/*/bench/2*"):
        for process in procs.marked(bench_folder.BENCH_VARIABLE, begun.name):
            procs.send(process, 9)


def names(report: dict[str, Any]) -> list[tuple[int, int, bool]]:
    return [(point["level"], point["repeat"], point["valid"]) for point in report["points"]]


def test_the_whole_matrix_comes_home(lab_bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    run = lab_bench.serve()
    lab_bench.plays(f"seen({str(lab_bench.folder)!r}); result()")
    noted: list[Point] = []
    report = benching.run_bench(
        lab_bench.session, run, BenchOptions(ASKED, note="why"), noted.append
    )
    assert names(report) == [(1, 1, True), (4, 1, True)]
    assert report["missing"] == report["invalid"] == []
    assert report["plan"]["note"] == "why"
    assert [point.as_dict() for point in noted] == report["points"]

    said = capsys.readouterr().out
    assert "expected to take" in said and "nothing was measured on lab with test yet" in said
    assert "400.0" in said  # output tokens/s at concurrency 4
    assert "no GPU figures" in said

    folder = Path(report["folder"])
    for point in report["points"]:
        source = folder.parents[1] / point["source"]["file"]
        kept = json.loads(source.read_text(), parse_constant=pytest.fail)
        assert kept["output_throughput"] == point["metrics"]["output_throughput"]
        assert not {"itls", "generated_texts", "server_info"} & set(kept)
    assert "s3cret-key" not in (folder / "raw" / "server_info.json").read_text()
    assert json.loads((folder / "plan.json").read_text()) == report["plan"]
    quality = json.loads((folder.parents[1] / "quality.json").read_text())
    assert len(quality["repetitions"]) == 3
    assert quality["repetitions"][0][0] == {"text": " 4", "tokens": [5], "logprobs": [-1.0]}

    client = json.loads((lab_bench.folder / "c4-r1.json").read_text())
    words = client["argv"]
    assert words[words.index("--max-concurrency") + 1] == "4"
    assert words[words.index("--seed") + 1] == "1"
    assert "--flush-cache" in words
    # Its own mark and not the run's: ending the one does not touch the other.
    assert client["env"]["SGLANG_REMOTE_BENCH"] == report["bench"]
    assert "SGLANG_REMOTE_RUN" not in client["env"]
    for path in lab_bench.there(run).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_api_key_goes_through_the_environment_alone(lab_bench: Bench) -> None:
    run = lab_bench.serve("--api-key", "top-s3cret")
    lab_bench.plays(f"seen({str(lab_bench.folder)!r}); result()")
    lab_bench.measure(run)
    client = json.loads((lab_bench.folder / "c1-r1.json").read_text())
    assert client["env"]["OPENAI_API_KEY"] == "top-s3cret"
    assert not any("top-s3cret" in word for word in client["argv"])
    assert "top-s3cret" not in (lab_bench.there(run) / "order.json").read_text()


def test_a_client_that_fails_is_quoted_and_the_next_point_measured(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    lab_bench.plays("fail(2, 'error: unrecognized') if LEVEL == 1 else result()")
    report = lab_bench.measure(run)
    assert names(report) == [(1, 1, False), (4, 1, True)]
    assert report["invalid"] == ["c1-r1"]
    (reason,) = report["points"][0]["reasons"]
    assert reason == "bench_serving ended with exit status 2: error: unrecognized"


def test_a_corrupt_result_is_an_invalid_row_and_kept_as_it_was(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    lab_bench.plays("OUTPUT.write_text(content()[:300]) if LEVEL == 4 else result()")
    report = lab_bench.measure(run)
    assert names(report) == [(1, 1, True), (4, 1, False)]
    assert "no JSON" in report["points"][1]["reasons"][0]
    kept = (Path(report["folder"]) / "raw" / "c4-r1.jsonl").read_text()
    assert kept.startswith('{"request_rate": Infinity')
    assert "s3cret-key" not in kept


def test_a_point_past_its_time_is_ended(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    lab_bench.plays("hold('/nowhere') if LEVEL == 1 else result()")
    report = lab_bench.measure(run, timeout_s=3.0)
    assert names(report) == [(1, 1, False), (4, 1, True)]
    assert "took longer than" in report["points"][0]["reasons"][0]


def test_two_benches_at_once_are_refused_with_who_measures(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    go = lab_bench.folder / "go"
    lab_bench.plays(f"hold({str(go)!r}); result()")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c1-r1"))
    with pytest.raises(Locked) as refused:
        lab_bench.measure(run)
    assert "bench 2" in refused.value.evidence[0] and " by " in refused.value.evidence[0]
    assert "--resume" in str(refused.value.hint)
    go.touch()
    thread.join()
    assert names(found[0]) == [(1, 1, True), (4, 1, True)]


def test_a_deploy_leaves_a_server_alone_that_is_being_measured(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    go = lab_bench.folder / "go"
    lab_bench.plays(f"hold({str(go)!r}); result()")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c1-r1"))
    facts = venv.survey(lab_bench.host, lab_bench.settings)
    with pytest.raises(Locked) as refused:
        locking.respect_benches(lab_bench.session, facts.runs, facts.measured)
    assert refused.value.exit_code == 15 and "--break-lock" in str(refused.value.hint)
    go.touch()
    thread.join()
    assert names(found[0]) == [(1, 1, True), (4, 1, True)]
    facts = venv.survey(lab_bench.host, lab_bench.settings)
    locking.respect_benches(lab_bench.session, facts.runs, facts.measured)


def test_who_resumes_takes_up_what_goes_on(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    go = lab_bench.folder / "go"
    lab_bench.plays(f"bar(3); hold({str(go)!r}); result()")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c1-r1"))
    # Another client, which knows nothing of that bench: all comes from the host.
    timer = threading.Timer(1.5, go.touch)
    timer.start()
    report = lab_bench.measure(run, asked=Asked(), resume=True)
    thread.join()
    assert report["points"] == found[0]["points"]


def test_a_stopped_bench_leaves_the_server_and_is_resumed(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    lab_bench.plays("result() if LEVEL == 1 else hold('/nowhere')")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c4-r1"))
    bench.stop(lab_bench.host, lab_bench.settings, run, lab_bench.there(run).name, print)
    thread.join()
    (error,) = found
    assert isinstance(error, MeasurementInvalid)
    assert "asked to stop" in error.message and error.evidence == ("missing: c4-r1",)
    assert server.answers(lab_bench.host, lab_bench.settings, run) is None
    assert not procs.marked(bench_folder.BENCH_VARIABLE, lab_bench.there(run).name)

    lab_bench.plays("result() if LEVEL == 4 else fail(1, 'measured twice')")
    report = lab_bench.measure(run, asked=Asked(), resume=True)
    assert names(report) == [(1, 1, True), (4, 1, True)]
    assert len(list((lab_bench.task.folder(run) / "bench").glob("2*"))) == 1
    # Once more there is nothing to do, and nothing changes.
    assert lab_bench.measure(run, asked=Asked(), resume=True) == report


def test_a_runner_that_is_killed_leaves_nothing_behind_once_it_is_resumed(
    lab_bench: Bench,
) -> None:
    run = lab_bench.serve()
    lab_bench.plays("result() if LEVEL == 1 else hold('/nowhere')")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c4-r1"))
    name = lab_bench.there(run).name
    begun = json.loads((lab_bench.there(run) / "runner.json").read_text())
    family = procs.marked(bench_folder.BENCH_VARIABLE, name)
    for process in family:
        if process.pid == begun["pid"]:
            procs.send(process, 9)
    thread.join()
    (error,) = found
    assert isinstance(error, MeasurementInvalid)
    assert "what measures on the host is gone" in error.message

    lab_bench.plays("result()")
    report = lab_bench.measure(run, asked=Asked(), resume=True)
    assert names(report) == [(1, 1, True), (4, 1, True)]
    assert not any(procs.same(process.pid, process.start) for process in family)


def test_resume_takes_no_other_matrix(lab_bench: Bench) -> None:
    with pytest.raises(ToolError, match="--concurrency would change it"):
        lab_bench.measure("any", asked=Asked(concurrency="2"), resume=True)


def test_a_lost_connection_costs_no_point(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    go = lab_bench.folder / "go"
    lab_bench.plays(f"result() if LEVEL == 1 else (hold({str(go)!r}), result())")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c4-r1"))
    name = lab_bench.there(run).name
    seen: list[object] = []
    for news in bench.follow(lab_bench.host, lab_bench.settings, run, name, [], SystemClock()):
        seen.append(news)
        if isinstance(news, Progress) and not any(isinstance(each, Link) for each in seen):
            lab_bench.host.cut()
        if isinstance(news, Link) and news.away_s is not None:
            go.touch()
    thread.join()
    points = [each.name for each in seen if isinstance(each, Measured)]
    assert points == ["c1-r1", "c4-r1"]
    assert seen[-1] == End("finished", "")
    assert names(found[0]) == [(1, 1, True), (4, 1, True)]


def test_a_server_that_dies_keeps_the_row_and_is_replaced_once(
    lab_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab_bench.serve()
    pid = lab_bench.task.folder(run) / "pid"
    lab_bench.plays(
        f"import signal\nif LEVEL == 1: os.kill(int(open({str(pid)!r}).read()), 9)\n"
        "result(completed=0, errors=['refused'] * PROMPTS) if LEVEL == 1 else result()"
    )
    replaced: list[str] = []

    def restart(session: object, timeout_s: object) -> dict[str, Any]:
        replaced.append(lab_bench.serve())
        return {"run": replaced[0]}

    monkeypatch.setattr("remote.experiment.restart", restart)
    report = lab_bench.measure(run)
    assert names(report) == [(1, 1, False), (4, 1, True)]
    dead, alive = report["points"]
    assert "the server died during the point" in dead["reasons"][0]
    assert (dead["run"], alive["run"]) == (run, replaced[0])
    assert dead["failed"] == 8
    # Either run leads to the bench.
    for each in (run, replaced[0]):
        assert lab_bench.measure(each, asked=Asked(), resume=True)["points"] == report["points"]


def test_the_second_death_is_the_end(
    lab_bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [lab_bench.serve()]

    def kill_the_newest() -> None:
        pid = lab_bench.task.folder(runs[-1]) / "pid"
        lab_bench.plays(f"os.kill(int(open({str(pid)!r}).read()), 9); fail(1, 'refused')")

    def restart(session: object, timeout_s: object) -> dict[str, Any]:
        runs.append(lab_bench.serve())
        kill_the_newest()
        return {"run": runs[-1]}

    kill_the_newest()
    monkeypatch.setattr("remote.experiment.restart", restart)
    with pytest.raises(ServerCrashed):
        lab_bench.measure(runs[0])
    assert len(runs) == 2
    assert capsys.readouterr().out.count("invalid") >= 2  # both rows stand in the table


def test_a_server_that_was_stopped_on_purpose_leaves_the_point_open(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    lab_bench.plays("hold('/nowhere')")
    thread, found = lab_bench.in_background(run)
    eventually(lab_bench.begun(run, "c1-r1"))
    state = server.look(lab_bench.host, lab_bench.settings, run)
    server.stop(lab_bench.host, lab_bench.settings, state, SystemClock(), print)
    thread.join()
    (error,) = found
    assert isinstance(error, MeasurementInvalid)
    assert "stopped on request" in error.message
    assert error.evidence == ("missing: c1-r1, c4-r1",)


def test_a_full_disk_on_the_host_leaves_the_point_open(
    lab_bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = lab_bench.serve()
    report = lab_bench.measure(run)
    there = lab_bench.there(run)
    (there / "points" / "c4-r1.json").unlink()
    order = json.loads((there / "order.json").read_text())
    order["jobs"] = order["jobs"][1:]
    (there / "order.json").write_text(json.dumps(order))
    monkeypatch.setattr(bench_runner, "_full", lambda state: True)
    end = bench_runner.Runner(str(there)).work()
    assert end["outcome"] == "disk_full"
    done = [point["name"] for point in bench_folder.points(str(there)) if point["state"] == "done"]
    assert done == ["c1-r1"]
    assert names(report) == [(1, 1, True), (4, 1, True)]


def test_a_run_that_does_not_serve_is_not_measured(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    procs.send(lab_bench.main_process(run), 9)
    eventually(lambda: not procs.members(run))
    with pytest.raises(ToolError, match="is not serving"):
        lab_bench.measure(run)


def test_questions_are_asked_beside_the_prompts(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    questions = lab_bench.folder / "questions.jsonl"
    questions.write_text('{"question": "2 + 2?", "answer": "4"}\n')
    report = lab_bench.measure(run, questions=questions)
    kept = json.loads((Path(report["folder"]).parents[1] / "quality.json").read_text())
    assert kept["questions"] == [{"question": "2 + 2?", "answer": "4", "said": " 4"}]


def test_what_was_measured_while_nobody_was_there_is_collected(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    thread, found = lab_bench.in_background(run)  # keeps its rows in a folder of its own
    thread.join()
    noted: list[Point] = []
    (collected,) = benching.collect(lab_bench.session, run, noted.append)
    assert collected["points"] == found[0]["points"]
    assert len(noted) == 2
    assert benching.collect(lab_bench.session, run) == []


def test_a_bench_is_not_begun_under_somebody_elses_hands(lab_bench: Bench) -> None:
    run = lab_bench.serve()
    other = LocalHost(lab_bench.settings, lab_bench.host.home)
    who = {"task": "deploy plain", "user": "ann", "client": "desk"}
    other.call("lock.take", state=lab_bench.settings.state, who=who)
    with pytest.raises(Locked) as refusal:
        lab_bench.measure(run)
    assert "deploy plain by ann on desk" in refusal.value.evidence[0]
    assert not lab_bench.host.call("bench.look", state=lab_bench.settings.state, run=run)["benches"]
    other.close()
    assert names(lab_bench.measure(run)) == [(1, 1, True), (4, 1, True)]
