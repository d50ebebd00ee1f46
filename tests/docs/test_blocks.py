"""The Python in the README and in the documentation runs as printed, and its commands and names exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.documents import PAGES, ROOT, Section, lone_blocks, sections
from helpers.trainers import CPU_TRAINER, forget_precision, same
from helpers.transformer_models import Sentences, bert
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mrreg
from benchmarks.core.registry import REGISTERED

LANGUAGES = {"python", "diff", "py", "sh", "text", "bibtex"}
SECTIONS = sections()


class _Net(nn.Module):
    """Something with the layer names of a ResNet, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer4 = nn.Linear(4, 8), nn.Linear(8, 8)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
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


def test_every_lone_block_is_run_by_a_test() -> None:
    tests = [Path(__file__), ROOT / "tests" / "distributed" / "readme_checks.py"]
    marks = [mark for test in tests for mark in re.findall(r'lone_blocks\("(.+?)"\)', test.read_text(encoding="utf-8"))]
    for block in lone_blocks():
        assert sum(mark in block for mark in marks) == 1, block


def _run_alone(block: str, **names: Any) -> dict[str, Any]:
    """Run a block on a fresh model."""
    found = _names() | names
    exec(compile(block, "a block of its own", "exec"), found)
    return found


@pytest.mark.parametrize("block", lone_blocks("mrreg.audit("))
def test_audit_blocks_run(block: str) -> None:
    assert _run_alone(block)["report"].speedup(k=4) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about itself
@pytest.mark.parametrize("block", lone_blocks("transformers.Trainer("))
def test_trainer_blocks_make_a_slow_part(block: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    trainer = _run_alone(block, arguments=arguments, data=[])["trainer"]
    trainer.create_optimizer()
    assert [group["period"] for group in trainer.optimizer.param_groups if group["params"]].count(5) >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about itself
@pytest.mark.parametrize("block", lone_blocks("mrreg.integrations.transformers"))
def test_trainer_blocks_with_masks_save_a_plain_model(block: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), max_steps=6, **CPU_TRAINER)
    found = _run_alone(block, arguments=arguments, data=Sentences(), model=bert(), folder=str(tmp_path / "plain"))
    assert found["trainer"].optimizer.param_groups[0]["mask_clock"] == 6
    assert same(found["model"], transformers.BertForSequenceClassification.from_pretrained(tmp_path / "plain"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lightning, about workers
@pytest.mark.parametrize("block", lone_blocks("mrreg.integrations.lightning"))
def test_lightning_blocks_with_masks_train(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = _run_alone(block, Classifier=Classifier)["trainer"]
    assert trainer.optimizers[0].param_groups[0]["mask_clock"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("block", lone_blocks("import timm"))
def test_timm_blocks_make_an_optimizer(block: str) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    group = _run_alone(block)["optimizer"].param_groups[0]
    assert group.get("period") or group["mask_k"] == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of keras, about itself
@pytest.mark.parametrize("block", lone_blocks("KERAS_BACKEND"))
def test_keras_blocks_train(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras", reason="keras is not installed")
    assert _run_alone(block)["optimizer"].metrics()["multirate/step"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("block", lone_blocks("SummaryWriter"))
def test_logging_blocks_write(block: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    _run_alone(block, folder=str(tmp_path))
    assert list(tmp_path.glob("events*"))


@pytest.mark.slow
@pytest.mark.parametrize("block", lone_blocks("Accelerator("))
def test_accelerate_blocks_train(block: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    forget_precision()
    group = _run_alone(block, folder=str(tmp_path))["optimizer"].param_groups[0]
    forget_precision()
    assert (group.get("clock") or group["mask_clock"]) in (3, 6)  # with and without accumulation


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lightning, about workers
@pytest.mark.parametrize("block", lone_blocks("LightningModule"))
def test_lightning_blocks_train(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("lightning", reason="lightning is not installed")
    trainer = _run_alone(block)["trainer"]
    assert trainer.optimizers[0].param_groups[0]["clock"] == 6


def test_every_public_name_is_in_the_api_table() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## API")[1].split("\n## ")[0]
    assert not [name for name in mrreg.__all__ if f"`{name}`" not in table]


def test_every_public_name_has_its_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "api")
    assert not [name for name in mrreg.__all__ if f"\n::: mrreg.{name}\n" not in pages]


def test_commands_exist() -> None:
    shells = "".join(text for section in SECTIONS for language, text in section.blocks if language == "sh")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", shells, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    benchmarks = re.findall(r"^python -m benchmarks ([a-z][a-z -]*?)(?: --.*| *#.*)?$", shells, re.MULTILINE)
    assert benchmarks
    assert not set(benchmarks) - REGISTERED.keys() - {"list", "all", "report", "demo"}
