"""The benchmark of thin training: what it times, and which ratios it aims at."""

import pytest
import torch

from benchmarks.experiments.speed.thin import NETWORKS, Case, trainer


@pytest.mark.parametrize("network", NETWORKS)
def test_dropout_changes_no_parameter(network: str) -> None:
    shapes = [[p.shape for p in NETWORKS[network].build(p).parameters()] for p in (0.0, 0.5)]
    assert shapes[0] == shapes[1]


def test_a_call_trains_whole_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[torch.optim.Optimizer] = []
    plain_step = torch.optim.SGD.step

    def counted(optimizer: torch.optim.SGD) -> None:
        steps.append(optimizer)
        plain_step(optimizer)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    trainer(Case("8-16-16-4", "SGD", k=3, cycles=2), "thin", torch.randn(2, 8))()
    # `attach` tries the optimizer's class on a parameter of its own first
    driven = [optimizer for optimizer in steps if "mask_clock" in optimizer.param_groups[0]]
    assert len(driven) == driven[0].param_groups[0]["mask_clock"] == 6
