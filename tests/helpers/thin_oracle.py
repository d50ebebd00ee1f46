"""What training a thin model must do, literally: whole networks, columns at zero, entries put back after every step."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

import mrreg
from mrreg.masks.groups import UnitGroup
from mrreg.masks.sampling import draw_kept
from mrreg.module_utils import tensors_in
from mrreg.thinning.paths import NoDropout

Make = Callable[[Any], Optimizer]


def kept_units(groups: Sequence[UnitGroup], cycle: int) -> dict[str, Tensor]:
    """Indices of the units of each group that a cycle keeps."""
    cpu = torch.device("cpu")
    return {
        group.name: draw_kept((0, index, cycle), group.kept, group.units, cpu) for index, group in enumerate(groups)
    }


def absent_entries(model: nn.Module, groups: Sequence[UnitGroup], cycle: int) -> dict[str, Tensor]:
    """For each tensor that holds units, truth values of its entries that belong to an absent one."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = kept_units(groups, cycle)
    found: dict[str, Tensor] = {}
    for group in groups:
        for slot in group.slots:
            gone = torch.ones(group.units, dtype=torch.bool)
            gone[kept[group.name]] = False
            value = tensors[slot.name]
            if group.keeps_shape and not isinstance(value, nn.Parameter):
                continue  # statistics of units that are computed
            along = torch.zeros(value.shape[slot.dim], dtype=torch.bool).index_fill(
                0, slot.indices[gone].flatten(), True
            )
            shape = [1] * value.dim()
            shape[slot.dim] = -1
            found[slot.name] = found.get(slot.name, torch.zeros(value.shape, dtype=torch.bool)) | along.view(shape)
    return found


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model with what is a tensor, arguments, or keyword arguments."""
    args, kwargs = as_call(inputs)
    return model(*args, **kwargs)


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def loss_of(output: Any) -> Tensor:
    """A loss in which every number of the output has a say."""
    return torch.stack(
        [(t * torch.linspace(0.5, 1.5, t.shape[-1]).to(t)).square().mean() for t in tensors_in(output)]
    ).sum()


class LiteralTraining:
    """Trains a plain model as `thin` and `attach` promise to train a thin one."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[UnitGroup],
        make: Make,
        k: int,
        boost: float,
        rescale: bool,
        joint: bool = True,
    ) -> None:
        self.model, self.groups, self.k, self.boost, self.rescale = model, groups, k, boost, rescale
        self.joint = joint
        self.make, self.optimizer = make, make(model.parameters())
        self.clock = 0

    def _weights(self, cycle: int) -> dict[str, Tensor]:
        """Parameters whose columns that read absent units are zero, and the others as many times as large."""
        kept, parameters = kept_units(self.groups, cycle), dict(self.model.named_parameters())
        weights: dict[str, Tensor] = {}
        for group in self.groups:
            for slot in group.slots:
                if slot.role == "consumer":
                    value = weights.get(slot.name, parameters[slot.name])
                    factor = torch.ones(value.shape[slot.dim], dtype=value.dtype)
                    factor[slot.indices.flatten()] = 0.0
                    factor[slot.indices[kept[group.name]].flatten()] = group.units / group.kept if self.rescale else 1.0
                    shape = [1] * value.dim()
                    shape[slot.dim] = -1
                    weights[slot.name] = value * factor.view(shape)
        return weights

    def step(self, inputs: Any) -> Tensor:
        """One step of a user's loop; the loss."""
        cycle, phase = divmod(self.clock, self.k)
        masked, self.clock = phase < self.k - 1 or not self.joint, self.clock + 1
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        before = {name: value.detach().clone() for name, value in named.items()}
        state = {name: _by_entry(self.optimizer, named[name]) for name in named}
        state = {name: {key: s.clone() for key, s in found.items()} for name, found in state.items()}
        absent = absent_entries(self.model, self.groups, cycle)
        args, kwargs = as_call(inputs)
        self.optimizer.zero_grad()
        loss = loss_of(functional_call(self.model, self._weights(cycle) if masked else {}, args, kwargs))
        loss.backward()  # type: ignore[no-untyped-call]
        for name, gone in absent.items():
            grad = named[name].grad
            if masked and grad is not None:
                grad[gone] = 0
        self.optimizer.step()
        with torch.no_grad():
            for name, gone in absent.items():
                value = named[name]
                if masked:
                    value[gone] = before[name][gone]
                    for key, found in _by_entry(self.optimizer, value).items():
                        held = state[name][key] if key in state[name] else self._begin(before[name], key)
                        found[gone] = held[gone].to(found.dtype)
                elif isinstance(value, nn.Parameter):
                    value[gone] += (self.boost - 1) * (value - before[name])[gone]
        return loss.detach()

    def _begin(self, value: Tensor, key: str) -> Tensor:
        """State that an optimizer begins with: the weights (which may decay a little), or what it has for zeros."""
        states = []
        for start in (value, torch.zeros_like(value)):
            p = nn.Parameter(start.clone())
            p.grad = torch.zeros_like(p)
            (optimizer := self.make([p])).step()
            states.append(_by_entry(optimizer, p)[key])
        return value if torch.allclose(states[0], value.to(states[0].dtype), rtol=0.01) else states[1]


def check_training(
    model: nn.Module, inputs: Any, make: Make, k: int = 3, p: Any = 0.5, **options: Any
) -> mrreg.ThinReport:
    """Train a float64 model thin for a cycle and two steps more, and literally; return the report of `thin`."""
    plain = copy.deepcopy(model)
    model, report = mrreg.thin(model, p=p, k=k, example_inputs=inputs, boost=k, **options)
    check_steps(model, plain, report, inputs, make, k + 2)
    return report


def check_steps(
    model: nn.Module, plain: nn.Module, report: mrreg.ThinReport, inputs: Any, make: Make, steps: int
) -> None:
    """Train a thin model whose boost is k, and its plain copy literally."""
    k = report.k
    ours = make(model.parameters())
    mrreg.attach(ours, model)
    literal = LiteralTraining(plain, report.groups, make, k, boost=k, rescale=True)
    for t in range(steps):
        with NoDropout():
            torch.manual_seed(t)  # for blocks that are left out at random
            expected = literal.step(inputs)
            torch.manual_seed(t)
            ours.zero_grad()
            loss = loss_of(call(model, inputs))
            loss.backward()  # type: ignore[no-untyped-call]
        if t % k < k - 1:
            for key, gone in absent_entries(model, report.groups, t // k).items():
                grad = dict(model.named_parameters()).get(key, torch.zeros(())).grad
                assert grad is None or not grad[gone].any(), key
        ours.step()
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-9)
        for (key, value), wanted in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9, msg=key)


def _by_entry(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    state = optimizer.state.get(parameter, {})
    return {
        name: s for name, s in state.items() if isinstance(s, Tensor) and s.shape == parameter.shape and name != "step"
    }
