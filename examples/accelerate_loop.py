"""A loop with Accelerate, gradient accumulation, clipping and mixed precision, saved and resumed in mid-cycle.

Nothing in it says that the optimizer has a slow part, and `save_state` keeps where it is in its cycle.
"""

import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from mrreg import MultirateSGD


def prepared() -> tuple[Accelerator, Any, Any]:
    """Make the network (a pretrained one would be loaded here) and its optimizer."""
    torch.manual_seed(0)
    body = [layer for width in (16, 64, 64) for layer in (nn.Linear(width, 64), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(64, 1))
    optimizer = MultirateSGD(model, lr=0.01, k=5, fast=model[-1], momentum=0.9)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    return accelerator, *accelerator.prepare(model, optimizer)


def train(accelerator: Accelerator, model: Any, optimizer: Any, batches: range) -> float:
    """Train on some batches and return the last loss."""
    loss = torch.zeros(())
    for i in batches:
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(i))
        with accelerator.accumulate(model):
            loss = (model(x) - x[:, :4].sin().sum(1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main(steps: int = 300) -> None:
    middle = 2 * (steps // 2 + 1)  # in batches; with k = 5 mostly in mid-cycle
    with tempfile.TemporaryDirectory() as folder:
        first = prepared()
        train(*first, range(middle))
        first[0].save_state(folder)
        loss = train(*first, range(middle, 2 * steps))

        resumed = prepared()
        resumed[0].load_state(folder)
        again = train(*resumed, range(middle, 2 * steps))
    print(f"loss {loss:.3f}; resumed after {middle // 2} of {steps} steps {again:.3f}, the same: {loss == again}")


if __name__ == "__main__":
    main()
