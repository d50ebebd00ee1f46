"""The report: numbers beside the paper's, cards, the README's excerpt, and nothing left out."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.records import FULL, PLAIN, ROWS, record

from benchmarks.core.errors import UserError
from benchmarks.core.sections import Row, Section, Shown, metric
from benchmarks.report import headlines
from benchmarks.report import pages as report
from benchmarks.report.paper import ITEMS

ACCURACY = {headlines.OURS: [80.0, 81.0, 82.0], "dropout": [79.0, 80.0, 81.1]}
TEXT = record("cpu", ACCURACY, benchmark="regularizers-vit")
for run in TEXT.runs.values():
    run["results"][0]["accuracy at equal seconds"] = run["results"][0]["accuracy"]
    run["results"][0]["relative cost"] = 0.5
_, SHOWS = report.sources([TEXT])


class Reader(HTMLParser):
    """Collects what a page refers to, and checks that tags are closed in order."""

    void = {"meta", "img", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        given = dict(attrs)
        self.sources += [given["src"] or ""] if "src" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        self.ids += [given["id"] or ""] if "id" in given else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def write(shown: report.Sources, out: Path) -> str:
    """Write the page, and return it."""
    return report.write("Title", "Intro.", shown, [], report.chapters(shown, ITEMS), out)[0].read_text()


def test_the_page_is_self_contained_and_whole(tmp_path: Path) -> None:
    text = write([(record(), (FULL,)), (record("cpu"), (FULL,))], tmp_path)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.sources) == 6
    assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.sources)
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert "A &lt;note&gt;." in text
    assert "k &lt; 5 &amp; | more" in text
    told = ("91.00 ± 2.48", "93.00 (92.50 to 93.50)", "Seeds: 3.", "cpu: test, threads: 2", "reproduced where our mean")
    assert all(each in text for each in told)
    assert "1 contradicted" in re.sub("<[^>]+>", "", text)


def test_cards_come_first_where_they_are_given(tmp_path: Path) -> None:
    shown = [(TEXT, ())]
    html, *_ = report.write("Title", "", shown, SHOWS, report.chapters(shown, ITEMS), tmp_path)
    text = html.read_text()
    assert text.count('<article class="card">') == 1
    assert text.index(f"{headlines.OURS} against dropout") < text.index('id="summary"')
    assert '<span class="tag ahead">ahead</span> +1.0 points' in text
    assert "A step takes 0.50 of a plain step" in text


def test_no_table_or_figure_of_the_paper_is_left_out(tmp_path: Path) -> None:
    text = re.sub("<[^>]+>", "", write([(record(), (PLAIN,))], tmp_path))
    assert all(f"{item}. {about.title}" in text for item, about in ITEMS.items())
    assert re.search("(?i)not run: python -m benchmarks spiral", text)
    assert "Nothing to measure." in text


def test_every_label_of_the_paper_has_its_item() -> None:
    figures = sum(item.startswith("Figure") for item in ITEMS)
    assert (figures, len(ITEMS) - figures) == (14, 6)


def test_what_is_missing_or_diverged_is_said(tmp_path: Path) -> None:
    made = record(accuracy={"SGD": [math.nan, math.nan], "masks": [93.0, math.nan]})
    block = report.block(Section("Table A5", "t", rows=(*ROWS, Row("none", metric("none", "accuracy")))), made)
    assert [line["ours"] for line in block.lines] == ["diverged", "93.00", "not run"]
    assert [line["runs"] for line in block.lines] == ["2", "1 (1 more diverged)", "0"]


def test_what_was_not_run_has_a_row_that_says_why() -> None:
    large = replace(PLAIN, title="large", presets=frozenset({"gpu", "paper"}), needs="weights")
    there, beyond = replace(large, presets=frozenset({"paper", "cpu"})), replace(large, item="", title="b")
    (chapter,) = [
        each for each in report.chapters([(record("cpu"), (PLAIN, large, there, beyond))], ITEMS) if each.blocks
    ]
    assert [block.title for block in chapter.blocks] == [PLAIN.title, "large", "large"]
    (missing,) = [block for block in chapter.blocks if block.missing]
    assert missing.verdict == "not run: needs weights: python -m benchmarks mnist --preset gpu"
    assert missing.scale == "the paper's"


README = f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n"


def test_the_readme_gets_its_excerpt_and_keeps_the_rest(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    ours, rivals = headlines.OURS, {"none": 78.0, "dropout": 79.0, "weight decay": 77.0}
    thin = {ours: [80.0, 81.0, 82.0], headlines.TUNED: [81.0, 82.0, 83.0]}
    made = record("cpu", thin | {name: [at, at + 1, at + 2.1] for name, at in rivals.items()})
    for run in made.runs.values():
        run["results"][0]["accuracy at equal seconds"] = run["results"][0]["accuracy"]
        if run["method"] == "none":
            run["results"][0]["accuracy at equal seconds"] += 1.5
    names = {name: name for name in (*thin, *rivals)}
    varied = Shown("t", {**names, headlines.VARIANTS[1]: "none"}, task="with a variant")
    shows = [(made, [varied, Shown("t", names, task="a task")])]
    report.fill(readme, report.excerpt(shows))
    once = readme.read_text()
    assert once.startswith(f"# Title\n\n{report.BEGIN}\n| Task |")
    assert once.endswith(f"|\n{report.END}\n\nAfter.\n")
    told = "dropout | ahead: +1.0 points (+0.8 to +1.1) | ahead: +2.0 points (+1.8 to +2.1)"
    assert f"| a task | {told} | none | ahead: +1.5 points (+1.3 to +1.6) |" in once
    methods, variants = report.thin(shows).split("\n\n")
    assert methods.endswith("| a task | 81.0 (–) | 82.0 (–) | 79.0 (–) | 80.0 (–) | 78.0 (–) |")  # noqa: RUF001
    assert variants.endswith("|\n| with a variant | 82.0 (–) | 80.0 (–) | 79.0 (–) |")  # noqa: RUF001
    assert "\nold\n" not in once
    report.fill(readme, report.excerpt(shows))
    assert readme.read_text() == once


def test_the_docs_get_a_card_for_each_result_and_a_small_figure(tmp_path: Path) -> None:
    shown = [(TEXT, ()), (record(), (replace(PLAIN, rows=ROWS * 4),))]
    page, figure, guide = report.write_docs(shown, SHOWS, report.chapters(shown, ITEMS), tmp_path / "docs")
    text = page.read_text()
    assert f"| {headlines.OURS} | dropout | ahead" in text
    assert "**Table A5. k < 5 & | more.** claims: 1 of 2 reproduced, 1 contradicted;" in text
    assert "| and 2 more | | |" in text
    assert text.index("## Not run") < text.index("- Figure 2. ")
    assert figure.read_bytes().startswith(b"<?xml")
    assert guide.read_bytes().startswith(b"<?xml")
    assert "(results.svg)" in text


@pytest.mark.parametrize("text", ["# Title\n", report.BEGIN, f"{report.END} {report.BEGIN}"])
def test_a_readme_without_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UserError, match="results:begin"):
        report.fill(readme, "")
    assert readme.read_text() == text
