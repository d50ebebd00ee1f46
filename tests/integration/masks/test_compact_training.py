"""Training with compact steps is training with masked weights: same parameters, same held bits, whichever path runs."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import mrreg
from mrreg.masks import compact_forward as compact

Structure = Literal["input", "output", "hidden"]
BUILD: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], Structure, dict[str, Any]]] = [
    ("linear_input", lambda: nn.Linear(6, 5), (7, 6), "input", {}),
    ("linear_output", lambda: nn.Linear(6, 5), (7, 6), "output", {}),
    ("linear_output_and_bias", lambda: nn.Linear(6, 5), (7, 6), "output", {"parameters": ["weight", "bias"]}),
    ("linear_output_bias_only", lambda: nn.Linear(6, 5), (7, 6), "output", {"parameters": ["bias"]}),
    ("conv_input", lambda: nn.Conv2d(4, 3, 2), (2, 4, 5, 5), "input", {"rescale": True}),
    ("conv_output", lambda: nn.Conv1d(4, 6, 2), (2, 4, 5), "output", {"rescale": True}),
    ("pair", lambda: nn.Sequential(nn.Linear(4, 9), nn.GELU(), nn.Linear(9, 4)), (7, 4), "hidden", {}),
    ("pair_rescaled", lambda: nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 4)), (7, 4), "hidden",
     {"rescale": True}),
    ("encoder", lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), (3, 2, 4), "hidden", {}),
]  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
Snapshot = dict[str, Tensor]


def snapshot(mask: mrreg.MultirateMask, optimizer: torch.optim.Optimizer) -> Snapshot:
    """Parameters, and the optimizer's state of their shapes, as they are now."""
    found = {}
    for name, p in mask.module.named_parameters():
        found[name] = p.detach().clone()
        for key, value in optimizer.state[p].items() if p in optimizer.state else ():
            if isinstance(value, Tensor) and value.shape == p.shape:
                found[f"{name} {key}"] = value.clone()
    return found


def train(
    case: tuple[Callable[[], nn.Module], tuple[int, ...], Structure, dict[str, Any]],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    device: str = "cpu",
) -> list[Snapshot]:
    """Snapshots after each of seven steps of cycles of three; held entries must not change by a bit."""
    build, shape, structure, options = case
    torch.manual_seed(0)
    mask = mrreg.MultirateMask(build().double(), p=0.5, k=3, structure=structure, **options).to(device)
    optimizer = make_optimizer(mask.parameters())
    mrreg.attach(optimizer, mask)
    seen = [snapshot(mask, optimizer)]
    for step in range(7):
        held = {name: bits == 0 for name, bits in mask._bits.items()} if step % 3 < 2 else {}
        mask(torch.randn(shape, dtype=torch.float64).to(device)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(snapshot(mask, optimizer))
        for name, value in seen[-1].items():
            slow = held.get(name.split(" ")[0])
            if slow is not None and name in seen[-2]:
                slow = slow.expand_as(value)
                assert torch.equal(value[slow], seen[-2][name][slow]), (step, name)
    return seen


@pytest.mark.parametrize("case", [c[1:] for c in BUILD], ids=[c[0] for c in BUILD])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_both_paths_train_alike(
    case: tuple[Callable[[], nn.Module], tuple[int, ...], Structure, dict[str, Any]],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    forward = compact.forward

    def counted(*args: Any) -> Any:
        calls.append(args)
        return forward(*args)

    monkeypatch.setattr(compact, "forward", counted)
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    ours = train(case, make_optimizer)
    bias_only = case[3].get("parameters") == ["bias"]
    assert len(calls) == (0 if bias_only else 5)
    monkeypatch.setattr(compact, "unnoticed", lambda module: False)
    torch.testing.assert_close(ours, train(case, make_optimizer), rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", [c[1:] for c in BUILD], ids=[c[0] for c in BUILD])
def test_both_devices_train_alike(
    case: tuple[Callable[[], nn.Module], tuple[int, ...], Structure, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    monkeypatch.setattr(compact, "PAYS_ELSEWHERE", 0)
    theirs = train(case, OPTIMIZERS["momentum"])
    ours = train(case, OPTIMIZERS["momentum"], "cuda")
    on_cpu = [{name: value.cpu() for name, value in seen.items()} for seen in ours]
    torch.testing.assert_close(on_cpu, theirs, rtol=1e-8, atol=1e-8)


def test_hooks_inside_see_the_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    mask = mrreg.MultirateMask(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), structure="hidden")
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    seen: list[torch.Size] = []
    mask.module.get_submodule("0").register_forward_hook(lambda layer, args, output: seen.append(output.shape))
    mask(torch.ones(2, 4))
    assert seen == [(2, 6)]


def test_wrong_width_gets_torchs_own_message_with_the_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    mask = mrreg.MultirateMask(nn.Linear(6, 4), structure="input")
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    with pytest.raises(RuntimeError, match="2x7 and 6x4"):
        mask(torch.ones(2, 7))


@pytest.mark.parametrize("structure", ["weight", "input", "output", "hidden"])
def test_functional_call_vmap_and_grad_through_a_masked_step(
    structure: Literal["weight", "input", "output", "hidden"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many models as one batch, as torch.func does it: the tensors under the parameters' names are no Parameters."""
    monkeypatch.setattr(compact, "PAYS_CPU", 0)
    pair = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    mask = mrreg.MultirateMask(pair if structure == "hidden" else nn.Linear(4, 4), structure=structure, rescale=True)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    features = torch.randn(5, 4)

    def loss(parameters: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(mask, parameters, (features,)).square().sum()

    stacked = {name: torch.stack([p.detach()] * 3) for name, p in mask.named_parameters()}
    gradients = torch.vmap(torch.func.grad(loss))(stacked)
    mask(features).square().sum().backward()
    for name, parameter in mask.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name], parameter.grad.expand(3, *parameter.shape))
