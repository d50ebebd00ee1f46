"""A hierarchy of update frequencies, as in nested learning: a level moves by the mean gradient of its cycle.

Level 0 moves at every step, level 1 every 4 and level 2 every 16 steps. A mean needs a gradient at every step, so this
saves no time; it is another way to learn from a stream, here one whose target drifts.
"""

import torch
from torch import nn

from mrreg import Multirate

PERIODS = (1, 4, 16)


def main(steps: int = 800) -> None:
    torch.manual_seed(0)
    levels = [nn.Linear(8, 1) for _ in PERIODS]
    optimizer = Multirate(  # without drift a level moves once per cycle, by period * lr
        [
            (torch.optim.SGD(level.parameters(), lr=0.05 / period), period)
            for level, period in zip(levels, PERIODS, strict=True)
        ],
        gradient=("sync", "mean", "mean"),
        drift=False,
    )
    error = 0.0
    moves = [0] * len(PERIODS)
    for step in range(steps):
        x = torch.randn(32, 8)
        target = x[:, :1] + (step / 100) * x[:, 1:2] / 8 + 0.3 * x[:, 2:3] * (-1) ** (step // 50)
        loss = (torch.stack([level(x) for level in levels]).sum(0) - target).square().mean()
        loss.backward()
        before = [level.weight.detach().clone() for level in levels]
        optimizer.step()
        optimizer.zero_grad()
        moves = [n + (not torch.equal(w, level.weight)) for n, w, level in zip(moves, before, levels, strict=True)]
        error = 0.98 * error + 0.02 * loss.item()

    counts = ", ".join(f"level {i}: {n}" for i, n in enumerate(moves))
    print(f"mean squared error {error:.3f}; moves of the levels in {steps} steps: {counts}")


if __name__ == "__main__":
    main()
