"""Training that ends in mid-cycle, and what comes after: another optimizer, a copy of the model; other threads."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import masks as mask_cases
from helpers.optimizers import Net, adamw, network, same, sgd, train
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
        mask_cases.train(model, optimizer, 30)
        net = network()
        slow = sgd(net, k=2 + seed)
        train(net, slow, range(20))
        return [p.detach() for p in (*model.parameters(), *net.parameters())]

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    assert all(torch.equal(p, q) for a, b in zip(alone, together, strict=True) for p, q in zip(a, b, strict=True))


def test_evaluation_in_inference_mode_between_steps_changes_nothing() -> None:
    nets = network(), network()
    optimizers = [sgd(net) for net in nets]
    models = mask_cases.mlp(), mask_cases.mlp()
    drivers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    for model, driver in zip(models, drivers, strict=True):
        mrreg.attach(driver, model)
    for t in range(8):
        with torch.inference_mode():
            nets[0](torch.zeros(2, 4))
            models[0](torch.zeros(2, 6))
            models[0].eval()(torch.zeros(2, 6))
        models[0].train()
        for i in range(2):
            train(nets[i], optimizers[i], [t])
            mask_cases.train(models[i], drivers[i], range(t, t + 1))
    assert same(*nets)
    assert mask_cases.same_bits(*models)


def test_steps_in_inference_mode_and_under_no_grad() -> None:
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
        results.append([p.detach().clone() for p in (*net.parameters(), *model.parameters())])
    assert all(torch.equal(p, q) for other in results[1:] for p, q in zip(results[0], other, strict=True))
