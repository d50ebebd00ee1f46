"""`MultirateAdamW`: torch's AdamW with a slow part."""

from typing import Any

import torch
from torch import Tensor, nn

from mrreg.optim.param_groups import Choice
from mrreg.optim.two_scales import Params, TwoScales


class MultirateAdamW(TwoScales):
    """`torch.optim.AdamW` that trains most of a network at every k-th step only.

    For the Transformers that are fine-tuned with AdamW. Moments and step count of the slow part advance at its
    gradients only; in between it repeats the step it took, decay included. With drift it needs one tensor per slow
    parameter beyond `torch.optim.AdamW`.

    Update at step t, with d_S the displacement of AdamW's step per unit of lr:

        d_S <- AdamW's at the new gradient       if t mod k == 0
        theta_S <- theta_S - lr * d_S            every step

    Args:
        params: As in `MultirateSGD`.
        lr: As in `MultirateSGD`.
        k: As in `MultirateSGD`.
        fast: As in `MultirateSGD`.
        betas: As in torch.
        eps: As in torch.
        weight_decay: As in torch: decoupled, and part of the direction that is held.
        amsgrad: As in torch.
        maximize: As in torch.
        foreach: As in torch.
        capturable: As in torch.
        fused: As in torch.
        drift: As in `MultirateSGD`.
        slow_lr: As in `MultirateSGD`.
        gradient: As in `MultirateSGD`.
        model: As in `MultirateSGD`.

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
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"amsgrad": amsgrad, "maximize": maximize}
        options |= {"foreach": foreach, "capturable": capturable, "fused": fused}
        super().__init__(torch.optim.AdamW, params, options, k, fast, slow_lr, drift, gradient, model)
