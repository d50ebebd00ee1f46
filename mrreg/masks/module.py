"""A module whose weights are partly held at zero for most of a cycle and then updated once with a larger step."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from mrreg.masks.install import OPTIONS, put_mask
from mrreg.masks.layer_mask import LayerMask
from mrreg.masks.mask import LAYER_NAME
from mrreg.masks.options import check_module, check_structure
from mrreg.masks.targets import Structure, find_targets


class _Masked(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return LAYER_NAME in getattr(instance, "__dict__", ())


class MultirateMask(nn.Module, metaclass=_Masked):
    """Masks a module in place: a random subset of its weights is held at zero on all but the last step of a cycle.

    It replaces nn.Dropout. `MultirateMask(module, ...)` returns the module itself, which becomes an instance of a
    subclass of its class: `isinstance` holds for both, and names of parameters are as before. A cycle has k optimizer
    steps. On the first k - 1 the slow entries of the weights count as zero, get exactly zero gradient and do not change
    by a bit, nor does the optimizer's state of their shape. On the last, the joint step, all weights are present and
    the slow ones move `boost` times as far as the optimizer says. The parameters themselves always hold their true
    values, evaluation mode always uses all of them, and the state dict is that of the plain module. `mrreg.unwrap`
    takes the mask out again. `attach` an optimizer to drive the mask; until then it is dense.

    Cycle of k steps, slow subset S drawn at its start, update u of the optimizer:

        theta_F <- theta_F + u(theta_F, theta_S = 0)     on k - 1 masked steps
        theta_F <- theta_F + u;  theta_S <- theta_S + boost * u     on the joint step

    Args:
        module: The module to mask. Masks do not nest.
        p: Probability that an entry is slow, in [0, 1]. Paper: de-activation probability.
        k: Optimizer steps per cycle, at least 1. Paper: k.
        parameters: Names, patterns or parameters to mask; None: weights of two or more dimensions, but not of norms.
        structure: Kind of draw: "weight" for single entries; "input" or "output" for whole units of each layer,
            exactly round(p * units) of them; "hidden" for the units between the two layers of
            Sequential(Linear, activation, Linear) or of the feed-forward half of a Transformer layer.
        rescale: Divide kept weights by 1 - p on masked steps. None: if whole units are drawn, as in nn.Dropout.
        boost: Factor of the slow step; None means k. Paper: h_S / h_F.

    Shape:
        Same as the module.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range, or nothing in the module can be masked.

    Example:
        >>> import torch, mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 8), p=0.2, k=5), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> handle = mrreg.attach(optimizer, model)
        >>> model(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
        >>> sorted(model.state_dict())
        ['0.bias', '0.weight', '2.bias', '2.weight']

    Note:
        `p`, `k`, `boost` and `rescale` are attributes of the module, and may be changed; where it has one of that name
        itself, the name means that one.

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 5.
    """

    p: float
    k: int
    boost: float
    rescale: bool
    structure: Structure

    def __new__(
        cls,
        module: nn.Module,
        p: float = 0.5,
        k: int = 5,
        *,
        parameters: Iterable[str | Tensor] | None = None,
        structure: Structure = "weight",
        rescale: bool | None = None,
        boost: float | None = None,
    ) -> Any:
        """Put a mask into the module and return it."""
        put_mask(module, layer_mask(module, p, k, parameters, structure, rescale, boost), LAYER_NAME)
        return module


def layer_mask(
    module: nn.Module,
    p: float,
    k: int,
    parameters: Iterable[str | Tensor] | None,
    structure: Structure,
    rescale: bool | None,
    boost: float | None,
) -> LayerMask:
    """Return the mask that a module would get, or raise."""
    check_module(module)
    check_structure(structure)
    rescale = structure != "weight" if rescale is None else rescale
    return LayerMask(module, find_targets(module, parameters, structure), structure, p, k, boost, rescale)


def _option(name: str) -> property:
    """Return a property that is the mask's, unless the module has something of that name."""

    def get(self: Any) -> Any:
        own = vars(self)
        if name in own:
            return own[name]
        tables = (own["_parameters"], own["_buffers"], own["_modules"])
        holder = next((table for table in tables if name in table), None)
        if holder is None and LAYER_NAME not in own:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(own[LAYER_NAME], name) if holder is None else holder[name]

    def put(self: Any, value: Any) -> None:  # torch has looked for parameters, buffers and modules of that name
        own = vars(self)
        if name in own or LAYER_NAME not in own:
            own[name] = value
        else:
            setattr(own[LAYER_NAME], name, value)

    return property(get, put)


OPTIONS[LAYER_NAME] = {name: _option(name) for name in ("p", "k", "boost", "rescale", "structure")}
