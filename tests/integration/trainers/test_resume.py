"""Accelerate, Lightning and the Hugging Face Trainer save and resume in mid-cycle; nothing is asked of their user."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.resume import CASES, Run
from helpers.trainers import CPU_LIGHTNING, CPU_TRAINER, Rows, batch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the trainers, about themselves
    pytest.mark.filterwarnings("error::mrreg.errors.NoEffectWarning"),
]
NAMES = [name for name in CASES if name != "periods"]  # trainers save no schedule of k
END = 20


class Counted(Run):
    """Counts its forwards."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.forwards = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += 1


def same(a: Run, b: Run) -> bool:
    saved = a.model.state_dict(), b.model.state_dict()
    return saved[0].keys() == saved[1].keys() and all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


def accelerate(name: str, folder: Path, stop: int, resume: bool) -> Counted:
    run = Counted(name)
    accelerator = pytest.importorskip("accelerate", reason="Accelerate is not installed").Accelerator(cpu=True)
    model, optimizer, scheduler = accelerator.prepare(run.model, run.optimizer, run.parts["lr"])
    if resume:
        accelerator.load_state(str(folder))
    for t in range(stop if resume else 0, END):
        if t == stop and not resume:
            accelerator.save_state(str(folder))
        x, y = batch(t)
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return run


def lightning(name: str, folder: Path, stop: int, resume: bool) -> Counted:
    module = pytest.importorskip("lightning", reason="Lightning is not installed")
    run = Counted(name)

    class Module(module.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = run.model

        def training_step(self, *_: Any) -> Tensor:
            x, y = batch(self.global_step)  # a loader would begin anew: Lightning does not skip what it has seen
            loss: Tensor = (self.net(x) - y).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            return [run.optimizer], [{"scheduler": run.parts["lr"], "interval": "step"}]

        def on_train_batch_start(self, *_: Any) -> None:
            if self.global_step == stop and not resume:
                self.trainer.save_checkpoint(folder / "saved.ckpt")

    trainer = module.Trainer(
        max_steps=END,
        **CPU_LIGHTNING,
        default_root_dir=folder,
    )
    loader: Any = DataLoader(TensorDataset(torch.zeros(64)), batch_size=8)
    trainer.fit(Module(), loader, ckpt_path=folder / "saved.ckpt" if resume else None)
    return run


class WithLoss(nn.Module):
    """As the Trainer wants it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.net(x) - labels).square().mean()}


def trainer(name: str, folder: Path, stop: int, resume: bool) -> Counted:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs Accelerate")
    run = Counted(name)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=END,
        per_device_train_batch_size=8,
        save_strategy="no" if resume else "steps",
        save_steps=stop,
        save_total_limit=None,
        **CPU_TRAINER,
    )
    model = WithLoss(run.model)
    each = transformers.Trainer(model, arguments, train_dataset=Rows(), optimizers=(run.optimizer, run.parts["lr"]))
    each.train(resume_from_checkpoint=str(folder / f"checkpoint-{stop}") if resume else None)
    return run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use", [accelerate, lightning, trainer])
def test_resumed_in_mid_cycle(use: Any, name: str, tmp_path: Path) -> None:
    for stop in (4, 11):
        folder = tmp_path / str(stop)
        undisturbed, resumed = use(name, folder, stop, False), use(name, folder, stop, True)
        assert (undisturbed.forwards, resumed.forwards) == (END, END - stop)
        assert same(undisturbed, resumed)
