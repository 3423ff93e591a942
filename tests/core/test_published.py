"""A CSV of figures that somebody else measured."""

from __future__ import annotations

import pytest

from remote.core.published import read_published
from remote.errors import ConfigError


@pytest.mark.parametrize(
    ("header", "metric", "value"),
    [
        ("output_throughput", "output_throughput", 20.0),
        ("Output tokens/s", "output_throughput", 20.0),
        ("Total Throughput [tok/s]", "total_throughput", 20.0),
        ("p99_ttft_ms", "ttft_p99_ms", 20.0),
        ("TTFT p99 (s)", "ttft_p99_ms", 20000.0),
        ("median_e2e_latency_ms", "e2e_p50_ms", 20.0),
        ("Mean TPOT", "tpot_mean_ms", 20.0),
        ("Time to first token, avg", "ttft_mean_ms", 20.0),
    ],
)
def test_headers_are_read_with_goodwill(header: str, metric: str, value: float) -> None:
    found = read_published(f'\ufeff"{header}";Max Concurrency\n20;4\n', "a.csv")
    assert found.levels[4].figures == {metric: value}
    assert found.levels[4].line == 2


def test_numbers_with_thousands_and_columns_that_say_something_else() -> None:
    found = read_published(
        "level\toutput_throughput\tinput tok/s\thost\n1,024\t1,520.5\t9\tgpu\n\n1\t-\t\t\n", "a.tsv"
    )
    assert found.levels[1024].figures == {"output_throughput": 1520.5}
    assert found.levels[1].figures == {}
    assert found.ignored == ("input tok/s", "host")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "level,output_throughput\n1,2\nx,3\n",
            "line 3: level: wanted a number above 0, found 'x'",
        ),
        ("level,output_throughput\n1,-2\n", "line 2: output_throughput: wanted a number above 0"),
        ("level,output_throughput\n1,inf\n", "line 2: output_throughput"),
        ("level,output_throughput\n1.5,2\n", "line 2: level: wanted a whole number, found '1.5'"),
        ("level,output_throughput\n,2\n", "line 2: no level"),
        ("level,output_throughput\n1,2\n1,3\n", "line 3: level 1 again, as in line 2"),
        ("level,output_throughput\n1,1,520\n", "line 2: 3 cells under 2 headers"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_published(text, "a.csv")
    assert any(line.startswith(said) for line in refused.value.evidence)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no figures"),
        ("level,output_throughput\n", "holds no figures"),
        ("name,output_throughput\na,1\n", "no column for the level"),
        ("level,remarks\n1,x\n", "no column for the metric"),
        ("level,output_throughput,output tok/s\n1,2,3\n", "two columns for output_throughput"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_published(text, "a.csv")
