"""What must not leave the host: tokens, keys, prompts; and what must stay as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.core.scrubbing import ScrubbedStream, Scrubber

CASES = Path(__file__).parents[1] / "cases"
TOKEN = "hf_" + "aB3" * 8


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (f"export HF_TOKEN={TOKEN}", TOKEN),
        (f"export HF_TOKEN='{TOKEN}'", TOKEN),
        (f"downloading with {TOKEN} from the hub", TOKEN),
        ("server_args=ServerArgs(model='m', api_key='open sesame', tp_size=2)", "sesame"),
        ("server_args={'api_key': 'open-sesame'}", "sesame"),
        ('{"admin_api_key": "open-sesame", "port": 30000}', "sesame"),
        ("python -m sglang.launch_server --api-key open-sesame --port 30000", "sesame"),
        ("python -m sglang.launch_server --api-key=open-sesame --port 30000", "sesame"),
        ("['--api-key', 'open-sesame', '--tp-size', '2']", "sesame"),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("-H 'authorization: Basic dXNlcjpwdw=='", "dXNlcjpwdw"),
        ('"Authorization": "Bearer abcdef.123456"', "abcdef"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "abc/def"),
        ("wget https://user:pa55word@example.com/model", "pa55word"),
        ("OPENAI_API_KEY=sk-proj-abcdefghijklmnop0123", "abcdefghij"),
        ("PASSWORD: hunter22", "hunter22"),
        ("[2026-11-29 12:00:00] Receive: obj=GenerateReqInput(text='my diary')", "diary"),
        ("[2026-11-29 12:00:00] Finish: obj=GenerateReqInput(text='x'), out={'text': 'b'}", "'x'"),
        ('POST body {"prompt": "my diary", "n": 1}', "diary"),
        ('{"messages": [{"role": "user", "content": "my diary"}]}', "diary"),
    ],
)
def test_a_secret_does_not_stay(line: str, secret: str) -> None:
    scrubbed = Scrubber().text(line + "\n")
    assert secret not in scrubbed
    assert "***" in scrubbed and scrubbed.endswith("\n")


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, #running-req: 1, #token: 12, token usage: 0.01, gen throughput (token/s): 3",
        "max_total_num_tokens=8192, chunked_prefill_size=2048, max_running_requests=16",
        "server_args=ServerArgs(tokenizer_path='m', api_key=None, admin_api_key='', port=1)",
        "tokenizer_mode=auto time_per_output_token=3 first-token: 5",
        "Loading tokenizer: 100% https://huggingface.co/org/model",
        "--max-total-tokens 8192 --port 30000",
    ],
)
def test_what_is_no_secret_stays_as_it_is(line: str) -> None:
    assert Scrubber().text(line) == line


@pytest.mark.parametrize(
    "log", sorted((CASES / "server_log").rglob("*.log")), ids=lambda path: path.stem
)
def test_real_logs_without_secrets_pass_but_for_requests(log: Path) -> None:
    for line in log.read_bytes().splitlines(keepends=True):
        scrubbed = Scrubber().data(line)
        assert scrubbed == line or b"Receive" in line or b"Finish" in line or b"text" in line


def test_a_known_value_is_masked_wherever_it_stands() -> None:
    scrubber = Scrubber()
    scrubber.learn_variables({"WANDB_API_KEY": "w4ndb-value", "HOME": "/root/home"})
    assert scrubber.text("got w4ndb-value in /root/home") == "got *** in /root/home"


def test_a_script_tells_its_secrets() -> None:
    scrubber = Scrubber()
    scrubber.learn_script(
        "#!/bin/bash\nexport MY_TOKEN='a b c d e'\nexec python -m sglang.launch_server \\\n"
        "  --api-key k-123456 \\\n  --port 30000\n"
    )
    assert scrubber.text("a b c d e and k-123456 on 30000") == "*** and *** on 30000"


def test_names_from_the_settings_are_secret_too() -> None:
    scrubber = Scrubber(["LICENSE", "cluster-pin"])
    assert scrubber.is_secret("--cluster-pin") and scrubber.is_secret("license")
    text = "export LICENSE='abc' --cluster-pin 1234 cluster_pin=1234 RELICENSE=kept"
    assert scrubber.text(text) == (
        "export LICENSE='***' --cluster-pin *** cluster_pin=*** RELICENSE=kept"
    )


def test_short_values_are_words_like_any_other() -> None:
    scrubber = Scrubber()
    scrubber.learn(["1", "true"])
    assert scrubber.text("1 true") == "1 true"


@given(
    st.lists(st.sampled_from([b"HF_TOKEN=abcdef1\n", b"bar 1\r", b"caf\xe9\n", b"plain"])),
    st.lists(st.integers(0, 60)),
)
def test_chunking_changes_nothing(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(lines)
    at = sorted({min(cut, len(whole)) for cut in cuts})
    stream = ScrubbedStream(Scrubber())
    pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
    chunked = b"".join(map(stream.feed, pieces)) + stream.finish()
    once = ScrubbedStream(Scrubber())
    assert chunked == once.feed(whole) + once.finish()
    assert b"abcdef1" not in chunked
    assert chunked.count(b"caf\xe9") == whole.count(b"caf\xe9")


@given(st.lists(st.sampled_from([b"api_key=", b"12", b".", b"\r", b"\n", b"\r\n", b"word "])))
def test_lines_are_scrubbed_as_they_are_alone(parts: list[bytes]) -> None:
    """Whatever stood in the log before them, and wherever their ends are."""
    data = b"".join(parts)
    scrubber = Scrubber()
    scrubber.data(b"word word word\n12\n.\n")
    alone = [Scrubber().data(line) for line in data.splitlines(keepends=True)]
    assert scrubber.data(data) == scrubber.data(data) == b"".join(alone)


def test_a_step_teaches_nothing_about_other_lines() -> None:
    scrubber = Scrubber()
    step = b"[2026-11-29 12:00:00 TP0] Decode batch, #token: 12, api_key=1\n"
    assert scrubber.data(step) == step
    assert b"open-sesame" not in scrubber.data(b"api_key=open-sesame 12\n")


def test_no_words_teach_nothing() -> None:
    scrubber = Scrubber()
    scrubber.learn_words([])
    assert scrubber.text("plain") == "plain"
