"""Drive the masks of a model from the steps of its optimizers."""

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from mrreg.distributed.checks import SHARD_OUTSIDE, check_model, is_fully_sharded
from mrreg.errors import check_int, invalid_argument, invalid_state, quoted
from mrreg.masks.clock import KEYS
from mrreg.masks.hooks import WHERE, MaskStepHooks, check_fast, driving
from mrreg.masks.layer_mask import LayerMask
from mrreg.masks.mask import Mask
from mrreg.masks.module import MultirateMask
from mrreg.masks.optimizers import inner_optimizer, refuse_unfit
from mrreg.masks.status import collect_state, describe, masks_in, positions
from mrreg.masks.superseded import forget_superseded
from mrreg.module_utils import join, within

_drivers: "WeakKeyDictionary[Mask, ref[MaskStepHooks]]" = WeakKeyDictionary()


class Attachment:
    """Handle of `attach`: `remove()` makes the masks dense and undriven again; also a context manager.

    Printed, it says which masks are driven by which optimizer, and where they are in their cycle.
    """

    def __init__(self, step_hooks: list[MaskStepHooks], names: dict[int, str]) -> None:
        self._hooks = step_hooks
        self._names = names  # paths of the masks, by id

    def __repr__(self) -> str:
        return describe(positions(self._hooks, self._names))

    def state(self) -> dict[str, float]:
        """Return numbers for a logger: where the masks are in their cycle, and how much is present.

        "mask/step" counts the optimizer's steps, "mask/cycle" whole cycles; "mask/phase" is the position in the cycle
        of "mask/k" steps, "mask/steps_to_joint" how many come before the joint step, and "mask/present" the share of
        the masked parameters' entries that the next training forward uses (where entries are drawn singly, the
        expected one). "mask/flops" is the share of a plain step's FLOPs that the next step computes, where `mrreg.thin`
        has counted them. With several optimizers or lengths of cycle the keys begin with "mask0", "mask1", ...
        """
        return collect_state(positions(self._hooks, self._names))

    def remove(self) -> None:
        """Leave the optimizers and the model without a trace; a second call does nothing."""
        for hooks in self._hooks:
            hooks.stop()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def attach(
    optimizer: Optimizer | Iterable[Optimizer], model: nn.Module | Iterable[nn.Module], seed: int = 0
) -> Attachment:
    """Let the steps of an optimizer drive the masks of a model.

    The clock of a mask counts the completed steps of the optimizer that owns its parameters. It is kept in the
    optimizer's `param_groups`, so that saving and loading the optimizer saves and sets the masks; a clock and a seed
    that are there already (a loaded or copied optimizer) go on. The training loop does not change.

    Args:
        optimizer: One optimizer, or several that share the model. Any whose update is element-wise, which a trial on a
            small tensor finds out. A wrapper (Lookahead, sharpness-aware ones) is driven through its inner optimizer.
        model: The model with the masks, or a list of models that the optimizer trains.
        seed: Chooses the slow subsets, together with the position of a parameter in the model and the cycle.

    Returns:
        A handle that prints the position in the cycle; `handle.remove()`, or the end of `with handle:`, detaches it.

    Raises:
        TypeError: If an argument is of the wrong kind, or the optimizer cannot hold single entries.
        ValueError: If there is no mask, or a masked parameter is in no optimizer, in two, or shared with the outside.
        RuntimeError: If the optimizer is attached already, `fully_shard` was applied inside a mask, or a
            DistributedDataParallel was built while parameters that train had requires_grad=False.

    Example:
        >>> import torch, mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), mrreg.MultirateMask(nn.Linear(8, 2), p=0.5, k=5))
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> handle = mrreg.attach(optimizer, model)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(2, 4)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.param_groups[0]["mask_clock"]
        3

    Note:
        All ranks of a distributed training draw the same masks, without communication, whatever their random state.
        Plain DistributedDataParallel is right for masks, but blocks of thin models need `find_unused_parameters=True`.
        Apply `fully_shard` to masks or to modules around them, before the optimizer is built.

    Note:
        Masks that another optimizer drives are taken over: its handle does nothing any more, and its next step warns.
        If attach raises, nothing has changed.

    Note:
        Copies of an attached optimizer have no hooks (torch drops them): attach them to the copy of the model.
    """
    given = _several(optimizer)
    optimizers = list(dict.fromkeys(map(inner_optimizer, given)))
    whole = _one_model(model)
    seed = check_int(WHERE, "seed", seed, least=0)
    check_model(WHERE, whole, switches=False)
    for each in optimizers:
        if driving(each) is not None:
            problem = f"this {type(each).__name__} is attached already"
            remedy = "Call remove() on its handle first; several models go into one call, attach(optimizer, [a, b])."
            raise invalid_state(WHERE, problem, remedy)
    step_hooks = [MaskStepHooks(each, seed, is_wrapped=each not in given) for each in optimizers]
    masks = list(masks_in(whole))
    _check_masks(whole, {name: mask for name, mask, _ in masks})
    for name, mask, first in masks:
        _refuse_ties(whole, name, mask)
        owner = _owner(optimizers, name, mask)
        if owner is not None:
            step_hooks[owner].masks.append((mask, first))
            step_hooks[owner].roots.append(mask.root())
    for each, hooks in zip(optimizers, step_hooks, strict=True):
        hooks.read_clock(WHERE, each.param_groups)
        refuse_unfit(each, {id(p) for mask, _ in hooks.masks for _, p in mask.masked_parameters()})
    _start(optimizers, step_hooks)
    return Attachment(step_hooks, {id(mask): name for name, mask, _ in masks})


def _start(optimizers: list[Optimizer], step_hooks: list[MaskStepHooks]) -> None:
    """Let the hooks take the masks over from those that drive them now; all of them, or none."""
    groups = [group for each in optimizers for group in each.param_groups]
    clocks = [{key: group[key] for key in KEYS if key in group} for group in groups]
    pairs = list(zip(optimizers, step_hooks, strict=True))
    masks = [mask for hooks in step_hooks for mask, _ in hooks.masks]
    before = {mask: hooks for mask in masks if (known := _drivers.get(mask)) and mask.attached and (hooks := known())}
    try:
        for each, hooks in pairs:
            hooks.register(each)
        for each, hooks in pairs:
            hooks.sync_masks(each)
    except BaseException:
        for hooks in step_hooks:
            hooks.stop()
        for group, clock in zip(groups, clocks, strict=True):
            group.update(clock)
        for hooks in set(before.values()):
            if (old := hooks.optimizer()) is not None:
                hooks.sync_masks(old)
        raise
    for hooks in set(before.values()):
        hooks.release([mask for mask in masks if before.get(mask) is hooks])
    for each, hooks in pairs:
        forget_superseded(each)
        _drivers.update({mask: ref(hooks) for mask, _ in hooks.masks})


def _several(optimizer: Any) -> list[Any]:
    """Return one optimizer or several as a list."""
    single = isinstance(optimizer, nn.Module) or not isinstance(optimizer, Iterable)
    several = [optimizer] if single else list(optimizer)
    if not several:
        raise invalid_argument(ValueError, WHERE, "optimizer", "at least one optimizer", several)
    return several


def _one_model(model: Any) -> nn.Module:
    """Return one module that holds all models."""
    models = list(model) if isinstance(model, list | tuple) else [model]
    for each in models:
        if not isinstance(each, nn.Module):
            raise invalid_argument(TypeError, WHERE, "model", "an nn.Module, or a list of them", each)
    return models[0] if len(models) == 1 else nn.ModuleList(models)


def _check_masks(model: nn.Module, masks: Mapping[str, Mask]) -> None:
    """Refuse a model without masks, or with one that would not be called or meet what is sharded inside it."""
    if not masks:
        rule, remedy = "a module with a mask", "Wrap a layer in MultirateMask, or make the model thin, first."
        raise invalid_argument(ValueError, WHERE, "model", rule, type(model).__name__, remedy)
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and isinstance(module.out_proj, MultirateMask):
            remedy = "Attention reads those weights itself: mask the attention with parameters=['out_proj.weight']."
            rule = "a module whose masks are called"
            raise invalid_argument(ValueError, WHERE, "model", rule, f"a mask on {join(name, 'out_proj')}", remedy)
    for name, mask in masks.items():
        mask.check_fit(mask.root())
        # what is sharded inside a mask is still cut when the mask reads it
        for inner, module in mask.root().named_modules() if isinstance(mask, LayerMask) else ():
            if inner and is_fully_sharded(module):
                path = join(name, inner)
                raise invalid_state(WHERE, f"fully_shard was applied to {path!r}, inside a mask", SHARD_OUTSIDE)


def _owner(optimizers: list[Optimizer], name: str, mask: Mask) -> int | None:
    """Return the position of the optimizer that has a mask's parameters; None if they are frozen and in none."""
    owners: dict[int | None, list[str]] = {}
    lost = []
    for inner, p in mask.masked_parameters():
        path = join(name, inner)
        holder = _holder(optimizers, p, path)
        owners.setdefault(holder, []).append(path)
        if holder is None and p.requires_grad:
            lost.append(path)
    owners.pop(None, None)
    if lost:
        remedy = "Give them to the optimizer before attach, or attach all optimizers at once."
        raise invalid_argument(
            ValueError, WHERE, "optimizer", "the owner of every masked parameter", f"none for {quoted(lost)}", remedy
        )
    if len(owners) > 1:
        remedy = "A mask has one clock: give all its parameters to one optimizer."
        raise invalid_argument(
            ValueError, WHERE, "optimizer", f"one for all parameters of the mask {name!r}", owners, remedy
        )
    return next(iter(owners), None)


def _holder(optimizers: list[Optimizer], p: Tensor, path: str) -> int | None:
    """Return the position of the optimizer that has a parameter, in a group of period 1."""
    for position, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            if any(p is other for other in group["params"]):
                check_fast(group, path)
                return position
    return None


def _refuse_ties(model: nn.Module, name: str, mask: Mask) -> None:
    """Refuse a masked parameter that is used outside its mask: it would be masked in one place and not in another."""
    inside = {id(p) for _, p in mask.masked_parameters()}
    holder = model.get_submodule(name)
    places = [path for path, module in model.named_modules(remove_duplicate=False) if module is holder]
    every = list(model.named_parameters(remove_duplicate=False))
    for path, p in every:
        if id(p) in inside and not any(within(place, path) for place in places):
            masked = next(n for n, q in every if q is p and any(within(place, n) for place in places))
            remedy = "Wrap their common parent instead."
            raise invalid_argument(ValueError, WHERE, masked, "used inside its mask only", f"tied to {path}", remedy)
