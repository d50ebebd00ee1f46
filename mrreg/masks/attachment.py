"""Drive the masks of a model from the steps of its optimizers."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.checks import SHARD_OUTSIDE, check_engine, check_model, is_fully_sharded
from mrreg.errors import check_int, invalid_argument, invalid_state, quoted
from mrreg.masks.base import CyclicMask
from mrreg.masks.module import MultirateMask
from mrreg.masks.status import collect_state, describe, positions
from mrreg.masks.step_hooks import WHERE, MaskStepHooks, check_fast
from mrreg.masks.thin_mask import thin_mask
from mrreg.module_utils import join, within

REFUSED = {
    "LBFGS": "it moves along directions that mix all entries and steps several times per call",
    "Muon": "it orthogonalizes whole matrices, so that no entry has an update of its own",
    "Adafactor": "its state is shared by rows and columns, so that held entries change with their neighbours",
    "SparseAdam": "it needs sparse gradients, in which single entries cannot be held",
}


class Attachment:
    """What `attach` returns: `remove()` makes the masks dense and undriven again; also a context manager.

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
        expected one). With several optimizers or lengths of cycle the keys begin with "mask0", "mask1", ...
        """
        return collect_state(positions(self._hooks, self._names))

    def remove(self) -> None:
        """Leave the optimizers and the model without a trace; a second call does nothing."""
        for hooks in self._hooks:
            hooks.stop()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def attach(optimizer: Optimizer | Iterable[Optimizer], model: nn.Module, seed: int = 0) -> Attachment:
    """Let the steps of an optimizer drive the masks of a model.

    The clock of a mask counts the completed steps of the optimizer that owns its parameters. It is kept in the
    optimizer's `param_groups`, so that saving and loading the optimizer saves and sets the masks; a clock and a seed
    that are there already (a loaded or copied optimizer) go on. The training loop does not change.

    Args:
        optimizer: One optimizer, or several that share the model. Any whose update is element-wise.
        model: The model with the masks.
        seed: Chooses the slow subsets, together with the position of a parameter in the model and the cycle.

    Returns:
        A handle: `handle.remove()` takes everything back; it is a context manager too.

    Raises:
        TypeError: If an argument is of the wrong kind, or the optimizer cannot hold single entries.
        ValueError: If there is no mask, or a masked parameter is in no optimizer, in two, or shared with the outside.
        RuntimeError: If the optimizer or a mask is attached already, `fully_shard` was applied inside a mask, or a
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
        Plain DistributedDataParallel is right for masks; apply `fully_shard` to masks or to modules around them, before
        the optimizer is built.

    Note:
        Copies of an attached optimizer have no hooks (torch drops them): attach them to the copy of the model.
    """
    optimizers = [_real(o) for o in _several(optimizer)]
    if not isinstance(model, nn.Module):
        raise invalid_argument(TypeError, WHERE, "model", "an nn.Module", model)
    seed = check_int(WHERE, "seed", seed, least=0)
    check_model(WHERE, model, switches=False)
    step_hooks = [MaskStepHooks(o, seed) for o in optimizers]
    first, names = 0, {}
    for name, mask in _masks(model):
        names[id(mask)] = name
        owner = _owner(optimizers, model, name, mask)
        if owner is not None:
            step_hooks[owner].masks.append((mask, first))
            step_hooks[owner].roots.append(mask._root())
        first += mask._draws()
    for o, hooks in zip(optimizers, step_hooks, strict=True):
        hooks.read_clock(WHERE, o.param_groups)  # all of them before the first one starts
    for o, hooks in zip(optimizers, step_hooks, strict=True):
        hooks.start(o)
    return Attachment(step_hooks, names)


def _several(optimizer: Any) -> list[Any]:
    """One optimizer or several, each once."""
    several = (
        [optimizer] if isinstance(optimizer, nn.Module) or not isinstance(optimizer, Iterable) else list(optimizer)
    )
    if not several:
        raise invalid_argument(ValueError, WHERE, "optimizer", "at least one optimizer", several)
    return list(dict.fromkeys(several))


def _real(optimizer: Any) -> Optimizer:
    """The torch optimizer in what the user holds, if it can be driven."""
    check_engine(WHERE, "optimizer", optimizer)
    while not hasattr(optimizer, "_optimizer_step_post_hooks"):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            rule = "a torch.optim.Optimizer with step hooks, or wrap one as `.optimizer`"
            raise invalid_argument(TypeError, WHERE, "optimizer", rule, type(optimizer).__name__)
        optimizer = inner
        check_engine(WHERE, "optimizer", optimizer)
    for kind in type(optimizer).__mro__:
        if kind.__name__ in REFUSED:
            rule = "an optimizer whose update is element-wise"
            raise invalid_argument(
                TypeError, WHERE, "optimizer", rule, kind.__name__, f"Not so here: {REFUSED[kind.__name__]}."
            )
    if any(
        getattr(hook, "__self__", None).__class__ is MaskStepHooks
        for hook in optimizer._optimizer_step_post_hooks.values()
    ):
        name = type(optimizer).__name__
        raise invalid_state(WHERE, f"this {name} is attached already", "Call remove() on its handle first.")
    return optimizer  # type: ignore[no-any-return]


def _masks(model: nn.Module) -> Iterator[tuple[str, CyclicMask]]:
    """The masks of a model in module order, none of them attached already."""
    each = [(name, m if isinstance(m, MultirateMask) else thin_mask(m)) for name, m in model.named_modules()]
    found = [(name, mask) for name, mask in each if mask is not None]
    if not found:
        rule, remedy = "a module with a mask", "Wrap a layer in MultirateMask, or make the model thin, first."
        raise invalid_argument(ValueError, WHERE, "model", rule, type(model).__name__, remedy)
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and isinstance(module.out_proj, MultirateMask):
            remedy = "Attention reads those weights itself: mask the attention with parameters=['out_proj.weight']."
            rule = "a module whose masks are called"
            raise invalid_argument(ValueError, WHERE, "model", rule, f"a mask on {join(name, 'out_proj')}", remedy)
    for name, mask in found:
        if isinstance(mask, MultirateMask):
            _refuse_sharding_inside(name, mask)
        if mask._attached:
            raise invalid_state(
                WHERE, f"the mask {name!r} is attached already", "Call remove() on the handle of its optimizer first."
            )
    return iter(found)


def _refuse_sharding_inside(name: str, mask: MultirateMask) -> None:
    """What is sharded inside a wrapper is still cut when the wrapper masks it."""
    for inner, module in mask.module.named_modules():
        if is_fully_sharded(module):
            path = ".".join(filter(None, (name, "module", inner)))
            raise invalid_state(WHERE, f"fully_shard was applied to {path!r}, inside a mask", SHARD_OUTSIDE)


def _owner(optimizers: list[Optimizer], model: nn.Module, name: str, mask: CyclicMask) -> int | None:
    """Which optimizer has a mask's parameters; None if they are frozen and in no optimizer."""
    _refuse_ties(model, mask)
    owners: dict[int | None, list[str]] = {}
    lost = []
    for own, p in mask._masked_parameters():
        path = join(name, own)
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
    """The position of the optimizer that has a parameter in a group of period 1."""
    for position, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            if any(p is other for other in group["params"]):
                check_fast(group, path)
                return position
    return None


def _refuse_ties(model: nn.Module, mask: CyclicMask) -> None:
    """A masked parameter that is used outside its mask would be masked in one place and not in the other."""
    inside = {id(p) for _, p in mask._masked_parameters()}
    wrapper = mask if isinstance(mask, MultirateMask) else None
    modules = list(model.named_modules(remove_duplicate=False))
    if wrapper is None:
        places = [path for path, module in modules if module is mask._root()]
    else:
        places = [join(path, "module") for path, module in modules if module is wrapper]
    every = list(model.named_parameters(remove_duplicate=False))
    for path, p in every:
        if id(p) in inside and not any(within(place, path) for place in places):
            own = next(n for n, q in every if q is p and any(within(place, n) for place in places))
            remedy = "Wrap their common parent instead."
            raise invalid_argument(ValueError, WHERE, own, "used inside its mask only", f"tied to {path}", remedy)
