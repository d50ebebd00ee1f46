"""Masks against a literal reading of section 5.1, compared after every step."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from helpers.masks import bits
from paper.oracles_masks import Array, Bits, MaskedAdamW, MaskedSGD, Rule, masked_training
from torch import Tensor, nn

import mrreg

pytestmark = pytest.mark.paper
STEPS, LR, DECAY = 24, 0.05, 0.01
Make = Callable[[list[Array]], Rule]
MakeTorch = Callable[[nn.Module], torch.optim.Optimizer]
RULES: list[tuple[Make, MakeTorch, dict[str, str]]] = [
    (
        lambda w: MaskedSGD(w, LR, 0.9, DECAY),
        lambda m: torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9, weight_decay=DECAY),
        {"p": "momentum_buffer"},
    ),
    (lambda w: MaskedSGD(w, LR, 0, 0), lambda m: torch.optim.SGD(m.parameters(), lr=LR), {}),
    (
        lambda w: MaskedAdamW(w, LR, DECAY),
        lambda m: torch.optim.AdamW(m.parameters(), lr=LR, weight_decay=DECAY),
        {"m": "exp_avg", "v": "exp_avg_sq"},
    ),
]


def _model(k: int, boost: float | None, structure: str = "weight") -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 9, dtype=torch.float64), nn.Linear(9, 3, dtype=torch.float64)]
    first, second = (
        mrreg.MultirateMask(layer, p, k, boost=boost, structure=structure, rescale=False)  # type: ignore[arg-type]
        for layer, p in zip(layers, (0.3, 0.6), strict=True)
    )
    return nn.Sequential(first, nn.Tanh(), second)


def _slow(model: nn.Sequential) -> dict[int, Bits]:
    """The slow subsets that the model draws, by the position of the parameter."""
    found = {}
    for i in (0, 2):
        mask = model[i]
        assert isinstance(mask, mrreg.MultirateMask)
        weight = mask.get_parameter("weight")
        found[i] = (bits(mask)["weight"] == 0).expand_as(weight).numpy().copy()
    return found


@pytest.mark.parametrize("structure", ["weight", "input", "output"])
@pytest.mark.parametrize(("k", "boost"), [(5, 5.0), (3, 0.5), (1, None), (4, 1.0)])
@pytest.mark.parametrize("rule", RULES, ids=["momentum", "plain", "adamw"])
def test_equals_the_literal_loop(
    rule: tuple[Make, MakeTorch, dict[str, str]], k: int, boost: float | None, structure: str
) -> None:
    make, make_torch, moments = rule
    model = _model(k, boost, structure)
    optimizer = make_torch(model)
    mrreg.attach(optimizer, model, seed=7)
    parameters = list(model.parameters())
    oracle = make([p.detach().numpy() for p in parameters])
    batches = [(torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)) for _ in range(STEPS)]
    drawn: dict[int, dict[int, Bits]] = {}

    def slow(i: int, cycle: int) -> Bits | None:
        if k == 1:
            return None
        if cycle not in drawn:  # now is its start
            drawn[cycle] = _slow(model)
        return drawn[cycle].get(i)

    def after(t: int) -> None:
        x, y = batches[t]
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / 2 / len(x)).backward()
        optimizer.step()
        _compare(oracle.weights, parameters)
        for name, key in moments.items():
            _compare(getattr(oracle, name), [optimizer.state[p][key] for p in parameters])

    masked_training(oracle, [(x.numpy(), y.numpy()) for x, y in batches], slow, k, boost or k, after)


def _compare(expected: list[Array], actual: Sequence[Tensor]) -> None:
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_allclose(b.detach().numpy(), a, rtol=0, atol=1e-12)
