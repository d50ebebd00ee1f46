"""What a recorded forward computes in the place of functions that hide which channels reach which."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
RECURRENT = (*KINDS, *(f"{kind}_cell" for kind in KINDS))
Linear = Callable[..., Any]  # of input, weight, bias and what else has a position for each output channel
Step = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]  # from gates and states to states


def unrolled(name: str, linear: Linear, x: Tensor, *args: Any) -> Any:
    """Compute what the torch function of this name does, as if every step of a sequence were the second one."""
    kind = name.removesuffix("_cell")
    if name != kind:
        w_ih, w_hh, b_ih, b_hh = (*args[1:], None, None)[:4]
        states = _cell(kind, linear, [w_hh, b_hh], [])(linear(x, w_ih, b_ih), _listed(args[0]))
        return tuple(states) if kind == "lstm" else states[0]
    if isinstance(args[0], Tensor) and not args[0].is_floating_point():
        args = args[1:]  # without the sizes of the batches of a packed sequence
    before, (weights, biased, layers, _, _, both) = _listed(args[0]), args[1:7]
    length, directions = len(weights) // (layers * (1 + both)), range(1 + both)
    after: list[list[Tensor]] = [[] for _ in before]
    for layer in range(layers):
        made = []
        for number in (layer * len(directions) + direction for direction in directions):
            w_ih, w_hh, *rest = weights[number * length : (number + 1) * length]
            b_ih, b_hh, *projection = rest if biased else (None, None, *rest)
            step = _cell(kind, linear, [w_hh, b_hh, weights[1]], [*projection, None, weights[length - 1]])
            gates = linear(x, w_ih, b_ih)
            states = [each[number].mean(0).expand(*x.shape[:-1], -1) for each in before]
            states = step(gates, step(gates, states))
            made.append(states[0])
            for one, ends in zip(states, after, strict=True):
                ends.append(one.reshape(-1, one.shape[-1])[: before[0].shape[1]])
        x = torch.cat(made, -1)
    return x, *map(torch.stack, after)


def _listed(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


def _cell(kind: str, linear: Linear, recurrent: Sequence[Any], projection: Sequence[Any]) -> Step:
    def step(gates: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        h, own = states[0], linear(states[0], *recurrent)
        if kind == "lstm":
            i, f, g, o = (gates + own).chunk(4, -1)
            c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (linear(h, *projection) if len(projection) > 2 else h), c
        if kind == "gru":
            (r, z, n), (own_r, own_z, own_n) = gates.chunk(3, -1), own.chunk(3, -1)
            n, z = (n + (r + own_r).sigmoid() * own_n).tanh(), (z + own_z).sigmoid()
            return [(1 - z) * n + z * h]
        return [(gates + own).tanh()]

    return step


def _leaky(_: Any, x: Tensor, *__: Any, **___: Any) -> Tensor:
    return F.leaky_relu(x, 0.3)


def _clamp(func: Any, x: Tensor, *bounds: Any, **named: Any) -> Tensor:
    lower = named.get("min", bounds[0] if bounds else None)
    zero = isinstance(lower, int | float) and lower == 0  # as relu, others guard logarithms and divisions
    return F.leaky_relu(x, 0.3) if zero else func(x, *bounds, **named)


def _prelu(_: Any, x: Tensor, weight: Tensor) -> Tensor:
    slope = weight.reshape(-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else weight
    return F.leaky_relu(x, 0.3) + slope * x


def _batch_norm(func: Any, x: Tensor, mean: Any = None, var: Any = None, *rest: Any, **named: Any) -> Any:
    """Normalize by a formula: autograd's has no gradient for the running statistics, nor may it write to such."""
    mean, var = named.pop("running_mean", mean), named.pop("running_var", var)
    given = dict(zip(("weight", "bias", "training"), rest, strict=False)) | named
    training = given.get("training", given.get("use_input_stats"))
    if mean is None or (training and not mean.requires_grad):
        return func(x, mean, var, *rest, **named)
    weight, bias = given.get("weight"), given.get("bias")
    shape = (-1, *[1] * (x.dim() - 2))
    scale = (var + 1e-5).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * scale
    return x * scale.reshape(shape) + shift.reshape(shape)


# A unit that relu holds at zero would seem to reach nothing.
LEAKY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_"), _leaky),
    **dict.fromkeys(("hardswish", "hardsigmoid", "threshold", "threshold_", "hardshrink"), _leaky),
    **dict.fromkeys(("clamp", "clamp_min", "clip"), _clamp),
    "prelu": _prelu,
    **dict.fromkeys(("batch_norm", "instance_norm"), _batch_norm),
}
