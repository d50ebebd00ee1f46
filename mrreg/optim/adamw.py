"""`MultirateAdamW`: torch's AdamW with a slow part."""

from typing import Any

import torch
from torch import Tensor, nn

from mrreg.optim.hyperparameters import Params, checked, make_groups, model_of
from mrreg.optim.multirate import Multirate
from mrreg.optim.param_groups import Choice


class MultirateAdamW(Multirate):
    """`torch.optim.AdamW` that trains most of a network at every k-th step only.

    For the Transformers that are fine-tuned with AdamW. Moments and step count of the slow part advance at its
    gradients only; in between it repeats the step it took, decay included. With drift it needs one tensor per slow
    parameter beyond `torch.optim.AdamW`.

    Update at step t, with d_S the displacement of AdamW's step per unit of lr:

        d_S <- AdamW's at the new gradient       if t mod k == 0
        theta_S <- theta_S - lr * d_S            every step

    Args:
        params: The model, so that other code sees `requires_grad` as you set it; or parameters, named parameters or
            groups, as in torch.
        lr: Step size per step, for both parts.
        k: Period of the slow part: it gets a gradient at every k-th step. At least 1; 1 is ordinary training. Paper: k.
        fast: Parts that train at every step, in the forms of `split`: names, patterns, modules or parameters. All other
            parameters are slow. Paper: theta_F. None: for groups with a "period" (None stands for k), as `split` makes
            them; all others are fast then.
        betas: As in torch.
        eps: As in torch.
        weight_decay: As in torch: decoupled, and part of the direction that is held.
        amsgrad: As in torch.
        maximize: As in torch.
        foreach: As in torch.
        capturable: As in torch.
        fused: As in torch.
        drift: True: the slow part keeps moving between its gradients (Algorithm 1). False: it moves k times as far at
            once (Algorithm 2).
        slow_lr: Step size of the slow part: "coupled", lr per step as in the paper, so k * lr per gradient;
            "per_gradient", lr / k per step, so that one gradient moves it as far as in ordinary training; or a number.
            The words are kept as "slow_lr" in the slow groups and applied at each step, so any schedule of "lr" leaves
            the ratio as it is. A number becomes the groups' "lr"; a group's own "lr" goes before it.
        gradient: "sync", "mean" or "sum", as in `Multirate`, for the slow part.
        model: The model, where `params` are groups or parameters.

    Raises:
        TypeError: If something is of another kind than above.
        ValueError: If a number is out of range, or `fast` does not fit `params`.

    Warns:
        NoEffectWarning: If k > 1 and no parameter is slow; if no forward of the model is seen before a step.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> decay = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias], "weight_decay": 0.0}]
        >>> optimizer = mrreg.MultirateAdamW(decay, lr=2e-5, k=5, fast=model[2].weight, slow_lr="per_gradient")
        >>> [(group["period"], group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.01), (5, 0.01), (5, 0.0)]

    Note:
        Adam's step has size lr whatever the gradient, so holding it for k steps at the coupled lr multiplies the noise;
        `slow_lr="per_gradient"` is the better start for fine-tuning.

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 3.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        k: int = 5,
        fast: Choice | None = None,
        *,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
        drift: bool = True,
        slow_lr: str | float = "coupled",
        gradient: str = "sync",
        model: nn.Module | None = None,
    ) -> None:
        where = "MultirateAdamW"
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "fused": fused,
        }
        options = checked(where, options)
        groups, layout = make_groups(where, params, k, fast, slow_lr)
        base = torch.optim.AdamW(groups, **options)
        model = model_of(where, params, model)
        super().__init__([(base, None)], drift=drift, gradient=gradient, model=model)
        self._layouts.append(layout)
