"""Draw which heads and hidden units of a thin encoder layer train at each step of two cycles.

`python examples/draw_cycle.py docs/cycle.svg` makes the picture of the README.
"""

import sys

import matplotlib as mpl
import torch
from matplotlib import pyplot
from torch import nn

import mrreg


def main(steps: int = 10, file: str | None = None) -> None:
    """Draw so many steps, rounded up to whole cycles of five."""
    mpl.use("agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mrreg", "font.size": 11, "font.family": "sans-serif"})
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, nhead=8, dim_feedforward=20, dropout=0.0, batch_first=True)
    layer, report = mrreg.thin(layer, p=0.5, k=5, example_inputs=torch.randn(2, 4, 32))
    ax = mrreg.plot(layer, cycles=-(-steps // 5))
    named = {"self_attn": "attention\n8 heads", "linear1": "feed-forward\n20 hidden units"}
    ax.set_yticks(ax.get_yticks(), [named.get(label.get_text(), label.get_text()) for label in ax.get_yticklabels()])
    ax.set_xticks(range(steps), [str(step + 1) for step in range(steps)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if file:
        pyplot.savefig(file, metadata={"Date": None})
    print(f"{len(ax.get_images())} groups of units over {steps} steps; a cycle computes {report.cycle_share:.0%}")


if __name__ == "__main__":
    main(file=sys.argv[1] if len(sys.argv) > 1 else None)
