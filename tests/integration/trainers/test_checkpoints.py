"""What trainers save of a model with masks is a checkpoint of the plain model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.trainers import CPU_LIGHTNING, K, same, trainer_arguments
from helpers.transformer_models import Sentences, bert
from torch import nn

import mrreg

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the trainers, about themselves
    pytest.mark.filterwarnings("error::mrreg.errors.NoEffectWarning"),
]


def test_save_pretrained_writes_the_plain_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from mrreg.integrations.transformers import MultirateCallback

    model: Any = mrreg.mask(bert(), {"bert.encoder.layer.*.output.dense": 0.5}, k=K)
    arguments = trainer_arguments(tmp_path, 4, False)
    each = transformers.Trainer(model, arguments, train_dataset=Sentences(), callbacks=[MultirateCallback()])
    each.train()
    assert each.optimizer.param_groups[0]["mask_clock"] == 8
    each.save_model(str(tmp_path / "plain"))
    for folder in ("plain", "checkpoint-8"):
        plain, told = transformers.BertForSequenceClassification.from_pretrained(
            tmp_path / folder, output_loading_info=True
        )
        assert not told["missing_keys"]
        assert not told["unexpected_keys"]
        assert same(plain, model)


def test_lightning_saves_the_state_dict_of_the_plain_module(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from mrreg.integrations.lightning import MultirateCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.net(batch).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    module, plain = Module(), Module()
    mrreg.mask(module.net, {"2": 0.5}, k=K)
    callback = MultirateCallback()
    trainer = lightning.Trainer(max_steps=4, callbacks=[callback], default_root_dir=tmp_path, **CPU_LIGHTNING)
    rows: Any = torch.randn(32, 4)
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=8))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    plain.load_state_dict(saved["state_dict"])
    assert torch.equal(plain.net(torch.ones(1, 4)), module.eval().net(torch.ones(1, 4)))
    assert saved["optimizer_states"][0]["param_groups"][0]["mask_clock"] == 4
