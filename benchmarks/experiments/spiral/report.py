"""The report of the spiral: accuracy, which part of the method matters, and the regions in the plane."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Claim, Curves, Drawing, Row, Section, gain, metric
from benchmarks.experiments.spiral.task import DATA_STREAM, spirals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = frozenset({"cpu", "gpu", "paper"})  # every epoch, point and network is there on a CPU too
NOTE = (
    "The paper names neither the momentum here (its default, 0.9, is tried too) nor the number of points and epochs "
    "(500 and 4,000). Bands: smallest to largest of the seeds."
)
ALL, INPUT, OUTPUT = "multirate, all biases", "multirate, input biases", "multirate, output bias"
LARGER, FROZEN, REST = "biases at 5h every step", "biases frozen, same step size", "multirate, no drift"


def sections(drawn: Sequence[str], edge: float) -> tuple[Section, ...]:
    """The paper's three figures; `drawn` are the methods whose regions were kept, on a square up to `edge`."""

    def draw(record: Record, figure: "Figure") -> bool:
        return draw_regions(record, figure, drawn, edge)

    return (
        _figure(
            "Figure A11",
            "Slow biases on the 4-turn spiral",
            ("SGD", ALL),
            (_better(ALL, "SGD", by=5),),
            beside=("SGD, momentum 0.9", "multirate, momentum 0.9"),
            plots=(Drawing("Decision regions, mean of all networks", draw),),
            note=NOTE,
        ),
        _figure(
            "Figure A12",
            "Slow biases on the spiral: time scale, step size, or both?",
            ("SGD", ALL, LARGER, FROZEN),
            (_better(ALL, LARGER), _better(ALL, FROZEN)),
            beside=(REST,),
            differences=((FROZEN, "SGD"), (LARGER, "SGD"), (REST, "SGD"), (ALL, REST)),
        ),
        _figure(
            "Figure A13",
            "Slow biases on the spiral: which biases?",
            ("SGD", ALL, INPUT, OUTPUT),
            (_better(INPUT, "SGD", by=5), _better(INPUT, OUTPUT)),
            differences=((INPUT, ALL), (OUTPUT, "SGD")),
        ),
    )


def _figure(
    item: str,
    title: str,
    methods: Sequence[str],
    claims: tuple[Claim, ...],
    beside: Sequence[str] = (),
    plots: tuple[Drawing, ...] = (),
    note: str = "",
    differences: Sequence[tuple[str, str]] = (),
) -> Section:
    """The curves of the paper's figure, what we put beside them in the table only, and differences worth a sentence."""
    names = {method: method for method in methods}
    curves = Curves(names, "accuracy per evaluation", "epoch", "test accuracy [%]", x="epoch", ylim=(45, 95))
    rows = tuple(Row(method, metric(method, "accuracy")) for method in (*methods, *beside))
    return Section(
        item,
        title,
        "%",
        1,
        rows=rows,
        claims=claims,
        plots=(curves, *plots),
        full=FULL,
        note=note,
        facts=lambda record: [_difference(record, *pair) for pair in differences],
    )


def _better(one: str, other: str, by: float = 0.0) -> Claim:
    more = f" by more than {by:g} points" if by else ""
    return Claim(f"{one}: better than {other}{more}", gain(one, other, "accuracy"), above=by)


def _difference(record: Record, one: str, other: str) -> str:
    found = stats.summarize(gain(one, other, "accuracy")(record))
    return f"{one} − {other}: {found.mean:+.1f} ± {found.half:.1f} points ({found.n} pairs, 95 %)."  # noqa: RUF001


def draw_regions(record: Record, figure: "Figure", methods: Sequence[str], edge: float) -> bool:
    """Draw the border that each method puts between the spirals, with the training points of the first seed."""
    from matplotlib.colors import LinearSegmentedColormap

    grids = {method: grid for method in methods if (grid := _grid(record, method))}
    if not grids:
        return False
    colours = "#D55E00", "#FFFFFF", "#0072B2"
    scale = LinearSegmentedColormap.from_list("spirals", colours)
    x, y = spirals(record.config["train"], torch.Generator().manual_seed(DATA_STREAM + record.seeds[0]))
    axes = figure.subplots(1, len(grids), sharey=True, squeeze=False)[0]
    for ax, (method, grid) in zip(axes, grids.items(), strict=True):
        shown = ax.imshow(grid, extent=(-edge, edge) * 2, origin="lower", cmap=scale, vmin=0, vmax=1)
        for label, colour in ((0, colours[0]), (1, colours[2])):
            of_class = x[y == label]
            ax.scatter(of_class[:, 0], of_class[:, 1], s=6, color=colour, edgecolors="black", linewidths=0.3)
        ax.set(title=method, xlabel="x")
        ax.grid(visible=False)
    axes[0].set_ylabel("y")
    figure.colorbar(shown, ax=axes, label="mean probability of the blue spiral", shrink=0.8)
    return True


def _grid(record: Record, method: str) -> Any:
    """The grid that lies with the first seed of a batch."""
    return next((result["regions"] for result in record.results(method).values() if "regions" in result), None)
