"""Lightning with automatic optimization: `configure_optimizers` returns a multirate optimizer, the rest is unchanged.

The slow trunk has a BatchNorm layer whose running statistics move with its gradients only (`batch_norm`); this policy
is saved with the optimizer in Lightning's checkpoints.
"""

import warnings
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mrreg


class Classifier(lightning.LightningModule):
    """Ten classes; the trunk would be a pretrained one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """As always."""
        return nn.functional.cross_entropy(self.head(self.trunk(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        """Make the optimizer: nothing else is new."""
        optimizer = mrreg.MultirateSGD(self, lr=0.05, k=5, fast="head", momentum=0.9)
        mrreg.batch_norm(optimizer, self, statistics="sync")
        return optimizer


def main(steps: int = 300) -> None:
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", module="lightning")  # of one worker process and CPUs
    y = torch.randint(10, (2048,))
    x = torch.randn(10, 16)[y] + 0.5 * torch.randn(2048, 16)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
    model.eval()
    right = (model.head(model.trunk(x)).argmax(1) == y).float().mean().item()
    updates = int(model.state_dict()["trunk.1.num_batches_tracked"])
    print(f"{100 * right:.1f} % right; statistics of the trunk moved at {updates} of {steps} steps")


if __name__ == "__main__":
    main()
