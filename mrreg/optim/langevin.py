"""SGD with momentum and noise: Langevin dynamics at a chosen temperature."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from mrreg.distributed.sharding import cut, is_sharded, local
from mrreg.errors import check_int, check_number
from mrreg.hashing import GOLDEN, WORD, splitmix64

WHERE = "LangevinSGD"
SIZE = "finite and at least 0", lambda x: 0 <= x < math.inf
RANGES = {"lr": SIZE, "momentum": ("in [0, 1)", lambda x: 0 <= x < 1), "temperature": SIZE, "weight_decay": SIZE}


class LangevinSGD(torch.optim.Optimizer):
    """Descend with momentum and add noise, so that parameters explore at a chosen temperature.

    Discretized Langevin dynamics. At `temperature=0` it is `torch.optim.SGD`, bit for bit; at `momentum=0` it is SGLD.
    Update with gradient g, noise xi ~ N(0, 1) and step size h:

        buffer <- momentum * buffer + g + sqrt(2 * (1 - momentum) * temperature / h) * xi
        theta <- theta - h * buffer

    For small h the parameters settle into the density exp(-loss / temperature). In a part of period k, h is k * lr: one
    draw of noise is held for k steps, and with h = lr that would multiply the temperature by k.

    Args:
        params: Parameters, named parameters or groups, as in `torch.optim.SGD`.
        lr: Step size per step, a finite number of at least 0 or a tensor with one. At 0 no noise is drawn.
        momentum: In [0, 1). Paper: mu, for gamma = (1 - mu) / h.
        temperature: At least 0, in units of the loss; for a posterior from N examples under the mean loss, 1 / N.
            Paper: tau.
        weight_decay: At least 0; added to the gradient. Paper: omega.
        maximize: Climb instead of descend.
        foreach: Use the multi-tensor update; default: where torch does.
        seed: The noise follows from it, group, period and number of draws, and from no global random state. Give two
            optimizers different ones, and all ranks of a distributed run the same.

    Raises TypeError or ValueError for a number of another kind or out of range.

    Example:
        >>> import mrreg, torch
        >>> theta = torch.nn.Parameter(torch.zeros(10_000))
        >>> optimizer = mrreg.LangevinSGD([theta], lr=0.1, momentum=0.5, temperature=0.04)
        >>> for _ in range(100):
        ...     theta.grad = theta.detach().clone()  # loss: half the squared norm
        ...     optimizer.step()
        >>> round(theta.var().item(), 2)
        0.04

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, eq. 2 and appendix A.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        temperature: float = 0.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        seed: int = 0,
    ) -> None:
        numbers = {"lr": lr, "momentum": momentum, "temperature": temperature, "weight_decay": weight_decay}
        others = {"maximize": maximize, "foreach": foreach, "noise_seed": check_int(WHERE, "seed", seed, 0)}
        # torch puts "differentiable" into the defaults of a copy, and from there it reaches groups
        super().__init__(params, _checked({**numbers, **others, "noise_steps": 0, "differentiable": False}))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in torch; its options are checked like those of the constructor."""
        param_group |= {"noise_stream": len(self.param_groups)} | _checked({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Make one step; `closure` recomputes the loss and its gradients, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            forces, has_momentum = _forces(index, group, params), group["momentum"] != 0
            buffers = [self.state[p].get("momentum_buffer") if has_momentum else None for p in params]
            options = {key: group[key] for key in ("foreach", "weight_decay", "momentum", "lr", "maximize")}
            is_sparse = any(force.is_sparse for force in forces)
            # torch's own update: nothing differs from `torch.optim.SGD` but the force
            sgd(params, forces, buffers, has_sparse_grad=is_sparse, dampening=0.0, nesterov=False, **options)
            for p, buffer in zip(params, buffers, strict=True):
                if has_momentum:
                    self.state[p]["momentum_buffer"] = buffer
        return loss


def _forces(index: int, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """Return the gradients, with noise at a temperature above 0."""
    grads = [p.grad for p in params if p.grad is not None]
    period = group.get("period") or 1  # None: marked slow by `split`, but stepped by nobody's period
    h = float(group["lr"]) * period
    if group["temperature"] == 0 or h == 0:
        return grads
    scale = math.sqrt(2 * (1 - group["momentum"]) * group["temperature"] / h)
    stream = group.get("noise_stream", index)  # states saved by older versions have none
    seed = splitmix64(group["noise_seed"], stream, period) + group["noise_steps"] * GOLDEN & WORD
    group["noise_steps"] += 1
    generators = {device: torch.Generator(device).manual_seed(seed) for device in {p.device for p in params}}
    return [_normal(p, generators[p.device]).mul_(scale).add_(g) for p, g in zip(params, grads, strict=True)]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from N(0, 1), real and imaginary parts each. A shard gets the entries that it has in the whole."""
    noise = torch.empty_like(like)
    if is_sharded(like):
        whole = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        local(noise).copy_(cut(_normal(whole, generator), like))
    else:
        (torch.view_as_real(noise) if noise.is_complex() else noise).normal_(generator=generator)
    return noise


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group with its numbers checked and as Python's own."""
    checked = dict(options)
    for name, (rule, valid) in RANGES.items():
        value = options[name]
        single = isinstance(value, Tensor) and value.numel() == 1
        plain = check_number(WHERE, name, value.item() if single else value, rule, valid)
        checked[name] = value if single else plain
    return checked
