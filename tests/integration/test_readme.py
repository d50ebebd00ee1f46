"""The README's Python blocks run as printed, in their order, and its names exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mrreg

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


class _Net(nn.Module):
    """Something with the layer names of a ResNet, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer4 = nn.Linear(4, 8), nn.Linear(8, 8)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.classifier(self.layer4(self.layer1(x).relu()).relu()))


def test_blocks_run_in_order() -> None:
    assert len(BLOCKS) >= 6
    names: dict[str, Any] = {"torch": torch, "model": _Net(), "x": torch.randn(3, 4)}
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), names)


def test_every_public_name_is_in_the_api_table() -> None:
    table = README.read_text().split("## API")[1].split("## Benchmarks")[0]
    missing = [name for name in mrreg.__all__ if f"`{name}`" not in table]
    assert not missing


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_commands_are_targets_of_the_makefile(command: str) -> None:
    target = command.removeprefix("make ")
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text(), re.MULTILINE)
