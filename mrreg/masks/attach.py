"""Drive the masks of a model from the steps of its optimizers."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from mrreg.distributed.checks import check_model
from mrreg.distributed.join import compare_after_join
from mrreg.errors import check, check_int, check_type, invalid_state, quoted, warn
from mrreg.masks.clock import CLOCK, read_clock
from mrreg.masks.hooks import MaskStepHooks, check_fast
from mrreg.masks.mask import Mask
from mrreg.masks.optimizers import WHERE, inner_optimizer
from mrreg.masks.status import masks_in, positions
from mrreg.module_utils import join, within


class Attachment(AbstractContextManager["Attachment"]):
    """Handle of `attach`: `remove()` makes the masks dense and undriven again; also a context manager.

    Printed, it says which masks are driven by which optimizer, and where they are in their cycle.
    """

    def __init__(self, step_hooks: list[MaskStepHooks]) -> None:
        self._hooks = step_hooks

    def __repr__(self) -> str:
        lines = [line for _, lines in positions(self._hooks) for line in lines]
        return "\n".join(["Attachment (", *lines, ")"]) if lines else "Attachment (drives nothing)"

    def state(self) -> dict[str, float]:
        """Return numbers for a logger: where the masks are in their cycle, and how much is present.

        "mask/step" counts the optimizer's steps, "mask/cycle" whole cycles; "mask/phase" is the position in the cycle
        of "mask/k" steps, "mask/steps_to_joint" how many come before the joint step, and "mask/present" the share of
        the masked parameters' entries that the next training forward uses (where entries are drawn singly, the
        expected one). "mask/flops" is the share of a plain step's FLOPs that the next step computes, where `mrreg.thin`
        has counted them. "mask/masked_seconds" and "mask/joint_seconds" are medians of the last 100 steps of a kind,
        from the end of the step before: all that the loop does in between counts.
        With several optimizers or lengths of cycle the keys begin with "mask0", "mask1", ...
        """
        found = list(enumerate(numbers for numbers, _ in positions(self._hooks)))
        return {f"mask{i if found[1:] else ''}/{key}": n for i, each in found for key, n in each.items()}

    def remove(self) -> None:
        """Leave the optimizers and the model without a trace; a second call does nothing."""
        for hooks in self._hooks:
            hooks.stop()
        self._hooks = []

    def __exit__(self, *_: object) -> None:
        self.remove()


def attach(
    optimizer: Optimizer | Iterable[Optimizer],
    model: nn.Module | Iterable[nn.Module],
    seed: int = 0,
    *,
    joint: bool = True,
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
        joint: False for cycles without a joint step: every step is masked, and `boost` has no use. With k = 1 each step
            draws a new subset, as dropout does; units that are left out still cost nothing. It is not saved.

    Returns:
        A handle that prints the position in the cycle; `handle.remove()`, or the end of `with handle:`, detaches it.

    Raises:
        TypeError: If an argument is of the wrong kind, or the optimizer cannot hold single entries.
        ValueError: If there is no mask, or a masked parameter is in no optimizer, in two, or shared with the outside.
        RuntimeError: If the optimizer is attached already, a module was changed since it got its mask, or a
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
        Where masks are driven already, the new handle takes over: the old one is removed, whatever it drives. If attach
        raises, nothing has changed. Copies of an attached optimizer have no hooks (torch drops them): attach them to
        the copy of the model.
    """
    optimizers = list(dict.fromkeys(map(inner_optimizer, _several(optimizer))))
    whole = _one_model(model)
    seed = check_int(WHERE, "seed", seed, least=0)
    check_type(WHERE, "joint", joint, bool, "True or False")
    check_model(WHERE, whole, switches=False)
    for each in optimizers:
        owners = (getattr(hook, "__self__", None) for hook in each._optimizer_step_post_hooks.values())
        if any(isinstance(owner, MaskStepHooks) for owner in owners):
            problem = f"this {type(each).__name__} is attached already"
            remedy = "Call remove() on its handle first; several models go into one call, attach(optimizer, [a, b])."
            raise invalid_state(WHERE, problem, remedy)
    step_hooks = [MaskStepHooks(each, seed, joint) for each in optimizers]
    masks = list(masks_in(whole))
    remedy = "Mask a layer with MultirateMask, or make the model thin, first."
    check(masks, WHERE, "model", "a module with a mask", type(whole).__name__, remedy)
    for name, mask, _first in masks:
        mask.check_fit(mask.root())
        _refuse_ties(whole, name, mask)
        owner = _owner(optimizers, name, mask)
        if owner is not None:
            step_hooks[owner].masks.append(mask)
            step_hooks[owner].roots.append(mask.root())
    pairs, plain = list(zip(optimizers, step_hooks, strict=True)), dict[Mask, frozenset[int]]()
    for each, hooks in pairs:
        read_clock(WHERE, each.param_groups, hooks.seed, hooks.masks)
        plain |= hooks.examine(each)
    handle = Attachment(step_hooks)
    for name, mask, first in masks:
        if mask.handle is not None:
            mask.handle.remove()
        mask.path, mask.first = name, first
    for each, hooks in pairs:
        compare_after_join(whole, each, WHERE, lambda optimizer: optimizer.param_groups[0].get(CLOCK, 0))
        hooks.register(each)
        for mask in hooks.masks:
            mask.handle, mask.leave_step = handle, hooks.leave
            mask.plain = plain[mask]
        hooks.sync_masks(each)
    _warn_if_never_absent(mask for _, mask, _ in masks if joint)
    return handle


def _warn_if_never_absent(masks: Iterable[Mask]) -> None:
    if any(mask.groups and mask.k == 1 and mask.boost == 1 for mask in masks):
        problem = "with k=1 and boost=1 every step is a joint one, so no unit is ever absent and training is as before"
        warn(f"{WHERE}: {problem}. Choose a k of at least 2, or joint=False for a new subset at every step.")


def _several(optimizer: Any) -> list[Any]:
    single = isinstance(optimizer, nn.Module) or not isinstance(optimizer, Iterable)
    several = [optimizer] if single else list(optimizer)
    check(several, WHERE, "optimizer", "at least one optimizer", several)
    return several


def _one_model(model: Any) -> nn.Module:
    if not isinstance(model, list | tuple) or not all(isinstance(each, nn.Module) for each in model):
        return check_type(WHERE, "model", model, nn.Module, "an nn.Module, or a list of them")
    return model[0] if len(model) == 1 else nn.ModuleList(model)


def _owner(optimizers: list[Optimizer], name: str, mask: Mask) -> int | None:
    """Return the position of the optimizer that has a mask's parameters; if all are frozen, that of the only one."""
    owners: dict[int, list[str]] = {}
    lost = []
    for inner, p in mask.masked_parameters():
        path = join(name, inner)
        groups = [(i, group) for i, each in enumerate(optimizers) for group in each.param_groups]
        holders = [(i, group) for i, group in groups if any(p is other for other in group["params"])]
        rule, remedy = "one for each masked parameter", "Attach the one that trains it."
        check(len(holders) < 2, WHERE, "optimizer", rule, f"{len(holders)} that have {path!r}", remedy)
        for i, group in holders:
            check_fast(group, path)
            owners.setdefault(i, []).append(path)
        if not holders and p.requires_grad:
            lost.append(path)
    remedy = "Give them to the optimizer before attach, or attach all optimizers at once."
    check(not lost, WHERE, "optimizer", "the owner of every masked parameter", f"none for {quoted(lost)}", remedy)
    remedy = "A mask has one clock: give all its parameters to one optimizer."
    check(len(owners) < 2, WHERE, "optimizer", f"one for all parameters of the mask {name!r}", owners, remedy)
    return next(iter(owners), 0 if len(optimizers) == 1 else None)


def _refuse_ties(model: nn.Module, name: str, mask: Mask) -> None:
    """Refuse a masked parameter that is used outside its mask: it would be masked in one place and not in another."""
    inside = {id(p) for _, p in mask.masked_parameters()}
    holder = model.get_submodule(name)
    places = [path for path, module in model.named_modules(remove_duplicate=False) if module is holder]
    found = [(id(p), path) for path, p in model.named_parameters(remove_duplicate=False) if id(p) in inside]
    masked = {key: path for key, path in reversed(found) if any(within(place, path) for place in places)}
    for key, path in found:
        fits, remedy = any(within(place, path) for place in places), "Mask their common parent instead."
        check(fits, WHERE, masked[key], "used inside its mask only", f"tied to {path}", remedy)
