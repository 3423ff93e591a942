"""Whose key is whose: known_hosts as OpenSSH reads it."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from remote.core import known_hosts
from remote.core.known_hosts import Verdict

KEY = b"\0\0\0\x0bssh-ed25519" + b"k" * 32
OTHER = b"\0\0\0\x0bssh-ed25519" + b"o" * 32
TYPE = "ssh-ed25519"


def line(hosts: str, key: bytes = KEY, kind: str = TYPE, marker: str = "") -> str:
    return f"{marker} {hosts} {kind} {base64.b64encode(key).decode()} a comment\n".lstrip()


def verdict(text: str, *names: str, key: bytes = KEY, kind: str = TYPE) -> Verdict:
    return known_hosts.judge(known_hosts.parse(text, "kh"), names, kind, key).verdict


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        ("box", "box"),
        ("BOX", "box"),
        ("other,box,10.0.0.1", "10.0.0.1"),
        ("*.lab.org", "gpu1.lab.org"),
        ("gpu?", "gpu1"),
        ("[box]:2222", "[box]:2222"),
        ("[*.lab.org]:2222", "[a.lab.org]:2222"),
        ("*.lab.org,!bad.lab.org", "good.lab.org"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_a_key_on_record_is_known(hosts: str, name: str) -> None:
    assert verdict(line(hosts), name) is Verdict.KNOWN


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        ("box", "box2"),
        ("box", "[box]:2222"),
        ("[box]:2222", "box"),
        ("[bo]x", "bx"),  # brackets are no pattern
        ("gpu?", "gpu10"),
        ("*.lab.org,!bad.lab.org", "bad.lab.org"),
        ("!bad.lab.org,*.lab.org", "bad.lab.org"),
        ("!box", "other"),
    ],
)
def test_a_key_of_other_hosts_is_unknown(hosts: str, name: str) -> None:
    assert verdict(line(hosts), name) is Verdict.UNKNOWN


def test_another_key_of_the_same_type_has_changed_and_says_where() -> None:
    entries = known_hosts.parse("# mine\n\n" + line("box", OTHER), "~/kh")
    judged = known_hosts.judge(entries, ["box"], TYPE, KEY)
    assert judged == known_hosts.Judgement(Verdict.CHANGED, ("~/kh:3",), (TYPE,))


def test_several_keys_of_one_type_may_stand_side_by_side() -> None:
    assert verdict(line("box", OTHER) + line("box"), "box") is Verdict.KNOWN


def test_a_host_known_by_another_type_of_key_has_changed_and_says_where() -> None:
    entries = known_hosts.parse(line("box", b"rsa", "ssh-rsa"), "kh")
    judged = known_hosts.judge(entries, ["box"], TYPE, KEY)
    assert judged == known_hosts.Judgement(Verdict.CHANGED, ("kh:1",), ("ssh-rsa",))
    # Among several lines those of the type that was shown tell most.
    entries += known_hosts.parse(line("box", OTHER), "system")
    assert known_hosts.judge(entries, ["box"], TYPE, KEY).sources == ("system:1",)


def test_a_revoked_key_is_revoked_whatever_else_is_said() -> None:
    text = line("box") + line("*", marker="@revoked")
    assert verdict(text, "box") is Verdict.REVOKED
    assert verdict(line("box", OTHER) + line("*", marker="@revoked"), "box", key=OTHER) is (
        Verdict.KNOWN
    )


def test_a_certificate_authority_is_no_key_of_the_host() -> None:
    text = line("*.lab.org", marker="@cert-authority")
    assert verdict(text, "a.lab.org") is Verdict.AUTHORITY
    assert verdict(text + line("a.lab.org"), "a.lab.org") is Verdict.KNOWN
    assert verdict(text, "elsewhere") is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "box\n",
        "box ssh-ed25519\n",
        "box ssh-ed25519 not*base64\n",
        "box ssh-ed25519 AAA\n",
        "@revoked\n",
        "|1|c2FsdA==|broken*| ssh-ed25519 AAAA\n",
        "|1|short ssh-ed25519 AAAA\n",
        "|1|é|é ssh-ed25519 AAAA\n",
        "\ufffd\ufffd\n",
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(text: str) -> None:
    assert verdict(text + line("box"), "box") is Verdict.KNOWN
    assert verdict(text, "box") is Verdict.UNKNOWN


def test_the_address_counts_beside_the_name() -> None:
    assert verdict(line("10.0.0.1"), "box", "10.0.0.1") is Verdict.KNOWN


def test_names_and_types_under_which_a_host_is_kept() -> None:
    assert known_hosts.host_name("Box.Lab", 22) == "box.lab"
    assert known_hosts.host_name("Box.Lab", 2222) == "[box.lab]:2222"
    entries = known_hosts.parse(
        line("box") + line("box", b"r", "ssh-rsa") + line("box", marker="@revoked", kind="x"), "kh"
    )
    assert known_hosts.key_types(entries, ["box"]) == {TYPE, "ssh-rsa"}


def test_a_recorded_line_is_known_afterwards() -> None:
    text = known_hosts.line("[box]:2222", TYPE, KEY)
    assert verdict(text, "[box]:2222") is Verdict.KNOWN


def test_openssh_agrees_on_hashes_and_fingerprints(tmp_path: Path) -> None:
    keygen = shutil.which("ssh-keygen")
    assert keygen, "apt install openssh-client"
    key = tmp_path / "key"
    subprocess.run([keygen, "-q", "-t", TYPE, "-N", "", "-f", key], check=True)
    kind, encoded, *_ = key.with_suffix(".pub").read_text().split()
    blob = base64.b64decode(encoded)
    kept = tmp_path / "known_hosts"
    kept.write_text(f"box {kind} {encoded}\n[box]:2222,10.0.0.1 {kind} {encoded}\n")
    subprocess.run([keygen, "-q", "-H", "-f", kept], check=True, capture_output=True)
    assert "box" not in kept.read_text()
    for name in ("box", "BOX", "[box]:2222", "10.0.0.1"):
        assert verdict(kept.read_text(), name, key=blob, kind=kind) is Verdict.KNOWN
    assert verdict(kept.read_text(), "box2", key=blob, kind=kind) is Verdict.UNKNOWN
    shown = subprocess.run([keygen, "-l", "-f", key], check=True, capture_output=True, text=True)
    assert known_hosts.fingerprint(blob) == shown.stdout.split()[1]
