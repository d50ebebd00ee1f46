"""What wraps optimizers and models: groups and hooks that are torch's own, checkpointing."""

import warnings

import pytest
import torch
from helpers.optimizers import loss, network, sgd, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg


class TestWrapping:
    """Reports 15-17: wrappers that are no optimizer."""

    def test_groups_state_and_hooks_are_torchs_own(self) -> None:
        net = network()
        base = torch.optim.SGD(net.head.parameters(), lr=0.1, momentum=0.9)
        other = torch.optim.AdamW(net.trunk.parameters(), lr=0.1)
        optimizer = mrreg.Multirate([(base, 1), (other, 2)], model=net)
        train(net, optimizer, range(3))
        optimizer.load_state_dict(optimizer.state_dict())  # apex 766: then schedulers act on groups that no step reads
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.param_groups == base.param_groups + other.param_groups
        assert all(a is b for a, b in zip(optimizer.param_groups, base.param_groups + other.param_groups, strict=True))
        assert optimizer.state is base.state is other.state
        assert optimizer.defaults["lr"] == 0.1
        assert optimizer._optimizer_step_post_hooks == {}

    def test_state_of_a_base_that_fills_it_early_is_kept(self) -> None:
        net = network()
        optimizer = mrreg.Multirate([(torch.optim.Adagrad(net.parameters(), lr=0.1, initial_accumulator_value=0.5), 1)])
        assert torch.equal(optimizer.state[net.head.bias]["sum"], torch.full((2,), 0.5))

    def test_the_number_of_groups_is_fixed(self) -> None:
        net = network()
        optimizer = sgd(net)
        with pytest.raises(RuntimeError, match=r"add_param_group: .*fixed"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        assert len(optimizer.param_groups) == 2


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant)
        out: Tensor = self.head(hidden)
        return out


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", "ignore:.*are in no part")
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("fast", [["body", "head"], ["body"]])
def test_reentrant_checkpointing_below_a_frozen_layer(use_reentrant: bool, fast: list[str]) -> None:
    """Report 20: silent None gradients."""
    net = Checkpointed(use_reentrant)
    outside = [] if "head" in fast else [p.requires_grad_(True) for p in net.head.parameters()]
    optimizer = mrreg.MultirateSGD(
        [p for p in net.parameters() if all(p is not other for other in outside)],
        lr=0.1,
        k=3,
        fast=[getattr(net, name) for name in fast],
        model=net,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mrreg.NoEffectWarning)
        for t in range(8):
            torch.autograd.backward(loss(net, t))
            optimizer.step()
            net.zero_grad()
    ours = [str(each.message) for each in caught if issubclass(each.category, mrreg.NoEffectWarning)]
    assert len(ours) == int(use_reentrant), ours
    assert all("use_reentrant=False" in message for message in ours)
