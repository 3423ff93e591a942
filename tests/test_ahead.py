"""Requests that share a flight, and the payload's code, which travels once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hosts import LocalHost, eventually

from remote import errors, starter
from remote.config import HostSettings
from remote.host import Request
from remote.payload import procs, runs

RUN, OTHER = "20261129-120000-ahead-0001", "20261129-120001-ahead-0002"
SCRIPT = b"echo $$ > pid; echo one; exec sleep 300\n"


def start(lab: HostSettings, run: str) -> Request:
    return Request("runs.start", {"state": lab.state, "run": run, "note": {}}, SCRIPT)


def ids(lab: HostSettings) -> Request:
    return Request("runs.ids", {"state": lab.state})


def asked(host: LocalHost, request: Request) -> object:
    return host.call(request.function, request.data, **request.params)


def flights(host: LocalHost) -> int:
    assert host.pipes is not None
    return len(host.pipes.sent)


def test_what_is_sent_ahead_is_one_flight_and_answers_as_ever(
    lab: HostSettings, local_host: LocalHost
) -> None:
    take = Request("lock.take", {"state": lab.state, "who": {"task": "a test"}})
    follow = {"state": lab.state, "run": RUN, "offset": 0, "probe": None}
    local_host.call("runs.ids", state=lab.state)
    before = flights(local_host)
    local_host.ahead([take, start(lab, RUN), ids(lab), Request("follow.follow", follow)])
    assert asked(local_host, take) == {"abandoned": None}
    asked(local_host, start(lab, RUN))
    assert asked(local_host, ids(lab)) == {"ids": [RUN]}
    with local_host.stream("follow.follow", **follow) as pieces:
        assert next(pieces).data == b"one\n"
    assert flights(local_host) == before + 1
    assert asked(local_host, ids(lab)) == {"ids": [RUN]}


def test_nothing_is_begun_behind_a_refusal(lab: HostSettings, home: Path) -> None:
    first, second = LocalHost(lab, home), LocalHost(lab, home)
    take = Request("lock.take", {"state": lab.state, "who": {"task": "a test"}})
    asked(first, take)
    second.ahead([take, start(lab, RUN), ids(lab)])
    with pytest.raises(errors.Locked):
        asked(second, take)
    assert asked(second, ids(lab)) == {"ids": []}
    # What is asked anew is done.
    asked(second, start(lab, RUN))
    assert asked(second, ids(lab)) == {"ids": [RUN]}
    first.close()
    second.close()


def test_nothing_is_begun_once_something_else_is_asked(
    lab: HostSettings, local_host: LocalHost
) -> None:
    asked(local_host, start(lab, RUN))
    follow = {"state": lab.state, "run": RUN, "offset": 0, "probe": None}
    local_host.ahead([Request("follow.follow", follow), start(lab, OTHER)])
    with local_host.stream("follow.follow", **follow) as pieces:
        next(pieces)
    # Another order than was said.
    assert asked(local_host, ids(lab)) == {"ids": [RUN]}
    assert asked(local_host, ids(lab)) == {"ids": [RUN]}


def test_nothing_is_begun_once_the_client_is_gone(lab: HostSettings, local_host: LocalHost) -> None:
    stubborn = b"trap '' TERM; echo $$ > pid; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; done\n"
    local_host.call("runs.start", data=stubborn, state=lab.state, run=RUN, note={})
    stop = {"state": lab.state, "run": RUN, "grace_s": 1.0}
    local_host.ahead([Request("runs.stop", stop), start(lab, OTHER)])
    with local_host.stream("runs.stop", **stop) as messages:
        next(messages)
        assert local_host.pipes is not None
        agent = local_host.pipes.process
        agent.stdin.close()  # type: ignore[union-attr]
        # What changes something is carried to its end, and nothing begun after it.
        agent.wait(30)
    assert not procs.members(RUN)
    assert runs.ids(lab.state) == [RUN]


def kept(lab: HostSettings) -> list[Path]:
    return sorted((Path(lab.state) / "cache").glob("agent-*"))


def sound(file: Path) -> bool:
    content = file.read_bytes()
    return not file.is_symlink() and hashlib.sha256(content[32:]).digest() == content[:32]


def sent_bytes(host: LocalHost) -> int:
    assert host.pipes is not None
    return sum(map(len, host.pipes.sent))


def test_the_code_travels_once(lab: HostSettings, home: Path) -> None:
    whole = len(starter.code().packed)
    first = LocalHost(lab, home)
    first.call("lock.take", state=lab.state, who={"task": "a test"})
    first.close()
    assert sent_bytes(first) > whole
    (file,) = kept(lab)
    assert file.stat().st_mode & 0o777 == 0o600
    second = LocalHost(lab, home)
    assert second.call("runs.ids", state=lab.state) == {"ids": []}
    with pytest.raises(errors.ToolError) as defect:
        second.call("runs.ids", state=7)
    # A traceback shows the source's own lines.
    assert any("expand(state)" in line for line in defect.value.evidence)
    second.close()
    assert sent_bytes(second) < 1000


def test_a_host_without_a_state_folder_is_left_without_one(
    lab: HostSettings, local_host: LocalHost
) -> None:
    local_host.call("facts.python")
    local_host.call("lock.look", state=lab.state)
    assert not Path(lab.state).exists()


@pytest.mark.parametrize("spoil", ["damaged", "cut", "writable", "link"])
def test_kept_code_that_is_not_trusted_is_sent_again(
    spoil: str, lab: HostSettings, home: Path, tmp_path: Path
) -> None:
    first = LocalHost(lab, home)
    first.call("lock.take", state=lab.state, who={"task": "a test"})
    first.close()
    (file,) = kept(lab)
    whole = file.read_bytes()
    if spoil == "damaged":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif spoil == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif spoil == "writable":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    second = LocalHost(lab, home)
    assert second.call("runs.ids", state=lab.state) == {"ids": []}
    assert sent_bytes(second) > len(starter.code().packed)
    second.close()
    # And is kept again, as it should be.
    eventually(lambda: sound(file))
    assert file.stat().st_mode & 0o777 == 0o600


def test_versions_that_nobody_has_used_for_long_are_forgotten(
    lab: HostSettings, home: Path
) -> None:
    host = LocalHost(lab, home)
    host.call("lock.take", state=lab.state, who={"task": "a test"})
    host.close()
    (file,) = kept(lab)
    file.unlink()
    for number in range(9):
        (file.parent / f"agent-{number}").write_bytes(b"")
    host = LocalHost(lab, home)
    host.call("runs.ids", state=lab.state)
    host.close()
    assert sound(file)
    assert len(kept(lab)) == 4
