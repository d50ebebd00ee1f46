"""Make a model thin in place: its class stays for whoever asks, and its forward leaves absent units out."""

import copyreg
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from mrreg.errors import invalid_argument, invalid_state
from mrreg.masks import thin_call
from mrreg.masks.attention import MultiheadAttention
from mrreg.masks.block_forward import put_in, take_out
from mrreg.masks.slots import AttributeOverride, UnitGroup
from mrreg.masks.thin_mask import NAME, ThinMask
from mrreg.masks.thin_tensor import WHERE

Model = TypeVar("Model", bound=nn.Module)


def install(
    model: Model,
    groups: Iterable[UnitGroup],
    overrides: Iterable[AttributeOverride] = (),
    *,
    k: int = 5,
    boost: float | None = None,
    rescale: bool = True,
    flops: tuple[int, int] | None = None,
    resident: bool = False,
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
        resident: Keep the kept entries in the place of parameters for a cycle, as long as nobody looks.

    Raises:
        ValueError: If the model is thin already, has a forward of its own beside its class's, or is compiled.
    """
    check_thinnable(model)
    mask = ThinMask(model, groups, overrides, k, boost, rescale, flops, resident)
    vars(model)[NAME] = mask
    if mask.block_group is not None:
        put_in(model, mask.block_group.blocks, mask)
    for module, *_ in mask.places(model):
        if type(module) is nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
    kind: Any = type(model)
    model.__class__ = thin_class(kind)
    return model


def check_thinnable(model: nn.Module) -> None:
    """Raise if a model is thin already, or its class does not say what it computes."""
    if any(NAME in vars(module) for module in model.modules()):
        raise invalid_state(WHERE, "the model is thin already", "Call mrreg.unwrap(model) first.")
    if "forward" in vars(model) or isinstance(model, (torch.jit.ScriptModule, nn.DataParallel)):
        rule, remedy = "a module whose class defines its forward", "Make it thin before anything replaces its forward."
        raise invalid_argument(ValueError, WHERE, "model", rule, type(model).__name__, remedy)


def uninstall(model: nn.Module) -> None:
    """Give a thin model its own class back; an optimizer that drives its mask finds nothing to hold."""
    plain = vars(type(model)).get("_plain")
    if plain is None:
        problem = f"{type(model).__name__} has been given another class since the model became thin"
        raise invalid_state("unwrap", problem, "Unwrap before fully_shard.")
    mask: ThinMask = vars(model)[NAME]
    mask.forget()
    del vars(model)[NAME]
    take_out(model)
    model.__class__ = plain
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]


@functools.cache
def thin_class(plain: Any) -> Any:
    """Return the subclass of a class whose forward leaves absent units out."""

    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mask = vars(self).get(NAME)
        if mask is None:  # made by the class, such as a slice of a Sequential
            return plain.forward(self, *args, **kwargs)
        return thin_call.run(mask, self, plain.forward, args, kwargs)

    def extra_repr(self: nn.Module) -> str:
        mask = vars(self).get(NAME)
        told = plain.extra_repr(self)
        return told if mask is None else ", ".join(filter(None, [told, str(mask)]))

    def reduce(self: nn.Module, protocol: Any) -> Any:
        """Pickle by the name of the plain class."""
        rebuild, args, *state = plain.__reduce_ex__(self, max(protocol, 2))
        if rebuild is copyreg.__newobj__:  # type: ignore[attr-defined]
            return rebuild_thin, (plain, *args[1:]), *state
        return rebuild, args, *state

    own = {"forward": forward, "extra_repr": extra_repr, "__reduce_ex__": reduce, "_plain": plain}
    named = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(plain)(plain.__name__, (plain,), own | named)
    # `torch.load` sets the state of classes that it knows; which has been allowed by the name of the plain one
    torch.serialization.add_safe_globals([(made, f"{__name__}.{plain.__module__}.{plain.__qualname__}")])
    return made


def rebuild_thin(plain: Any, *args: Any) -> Any:
    """Begin the copy of a thin model; its state follows."""
    made = thin_class(plain)
    return made.__new__(made, *args)
