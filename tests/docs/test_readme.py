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
ALONE = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)  # on a model of their own, or on several ranks


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


def _run_alone(mark: str, **names: Any) -> dict[str, Any]:
    """Run the one block with a mark on a fresh model."""
    (block,) = (block for block in ALONE if mark in block)
    found = {"mrreg": mrreg, "model": _Net(), **names}
    exec(compile(block, str(README), "exec"), found)
    return found


def test_the_audit_block_runs() -> None:
    assert _run_alone("mrreg.audit(", x=torch.randn(3, 4))["report"].speedup(k=4) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about itself
def test_the_trainer_block_makes_both_trainers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    trainer = _run_alone("import transformers", arguments=arguments, data=[])["trainer"]
    trainer.create_optimizer()
    assert [group["period"] for group in trainer.optimizer.param_groups if group["params"]].count(5) >= 1


def test_every_public_name_is_in_the_api_table() -> None:
    table = README.read_text().split("## API")[1].split("## Benchmarks")[0]
    missing = [name for name in mrreg.__all__ if f"`{name}`" not in table]
    assert not missing


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_commands_are_targets_of_the_makefile(command: str) -> None:
    target = command.removeprefix("make ")
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text(), re.MULTILINE)
