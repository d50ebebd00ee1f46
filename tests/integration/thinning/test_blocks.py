"""Training with blocks off is training a model whose code skips them, step by step."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.thin_oracle import Make, kept_units, loss_of
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import mrreg

K = 3
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.01, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.001, eps=0.01, weight_decay=0.1),
}


class DropPath(nn.Module):
    """Drops its input as a whole, as those of libraries do for each example."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(()) > self.drop_prob) if self.training else x


class Layer(nn.Module):
    """Two residual branches; the norms come first or last. Code can skip either, or all."""

    def __init__(self, pre_norm: bool, drop_path: bool) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.token = nn.Linear(5, 5)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.drop_paths = nn.ModuleList(DropPath(0.4) if drop_path else nn.Identity() for _ in range(2))

    def mix(self, x: Tensor) -> Tensor:
        return self.token(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]

    def widen(self, x: Tensor) -> Tensor:
        return self.scale * self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, factors: tuple[float, float] = (1, 1)) -> Tensor:
        for i, branch in enumerate((self.mix, self.widen)):
            if self.pre_norm and factors[i]:
                x = x + factors[i] * self.drop_paths[i](branch(self.norms[i](x)))
            elif factors[i]:
                x = self.norms[i](x + factors[i] * self.drop_paths[i](branch(x)))
            elif not self.pre_norm:
                x = self.norms[i](x)
        return x


class Net(nn.Module):
    def __init__(self, pre_norm: bool, drop_path: bool, recompute: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(pre_norm, drop_path) for _ in range(4))
        self.head = nn.Linear(8, 3)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute and self.training else layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]

    def skipping(self, x: Tensor, off: Iterable[str], factor: float) -> Tensor:
        """The forward with branches (".drop_paths.") or whole layers off."""
        gone = set(off)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if f"layers.{i}" in gone:
                continue
            if isinstance(layer.drop_paths[0], DropPath):
                x = layer(x, tuple(0.0 if f"layers.{i}.drop_paths.{j}" in gone else factor for j in range(2)))
            else:
                x = x + factor * (layer(x) - x) if layer.pre_norm else layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Literal:
    """Trains a plain model as `thin` and `attach` promise to train one with blocks."""

    def __init__(
        self, model: nn.Module, group: Any, make: Make, forward: Callable[..., Any], rescale: bool = True
    ) -> None:
        self.model, self.group, self.forward = model, group, forward
        self.optimizer, self.clock = make(model.parameters()), 0
        self.factor = group.units / group.kept if rescale else 1.0

    def off(self) -> list[str]:
        kept = kept_units([self.group], self.clock // K)["blocks"].tolist()
        return [block.name for i, block in enumerate(self.group.blocks) if i not in kept]

    def step(self, inputs: Any) -> tuple[Tensor, set[str]]:
        """One step of a user's loop: the loss, and the names of the parameters that are held."""
        self.optimizer.zero_grad()
        off, masked = self.off(), self.clock % K < K - 1
        loss = loss_of(self.forward(self.model, inputs, off, self.factor))
        loss.backward()  # type: ignore[no-untyped-call]
        held = {name for name, p in self.model.named_parameters() if p.grad is None}
        if not masked:
            held, gradients = set(), [p.grad for p in self.model.parameters()]
            for p in self.model.parameters():
                p.grad = None
            loss = loss_of(self.forward(self.model, inputs, [], 1.0))
            loss.backward()  # type: ignore[no-untyped-call]
            held = {
                name for (name, _), grad in zip(self.model.named_parameters(), gradients, strict=True) if grad is None
            }
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer.step()
        if not masked:
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    if name in held:
                        p += (K - 1) * (p - before[name])
        self.clock += 1
        return loss.detach(), held


def by_hand(model: Net, x: Tensor, off: Iterable[str], factor: float) -> Tensor:
    return model.skipping(x, off, factor)


def plain_net(pre_norm: bool, drop_path: bool, **options: bool) -> Net:
    torch.manual_seed(0)
    return Net(pre_norm, drop_path, **options).double()


def batch(t: int) -> Tensor:
    return torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(t)).double()


NAMED = {"blocks": {"layers.*": 0.5}}
FOUND = {"blocks": 0.4}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize(("pre_norm", "drop_path"), [(True, True), (False, True), (True, False), (False, False)])
def test_two_cycles_equal_the_literal_loop(pre_norm: bool, drop_path: bool, rescale: bool, optimizer: str) -> None:
    model = plain_net(pre_norm, drop_path)
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if isinstance(module, DropPath):
            module.drop_prob = -1.0
    model, report = mrreg.thin(model, FOUND if drop_path else NAMED, K, batch(0), rescale=rescale)
    group = report.groups[0]
    assert (group.units, group.kept) == ((8, 5) if drop_path else (4, 2))
    ours = OPTIMIZERS[optimizer](model.parameters())
    mrreg.attach(ours, model)
    literal = Literal(plain, group, OPTIMIZERS[optimizer], by_hand, rescale)
    for t in range(2 * K + 1):
        expected, held = literal.step(batch(t))
        ours.zero_grad()
        loss = loss_of(model(batch(t)))
        loss.backward()  # type: ignore[no-untyped-call]
        names = dict(model.named_parameters())
        if t % K < K - 1:
            assert held == {name for name, p in names.items() if p.grad is None}
            assert held
        before = {name: copy.deepcopy((names[name].detach(), dict(ours.state[names[name]]))) for name in held}
        ours.step()
        if t % K < K - 1:
            for name, (value, state) in before.items():
                torch.testing.assert_close(
                    (names[name].detach(), dict(ours.state[names[name]])), (value, state), rtol=0, atol=0
                )
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=1e-9, atol=1e-9)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(dict(ours.state[one]), dict(literal.optimizer.state[two]), rtol=1e-9, atol=1e-9)
