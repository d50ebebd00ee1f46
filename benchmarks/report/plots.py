"""The plots of a section as images that can stand in a self-contained page."""

import base64
import io
from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Curves, Drawing, Section

# Okabe and Ito's palette, told apart by the colour-blind too
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK, YELLOW = "#56B4E9", "#CC79A7", "#000000", "#F0E442"
FAMILIES = {"sgd": VERMILION, "dropout": GREEN, "masks": BLUE, "multirate": BLUE}  # the same in every plot
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, BLACK, YELLOW)
PAPER = "#666666"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "mrreg",  # the same picture is the same file
}


def plots(section: Section, record: Record) -> list[tuple[str, str]]:
    """What each plot shows, and the plot as a data URI; plots without numbers are left out."""
    made = []
    for plot in section.plots:
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(7, 4.2), layout="constrained")
            if _draw(plot, section, record, figure):
                title = plot.title if isinstance(plot, Drawing) else f"{section.title}: {plot.ylabel}"
                made.append((title, _uri(figure)))
    return made


def _draw(plot: Curves | Bars | Drawing, section: Section, record: Record, figure: Figure) -> bool:
    match plot:
        case Drawing():
            return plot.draw(record, figure)
        case Curves():
            return draw_curves(plot, record, figure.add_subplot())
        case Bars():
            return draw_rows(plot, section, record, figure.add_subplot())


def colours(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and line style for each label; a family of methods has the same colour in every plot."""
    chosen: dict[str, tuple[str, str]] = {}
    for label in labels:
        family = next((colour for word, colour in FAMILIES.items() if label.lower().startswith(word)), None)
        if family and (family, "-") not in chosen.values():
            chosen[label] = family, "-"
    free = (pair for style, colour in product(("-", "--", ":"), PALETTE) if (pair := (colour, style)))
    for label in labels:
        if label not in chosen:
            chosen[label] = next((pair for pair in free if pair not in chosen.values()), (PAPER, "-."))
    return chosen


def draw_curves(plot: Curves, record: Record, axes: Axes) -> bool:
    """A line and a band a method; False if no method has numbers."""
    for label, (colour, style) in colours(list(plot.methods)).items():
        lists = list(record.curves(plot.methods[label], plot.metric).values())
        columns = list(zip(*lists, strict=False))  # as far as all seeds go
        if not columns:
            continue
        summaries = [stats.summarize(column) for column in columns]
        xs = _abscissae(plot, record, plot.methods[label], len(columns))
        axes.plot(xs, [each.mean for each in summaries], color=colour, linestyle=style, label=label)
        if len(lists) > 1:
            lows, highs = [each.low for each in summaries], [each.high for each in summaries]
            axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0)
    if not axes.lines:
        return False
    for (label, value), style in zip(plot.references.items(), cycle(("--", ":", "-."))):
        axes.axhline(value, color=PAPER, linestyle=style, linewidth=1, label=f"paper: {label}")
    axes.set(xlabel=plot.xlabel, ylabel=plot.ylabel)
    if plot.x is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.ylim:
        axes.set_ylim(plot.ylim)
    axes.legend()
    return True


def draw_rows(plot: Bars, section: Section, record: Record, axes: Axes) -> bool:
    """A line of dots a row with mean and interval, and the paper's number; False if no row has numbers."""
    rows = [(row, values) for row in section.rows if (values := row.values(record))]
    for position, (row, values) in enumerate(rows):
        summary = stats.summarize(values)
        axes.plot([position - 0.12] * len(values), values, "o", color=SKY, markersize=4, alpha=0.6)
        middle = summary.median if section.center == "median" else summary.mean
        spread = 0.0 if section.center == "median" or summary.n < 2 else summary.half
        axes.errorbar(position, middle, spread, fmt="s", color=BLUE, capsize=4)
        if row.paper:
            low, high = row.paper.low or row.paper.mean, row.paper.high or row.paper.mean
            axes.plot([position + 0.15] * 2, [low, high], color=VERMILION, linewidth=1)
            axes.plot(position + 0.15, row.paper.mean, "D", color=VERMILION)
    axes.plot(
        [], [], "s", color=BLUE, label=f"ours, {section.center}" + ("" if section.center == "median" else " ± 95 %")
    )
    axes.plot([], [], "o", color=SKY, label="ours, each run")
    if any(row.paper for row, _ in rows):
        axes.plot([], [], "D", color=VERMILION, label="paper")
    long = any(len(row.label) > 14 for row, _ in rows)
    axes.set_xticks(
        range(len(rows)), [row.label for row, _ in rows], rotation=25 if long else 0, ha="right" if long else "center"
    )
    axes.set_ylabel(plot.ylabel)
    if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
        axes.axhline(0, color=PAPER, linewidth=1)
    if plot.ylim:
        axes.set_ylim(plot.ylim)
    axes.legend()
    return bool(rows)


def _abscissae(plot: Curves, record: Record, method: str, n: int) -> list[float]:
    if plot.x is None:
        return [float(x) for x in range(1, n + 1)]
    columns = zip(*record.curves(method, plot.x).values(), strict=False)
    return [stats.summarize(column).mean for column in columns][:n]


def _uri(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
