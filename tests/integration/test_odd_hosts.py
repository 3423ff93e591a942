"""Hosts that are not as one would wish, over a real sshd: the whole loop works, or says why not."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_lab import SERVES, FaultLab, HastyClock
from hosts import end_runs, eventually
from patch_lab import ANSWER, CORE, VERSIONS, Recorded, edited
from rig import OpenSSH

from remote import experiment, logs, overview, patch_work, stopping
from remote.errors import ToolError
from remote.experiment import DeployOptions
from remote.payload import procs, runs
from remote.planning import PatchChoice
from remote.session import Session

ORIGINAL = VERSIONS["0.6.3"][CORE]
PATCHED = edited(ORIGINAL, CORE, [ANSWER])
NOTE = "größer, 速い, 'quoted' $HOME"

Host = Callable[..., FaultLab]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Makes a lab behind an sshd of its own; what it is told is sshd's."""
    made: list[FaultLab] = []

    def make(**sshd: Any) -> FaultLab:
        server = OpenSSH(tmp_path / "sshd", **sshd)
        server.start()
        made.append(FaultLab(tmp_path / "lab", server))
        return made[-1]

    yield make
    for lab in made:
        try:
            lab.close()
        finally:
            lab.sshd.stop()


def deploy(session: Session, **options: Any) -> str:
    told = replace(DeployOptions(bundle=False, note=NOTE), **options)
    return str(experiment.deploy_profile(session, "plain", told)["run"])


def lines(session: Session, run: str, **wanted: Any) -> list[str]:
    return list(
        logs.lines(
            session.host,
            session.host_settings,
            run,
            logs.Selection(**wanted),
            follow=False,
            clock=session.clock,
            tell=lambda text: None,
        )
    )


def said(session: Session) -> str:
    """What the task has told."""
    assert isinstance(session.display, Recorded)
    return session.display.text


def whole_loop(lab: FaultLab) -> None:
    """Deploy with a patch, look, read, stop, roll back; each as a task with its connection."""
    with lab.session() as session:
        run = deploy(session, patches=PatchChoice(added=(ANSWER,)))
    assert lab.patches.path(CORE).read_bytes() == PATCHED
    with lab.session() as session:
        status = overview.status(session)
        assert (status["run"]["run"], status["run"]["state"]) == (run, "ready")
        assert status["run"]["note"] == NOTE
        assert status["patches"]["applied"] == [ANSWER]
    with lab.session() as session:
        (line,) = lines(session, run, tail=1)
        assert line.endswith("The server is fired up and ready to roll!")
    with lab.session() as session:
        stopping.stop(session, None)
        patch_work.rollback(session, None)
        assert patch_work.verify(session)["holds"]
    assert lab.patches.path(CORE).read_bytes() == ORIGINAL
    assert not procs.members(run)


def test_one_session_and_one_login_at_a_time(host: Host) -> None:
    lab = host(options=("MaxSessions 1", "MaxStartups 1"))
    # Somebody stands in the door, and goes after a while.
    standing = socket.create_connection(("127.0.0.1", lab.sshd.port))
    standing.recv(64)
    leaving = threading.Timer(1.0, standing.close)
    leaving.start()
    with lab.session() as session:
        assert overview.status(session)["run"] is None
    leaving.join()
    whole_loop(lab)


def test_no_sftp(host: Host) -> None:
    whole_loop(host(sftp=None))


def login(tmp_path: Path, shell: str, home: Path | None = None) -> str:
    """The line that gives the user another login shell, and home, in sshd's eyes."""
    user, known = getpass.getuser(), tmp_path / "passwd"
    home = home or tmp_path / "home"
    home.mkdir(exist_ok=True)
    others = [
        line
        for line in Path("/etc/passwd").read_text().splitlines()
        if not line.startswith(f"{user}:")
    ]
    own = f"{user}:x:{os.getuid()}:{os.getgid()}:{user}:{home}:{shell}"
    known.write_text("\n".join([own, *others, ""]))
    return f"mount --bind {known} /etc/passwd"


def test_a_shell_that_prints_a_banner(host: Host, tmp_path: Path) -> None:
    shell = tmp_path / "talkative"
    shell.write_text(
        "#!/bin/bash\n"
        "for _ in {1..200}; do echo '*** Authorized use only! ***'; done\n"
        "echo 'mail for you' >&2\n"
        'exec /bin/bash "$@"\n'
    )
    shell.chmod(0o755)
    whole_loop(host(mounts=(login(tmp_path, str(shell)),)))


@pytest.mark.parametrize(
    ("shell", "profile", "content"),
    [
        ("fish", ".config/fish/config.fish", "echo 'welcome to fish'\nset -x PATH /nowhere\n"),
        ("csh", ".cshrc", "echo welcome\nset noclobber\nalias exec false\n"),
        ("tcsh", ".tcshrc", "echo welcome\nset histchars='!%'\n"),
        ("dash", ".profile", "set -eu\n"),
        ("bash", ".bashrc", "set -euo pipefail\nshopt -s extglob failglob\necho welcome\n"),
    ],
)
def test_another_login_shell(
    host: Host, tmp_path: Path, shell: str, profile: str, content: str
) -> None:
    path = shutil.which(shell)
    assert path is not None, f"the tests need {shell}: sudo apt-get install fish tcsh"
    mount = login(tmp_path, path)
    written = tmp_path / "home" / profile
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(content)
    whole_loop(host(mounts=(mount,)))


@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "ja_JP.eucJP", "tr_TR.ISO-8859-9", "C"])
def test_another_locale(host: Host, locale: str) -> None:
    whole_loop(host(options=(f"SetEnv LANG={locale} LC_ALL={locale} LANGUAGE=de",)))


def test_a_home_that_cannot_be_written_to(host: Host, tmp_path: Path) -> None:
    home = tmp_path / "home"
    mount = login(tmp_path, "/bin/bash", home)
    lab = host(mounts=(mount, f"mount -t tmpfs -o ro tmpfs {home}"))
    whole_loop(lab)  # its state lies elsewhere
    lab.settings = replace(lab.settings, state="~/.sglang-remote")
    with lab.session() as session, pytest.raises(ToolError) as refusal:
        deploy(session)
    assert "Read-only file system" in refusal.value.message
    assert f"{home}/.sglang-remote" in refusal.value.message


def test_a_tmp_that_runs_nothing(host: Host, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    lab_host = host(
        mounts=(
            "mount --bind /tmp /tmp",
            "mount -o remount,bind,noexec /tmp",
            f"mount --bind {lab} {lab}",
            f"mount -o remount,bind,exec {lab}",
        )
    )
    whole_loop(lab_host)


def test_no_setsid_and_no_flock(host: Host) -> None:
    hidden = [path for name in ("setsid", "flock") if (path := shutil.which(name))]
    whole_loop(host(mounts=tuple(f"mount --bind /dev/null {path}" for path in hidden)))


class Off(HastyClock):
    """A clock that is wrong by so many seconds."""

    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def wall_s(self) -> float:
        return super().wall_s() + self._off_s


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_clock_an_hour_off(host: Host, off_s: float) -> None:
    lab = host()
    with lab.session() as session:
        earlier = deploy(session)
    with lab.session(client="other") as session:
        session = replace(session, clock=Off(off_s))
        newest = deploy(session, restart=True)
    with lab.session() as session:
        status = overview.status(session)
        assert status["run"]["run"] == newest
        assert 0 <= status["run"]["uptime_s"] < 600
        assert [each["run"] for each in status["runs"]] == [earlier, newest]
        assert experiment.pick_run(session, None).run == newest


def test_rebooted_between_deploy_and_logs(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    lab = host()
    with lab.session() as session:
        run = deploy(session)
        stopping.stop(session, None)
    record = Path(runs.folder(lab.state, run)) / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot_id": "another"}))
    with lab.session() as session:
        overview.print_logs(session, run, 5, None, None, False)
        assert "the host was rebooted since this run was started" in said(session)
    assert "ready to roll" in capsys.readouterr().out
    whole_loop(lab)


def test_two_hundred_runs_that_are_over(host: Host) -> None:
    lab = host()
    for number in range(200):
        run = f"20261129-{number:06}-stale-{number:04x}"
        home = Path(runs.folder(lab.state, run))
        home.mkdir(parents=True, mode=0o700)
        note = {"run": run, "profile": "stale", "boot_id": procs.boot_id(), "started_at": 1.0e9}
        (home / "run.json").write_text(json.dumps(note))
        (home / "exit_status").write_text("1\n")
        (home / "server.log").write_text("over\n")
    for folder in (Path(lab.state), Path(lab.state) / "runs"):
        folder.chmod(0o700)
    whole_loop(lab)
    with lab.session() as session:
        overview.show_status(session.display, overview.status(session))
        # The newest few, each with its id and its profile.
        assert 0 < said(session).count("-stale-") <= 10


def test_a_log_that_is_rotated_or_cut_while_it_is_followed(host: Host) -> None:
    lab = host()
    run = lab.serve()
    log = lab.log(run)
    seen: list[str] = []
    told: list[str] = []

    def follow() -> None:
        with lab.session() as session:
            seen.extend(())
            for line in logs.lines(
                session.host,
                session.host_settings,
                run,
                logs.Selection(tail=0),
                follow=True,
                clock=session.clock,
                tell=told.append,
            ):
                seen.append(line)

    def write(*words: str) -> None:
        with log.open("a") as file:
            file.write("".join(f"{word}\n" for word in words))
        eventually(lambda: words[-1] in seen, 20.0)

    follower = threading.Thread(target=follow)
    follower.start()
    # The tail may be read before or after the first line: it is written until it is seen.
    eventually(lambda: (log.open("a").write("begin\n"), "begin" in seen)[1], 20.0)
    write("one", "two")
    log.rename(log.with_name("server.log.1"))
    log.touch()
    write("three")
    log.write_text("")
    eventually(lambda: any("was cut" in text for text in told), 20.0)
    write("four", "five")
    end_runs(lab.state)
    follower.join(30)
    assert not follower.is_alive()
    assert [line for line in seen if line != "begin"] == ["one", "two", "three", "four", "five"]
    assert any("was replaced" in text for text in told)


def test_a_disk_that_is_full_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many pages are left: it works or says why not, and works once there is room."""
    # A deploy that sees so full a disk begins nothing: here it fills up afterwards.
    monkeypatch.setattr("remote.planning._preflight", lambda found, settings: None)
    small = tmp_path / "small"
    server = OpenSSH(tmp_path / "sshd", small_disk=small, disk_kib=2048)
    server.start()
    refused = 0
    try:
        for pages in (0, 1, 2, 3, 4, 6, 8, 11, 14, 18, 24):
            lab = FaultLab(tmp_path / str(pages), server)
            state = small / str(pages)
            lab.settings = replace(lab.settings, state=str(state))
            there = server.inside(state)
            filler = server.inside(small) / "filler"
            patched = DeployOptions(patches=PatchChoice(added=(ANSWER,)), bundle=False)
            _leave(filler, pages)
            with lab.session() as session:
                try:
                    experiment.deploy_profile(session, "plain", patched)
                except ToolError as error:
                    refused += 1
                    told = f"{error.message} {error.evidence}"
                    # Said by the system at a write of ours, or found where the server's failed.
                    assert "No space left on device" in told or "no room left on" in told, error
            assert lab.patches.path(CORE).read_bytes() in (ORIGINAL, PATCHED)
            begun = {path.name for path in (there / "runs").glob("*")}
            assert begun == set(runs.ids(str(there)))
            filler.unlink()
            with lab.session() as session:
                experiment.deploy_profile(session, "plain", patched)
                assert patch_work.verify(session)["holds"]
                stopping.stop(session, None)
            assert lab.patches.path(CORE).read_bytes() == PATCHED
            shutil.rmtree(there)
        assert 3 < refused < 11
    finally:
        server.stop()


def _leave(filler: Path, pages: int) -> None:
    """Fill a file system but for so many pages of 4 KiB."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - 4096 * pages))


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(host: Host) -> None:
    lab = host()
    run = lab.start("time.sleep(0.01)")
    eventually(lambda: runs.exit_status(lab.state, run) is not None)
    lab.venv.play(SERVES)
    (Path(runs.folder(lab.state, run)) / "pid").write_text(f"{os.getpid()}\n")
    with lab.session() as session:
        assert stopping.stop(session, run)["stopped"] == []
        assert overview.status(session)["run"]["state"] != "ready"
        deploy(session)  # makes way for nothing: nobody is killed
    assert procs.find(os.getpid()) is not None
