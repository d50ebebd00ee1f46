"""`thin`: find the groups of units of a model, try them, and make the model thin."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from torch import nn

from mrreg.errors import check_int, check_type, invalid_state, quoted, warn
from mrreg.masks.blocks import switched
from mrreg.masks.groups import UnitGroup
from mrreg.masks.install import Model, MultirateMask, check_thinnable, install
from mrreg.module_utils import within
from mrreg.thinning.blocks import find_blocks, switches
from mrreg.thinning.counts import Shares, takes, with_counts
from mrreg.thinning.grouping import find
from mrreg.thinning.paths import Path, Ran, copied, forward
from mrreg.thinning.report import ThinEntry, ThinReport, fitting, signature
from mrreg.thinning.trial import admit, draws, thinned
from mrreg.thinning.twin import WHERE, Inputs, named_tensors, read_inputs, state_kept

Choose = Callable[[list[ThinEntry]], list[ThinEntry]]
FindBlocks = Callable[[nn.Module, Inputs, Path], list[ThinEntry]]


def thin(
    model: Model,
    p: Shares | None = None,
    k: int = 5,
    example_inputs: Any = None,
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    rescale: bool = True,
    boost: float | None = None,
    plan: ThinReport | None = None,
) -> tuple[Model, ThinReport]:
    """Make a model train a random sub-network on most steps: it regularizes as dropout does, and computes less.

    On k - 1 of k steps a share p of the units of each group is absent, the same for the whole batch: attention heads,
    hidden units of feed-forward layers, inner channels of convolution blocks with their BatchNorm, ... On the k-th step
    all are present, and those that were absent move by `boost` times the optimizer's update. With n units of which m
    are kept, consumers read n/m times what the kept ones compute. Evaluation always uses the whole network.

    Groups are found in a float64 copy with random weights, and admitted if the model's own code computes the same with
    absent units left out as with the columns that read them at zero. The model and all random states are only read.

    `mrreg.attach(optimizer, model)` drives the steps; `mrreg.unwrap(model)` gives the plain model back.

    Args:
        model: Any module, on the device where it will be trained. It is changed in place and returned: its class stays
            for `isinstance`, and so do its parameters and its state dict.
        p: Share of units that are absent, in [0, 1]; at least one unit stays, and convolutions keep a multiple of
            eight channels where that is near. A number is for the kinds "hidden", "heads" and "channels"; None means
            0.125 for hidden units and channels, 0.25 for heads. A mapping gives p for kinds ("inputs" and "stream",
            the residual sum, too) and for glob patterns of module paths, which go before kinds; what it does not name
            is not dropped. "blocks" takes a number, for all modules with a skip connection of their own, or a mapping
            from patterns of module paths to numbers: those modules are not called while they are off, and round(sum
            of p) of them are.
        k: Steps per cycle, at least 1. Paper: k.
        example_inputs: Arguments of one training forward: a tensor, a tuple of arguments, or a mapping of keyword
            arguments. A batch of one or two short examples is enough. Needed unless there is a `plan`.
        include: Kinds and glob patterns: only these groups lose units. A pattern takes a group if it matches the path
            of a module that makes its units; "inputs" and "stream" have to be named by kind.
        exclude: Kinds and glob patterns of groups that lose none.
        rescale: Multiply what is read of the kept units by n/m on masked steps, as `nn.Dropout` does.
        boost: Factor of the absent units' update on the k-th step, at least 0. None: k where updates are multiples of
            the gradient (SGD without momentum), else 1; `attach` finds out, and `print(handle)` says which.
        plan: The report of an earlier call for the same model: nothing is searched or tried, and `p`, `include` and
            `exclude` are not read.

    Returns:
        The model and a `ThinReport`: for each group its kind, its units, how many are kept, and why if none is dropped.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of range, `example_inputs` is missing, a name matches no group (those there are
            get listed), or the plan is that of another model.
        RuntimeError: If the model is thin already, has parameters without a shape, or cannot be copied.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> layers = [nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)]
        >>> model = nn.Sequential(*layers)
        >>> model, report = mrreg.thin(model, p=0.5, k=5, example_inputs=torch.randn(2, 784))
        >>> [(name, entry.kind, entry.kept) for name, entry in report.items() if entry.admitted]
        [('0', 'hidden', 500), ('2', 'hidden', 500)]
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> handle = mrreg.attach(optimizer, model)

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 5.
        Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 2014.
    """
    check_thinnable(WHERE, model)
    include, exclude = (tuple(each) if isinstance(each, Iterator) else each for each in (include, exclude))
    k = check_int(WHERE, "k", k)
    check_type(WHERE, "rescale", rescale, bool, "True or False")
    if plan is None:
        chosen: dict[str, Any] = {"p": p, "include": include, "exclude": exclude}
        report = search(model, k, example_inputs, partial(with_counts, **chosen), partial(find_blocks, **chosen))
        _warn_of_choice(report, p, include)
    else:
        report = fitting(model, plan, k)
    if report.dropouts:
        remedy = "Set its p to 0; mrreg.swap_dropout instead of thin replaces what are modules, and may leave out less"
        warn(f"{WHERE}: the model still has dropout, in {quoted(report.dropouts)}. {remedy}.", UserWarning)
    if not report.groups:
        warn(f"{WHERE}: no group of units loses any, so training goes on as before. print(report) says why.")
    install(model, report.groups, report.overrides, k=k, boost=boost, rescale=rescale, flops=report.flops)
    return model, report


def _warn_of_choice(report: ThinReport, p: Shares | None, include: Iterable[str] | None) -> None:
    """Warn once of names under which no group loses units, and of a p that leaves one unit."""
    asked = dict(p) if isinstance(p, Mapping) else {}
    idle = []
    for name in dict.fromkeys([*(name for name, share in asked.items() if share), *(include or ())]):
        entries = [entry for entry in report.values() if takes(name, entry)]
        if not any(entry.admitted for entry in entries):
            reasons = sorted({entry.reason for entry in entries}) or ["the model has none"]
            idle.append(f"{name!r}: {'; '.join(reasons)}")
    if idle and report.groups:
        warn(f"{WHERE}: no group loses units for {'. For '.join(idle)}.")
    if 1 in (asked.values() if asked else [p]):
        warn(f"{WHERE}: p is 1, which leaves one unit of each group. Choose a smaller one, such as 0.5.", UserWarning)


def search(
    model: nn.Module, k: int, example_inputs: Any, choose: Choose, blocks_of: FindBlocks = lambda *_: []
) -> ThinReport:
    """Find the groups and blocks, try those that `choose` lets lose units, and count what is saved."""
    if meta := [name for name, tensor in named_tensors(model).items() if tensor.is_meta]:
        remedy = "Search on a copy that has values, and give its report as the plan."
        raise invalid_state(WHERE, f"the model has no values for {quoted(meta)}, which are on the meta device", remedy)
    with copied(model, example_inputs) as (twin, paths, plain):
        found = find(twin, read_inputs(example_inputs))
        found = [replace(each, reason=each.reason or unfit(model, each)) for each in found]
        found += blocks_of(twin, read_inputs(example_inputs), paths[0])
        groups, inputs = choose(sorted(found, key=lambda each: bool(each.reason))), read_inputs(example_inputs)
        asked = [group for group in groups if not group.reason]
        units, blocks = ([each for each in asked if bool(each.blocks) == off] for off in (False, True))
        tried, overrides = admit(twin, inputs, units, paths)
        entries = {each.name: each for each in (*groups, *tried, *(replace(each, admitted=True) for each in blocks))}
        units = [each for each in tried if each.admitted]
        for own, parameter in zip(twin.parameters(), model.parameters(), strict=True):
            own.requires_grad_(parameter.requires_grad)
        whole = _flops(twin, inputs, paths[0])
        with thinned(twin, units, overrides, {group.name: draws(group, 0)[0] for group in units}):
            masked = _flops(twin, inputs, paths[0])
            for group in blocks:
                with switched(twin, group.blocks, switches(range(group.units))):
                    rest = _flops(twin, inputs, paths[0])
                masked = rest + round((masked - rest) * group.kept / group.units)
    _warn_of_example(paths, plain)
    dropouts = dict.fromkeys(path or "the model itself" for path, _ in plain.dropped)
    return ThinReport(entries, overrides, k, (masked, whole), signature(model), list(dropouts))


def _flops(twin: nn.Module, inputs: Inputs, path: Path) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes longer than mrreg

    with state_kept(twin), FlopCounterMode(display=False) as counter:
        if leaving := [tensor.sum() for tensor in forward(twin, inputs, path)[0] if tensor.requires_grad]:
            with suppress(RuntimeError):  # then those of the backward pass are not counted
                sum(leaving).backward()  # type: ignore[union-attr]
    twin.zero_grad()
    return int(counter.get_total_flops())


def _warn_of_example(paths: Sequence[Path], plain: Ran) -> None:
    """Warn where the example inputs cannot show all that a forward does."""
    if others := [path.name for path in paths if path.other]:
        problem = f"the forward takes another path{' and'.join(others)}, and may take more"
        warn(f"{WHERE}: {problem}. Groups were tried on these, and on no others.", UserWarning)
    if plain.singles:
        problem = f"on example_inputs, {' and '.join(plain.singles)} runs along a dimension of one element"
        warn(f"{WHERE}: {problem}, where it hides what it mixes. Give larger example_inputs.", UserWarning)


def unfit(model: nn.Module, group: UnitGroup) -> str:
    """Tell if a group has entries in a layer with a mask of its own, or with gradients that cannot be held."""
    reasons = {p: "has a MultirateMask of its own" for p, m in model.named_modules() if isinstance(m, MultirateMask)}
    embeddings = [(p, m) for p, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    reasons |= {path: "has sparse gradients" for path, module in embeddings if module.sparse}
    places = product(reasons, group.slots)
    return next((f"{path!r} {reasons[path]}" for path, slot in places if within(path, slot.name)), "")
