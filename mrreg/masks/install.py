"""Put a mask into a module, in place: its class stays for whoever asks, and its forward leaves out what is absent."""

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mrreg.distributed.checks import SHARD_OUTSIDE, is_fully_sharded
from mrreg.errors import check, check_type, invalid_argument, invalid_state
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.blocks import put_in, take_out
from mrreg.masks.forward import run
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.layers import STRUCTURES, WHERE, Structure, find_targets
from mrreg.masks.mask import LAYER_NAME, NAME, Mask, find_mask, masks_of
from mrreg.module_utils import check_materialized

Model = TypeVar("Model", bound=nn.Module)


def install(
    model: Model, groups: Iterable[UnitGroup], overrides: Iterable[AttributeOverride] = (), **options: Any
) -> Model:
    """Make a model thin, in place, and return it; `options` are those of its mask: k, boost, rescale and flops."""
    check_thinnable("thin", model)
    mask = Mask("thin", groups, (), overrides, **options)
    put_mask(model, mask, NAME)
    if mask.block_group is not None:
        put_in(model, mask.block_group.blocks, mask)
    for module, *_ in mask.places(model):
        if type(module) is nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
    return model


def uninstall(model: nn.Module) -> None:
    """Give a thin model its own class back; an optimizer that drives its mask finds nothing to hold."""
    take_mask(model, NAME)
    take_out(model)
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]


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
    values, and the state dict is that of the plain module. Evaluation mode, and a forward without gradients, always use
    all weights. `attach` an optimizer to drive the mask; until then it is dense. `mrreg.unwrap` takes it out again.

    Cycle of k steps, slow subset S drawn at its start, update u of the optimizer:

        theta_F <- theta_F + u(theta_F, theta_S = 0)     on k - 1 masked steps
        theta_F <- theta_F + u;  theta_S <- theta_S + boost * u     on the joint step

    Args:
        module: The module to mask. Masks do not nest.
        p: Probability that an entry is slow, in [0, 1]. Paper: de-activation probability.
        k: Optimizer steps per cycle, at least 1. Paper: k.
        parameters: Names, patterns or parameters to mask; None: weights of two or more dimensions, but not of norms.
        structure: Kind of draw: "weight" for single entries; "input" or "output" for whole units of each layer,
            exactly round(p * units) of them.
        rescale: Divide kept weights by 1 - p on masked steps. None: if whole units are drawn, as in nn.Dropout.
        boost: Factor of the slow step, at least 0. None: k where updates are multiples of the gradient (SGD
            without momentum), else 1; `attach` finds out, and `print(handle)` says which. Paper: h_S / h_F.

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
        >>> mrreg.MultirateMask.of(model[0]).p = 0.3  # from the next step on

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 5.
    """

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
        mask = layer_mask(module, parameters, structure, rescale, p=p, k=k, boost=boost)
        put_mask(module, mask, LAYER_NAME)
        return module

    @staticmethod
    def of(module: nn.Module) -> Mask:
        """Return the mask of a module, whose p, k, boost and rescale may be read, and set for the steps to come."""
        mask = find_mask(module, LAYER_NAME) if isinstance(module, nn.Module) else None
        if mask is None:
            raise invalid_argument(ValueError, f"{WHERE}.of", "module", f"one with a {WHERE}", type(module).__name__)
        return mask


def layer_mask(module: nn.Module, parameters: Any, structure: Structure, rescale: bool | None, **options: Any) -> Mask:
    """Return the mask that a module would get, or raise."""
    check_module(WHERE, "module", module)
    for name, inner in module.named_modules():
        shown = name or type(inner).__name__
        check(not is_fully_sharded(inner), WHERE, "module", "without fully_shard inside", shown, SHARD_OUTSIDE)
        check(not masks_of(inner), WHERE, "module", "without masks inside", shown, "Masks do not nest.")
    check_structure(structure)
    targets = find_targets(module, parameters, structure)
    rescale = structure != "weight" if rescale is None else rescale
    return Mask(WHERE, (), targets, structure=structure, rescale=rescale, **options)


def check_structure(structure: object) -> None:
    """Refuse a structure that does not exist."""
    kind, rule = ValueError if isinstance(structure, str) else TypeError, f"one of {', '.join(map(repr, STRUCTURES))}"
    remedy = 'Units between two layers are those of mrreg.thin(model, p={"layer": p}).' if structure == "hidden" else ""
    check(structure in STRUCTURES, WHERE, "structure", rule, structure, remedy, kind)


def check_thinnable(where: str, model: nn.Module) -> None:
    """Raise if a model is thin already, or cannot be masked."""
    check_module(where, "model", model)
    if any(NAME in vars(module) for module in model.modules()):
        raise invalid_state(where, "the model is thin already", "Call mrreg.unwrap(model) first.")


def check_module(where: str, what: str, module: Any) -> None:
    """Refuse an object that is no module, has no shape yet, or whose class does not say what it computes."""
    check_type(where, what, module, nn.Module, "an nn.Module")
    for name, inner in module.named_modules():
        remedy = "It reads its parameters where nothing can stand in: mask the module that it was made from."
        shown, scripted = name or type(inner).__name__, isinstance(inner, torch.jit.ScriptModule)
        check(not scripted, where, what, "without scripted modules", shown, remedy)
        keras = any(kind.__module__.partition(".")[0] == "keras" for kind in type(inner).__mro__)
        check(not keras, where, what, "made of torch's own layers", f"{shown} of Keras", remedy, TypeError)
    check_materialized(where, what, module)
    remedy, plain = "Mask the module inside, and use DistributedDataParallel.", not isinstance(module, nn.DataParallel)
    check(plain, where, what, "a module without nn.DataParallel", "one in it", remedy)
    rule, remedy = "a module whose class defines its forward", "Mask it before anything replaces its forward."
    check("forward" not in vars(module), where, what, rule, type(module).__name__, remedy)


def put_mask(module: nn.Module, mask: Mask, name: str) -> None:
    """Give a module a mask under a name, and the class that asks it."""
    vars(module)[name] = mask
    mask.belongs_to(module)
    kind: Any = type(module)
    module.__class__ = masked_class(kind, name)


def take_mask(module: nn.Module, name: str) -> None:
    """Give a module its own class back; the mask holds nothing from now on."""
    kind = vars(type(module))
    if kind.get("_mask_name") != name:
        problem = f"{type(module).__name__} has been given another class since it got its mask"
        raise invalid_state("unwrap", problem, "Unwrap before fully_shard.")
    mask: Mask = vars(module).pop(name)
    module.__class__ = kind["_plain"]
    mask.forget()


@functools.cache
def masked_class(plain: Any, name: str) -> Any:
    """Return the subclass of a class whose forward leaves out what a mask, kept under that name, says is absent."""

    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mask = vars(self).get(name)
        if mask is None:  # made by the class, such as a slice of a Sequential
            return plain.forward(self, *args, **kwargs)
        return run(mask, self, plain.forward, args, kwargs)

    def extra_repr(self: nn.Module) -> str:
        mask = vars(self).get(name)
        told = plain.extra_repr(self)
        return told if mask is None else ", ".join(filter(None, [told, str(mask)]))

    def reduce(self: nn.Module, protocol: Any) -> Any:
        make, args, *rest = plain.__reduce_ex__(self, max(protocol, 2))
        args = tuple(plain if each is type(self) else each for each in args)
        if name in vars(self):
            make, args = rebuild, (vars(self)[name], name, make, *args)
        return make, args, *rest

    own = {"forward": forward, "extra_repr": extra_repr, "__reduce_ex__": reduce, "_plain": plain, "_mask_name": name}
    named = {each: getattr(plain, each) for each in ("__module__", "__qualname__", "__doc__")}
    return type(plain)(plain.__name__, (plain,), own | named)


def rebuild(mask: Mask, name: str, make: Any, *args: Any) -> Any:
    """Begin the copy of a masked module as its plain class says."""
    made = make(*args)
    put_mask(made, mask, name)
    return made
