"""Reports as their readers see them: the page in a browser, and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from report_samples import BASELINE, CANDIDATE, CRASHED, HOSTILE, LEVELS, SamplePoint, sample

from remote import report
from remote.core.report_data import ReportData, ReportRun
from remote.core.report_view import all_series, environment, names, number
from remote.errors import ToolError

TEMPLATES = [Path(__file__).parents[1] / "templates"]
DECIDING_ROWS = 3 * len(LEVELS)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(path, report.html(sample(), TEMPLATES))
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def browser(running: Browser, page: Path) -> Browser:
    running.media("light")
    running.width(1100)
    running.requests.clear()
    running.faults.clear()
    running.open(page)
    return running


def rows(browser: Browser, caption: str) -> int:
    found = browser.value(
        "[...document.querySelectorAll('table')].filter("
        f"each => each.caption.textContent.startsWith({json.dumps(caption)}))"
        ".map(each => each.tBodies[0].rows.length)"
    )
    assert len(found) == 1
    return int(found[0])


def test_the_page_asks_for_nothing_and_runs_nothing(browser: Browser, page: Path) -> None:
    assert browser.requests == [page.as_uri()]
    assert browser.faults == []
    assert browser.value("document.images.length") == 0
    assert HOSTILE in browser.value("document.body.textContent")


def test_the_page_says_what_there_is(browser: Browser) -> None:
    assert browser.value("document.title") == "Piecewise graphs on eight RTX PRO 6000"
    assert browser.value("document.querySelector('.lead').innerText").endswith("mixed")
    assert rows(browser, "Runs") == 3
    assert rows(browser, "What decides") == DECIDING_ROWS
    assert rows(browser, "Points") == 25
    assert rows(browser, "What failed") == 1
    assert "dynamo_host_call" in browser.value("document.body.innerText")
    drawn = browser.value("[...document.querySelectorAll('figcaption')].map(e => e.innerText)")
    assert drawn == [
        "piecewise against baseline",
        "Latency over throughput",
        "Output throughput at each level",
        "Phases of the starts",
        "Starts and failures",
    ]


def test_every_drawing_says_in_words_what_it_shows(browser: Browser) -> None:
    told = browser.value(
        "[...document.querySelectorAll('svg')]"
        ".map(e => [e.getAttribute('role'), e.getAttribute('aria-label')])"
    )
    assert len(told) == 5
    assert all(role == "img" and len(alt) > 40 for role, alt in told)
    ids = browser.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_what_is_drawn_names_the_line_it_comes_from(browser: Browser) -> None:
    titles = browser.value("[...document.querySelectorAll('svg title')].map(e => e.textContent)")
    bars = [title for title in titles if "level 1024, output throughput" in title]
    assert any(f"{CANDIDATE}/bench/20261129-210000-be0c/raw/c1024-r3.jsonl:1" in t for t in bars)


def test_a_program_finds_every_figure_with_its_lines(browser: Browser) -> None:
    document = json.loads(browser.value("document.getElementById('data').textContent"))
    assert [run["id"] for run in document["runs"]] == [BASELINE, CRASHED, CANDIDATE]
    assert document["runs"][1]["note"].endswith(HOSTILE)
    figures = [figure for run in document["runs"] for figure in run["figures"]]
    assert len(figures) == 2 * len(LEVELS) * 14
    for figure in figures:
        assert len(figure["sources"]) == figure["repeats"] == 3
    for row in document["comparisons"][0]["rows"]:
        for side in row["sources"]:
            assert all(re.fullmatch(r"[^/]+/bench/.+\.jsonl:\d+", line) for line in side)


CONTRASTS = """
(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(each => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const against = (element, property) => {
    const other = light(getComputedStyle(element)[property]);
    return (Math.max(page, other) + 0.05) / (Math.min(page, other) + 0.05);
  };
  const text = ['p', 'small', 'figcaption', 'nav a', '.better', '.worse', '.failed', 'thead th'];
  return {
    page,
    text: Object.fromEntries(
      text.map(each => [each, against(document.querySelector(each), 'color')])),
    labels: [...document.querySelectorAll('svg text')].map(each => against(each, 'fill')),
    drawn: [...document.querySelectorAll('svg [id*="bar-"] path, svg [id*="phase-"] path')]
      .map(each => against(each, 'fill')),
  };
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_in_light_and_in_dark(browser: Browser, scheme: str) -> None:
    browser.media(scheme)
    found: dict[str, Any] = browser.value(CONTRASTS)
    assert (found["page"] < 0.05) if scheme == "dark" else (found["page"] > 0.9)
    assert {name: ratio for name, ratio in found["text"].items() if ratio < 4.5} == {}
    assert len(found["labels"]) > 50 and min(found["labels"]) >= 4.5
    # 3 for what is no text, by WCAG 1.4.11.
    assert len(found["drawn"]) > 20 and min(found["drawn"]) >= 3


def test_a_keyboard_gets_past_the_contents_and_into_what_scrolls(browser: Browser) -> None:
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.value("document.activeElement.id") == "main"
    scrolling = browser.value(
        "[...document.querySelectorAll('.scroll, pre')]"
        ".map(e => [e.tabIndex, e.getAttribute('aria-label')])"
    )
    assert scrolling and all(index == 0 and name for index, name in scrolling)


def test_a_narrow_window_scrolls_its_tables_and_not_the_page(browser: Browser) -> None:
    browser.width(380)
    assert browser.value("document.documentElement.scrollWidth") <= 380


UNFOLDED = "document.querySelector('details pre').checkVisibility()"


def test_in_print_it_is_dark_on_white_and_nothing_is_folded_away(browser: Browser) -> None:
    assert not browser.value(UNFOLDED)
    browser.media("dark", "print")
    found: dict[str, Any] = browser.value(CONTRASTS)
    assert found["page"] == 1 and min(found["labels"]) >= 4.5
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.value(UNFOLDED)


def test_other_peoples_words_stay_words() -> None:
    text = report.html(sample(), TEMPLATES)
    assert "<img" not in text
    assert text.count("</script>") == 1
    assert text.count("<script") == 1


def test_a_run_without_anything_makes_a_report() -> None:
    bare = ReportRun("r1", 0.0, "gpu", "baseline", "ready")
    for data in (ReportData("Nothing yet", 0.0, ()), ReportData("Bare", 0.0, (bare,))):
        page = report.html(data, TEMPLATES)
        assert "Nothing failed." in page and "No point was measured." in page
        assert "<svg" not in page
        assert "Nothing failed." in report.markdown(data, TEMPLATES)


def test_names_that_a_formula_or_a_tag_could_hide_in_are_drawn_as_they_are() -> None:
    name = r"$\frac{x$ <b>&"
    points = tuple(
        SamplePoint("b", "r1", level, repeat, {"output_throughput": 10.0, "ttft_p99_ms": 5.0})
        for level in (1, 4)
        for repeat in (1, 2)
    )
    run = ReportRun("r1", 0.0, "gpu", name, "crashed", kind=name, phases={name: 1.0}, points=points)
    text = report.html(ReportData(name, 0.0, (run,)), TEMPLATES)
    assert "<b>" not in text
    assert "<b>" not in report.markdown(ReportData(name, 0.0, (run,)), TEMPLATES)
    assert r"$\frac{x$ &lt;b&gt;&amp;" in text


def test_numbers_that_are_none_go_into_json_as_null() -> None:
    point = SamplePoint("b", "r1", 1, 1, {"output_throughput": float("inf")})
    run = ReportRun("r1", 0.0, "gpu", "baseline", "ready", points=(point,))
    text = report.html(ReportData("t", 0.0, (run,)), TEMPLATES)
    raw = text.partition('id="data">')[2].partition("</script>")[0]
    found = json.loads(raw, parse_constant=lambda word: pytest.fail(word))
    assert found["runs"][0]["points"][0]["metrics"] == {"output_throughput": None}
    assert found["runs"][0]["figures"] == []


def test_markdown_holds_the_verdicts_and_no_mark_up_of_others() -> None:
    text = report.markdown(sample(), TEMPLATES)
    assert "**piecewise against baseline: mixed**" in text
    assert "| ≠ patches | – |" in text
    table = [line for line in text.splitlines() if line.startswith("| 1024 | output throughput")]
    assert "better" in table[0] and "c1024-r3.jsonl:1" in table[1].replace("\\", "")
    before_scripts = text.partition("## Scripts")[0]
    assert "<img" not in before_scripts and "`$x" not in before_scripts.replace("\\`", "")
    lines = before_scripts.splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"\|[-:|]+\|$", line)]
    assert len(heads) == 5 and all(lines[number - 2] == "" for number in heads)
    for line in lines:
        if line.startswith("|") and "crashed" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 8


def test_a_script_can_not_close_its_own_block_in_markdown() -> None:
    text = report.markdown(sample(), TEMPLATES).partition("## Scripts")[2]
    blocks = re.findall(r"^(`{3,})bash\n(.*?)\n\1$", text, flags=re.S | re.M)
    assert len(blocks) == 3
    assert "```" in blocks[1][1] and len(blocks[1][0]) == 4


def test_two_starts_of_one_profile_are_told_apart_and_two_benches_of_one_start() -> None:
    data = sample()
    called = names(data.runs)
    assert called[BASELINE] == "baseline"
    assert called[CRASHED] == f"piecewise ({CRASHED})" != called[CANDIDATE]
    twice = replace(
        data.runs[0],
        points=(*data.runs[0].points, SamplePoint("other", BASELINE, 1, 1, {"itl_p50_ms": 3.0})),
    )
    assert [each.name for each in all_series([twice])] == [
        "baseline, bench 20261129-200000-be0c",
        "baseline, bench other",
    ]


def test_the_environment_marks_what_differs() -> None:
    lines = {line.name: line for line in environment(sample().runs)}
    assert lines["patches"].differs and not lines["driver"].differs
    assert lines["patches"].values == ("", "", "flashinfer/fp4-opaque 9f2c11aa77de")
    assert lines["gpus"].values[0] == "8 × NVIDIA RTX PRO 6000 Blackwell"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1520.4, "1,520"), (66.44, "66.4"), (9.876, "9.88"), (0.0951, "0.095"), (None, "–")],
)
def test_numbers_have_the_figures_that_matter(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_report_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ToolError, match="can't be written"):
        report.write(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
