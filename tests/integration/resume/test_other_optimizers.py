"""Training that ends in mid-cycle, and what comes after: another optimizer, a copy of the model; other threads."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import masks as mask_cases
from helpers.optimizers import Net, adamw, network, sgd, train
from torch import Tensor, nn

import mrreg


def trains(net: Net, optimizer: torch.optim.Optimizer) -> bool:
    """Whether every parameter moves."""
    before = [p.detach().clone() for p in net.parameters()]
    train(net, optimizer, range(1))
    return not any(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))


def plain(net: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("end", "make", "steps"), [("close", plain, 2), ("delete", adamw, 2), ("leave", sgd, 1), ("leave", plain, 3)]
)
def test_ended_in_mid_cycle_and_followed_by_another_optimizer(make: object, end: str, steps: int) -> None:
    net = network()
    first = sgd(net)
    with first:
        train(net, first, range(steps))
        if end == "close":
            first.close()
            assert trains(net, make(net))  # type: ignore[operator]
    if end == "delete":
        del first
        gc.collect()
    assert trains(net, make(net))  # type: ignore[operator]


def test_models_trained_in_threads_do_not_meet() -> None:
    def work(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        layers = nn.Sequential(nn.Linear(6, 12), nn.Tanh()), nn.Linear(12, 3)
        model = nn.Sequential(
            *(mrreg.MultirateMask(layer, p=0.5, k=k) for layer, k in zip(layers, (3, 2), strict=True))
        )
        for p in model.parameters():
            p.data = torch.randn(p.shape, generator=generator)
        optimizer = mrreg.MultirateSGD(model.parameters(), lr=0.01, k=1, momentum=0.9)
        mrreg.attach(optimizer, model, seed=seed)
        mask_cases.train(model, optimizer, 10)
        net = network()
        slow = sgd(net, k=2 + seed)
        train(net, slow, range(9))
        return [p.detach() for p in (*model.parameters(), *net.parameters())]

    alone = [work(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(work, range(3)))
    assert all(torch.equal(p, q) for a, b in zip(alone, together, strict=True) for p, q in zip(a, b, strict=True))


def test_steps_and_evaluations_in_inference_mode_and_under_no_grad() -> None:
    """Hand-made loops call `step` under anything."""
    results = []
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        net, model = network(), mask_cases.mlp()
        optimizer, driver = sgd(net), torch.optim.AdamW(model.parameters(), lr=0.1)
        mrreg.attach(driver, model)
        for t in range(7):
            for each, by in ((net, optimizer), (model, driver)):
                by.zero_grad()
                x = torch.randn(3, 4 if each is net else 6, generator=torch.Generator().manual_seed(t))
                torch.autograd.backward(each(x).square().sum())
                with mode():
                    by.step()
                    if mode is not torch.enable_grad:
                        each(x)
                        each.eval()(x)
                        each.train()
        results.append([p.detach().clone() for p in (*net.parameters(), *model.parameters())])
    assert all(torch.equal(p, q) for other in results[1:] for p, q in zip(results[0], other, strict=True))
