"""The report: numbers beside the paper's, the verdict rule, plots, and nothing left out."""

import base64
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from benchmarks.core import stats
from benchmarks.core.errors import UserError
from benchmarks.core.records import Record
from benchmarks.core.registry import REGISTERED
from benchmarks.core.sections import Bars, Claim, Curves, Drawing, Paper, Row, Section, gain, metric
from benchmarks.report import pages as report
from benchmarks.report import plots as report_plots
from benchmarks.report import verdict
from benchmarks.report.paper import ITEMS, Item

ACCURACY = {"SGD": [90.0, 91.0, 92.0], "masks": [92.0, 93.1, 93.9]}


def record(preset: str = "paper", total: int = 6, accuracy: dict[str, list[float]] = ACCURACY) -> Record:
    made = Record("mnist", preset, {}, "cpu: test", 2, {"torch": "2", "mrreg": "0"}, total)
    for method, values in accuracy.items():
        for seed, value in enumerate(values):
            curve = [value - 2, value - 1, value]
            made.add(f"{method} {seed}", method, (seed,), 1.0, [{"accuracy": value, "curve": curve, "s": [1, 2, 3]}])
    return made


BETTER = Claim("masks beat SGD", gain("masks", "SGD", "accuracy"))
WORSE = Claim("SGD beats masks", gain("SGD", "masks", "accuracy"))
OPPOSITE = "SGD beats masks (the opposite holds)"
ROWS = (
    Row("SGD", metric("SGD", "accuracy"), Paper(91.0)),
    Row("masks", metric("masks", "accuracy"), Paper(93.0, 92.5, 93.5)),
)


@pytest.mark.parametrize(
    ("values", "n", "mean", "half", "lost"),
    [
        ([], 0, math.nan, math.nan, 0),
        ([3.0], 1, 3.0, math.nan, 0),
        ([1.0, 3.0], 2, 2.0, 12.706, 0),
        ([1.0, 2.0, 3.0], 3, 2.0, 2.484, 0),
        ([2.0, math.nan, math.inf], 1, 2.0, math.nan, 2),
        ([5.0, 5.0], 2, 5.0, 0.0, 0),
    ],
)
def test_summaries(values: list[float], n: int, mean: float, half: float, lost: int) -> None:
    found = stats.summarize(values)
    assert (found.n, found.lost) == (n, lost)
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert found.half == pytest.approx(half, abs=1e-3, nan_ok=True)


def test_differences_are_paired_by_seed() -> None:
    assert stats.paired({0: 5.0, 1: 6.0, 7: 0.0}, {1: 1.0, 0: 2.0, 9: 9.0}) == [3.0, 5.0]


@pytest.mark.parametrize(
    ("differences", "above", "said"),
    [
        ([], 0.0, "no runs"),
        ([math.nan], 0.0, "no runs"),
        ([1.0], 0.0, "one run"),
        ([1.0, 1.1, 0.9], 0.0, "above"),
        ([1.0, 1.1, 0.9], 2.0, "below"),
        ([1.0, -1.0, 0.5], 0.0, "within noise"),
        ([-0.1, -0.11, -0.09], -0.5, "above"),
    ],
)
def test_what_differences_allow_to_say(differences: list[float], above: float, said: str) -> None:
    assert stats.judge(differences, above) == said


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([], "A against B: 0 paired runs, too few to say anything."),
        ([1.0], "A against B: 1 paired runs, too few to say anything."),
        ([1.0, 1.2, 1.1], "A minus B: +1.1 points, 95 % interval +0.9 to +1.3 over 3 paired seeds: larger."),
        ([-1.0, -1.2, -1.1], "A minus B: -1.1 points, 95 % interval -1.3 to -0.9 over 3 paired seeds: smaller."),
        ([1.0, -1.0], "A minus B: +0.0 points, 95 % interval -12.7 to +12.7 over 2 paired seeds: within noise."),
    ],
)
def test_differences_in_plain_words(differences: list[float], said: str) -> None:
    assert stats.sentence("A", "B", differences, "points", 1) == said


@pytest.mark.parametrize(
    ("section", "preset", "word"),
    [
        (Section("Table A5", "t", rows=ROWS, tolerance=0.5), "paper", "reproduced"),
        (Section("Table A5", "t", rows=ROWS, tolerance=0.5), "gpu", "reproduced"),
        (Section("Table A5", "t", rows=ROWS, tolerance=0.5), "cpu", "smaller scale, holds"),
        (
            Section("Table A5", "t", rows=(Row("SGD", ROWS[0].values, Paper(95.0)),), tolerance=0.5),
            "paper",
            "not reproduced: SGD: 91.00 instead of 95.00",
        ),
        (Section("Table A5", "t", rows=ROWS), "paper", "measured"),
        (Section("Figure 8", "t", claims=(BETTER,)), "paper", "reproduced"),
        (Section("Figure 8", "t", claims=(BETTER, WORSE)), "paper", f"not reproduced: {OPPOSITE}"),
        (Section("Figure 8", "t", claims=(WORSE,)), "cpu", f"smaller scale, does not hold: {OPPOSITE}"),
        (Section("", "t", claims=(BETTER,)), "cpu", "holds"),
        (Section("", "t", claims=(WORSE,)), "cpu", f"does not hold: {OPPOSITE}"),
        (
            Section("Figure 8", "t", rows=(Row("dropout", metric("dropout", "accuracy")),)),
            "paper",
            "unfinished: 6 of 6 runs are there",
        ),
    ],
)  # fmt: skip
def test_verdicts(section: Section, preset: str, word: str) -> None:
    assert str(verdict.judge(section, record(preset))) == word


def test_a_difference_within_noise_is_not_a_reproduction() -> None:
    noisy = record(accuracy={"SGD": [90.0, 92.0], "masks": [91.0, 92.0]})
    section = Section("Figure 8", "t", claims=(BETTER,))
    assert str(verdict.judge(section, noisy)) == "not reproduced: masks beat SGD (within noise)"


def test_medians_are_compared_where_the_section_says_so() -> None:
    slow_once = record(accuracy={"SGD": [1.0, 1.0, 100.0]})
    section = Section("", "t", rows=(Row("s", metric("SGD", "accuracy"), Paper(1.0)),), tolerance=0.1, center="median")
    assert str(verdict.judge(section, slow_once)) == "holds"


def draw_something(made: Record, figure: Figure) -> bool:
    figure.add_subplot().plot([0, 1], [0, 1])
    return True


PLOTS = (
    Curves({"SGD": "SGD", "masks": "masks", "nobody": "nobody"}, "curve", "epoch", "accuracy (%)", None, {"98": 98.0}),
    Curves({"SGD": "SGD"}, "curve", "seconds", "accuracy (%)", x="s", ylim=(80, 100)),
    Bars("accuracy (%)"),
    Drawing("a drawing", draw_something),
)
FULL = Section(
    "Table A5",
    "k < 5 & | more",
    "%",
    rows=ROWS,
    claims=(BETTER, WORSE),
    plots=PLOTS,
    tolerance=0.5,
    note="A <note>.",
    facts=lambda made: [f"Seeds: {len(made.seeds)}."],
)
PLAIN = replace(FULL, plots=())


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


def write(shown: report.Shown, out: Path) -> tuple[Path, Path]:
    return report.write("Title", "Intro.", shown, report.chapters(shown, ITEMS), out)


def test_the_page_is_self_contained_and_whole(tmp_path: Path) -> None:
    html, markdown = write([(record(), (FULL,)), (record("cpu"), (FULL,))], tmp_path)
    reader = Reader()
    text = html.read_text()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.sources) == 8
    assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.sources)
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert "A &lt;note&gt;." in text
    assert "k &lt; 5 &amp; | more" in text
    for shown in (text, markdown.read_text()):
        assert "91.00 ± 2.48" in shown
        assert "93.00 (92.50 to 93.50)" in shown
        assert "Seeds: 3." in shown
        assert "cpu: test, threads: 2" in shown
        assert "seeds 0 to 2" in shown
        assert verdict.RULE.split(";")[0] in shown
    assert "| k < 5 & \\| more |" in markdown.read_text()


def test_no_table_or_figure_of_the_paper_is_left_out(tmp_path: Path) -> None:
    for path in write([(record(), (PLAIN,))], tmp_path):
        text = path.read_text()
        for item, about in ITEMS.items():
            assert f"{item}. {about.title}" in text
        assert "No record yet: python -m benchmarks spiral" in text
        assert "Nothing to measure." in text


def test_every_label_of_the_paper_has_its_item() -> None:
    figures = sum(item.startswith("Figure") for item in ITEMS)
    assert (figures, len(ITEMS) - figures) == (14, 6)


def test_what_has_no_benchmark_is_said() -> None:
    items = {"Figure 2": Item("t", "nothing")}
    chapters = report.chapters([], items)
    assert [chapter.missing for chapter in chapters] == ["No benchmark yet."]


@pytest.mark.parametrize("name", REGISTERED)
def test_every_section_of_every_benchmark_names_an_item(name: str) -> None:
    for section in REGISTERED[name].load().sections:
        assert section.item in {*ITEMS, ""}


def test_the_largest_preset_comes_first() -> None:
    small, large = record("cpu"), record("paper")
    chapter = report.chapters([(small, (PLAIN,)), (large, (PLAIN,))], ITEMS)[list(ITEMS).index("Table A5")]
    assert [re.search("--preset ([a-z]+)", block.made).group(1) for block in chapter.blocks] == ["paper", "cpu"]  # type: ignore[union-attr]


def test_what_is_missing_or_diverged_is_said(tmp_path: Path) -> None:
    made = record(accuracy={"SGD": [math.nan, math.nan], "masks": [93.0, math.nan]})
    block = report.block(Section("Table A5", "t", rows=(*ROWS, Row("none", metric("none", "accuracy")))), made)
    assert [line.ours for line in block.lines] == ["diverged", "93.00", "not yet"]
    assert [line.runs for line in block.lines] == ["2", "1 (1 more diverged)", "0"]


def test_an_empty_record_gives_a_report(tmp_path: Path) -> None:
    html, _ = write([(record(accuracy={}), (FULL,))], tmp_path)
    assert "unfinished: 0 of 6 runs are there" in html.read_text()


README = f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n"


def test_the_readme_gets_its_table_and_keeps_the_rest(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    chapters = report.chapters([(record(), (PLAIN,))], ITEMS)
    report.fill_readme(readme, chapters)
    once = readme.read_text()
    assert once.startswith(f"# Title\n\n{report.BEGIN}\n| Part |")
    assert once.endswith(f"|\n{report.END}\n\nAfter.\n")
    assert "\nold\n" not in once
    report.fill_readme(readme, chapters)
    assert readme.read_text() == once


@pytest.mark.parametrize(
    ("seeds", "said"), [([], ""), ([3], "3"), ([0, 1, 2], "0 to 2"), ([0, 1, 5, 1000, 1001], "0 to 1, 5, 1000 to 1001")]
)
def test_seeds_in_brief(seeds: list[int], said: str) -> None:
    made = record(accuracy={})
    for seed in seeds:
        made.add(str(seed), "SGD", (seed,), 1.0, [{}])
    assert f"seeds {said} ·" in report.made_with(made)


def test_nothing_of_the_paper_is_shown_where_there_is_nothing(tmp_path: Path) -> None:
    section = Section("", "Alone", rows=(Row("SGD", metric("SGD", "accuracy")),))
    shown = [(record(), (section,))]
    for path in report.write("Title", "", shown, report.chapters(shown, {}), tmp_path):
        text = path.read_text()
        assert "paper (" not in text
        assert "<th>paper" not in text
        assert verdict.RULE not in text


def test_the_readme_shows_the_largest_record_of_each_section(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    other = replace(PLAIN, title="other")
    report.fill_readme(readme, report.chapters([(record("cpu"), (PLAIN, other)), (record("paper"), (PLAIN,))], ITEMS))
    lines = [line for line in readme.read_text().splitlines() if line.startswith("| Table A5")]
    assert [line.split("|")[-2].strip().split(":")[0] for line in lines] == [
        "not reproduced",
        "smaller scale, does not hold",
    ]


def test_a_summary_is_short(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    section = replace(PLAIN, rows=ROWS * 4)
    report.fill_readme(readme, report.chapters([(record(), (section,))], ITEMS))
    (line,) = [line for line in readme.read_text().splitlines() if line.startswith("| Table A5")]
    assert line.count("<br>") == 6
    assert line.endswith("<br>and 2 more | not reproduced |")


def test_a_record_that_no_section_shows_is_listed(tmp_path: Path) -> None:
    elsewhere = replace(PLAIN, presets=frozenset({"gpu"}))
    for path in write([(record("cpu"), (elsewhere,))], tmp_path):
        assert "python -m benchmarks mnist --preset cpu" in path.read_text()


@pytest.mark.parametrize("text", ["# Title\n", report.BEGIN, f"{report.END} {report.BEGIN}"])
def test_a_readme_without_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UserError, match="results:begin"):
        report.fill_readme(readme, [])
    assert readme.read_text() == text


def test_families_of_methods_keep_their_colour() -> None:
    few, many = (
        report_plots.colours(labels) for labels in (["masks", "SGD"], ["a", "dropout 0.5", "SGD", "b", "masks"])
    )
    assert few["masks"] == many["masks"]
    assert few["SGD"] == many["SGD"]


def test_many_methods_are_told_apart() -> None:
    chosen = report_plots.colours([f"masks {k}" for k in range(20)])
    assert len(set(chosen.values())) == 20


def test_the_same_record_gives_the_same_picture() -> None:
    first, second = (report_plots.plots(FULL, record()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("plot", "shown"),
    [(PLOTS[0], ["epoch", "accuracy", "SGD", "masks", "paper"]), (PLOTS[2], ["accuracy", "SGD", "masks", "paper"])],
)
def test_axes_and_legends_are_labelled(plot: Curves | Bars, shown: list[str]) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        (_, uri), *_ = report_plots.plots(Section("", "t", rows=ROWS, plots=(plot,)), record())
    svg = base64.b64decode(uri.partition("base64,")[2]).decode()
    assert all(word in svg for word in shown)


@pytest.mark.parametrize("plot", [PLOTS[0], PLOTS[2], Drawing("empty", lambda made, figure: False)])
def test_a_plot_without_numbers_is_left_out(plot: Curves | Bars | Drawing) -> None:
    assert report_plots.plots(Section("", "t", rows=ROWS, plots=(plot,)), record(accuracy={})) == []
