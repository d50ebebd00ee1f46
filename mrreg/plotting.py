"""A picture of the units that masks leave in, drawn ahead of training."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mrreg.errors import check, check_int, check_type
from mrreg.masks.status import Subset, masks_in, subsets_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHERE = "plot"
SHOWN = 24  # units of each group: all of them would be too fine to see
COLORS = {"absent": "#e3e8ef", "present": "#2b6cb0", "present, joint step": "#dd6b20"}


def plot(
    model: nn.Module, *, cycles: int = 3, first_cycle: int = 0, seed: int | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Draw which units, or single entries, the masks of a model leave in at each step of some cycles.

    Slow subsets are a pure function of seed, position in the model and cycle, so that this can be drawn before
    training, and shows what training will do. Of each group the first 24 units are shown. Needs matplotlib
    (`pip install mrreg[plot]`).

    Args:
        model: A model with masks, or a thin one.
        cycles: Number of cycles to draw, at least 1.
        first_cycle: The first of them, at least 0.
        seed: That of `attach`; None: the one that drives the masks now, or 0.
        ax: Axes to draw in; None: a new figure.

    Returns:
        The axes, with steps from left to right; `ax.figure.savefig("cycle.svg")` keeps them.

    Raises:
        TypeError: If the model is no module.
        ValueError: If the model has no mask.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = mrreg.mask(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), {"0": 0.5}, k=5)
        >>> ax = mrreg.plot(model, cycles=2)
        >>> ax.get_xlabel()
        'step'
    """
    cycles = check_int(WHERE, "cycles", cycles)
    first_cycle = check_int(WHERE, "first_cycle", first_cycle, least=0)
    masks = list(masks_in(check_type(WHERE, "model", model, nn.Module, "a module with masks")))
    remedy = "Put masks into it with mrreg.mask, mrreg.swap_dropout or mrreg.thin."
    check(masks, WHERE, "model", "a module with masks", type(model).__name__, remedy)
    drawn = [mask.drawn[0] for _, mask, _ in masks if mask.drawn]
    seed = check_int(WHERE, "seed", (drawn or [0])[0] if seed is None else seed, least=0)
    k = max(mask.k for _, mask, _ in masks)
    steps = range(first_cycle * k, (first_cycle + cycles) * k)
    subsets = [(each, mask.k) for name, mask, first in masks for each in subsets_of(name, mask, first)]
    bands = [(each.name or type(model).__name__, _band(each, k, seed, steps)) for each, k in subsets]
    return _draw(bands, steps, ax)


def _band(subset: Subset, k: int, seed: int, steps: range) -> Tensor:
    """Return the color of each unit at each step, (units, steps), as a position in COLORS."""
    columns = []
    for cycle, phase in (divmod(step, k) for step in steps):
        present = subset.drawn(seed, cycle, SHOWN).int()
        columns.append(torch.full_like(present, 2) if phase == k - 1 else present)
    return torch.stack(columns, dim=1)


def _draw(bands: list[tuple[str, Tensor]], steps: range, ax: "Axes | None") -> "Axes":
    """Draw the bands below one another, with a blank row between two of them."""
    try:
        from matplotlib import colors, patches, pyplot
    except ImportError as error:
        raise ImportError(f"{WHERE} needs matplotlib, which cannot be imported: pip install mrreg[plot]") from error
    if ax is None:
        ax = pyplot.subplots(figsize=(8, 1.2 + 0.08 * sum(len(band) for _, band in bands)), layout="constrained")[1]
    top, ticks, cmap = 0, [], colors.ListedColormap([*COLORS.values()])
    for _, band in bands:
        extent = (steps.start - 0.5, steps.stop - 0.5, top + len(band), top)
        ax.imshow(band.numpy(), cmap=cmap, vmin=0, vmax=2, aspect="auto", interpolation="none", extent=extent)
        ticks.append(top + len(band) / 2)
        top += len(band) + 1
    ax.vlines([step + 0.5 for step in steps], 0, top, colors="white", linewidth=2)
    ax.hlines(range(top), steps.start - 0.5, steps.stop - 0.5, colors="white", linewidth=0.5)
    ax.set(xlabel="step", xlim=(steps.start - 0.5, steps.stop - 0.5), ylim=(top - 1, 0))
    ax.set_yticks(ticks, [name for name, _ in bands])
    legend = [patches.Patch(color=color, label=label) for label, color in COLORS.items()]
    ax.legend(handles=legend, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    return ax
