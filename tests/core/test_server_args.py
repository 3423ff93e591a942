"""The ``server_args=`` line of every SGLang version at hand, and reprs that are no literals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.core.server_args import parse

CASES = Path(__file__).parent.parent / "cases" / "server_args"


def read(case: str) -> dict[str, object]:
    arguments = parse((CASES / f"{case}.log").read_text(encoding="utf-8"))
    assert arguments is not None
    return arguments


@pytest.mark.parametrize(
    ("case", "count", "last", "expected"),
    [
        ("cpu-0.5.8", 325, "forward_hooks", {"port": 30058, "enable_piecewise_cuda_graph": False}),
        ("cpu-0.5.9", 328, "forward_hooks", {"tp_size": 1, "enable_metrics": True}),
        ("cpu-tp2-0.5.9", 328, "forward_hooks", {"tp_size": 2, "device": "cpu"}),
        (
            "cpu-0.5.12",
            381,
            "msprobe_dump_config",
            {"disable_piecewise_cuda_graph": True, "mem_fraction_static": 0.843},
        ),
        (
            "h200-piecewise-0.5.12",
            381,
            "msprobe_dump_config",
            {
                "disable_piecewise_cuda_graph": False,
                "cuda_graph_bs": [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64],
                "model_loader_extra_config": "{}",
                "quantization": None,
            },
        ),
        ("h200-tp2-0.5.12", 381, "msprobe_dump_config", {"tp_size": 2}),
        ("h200-graphs-off-0.5.12", 381, "msprobe_dump_config", {"disable_cuda_graph": True}),
        (
            "cpu-0.5.23",
            546,
            "return_aux_hidden_state_layer_ids",
            {"watermark_key": "<redacted>", "uvicorn_access_log_exclude_prefixes": []},
        ),
    ],
)
def test_real_lines(case: str, count: int, last: str, expected: Mapping[str, object]) -> None:
    arguments = read(case)
    assert len(arguments) == count
    assert list(arguments)[-1] == last
    assert {name: arguments[name] for name in expected} == expected


def test_the_graph_configuration_of_0_5_23_is_nested() -> None:
    graphs = read("cpu-0.5.23")["cuda_graph_config"]
    assert isinstance(graphs, dict)
    assert graphs["prefill"]["backend"] == "disabled"
    assert graphs["decode"]["max_bs"] == 32


@pytest.mark.parametrize(
    ("repr_", "value"),
    [
        ("<Kind.FULL: 0>", "<Kind.FULL: 0>"),
        ("<A of <B, c=1>>", "<A of <B, c=1>>"),
        ("Kind.FULL", "Kind.FULL"),
        ("torch.bfloat16", "torch.bfloat16"),
        ("Graphs(decode=Phase(max_bs=8, bs=[1, 2]))", {"decode": {"max_bs": 8, "bs": [1, 2]}}),
        ("PosixPath('/a, b')", "/a, b"),
        ("range(0, 3)", "range(0, 3)"),
        ("{<Kind.FULL: 0>: (1, None)}", {"<Kind.FULL: 0>": [1, None]}),
        ("{'a', 'b'}", ["a", "b"]),
        ("{}", {}),
        ("()", []),
        ("inf", "inf"),
        ("-1.5e-3", -0.0015),
        ("'it\\'s (a=1), [x'", "it's (a=1), [x"),
        ('"don\'t"', "don't"),
        ("b'raw'", "b'raw'"),
    ],
)
@pytest.mark.parametrize("form", ["ServerArgs(before=1, x={}, after=True)", "{{'x': {}, 'y': 1}}"])
def test_values_that_are_no_literals(form: str, repr_: str, value: object) -> None:
    arguments = parse("[2026-11-29 18:42:18 TP0] server_args=" + form.format(repr_))
    assert arguments is not None
    assert arguments["x"] == value
    assert arguments.get("after", True) is True
    assert len(arguments) in (2, 3)


@pytest.mark.parametrize(
    "line", ["", "Load weight begin.", "my_server_args=1", "server_args=None", "server_args="]
)
def test_other_lines_are_none(line: str) -> None:
    assert parse(line) is None


def test_a_line_cut_short_gives_what_came_before() -> None:
    assert parse("server_args=ServerArgs(tp_size=8, model_path='/mod") == {"tp_size": 8}
    assert parse("server_args={'tp_size': 8, 'bs': [1, 2") == {"tp_size": 8}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), JSON, max_size=5))
def test_any_repr_is_read_back_in_both_forms(arguments: dict[str, object]) -> None:
    keywords = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    assert parse(f"server_args=ServerArgs({keywords})") == arguments
    assert parse(f"server_args={arguments!r}") == arguments


@given(st.text(), st.sampled_from(["server_args=S(", "server_args={", "server_args=S(a="]))
def test_no_line_makes_it_fail(rest: str, start: str) -> None:
    assert isinstance(parse(start + rest), dict)
