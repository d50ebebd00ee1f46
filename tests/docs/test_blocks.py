"""The Python in the README and in the documentation runs as printed, and its commands and names exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.documents import PAGES, ROOT, Section, lone_blocks, sections
from helpers.trainers import CPU_TRAINER
from helpers.transformer_models import Sentences, bert
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mrreg
from benchmarks.core.registry import REGISTERED

LANGUAGES = {"python", "diff", "py", "sh", "text", "bibtex"}
SECTIONS = sections()
EXTRAS = r"^ *(?:import|from) (accelerate|keras|lightning|timm|transformers)\b"


class _Net(nn.Module):
    """Something with the layer names of a ResNet, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer4 = nn.Linear(4, 8), nn.Linear(8, 8)
        self.classifier = nn.Sequential(nn.Dropout(0.5))
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.classifier(self.layer4(self.layer1(x).relu()).relu()))


def _names() -> dict[str, Any]:
    """What a reader has already."""
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 0])
    six_batches = TensorDataset(x.repeat(6, 1), y.repeat(6))
    return {
        "torch": torch,
        "mrreg": mrreg,
        "model": _Net(),
        "x": x,
        "loader": DataLoader(six_batches, batch_size=3),
        "criterion": nn.CrossEntropyLoss(),
    }


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.programs], ids=lambda section: section.name)
def test_blocks_run_in_order(section: Section) -> None:
    names = _names()
    for program in section.programs:
        exec(compile(program, section.name, "exec"), names)


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert {language for section in SECTIONS for language, _ in section.blocks} <= LANGUAGES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the trainers, about themselves
@pytest.mark.parametrize("block", lone_blocks())
def test_a_lone_block_trains_what_it_shows(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.chdir(tmp_path)
    for extra in re.findall(EXTRAS, block, re.MULTILINE):
        pytest.importorskip(extra)
    names = _names() | {"folder": str(tmp_path / "saved"), "data": Sentences()}
    if "arguments" in block:
        from transformers import TrainingArguments

        names |= {"model": bert(), "arguments": TrainingArguments(str(tmp_path), max_steps=6, **CPU_TRAINER)}
    if is_parallel := "DistributedDataParallel(" in block or "fully_shard(" in block:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        names["model"].encoder = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)])
    try:
        exec(compile(block, "a block of its own", "exec"), names)
    finally:
        if is_parallel:
            dist.destroy_process_group()
    if "mrreg.audit(" in block:
        assert names["report"].speedup(k=4) > 0
        return
    trainer: Any = names.get("trainer")
    if "arguments" in block and trainer.optimizer is None:
        trainer.train()
    optimizer = names.get("optimizer") or getattr(trainer, "optimizer", None) or trainer.optimizers[0]
    groups = [group for group in optimizer.param_groups if group["params"]]
    assert any(group.get("mask_k", group.get("period")) == 5 for group in groups)
    if trainer is not None or "loader" in block:
        assert groups[0].get("mask_clock", groups[0].get("clock")) > 0
    assert (tmp_path / "saved").exists() or "folder" not in block


def test_every_public_name_is_in_the_api_table_and_has_its_page() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## API")[1].split("\n## ")[0]
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "api")
    assert not [name for name in mrreg.__all__ if f"`{name}`" not in table or f"\n::: mrreg.{name}\n" not in pages]


def test_commands_exist() -> None:
    shells = "".join(text for section in SECTIONS for language, text in section.blocks if language == "sh")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", shells, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    benchmarks = re.findall(r"^python -m benchmarks ([a-z][a-z -]*?)(?: --.*| *#.*)?$", shells, re.MULTILINE)
    assert benchmarks
    assert not set(benchmarks) - REGISTERED.keys() - {"list", "all", "report", "demo"}


def test_the_first_call_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    first = next(each for each in SECTIONS if each.name.startswith("README.md"))
    (shown,) = (text for language, text in first.blocks if language == "text")
    exec(compile(first.programs[0], first.name, "exec"), _names())
    assert capsys.readouterr().out.strip() == shown.strip()
