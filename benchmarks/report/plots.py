"""The plots of a section as images that can stand in a self-contained page."""

import base64
import io
from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Bars, Curves, Section

# Okabe and Ito's palette, told apart by the colour-blind too, and then some
COLOURS = ("#222222", "#009E73", "#0072B2", "#D55E00", "#AA4499", "#E69F00", "#56B4E9", "#999933")
BLACK, PAPER = COLOURS[0], "#666666"
STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))  # no divisor in common with the number of colours
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "mrreg",  # the same picture is the same file
}
Look = tuple[str, Any]
"""The colour and line style of a method."""


def labels(sections: Iterable[Section]) -> list[str]:
    """Return the names of the methods in the plots of some sections, those of curves first."""
    given = list(sections)
    curves = [label for each in given for plot in each.plots if isinstance(plot, Curves) for label in plot.methods]
    return [*curves, *(row.label for each in given for row in each.rows)]


def palette(names: Iterable[str]) -> dict[str, Look]:
    """Give every method one look for all plots, and the first ones the clearest."""
    looks = zip(cycle(COLOURS), cycle(STYLES))
    return dict(zip(dict.fromkeys(names), looks, strict=False))


def plots(section: Section, record: Record, looks: Mapping[str, Look] | None = None) -> list[tuple[str, str]]:
    """Return what each plot shows, and the plot as a data URI; plots without numbers are left out."""
    looks = looks or palette(labels([section]))
    made = []
    for plot in section.plots:
        rows = len(section.rows) if isinstance(plot, Bars) else 0
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(7, max(2.2, 1.2 + 0.3 * rows) if rows else 4.2), layout="constrained")
            axes = figure.add_subplot()
            if isinstance(plot, Bars):
                drawn = draw_rows(plot, section, record, axes, looks)
            else:
                drawn = draw_curves(plot, record, axes, looks)
            if drawn:
                made.append((f"{section.title}: {plot.ylabel}", uri(figure)))
    return made


def draw_curves(plot: Curves, record: Record, axes: Axes, looks: Mapping[str, Look]) -> bool:
    """Draw a line and a band for each method; return False if no method has numbers."""
    for label, method in plot.methods.items():
        colour, style = looks[label]
        lists = list(record.curves(method, plot.metric).values())
        columns = list(zip(*lists, strict=False))  # as far as all seeds go
        if not columns:
            continue
        summaries = [stats.summarize(column) for column in columns]
        xs = _abscissae(plot, record, method, len(columns))
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
    _legend(axes)
    return True


def draw_rows(plot: Bars, section: Section, record: Record, axes: Axes, looks: Mapping[str, Look]) -> bool:
    """Draw each row's runs, its mean with an interval, and the paper's number; return False if no row has numbers."""
    rows = [(row, values) for row in section.rows if (values := row.values(record))]
    for position, (row, values) in enumerate(rows):
        summary, colour = stats.summarize(values), looks[row.label][0]
        axes.plot(values, [position + 0.2] * len(values), "o", color=colour, markersize=4, alpha=0.4)
        middle = summary.median if section.center == "median" else summary.mean
        spread = 0.0 if section.center == "median" or summary.n < 2 else summary.half
        axes.errorbar(middle, position, xerr=spread, fmt="s", color=colour, capsize=4)
        if row.paper:
            low, high = row.paper.low or row.paper.mean, row.paper.high or row.paper.mean
            axes.plot([low, high], [position - 0.25] * 2, color=PAPER, linewidth=1)
            axes.plot(row.paper.mean, position - 0.25, "D", color=PAPER, markersize=5)
    interval = "" if section.center == "median" else " ± 95 %"
    axes.plot([], [], "s", color=BLACK, label=f"ours, {section.center}{interval}")
    axes.plot([], [], "o", color=BLACK, alpha=0.4, markersize=4, label="each run")
    if any(row.paper for row, _ in rows):
        axes.plot([], [], "D", color=PAPER, markersize=5, label="paper")
    axes.set_yticks(range(len(rows)), [row.label for row, _ in rows])
    axes.set(xlabel=plot.ylabel, ylim=(len(rows) - 0.4, -0.6))
    if axes.get_xlim()[0] < 0 < axes.get_xlim()[1]:
        axes.axvline(0, color=PAPER, linewidth=1)
    if plot.ylim:
        axes.set_xlim(plot.ylim)
    _legend(axes)
    return bool(rows)


def _legend(axes: Axes) -> None:
    _, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = figure.get_figwidth() / len(figure.axes)
    columns = min(3, max(1, int(inches / (0.55 + 0.075 * max(map(len, labels))))))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=9, borderaxespad=0.2)


def _abscissae(plot: Curves, record: Record, method: str, n: int) -> list[float]:
    if plot.x is None:
        return [float(x) for x in range(1, n + 1)]
    columns = zip(*record.curves(method, plot.x).values(), strict=False)
    return [stats.summarize(column).mean for column in columns][:n]


def svg(figure: Figure) -> bytes:
    """Return the picture as a file that is the same for the same numbers."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return b"".join(line.rstrip() + b"\n" for line in file.getvalue().splitlines())


def uri(figure: Figure) -> str:
    """Return the picture as a data URI, so that a page needs no other file."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure)).decode()
