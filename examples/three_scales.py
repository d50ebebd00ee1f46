"""Three time scales: the head moves at every step, the middle has a gradient every 5 steps, the stem every 25.

A schedule for the learning rate works as with any optimizer.
"""

import torch
from torch import nn

from mrreg import MultirateSGD, split


def main(steps: int = 500) -> None:
    torch.manual_seed(0)
    layers = {"stem": nn.Linear(32, 64), "middle": nn.Linear(64, 64), "head": nn.Linear(64, 1)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
        if name != "head":
            model.add_module(f"after_{name}", nn.Tanh())

    optimizer = MultirateSGD(split(model, slow={"stem": 25, "middle": 5}), lr=0.02, momentum=0.9, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    criterion = nn.MSELoss()
    gradients = dict.fromkeys(layers, 0)
    first = loss = 0.0
    for step in range(steps):
        x = torch.randn(64, 32)
        error = criterion(model(x), x[:, :4].prod(1, keepdim=True).tanh() + x[:, :1])
        error.backward()
        optimizer.step()
        scheduler.step()
        for name, layer in layers.items():
            gradients[name] += layer.weight.grad is not None
        optimizer.zero_grad()
        loss = error.item()
        first = loss if step == 0 else first

    counts = ", ".join(f"{name} {count}" for name, count in gradients.items())
    print(f"loss {first:.3f} -> {loss:.3f} in {steps} steps; gradients: {counts}")


if __name__ == "__main__":
    main()
