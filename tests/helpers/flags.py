"""What other code does between two steps and inside one, and what a training that nobody disturbs comes to."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from helpers.optimizers import Net, loss, network, sgd, train

K = 3
STEPS = 2 * K + 2


def flags(net: nn.Module) -> list[bool]:
    return [p.requires_grad for p in net.parameters()]


def undisturbed(steps: int = STEPS) -> Net:
    """The network after a training between whose steps nobody does anything."""
    net = network()
    train(net, sgd(net, k=K), range(steps))
    return net


def gradients(net: nn.Module) -> list[bool]:
    return [p.grad is not None for p in net.parameters()]


def expected_gradients(t: int) -> list[bool]:
    return [t % K == 0] * 2 + [True] * 2


# Who looks between steps: each gets the network and raises where it sees, or leaves, something else than a plain one.


def average_by_flags(net: Net, _: Any) -> None:
    """Diffusers' rule: average what trains, copy the rest."""
    assert all(flags(net))


def checkpoint_of_what_trains(net: Net, _: Any) -> None:
    saved = {name for name, p in net.named_parameters() if p.requires_grad}
    assert saved == set(dict(net.named_parameters()))


def parameters_for_another_optimizer(net: Net, _: Any) -> None:
    assert len(list(filter(lambda p: p.requires_grad, net.parameters()))) == 4


def copied_model(net: Net, _: Any) -> None:
    twin = copy.deepcopy(net)
    assert all(flags(twin))
    torch.autograd.backward(loss(twin, 0))
    assert all(gradients(twin))


def averaged_model(net: Net, _: Any) -> None:
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    assert all(flags(average.module))


def pickled_model(net: Net, _: Any) -> None:
    assert all(flags(pickle.loads(pickle.dumps(net))))


def gan_toggle(net: Net, _: Any) -> None:
    net.requires_grad_(False)
    net(torch.randn(3, 4))  # of the other player's turn
    net.requires_grad_(True)


def evaluation(net: Net, _: Any) -> None:
    net.eval()
    with torch.no_grad():
        net(torch.randn(3, 4))
    net.train()
    assert all(flags(net))


def input_gradient(net: Net, _: Any) -> None:
    """A saliency map in evaluation mode."""
    x = torch.randn(3, 4, requires_grad=True)
    net.eval()
    torch.autograd.grad(net(x).sum(), x)
    net.train()
    assert all(flags(net))


def functional_gradient(net: Net, _: Any) -> None:
    params = dict(net.named_parameters())
    x = torch.randn(3, 4)
    found = torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,)).sum())(params)
    assert found.keys() == params.keys()
    assert all(flags(net))


def saved_and_loaded(net: Net, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def whole_backward(net: Net, optimizer: Any) -> None:
    with optimizer.all_trainable():
        torch.autograd.backward(loss(net, 0))
        assert all(gradients(net))
    net.zero_grad()


def second_zero_grad(net: Net, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    net.zero_grad()


LOOKERS: list[Callable[[Net, Any], None]] = [
    average_by_flags,
    checkpoint_of_what_trains,
    parameters_for_another_optimizer,
    copied_model,
    averaged_model,
    pickled_model,
    gan_toggle,
    evaluation,
    input_gradient,
    functional_gradient,
    saved_and_loaded,
    whole_backward,
    second_zero_grad,
]


def accumulated(net: Net, optimizer: Any, t: int) -> None:
    for _ in range(2):
        torch.autograd.backward(loss(net, t) / 2)
    optimizer.step()
    optimizer.zero_grad()


def cleared_between_forward_and_backward(net: Net, optimizer: Any, t: int) -> None:
    value = loss(net, t)
    optimizer.zero_grad()
    torch.autograd.backward(value)
    optimizer.step()


def cleared_first(net: Net, optimizer: Any, t: int) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss(net, t))
    optimizer.step()


def evaluated_before_backward(net: Net, optimizer: Any, t: int) -> None:
    value = loss(net, t)
    with torch.no_grad():
        loss(net.eval(), t)
    net.train()
    torch.autograd.backward(value)
    optimizer.step()
    optimizer.zero_grad()


def with_closure(net: Net, optimizer: Any, t: int) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        value = loss(net, t)
        torch.autograd.backward(value)
        return value.item()

    optimizer.step(closure)


def skipped_first(net: Net, optimizer: Any, t: int) -> None:
    """A gradient scaler that leaves a step out."""
    torch.autograd.backward(loss(net, t) * torch.inf)
    optimizer.zero_grad()
    torch.autograd.backward(loss(net, t))
    optimizer.step()
    optimizer.zero_grad()


def failed_first(net: Net, optimizer: Any, t: int) -> None:
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 5))
    torch.autograd.backward(loss(net, t))
    optimizer.step()
    optimizer.zero_grad()


def toggled_inside_a_step(net: Net, optimizer: Any, t: int) -> None:
    loss(net, t)
    net.requires_grad_(True)
    torch.autograd.backward(loss(net, t))
    assert gradients(net) == expected_gradients(t)
    optimizer.step()
    optimizer.zero_grad()


LOOPS = [
    accumulated,
    cleared_between_forward_and_backward,
    cleared_first,
    evaluated_before_backward,
    with_closure,
    skipped_first,
    failed_first,
    toggled_inside_a_step,
]
