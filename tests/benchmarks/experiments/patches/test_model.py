"""The WideResNet, and the merged pair of networks against a literal loop."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.core.training import Loop
from benchmarks.experiments.patches.model import Copies, optimizer, sum_of_losses, wide_resnet

LR, K, MOMENTUM, DECAY = 0.02, 3, 0.9, 0.01


def gradient(net: nn.Module, at: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradient of the loss at other weights, with weight decay."""
    names = [name for name, _ in net.named_parameters()]
    leaves = [value.clone().requires_grad_() for value in at]
    out = torch.func.functional_call(net, dict(zip(names, leaves, strict=True)), (x,))
    grads = torch.autograd.grad(F.cross_entropy(out, y), leaves)
    return [grad + DECAY * value for grad, value in zip(grads, at, strict=True)]


def test_paper_network_has_the_usual_number_of_weights() -> None:
    with torch.device("meta"):
        net = wide_resnet(16, 10)
    assert sum(p.numel() for p in net.parameters()) == 17_116_634  # of the published WRN-16-10 with 10 classes
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in net.modules()) == 13


def problem() -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 10)).double()
    batches = [(torch.randn(8, 3, 6, 6, dtype=torch.double), torch.randint(10, (8,))) for _ in range(3 * K + 1)]
    return net, batches


def training(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Loop:
    copies = Copies(net, K)
    both = optimizer(copies, LR, MOMENTUM, DECAY)
    return Loop(copies, both, iter(batches), loss=sum_of_losses, after=copies.after_step)


@pytest.mark.paper
def test_both_copies_equal_a_literal_loop_after_every_step() -> None:
    net, batches = problem()
    plain = deepcopy(net)  # in training mode, so its running statistics do not matter
    fast, slow = ([p.detach().clone() for p in net.parameters()] for _ in range(2))
    p_fast, p_slow = ([torch.zeros_like(p) for p in fast] for _ in range(2))
    pair = training(net, batches)
    copies: Any = pair.model
    for t, (x, y) in enumerate(batches):
        g_fast, g_slow = gradient(plain, fast, x, y), gradient(plain, slow, x, y)
        for i in range(len(fast)):
            p_fast[i] = MOMENTUM * p_fast[i] + g_fast[i]
            fast[i] = fast[i] - LR * p_fast[i]
            if t % K == 0:
                p_slow[i] = MOMENTUM * p_slow[i] + g_slow[i]
            slow[i] = slow[i] - LR * p_slow[i]
            if (t + 1) % K == 0:
                fast[i] = slow[i] = (fast[i] + slow[i]) / 2
        pair.step()
        for ours, theirs in ((copies.net, fast), (copies.slow, slow)):
            for got, want in zip(ours.parameters(), theirs, strict=True):
                torch.testing.assert_close(got.detach(), want, atol=1e-13, rtol=1e-13)


def test_the_slow_copy_computes_once_a_cycle() -> None:
    net, batches = problem()
    pair = training(net, batches)
    copies: Any = pair.model
    calls: list[int] = []
    copies.slow.register_forward_hook(lambda *_: calls.append(copies.done))
    for _ in batches:
        pair.step()
    assert calls == [0, K, 2 * K, 3 * K]


def test_the_merged_network_is_evaluated_and_the_cycle_is_saved() -> None:
    net, batches = problem()
    pair = training(net, batches)
    for _ in range(K + 1):
        pair.step()
    other = training(problem()[0], batches)
    other.model.load_state_dict(pair.model.state_dict())
    x = batches[0][0]
    torch.testing.assert_close(other.model.eval()(x), net.eval()(x))
    assert len(pair.model.train()(x)) == len(other.model.train()(x)) == 1
