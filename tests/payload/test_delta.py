"""Contents told by other contents come out byte for byte, and short where they are alike."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.payload import delta

_BYTES = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 3000)
)


@given(_BYTES, _BYTES)
def test_any_contents_come_out_as_they_were(old: bytes, new: bytes) -> None:
    assert delta.unpacked(old, delta.packed(old, new)) == new


def code(lines: int, seed: int = 1) -> list[bytes]:
    made = random.Random(seed)
    return [b"    x%d = %d\n" % (n, made.getrandbits(64)) for n in range(lines)]


@pytest.mark.parametrize("lines", [10, 600, 6000])
def test_a_few_new_lines_in_a_long_file_are_short(lines: int) -> None:
    old = code(lines)
    new = [*old[: lines // 3], b"import torch  # new\n", *old[lines // 3 :], b"# the end\n"]
    change = delta.packed(b"".join(old), b"".join(new))
    assert delta.unpacked(b"".join(old), change) == b"".join(new)
    assert len(change) < 200 + len(b"".join(new)) // 50


def test_another_old_file_gives_no_other_contents() -> None:
    old, new = b"".join(code(300)), b"".join(code(301))
    with pytest.raises(zlib.error):
        delta.unpacked(b"".join(code(300, seed=2)), delta.packed(old, new))
