"""Different optimizers in different parts: AdamW for a new head at every step, SGD for the trunk at every fifth.

Each part keeps its own options; schedulers, hooks and checkpoints see one optimizer.
"""

import torch
from torch import Tensor, nn

from mrreg import Multirate


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Points and one of three classes for each."""
    x = torch.randn(count, 16)
    return x, (x[:, 0] + x[:, 1].abs() > 1).long() + (x[:, 2] > 0).long()


def main(steps: int = 400) -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    head = nn.Linear(64, 3)
    model = nn.Sequential(trunk, head)
    optimizer = Multirate(
        [
            (torch.optim.AdamW(head.parameters(), lr=3e-3), 1),
            (torch.optim.SGD(trunk.parameters(), lr=2e-2, momentum=0.9), 5),
        ],
        model=model,
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(steps):
        x, y = draw(64)
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    x, y = draw(2000)
    right = (model(x).argmax(1) == y).float().mean().item()
    kinds = {key for p in optimizer.state for key in optimizer.state[p]}
    print(f"{100 * right:.1f} % right after {steps} steps; state kept: {', '.join(sorted(kinds))}")


if __name__ == "__main__":
    main()
