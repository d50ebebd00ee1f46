"""Put a mask into a module, in place: its class stays for whoever asks, and its forward leaves out what is absent."""

import copy
import copyreg
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from mrreg.errors import invalid_argument, invalid_state
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.blocks import put_in, take_out
from mrreg.masks.forward import run
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.mask import NAME, Mask
from mrreg.masks.tensors import WHERE

Model = TypeVar("Model", bound=nn.Module)
OPTIONS: dict[str, dict[str, property]] = {}  # that modules with a mask of this name have for attributes


def install(
    model: Model,
    groups: Iterable[UnitGroup],
    overrides: Iterable[AttributeOverride] = (),
    *,
    k: int = 5,
    boost: float | None = None,
    rescale: bool = True,
    flops: tuple[int, int] | None = None,
) -> Model:
    """Make a model thin, in place, and return it.

    Its class becomes a subclass of the same name in which only `forward` and `extra_repr` differ, so that `isinstance`,
    the state dict, names of parameters and methods that call the forward are as before.

    Args:
        model: A module that is not thin.
        groups: Which units are absent together, and how many are kept.
        overrides: Counts of units that modules have as attributes, and their values while units are absent.
        k: Optimizer steps per cycle, at least 1.
        boost: Factor of the slow step; None means k.
        rescale: Multiply what consumers read of the kept units by units / kept on masked steps.
        flops: FLOPs of a masked and of a plain step, if they are known.

    Raises:
        ValueError: If the model is thin already, has a forward of its own beside its class's, or is compiled.
    """
    check_thinnable(model)
    mask = Mask(model, groups, overrides, k, boost, rescale, flops)
    put_mask(model, mask, NAME)
    if mask.block_group is not None:
        put_in(model, mask.block_group.blocks, mask)
    for module, *_ in mask.places(model):
        if type(module) is nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
    return model


def put_mask(module: nn.Module, mask: Mask, name: str) -> None:
    """Give a module a mask under a name, and the class that asks it."""
    vars(module)[name] = mask
    kind: Any = type(module)
    module.__class__ = masked_class(kind, name)


def take_mask(module: nn.Module, name: str) -> Mask:
    """Give a module its own class back, and return the mask, which holds nothing from now on."""
    kind = vars(type(module))
    if kind.get("_mask_name") != name:
        problem = f"{type(module).__name__} has been given another class since it got its mask"
        raise invalid_state("unwrap", problem, "Unwrap before fully_shard.")
    mask: Mask = vars(module).pop(name)
    module.__class__ = kind["_plain"]
    mask.forget()
    return mask


def check_thinnable(model: nn.Module) -> None:
    """Raise if a model is thin already, or its class does not say what it computes."""
    if any(NAME in vars(module) for module in model.modules()):
        raise invalid_state(WHERE, "the model is thin already", "Call mrreg.unwrap(model) first.")
    check_own_forward(WHERE, "model", model)


def check_own_forward(where: str, what: str, module: nn.Module) -> None:
    """Raise if the class of a module does not say what it computes."""
    if "forward" in vars(module) or isinstance(module, (torch.jit.ScriptModule, nn.DataParallel)):
        rule, remedy = "a module whose class defines its forward", "Mask it before anything replaces its forward."
        raise invalid_argument(ValueError, where, what, rule, type(module).__name__, remedy)


def uninstall(model: nn.Module) -> None:
    """Give a thin model its own class back; an optimizer that drives its mask finds nothing to hold."""
    take_mask(model, NAME)
    take_out(model)
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]


@functools.cache
def masked_class(plain: Any, name: str) -> Any:  # noqa: C901
    """Return the subclass of a class whose forward leaves out what a mask, kept under that name, says is absent."""

    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mask = vars(self).get(name)
        if mask is None:  # made by the class, such as a slice of a Sequential
            return plain.forward(self, *args, **kwargs)
        return run(mask, self, self.training, plain.forward, args, kwargs)

    def extra_repr(self: nn.Module) -> str:
        mask = vars(self).get(name)
        told = plain.extra_repr(self)
        return told if mask is None else ", ".join(filter(None, [told, str(mask)]))

    def load(self: nn.Module, *args: Any) -> None:
        plain._load_from_state_dict(self, *args)
        if name in vars(self):
            vars(self)[name].forget_versions()

    def set_state(self: nn.Module, state: dict[str, Any]) -> None:
        plain.__setstate__(self, state)
        mask = vars(self).get(name)
        if mask is not None and mask.is_lone:  # what copy.copy makes has the mask of its original
            mask.belongs_to(self)
            mask.rebuild()

    def reduce(self: nn.Module, protocol: Any) -> Any:
        """Pickle by the name of the plain class."""
        rebuild, args, *state = plain.__reduce_ex__(self, max(protocol, 2))
        if rebuild is copyreg.__newobj__:  # type: ignore[attr-defined]
            return rebuild_masked, (plain, name, *args[1:]), *state
        mask = vars(self).get(name)
        return (rebuild, args, *state) if mask is None else (rebuild_with_mask, (mask, name, rebuild, *args), *state)

    def deep_copy(self: nn.Module, memo: dict[int, Any]) -> Any:
        twin = plain.__deepcopy__(self, memo)
        if name in vars(self) and name not in vars(twin):
            put_mask(twin, copy.deepcopy(vars(self)[name], memo), name)
        return twin

    own = {"forward": forward, "extra_repr": extra_repr, "_load_from_state_dict": load, "_plain": plain}
    own |= {"__reduce_ex__": reduce, "__setstate__": set_state, "_mask_name": name}
    own |= {"__deepcopy__": deep_copy} if hasattr(plain, "__deepcopy__") else {}
    own |= {option: value for option, value in OPTIONS.get(name, {}).items() if not hasattr(plain, option)}
    named = {each: getattr(plain, each) for each in ("__module__", "__qualname__", "__doc__")}
    made = type(plain)(plain.__name__, (plain,), own | named)
    # `torch.load` sets the state of classes that it knows; which has been allowed by the name of the plain one
    torch.serialization.add_safe_globals([(made, f"{__name__}.{name}.{plain.__module__}.{plain.__qualname__}")])
    return made


def rebuild_masked(plain: Any, name: str, *args: Any) -> Any:
    """Begin the copy of a masked module; its state follows."""
    made = masked_class(plain, name)
    return made.__new__(made, *args)


def rebuild_with_mask(mask: Mask, name: str, rebuild: Any, *args: Any) -> Any:
    """Begin the copy of a masked module whose class says itself how it is copied."""
    made = rebuild(*args)
    put_mask(made, mask, name)
    return made
