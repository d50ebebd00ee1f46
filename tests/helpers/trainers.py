"""One training in four loops: by hand, in Accelerate, in Lightning and in the Hugging Face Trainer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mrreg

END = 8  # steps, in cycles of K
K = 3
SEED = 5
CPU_LIGHTNING: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
CPU_TRAINER: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}


@dataclass(frozen=True)
class Options:
    """What a user may switch on in a trainer."""

    accumulate: int = 1
    clip: float = 0.0
    bf16: bool = False
    checkpointing: bool = False
    statistics: str = "every"
    masks: str = ""  # instead of a slow part: "mask" or "thin", driven by AdamW


class Net(nn.Module):
    """A slow trunk with BatchNorm and a fast head; returns its loss, as the Trainer wants it."""

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU())
        self.trunk = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU())
        self.head = nn.Linear(16, 2)
        self.checkpointing = checkpointing
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.append((x, labels))
        for part in (self.stem, self.trunk):
            x = checkpoint(part, x, use_reentrant=False) if self.checkpointing else part(x)
        return {"loss": (self.head(x) - labels).square().mean()}


class Run:
    """A model with its optimizer and scheduler, newly built."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.model = new_model(options)
        self.optimizer: Optimizer
        if options.masks:
            self.optimizer = torch.optim.AdamW(decay_groups(self.model), lr=0.02)
        else:
            chosen: Any = {"lr": 0.02, "k": K, "fast": self.model.head, "slow_lr": "per_gradient", "weight_decay": 0.1}
            self.optimizer = mrreg.MultirateAdamW(self.model, **chosen)
            mrreg.batch_norm(self.optimizer, self.model, options.statistics)
        self.scheduler = LambdaLR(self.optimizer, lambda t: max(0.0, (END - t) / END))

    def attach(self, optimizer: Any = None) -> None:
        """Let a trainer's wrapper of the optimizer, or the optimizer itself, drive the masks where there are any."""
        if self.options.masks:
            mrreg.attach(optimizer or self.optimizer, self.model, seed=SEED)


def new_model(options: Options) -> Net:
    model = Net(options.checkpointing)
    if options.masks == "mask":
        mrreg.mask(model, {"trunk.0": 0.5, "head": 0.3}, k=K)
    if options.masks == "thin":
        x, labels = batch(0)
        mrreg.thin(model, p=0.5, k=K, example_inputs={"x": x, "labels": labels})
    return model


def decay_groups(model: Net) -> list[dict[str, Any]]:
    """As the Trainer makes them: no weight decay for biases and LayerNorm."""
    plain = {n for n, _ in model.named_parameters() if "bias" in n or n.startswith("stem.1.")}
    return [
        {"params": [p for n, p in model.named_parameters() if (n in plain) is no_decay], "weight_decay": decay}
        for no_decay, decay in ((False, 0.1), (True, 0.0))
    ]


def batch(t: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(t)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


def same(a: nn.Module, b: nn.Module) -> bool:
    saved = a.state_dict(), b.state_dict()
    return saved[0].keys() == saved[1].keys() and all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


def by_hand(options: Options, batches: list[tuple[Tensor, Tensor]], clip_groups: bool = False) -> Net:
    """The loop that all others must agree with, to the bit. Lightning clips in the order of the groups."""
    run = Run(options)
    run.attach()
    groups = run.optimizer.param_groups
    clipped = [p for group in groups for p in group["params"]] if clip_groups else list(run.model.parameters())
    for t, (x, labels) in enumerate(batches, 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            loss = run.model(x, labels)["loss"]
        (loss / options.accumulate).backward()
        if t % options.accumulate == 0:
            if options.clip:
                nn.utils.clip_grad_norm_(clipped, options.clip)
            run.optimizer.step()
            run.scheduler.step()
            run.optimizer.zero_grad()
    return run.model


def accelerate(options: Options, folder: Path, stop: int, resume: bool) -> Net:
    from accelerate import Accelerator

    run = Run(options)
    mixed = "bf16" if options.bf16 else "no"
    accelerator = Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=options.accumulate)
    model, optimizer, scheduler = accelerator.prepare(run.model, run.optimizer, run.scheduler)
    run.attach(optimizer)
    if resume:
        accelerator.load_state(str(folder))
    for t in range(options.accumulate * stop if resume else 0, options.accumulate * END):
        if t == options.accumulate * stop and not resume:
            accelerator.save_state(str(folder))
        with accelerator.accumulate(model):
            accelerator.backward(model(*batch(t))["loss"])
            if accelerator.sync_gradients and options.clip:
                accelerator.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return run.model


def lightning(options: Options, folder: Path, stop: int, resume: bool) -> Net:
    import lightning as pl

    from mrreg.integrations.lightning import MultirateCallback

    run = Run(options)
    first = options.accumulate * stop

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = run.model
            self.batches = iter(range(first if resume else 0, options.accumulate * END))

        def training_step(self, *_: Any) -> Tensor:
            t = next(self.batches)  # a loader would begin anew: Lightning does not skip what it has seen
            return self.net(*batch(t))["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return [run.optimizer], [{"scheduler": run.scheduler, "interval": "step"}]

        def on_train_batch_start(self, _: Any, index: int) -> None:
            if index == first and not resume:
                self.trainer.save_checkpoint(folder / "saved.ckpt")

    trainer = pl.Trainer(
        max_steps=END,
        precision="bf16-mixed" if options.bf16 else None,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=options.clip or None,
        default_root_dir=folder,
        callbacks=[MultirateCallback(seed=SEED)] if options.masks else [],
        **CPU_LIGHTNING,
    )
    loader: Any = DataLoader(TensorDataset(torch.zeros(8 * 4 * END)), batch_size=8)
    trainer.fit(Module(), loader, ckpt_path=folder / "saved.ckpt" if resume else None)
    return run.model


class Rows(Dataset[dict[str, Tensor]]):
    """64 examples."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = batch(i)
        return {"x": x[0], "labels": y[0]}


def trainer_arguments(folder: Path, stop: int, resume: bool, **more: Any) -> Any:
    import transformers

    saving: dict[str, Any] = {"save_strategy": "no"} if resume else {"save_strategy": "steps", "save_steps": stop}
    more = {"max_steps": END, "per_device_train_batch_size": 8, "weight_decay": 0.1, **saving, **more}
    return transformers.TrainingArguments(output_dir=str(folder), **CPU_TRAINER, **more)


def trainer(options: Options, folder: Path, stop: int, resume: bool) -> Net:
    import transformers

    from mrreg.integrations.transformers import MultirateCallback

    run = Run(options)
    arguments = trainer_arguments(
        folder,
        stop,
        resume,
        gradient_accumulation_steps=options.accumulate,
        max_grad_norm=options.clip,
        bf16=options.bf16,
    )
    callbacks: list[Any] = [MultirateCallback(seed=SEED)] if options.masks else []
    both = run.optimizer, run.scheduler
    each = transformers.Trainer(run.model, arguments, train_dataset=Rows(), optimizers=both, callbacks=callbacks)
    each.train(resume_from_checkpoint=str(folder / f"checkpoint-{stop}") if resume else None)
    return run.model
