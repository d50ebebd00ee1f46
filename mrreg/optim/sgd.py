"""`MultirateSGD`: torch's SGD with a slow part."""

from typing import Any

import torch
from torch import Tensor, nn

from mrreg.optim.param_groups import Choice
from mrreg.optim.two_scales import Params, TwoScales


class MultirateSGD(TwoScales):
    """`torch.optim.SGD` that trains most of a network at every k-th step only: the paper's optimizer.

    Fine-tuning with a small fast part takes about half the time of ordinary training, and the loop is unchanged. With
    momentum (not Nesterov's) it needs no more memory than `torch.optim.SGD`; otherwise drift needs one tensor per slow
    parameter.

    Update at step t (Algorithm 1; with weight decay Algorithm A1):

        p_S <- mu * p_S + grad_S + omega * theta_S       if t mod k == 0
        theta_S <- theta_S - lr * p_S                    every step
        p_F, theta_F <- the same, with a gradient        every step

    Args:
        params: The model, so that other code sees `requires_grad` as you set it; or parameters, named parameters or
            groups, as in torch.
        lr: Step size per step, for both parts. Paper: h_F, that is h / k.
        k: Period of the slow part: it gets a gradient at every k-th step. At least 1; 1 is ordinary training. Paper: k.
        fast: Parts that train at every step, in the forms of `split`: names, patterns, modules or parameters. All other
            parameters are slow. Paper: theta_F. None: groups say it by a "period" (of None: k), as `split` makes them;
            groups without one are fast.
        momentum: As in torch. Paper: mu.
        dampening: As in torch.
        nesterov: As in torch.
        weight_decay: As in torch, once per gradient. Paper: omega.
        maximize: As in torch.
        foreach: As in torch.
        fused: As in torch.
        drift: True: the slow part keeps moving between its gradients (Algorithm 1). False: it moves k times as far
            once per cycle (Algorithm 2).
        slow_lr: Step size of the slow part: "coupled", lr per step as in the paper, so k * lr per gradient;
            "per_gradient", lr / k per step, so that one gradient moves it as far as in ordinary training; or a number.
            The words are kept as "slow_lr" in the slow groups and applied at each step, so that no schedule of "lr"
            changes the ratio. A number becomes the groups' "lr", unless they have their own.
        gradient: "sync", "mean" or "sum", as in `Multirate`, for the slow part.
        model: The model, where `params` are groups or parameters.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of range, or `fast` does not fit `params`.

    Warns:
        NoEffectWarning: If k > 1 and no parameter is slow; if no forward of the model is seen before a step.

    Example:
        >>> import mrreg
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = mrreg.MultirateSGD(model, lr=1e-3, k=5, fast="2", momentum=0.9)
        >>> for _ in range(6):
        ...     model(torch.randn(3, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer
        MultirateSGD (drift=True, 6 steps done, flags at rest
          part 0: SGD, period 1, 2 tensors, 18 parameters, lr 0.001, due
          part 1: SGD, period 5, 2 tensors, 40 parameters, lr 0.001, 1 of 5
        )

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, Algorithms 1, 2 and A1.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        k: int = 5,
        fast: Choice | None = None,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        drift: bool = True,
        slow_lr: str | float = "coupled",
        gradient: str = "sync",
        model: nn.Module | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        options |= {"weight_decay": weight_decay, "maximize": maximize, "foreach": foreach, "fused": fused}
        super().__init__(torch.optim.SGD, params, options, k, fast, slow_lr, drift, gradient, model)
