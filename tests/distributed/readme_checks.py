"""The documentation's blocks for several processes run as printed, on two ranks, and train."""

from typing import Any

import torch
from helpers.documents import lone_blocks
from torch import nn

from distributed.cases import check


def _run(block: str, model: nn.Module) -> dict[str, Any]:
    """Run a block, given nothing but a model."""
    found: dict[str, Any] = {"model": model}
    exec(compile(block, "a block of its own", "exec"), found)
    return found


def _moved(found: dict[str, Any], x: torch.Tensor) -> bool:
    """Whether six steps move every parameter."""
    model, optimizer = found["model"], found["optimizer"]
    before = [_whole(p) for p in model.parameters()]
    for _ in range(6):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return all(not torch.equal(_whole(p), old) for p, old in zip(model.parameters(), before, strict=True))


def _whole(p: Any) -> torch.Tensor:
    whole: torch.Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return whole.detach().clone()


class Net(nn.Module):
    """With the names that the blocks use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True) for _ in range(2))
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.encoder:
            x = block(x)
        out: torch.Tensor = self.fc(x)
        return out


@check
def readme_data_parallel(rank: int) -> None:
    for block in lone_blocks("DistributedDataParallel("):
        found = _run(block, Net())
        assert found["optimizer"].due == (True, True)
        assert _moved(found, torch.randn(3, 5, 4))
        assert found["optimizer"].due == (True, False)


@check
def readme_sharded(rank: int) -> None:
    for block in lone_blocks("fully_shard(block)"):
        found = _run(block, Net())
        assert _moved(found, torch.randn(3, 5, 4))
        assert found["optimizer"].param_groups[0]["mask_clock"] == 6
