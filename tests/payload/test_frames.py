"""Messages survive any chunking, and what is no message is said so."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.payload import frames

_BODIES = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=4)


@given(st.lists(st.tuples(_BODIES, st.binary(max_size=50)), max_size=5), st.data())
def test_any_chunking_gives_the_same_messages(
    messages: list[tuple[dict[str, object], bytes]], data: st.DataObject
) -> None:
    stream = b"".join(frames.pack(body, blob) for body, blob in messages)
    splitter = frames.Splitter()
    got = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += splitter.feed(stream[:size])
        stream = stream[size:]
    assert got == messages


def test_talk_instead_of_messages_is_refused_before_memory_is_spent() -> None:
    with pytest.raises(frames.BrokenStream):
        frames.Splitter().feed(b"Last login: Sun Nov 29 on pts/0\r\n")


def test_a_message_that_is_no_json_is_refused() -> None:
    with pytest.raises(frames.BrokenStream):
        frames.Splitter().feed(struct.pack(">II", 4, 0) + b"{no}")
