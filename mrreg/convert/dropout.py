"""Groups of units where a model has dropout."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from warnings import warn

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.convert.report import Report, Swap
from mrreg.convert.sites import ATTENTION, Candidate, Site, find_sites
from mrreg.convert.wrap import check_model
from mrreg.errors import NoEffectWarning, check_int, invalid_argument
from mrreg.masks.groups import UnitGroup
from mrreg.masks.install import install
from mrreg.thinning.blocks import BLOCKS
from mrreg.thinning.branches import drop_probability
from mrreg.thinning.build import search
from mrreg.thinning.report import ThinReport

WHERE = "swap_dropout"
TAKEN = "the units beside it already stand for another dropout"


def swap_dropout(
    model: nn.Module,
    k: int = 5,
    example_inputs: Any = None,
    *,
    rescale: bool | None = None,
    boost: float | None = None,
) -> tuple[nn.Module, Report]:
    """Replace each dropout of a model by units that are absent for a cycle, with the same p, and report what was done.

    A dropout between the layers of a group of units that `thin` finds (hidden units, channels) becomes that group,
    whose absent units are not computed. Else the columns of the layers that read what it gives are zero while units are
    absent, or, before a residual sum or a norm, the rows of the layer that makes what it takes. Each replacement is
    tried: a float64 copy of the model has to compute the same as with these units dropped. Modules that drop a residual
    branch at random (DropPath, StochasticDepth) become branches that are off for a cycle, all with one probability.
    The model is then as if made by `thin`.

    Args:
        model: A model with dropout. Modules that are replaced become `nn.Identity`, so that paths stay as they were.
        k: Steps per cycle, at least 1. Paper: k.
        example_inputs: Arguments of the model: a tensor, a tuple of positions or a mapping of keywords.
        rescale: None or True divides what is kept by the share that is, as nn.Dropout does.
        boost: As in `thin`.

    Returns:
        The same model, and a `Report`: a dict from the path of each dropout to a `Swap`; printed, it says line by line
        what was replaced by what, what was left, and why. Its `thin` is the `ThinReport` of the groups, if there are.

    Raises:
        TypeError, ValueError: If an argument is of the wrong kind or out of range.
        RuntimeError: If the model cannot be copied to follow a forward.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> model, report = mrreg.swap_dropout(model, k=5, example_inputs=torch.randn(2, 4))
        >>> report["2"].masks
        {'0': 'hidden'}

    Note:
        nn.Dropout draws units for each example and place; here they are drawn for the whole batch and cycle.
    """
    check_model(WHERE, model)
    k = check_int(WHERE, "k", k)
    if example_inputs is None:
        rule, remedy = "what one training forward takes", "Units are found by following a forward."
        raise invalid_argument(ValueError, WHERE, "example_inputs", rule, example_inputs, remedy)
    inputs = example_inputs if isinstance(example_inputs, tuple | Mapping) else (example_inputs,)
    sites = find_sites(model, inputs)
    paths = {path: p for path, module in model.named_modules() if (p := drop_probability(module))}
    chosen, thin = _search(model, k, inputs, sites, paths)
    swaps = {path: _outcome(site, chosen.get(path)) for path, site in sites.items()} | dict(_branches(thin, paths))
    report = Report(swaps, thin=thin)
    modules = dict(model.named_modules())
    dropouts = [modules[path] for path in chosen]
    swaps = {each: nn.Identity().train(each.training) for each in dropouts}
    for parent in list(model.modules()):
        parent._modules.update({name: swaps[child] for name, child in parent._modules.items() if child in swaps})
    if thin is None:
        warn(NoEffectWarning(f"{WHERE}: no mask was put anywhere: {report}"), stacklevel=2)
        return model, report
    install(model, thin.groups, thin.overrides, k=k, boost=boost, rescale=rescale is not False, flops=thin.flops)
    if k == 1:
        problem = "with k=1 every step is a joint one: no unit is ever absent, and the dropouts are gone"
        warn(NoEffectWarning(f"{WHERE}: {problem}. Choose a k of at least 2."), stacklevel=2)
    return model, report


def _search(
    model: nn.Module, k: int, inputs: Any, sites: Mapping[str, Site], paths: Mapping[str, float]
) -> tuple[dict[str, Candidate], ThinReport | None]:
    """Choose groups for dropouts, and others where the trial refuses one, until it refuses none."""
    refused: set[str] = set()
    chosen: dict[str, Candidate] = {}

    def choose(found: list[UnitGroup]) -> list[UnitGroup]:
        chosen.clear()
        chosen.update(_assigned(sites, refused))
        ours = {group.name: group for each in chosen.values() for group in each.groups}
        return [*(ours.pop(group.name, group) for group in found), *ours.values()]

    while True:
        chosen.clear()
        if not paths and not _assigned(sites, refused):
            return {}, None
        report = search(model, k, inputs, choose, paths)
        names = {group.name for each in chosen.values() for group in each.groups}
        if not (now := {name for name in names if not report[name].admitted}):
            return chosen, report if report.groups else None
        refused |= now


def _assigned(sites: Mapping[str, Site], refused: set[str]) -> dict[str, Candidate]:
    """Give each dropout the first of its candidates whose units are free; those with few candidates come first."""
    taken: set[tuple[str, int]] = set()
    chosen: dict[str, Candidate] = {}
    for path, site in sorted(sites.items(), key=lambda item: len(item[1].candidates)):
        for each in site.candidates:
            if not each.places & taken and refused.isdisjoint(group.name for group in each.groups):
                taken |= each.places
                chosen[path] = each
                break
    return chosen


def _outcome(site: Site, candidate: Candidate | None) -> Swap:
    if candidate is not None:
        return Swap(site.what, candidate.masks, candidate.reason)
    return Swap(site.what, {}, site.reason or TAKEN)


def _branches(thin: ThinReport | None, paths: Iterable[str]) -> Iterator[tuple[str, Swap]]:
    """Yield what became of the modules that drop their branch at random."""
    for path in paths:
        entry = next((e for name, e in (thin or {}).items() if path in [name, *(b.name for b in e.blocks)]), None)
        off = entry is not None and entry.admitted
        told = f"{entry.units - entry.kept} of {entry.units} branches are off in a cycle" if off and entry else ""
        yield path, Swap("DropPath", {path: BLOCKS} if off else {}, told or (entry.reason if entry else "not tried"))


class FunctionalDropouts(TorchFunctionMode):
    """Notes dropout that is no module, which cannot be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Swap] = {}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        p = given.get("dropout_p", 0.0) if "attention" in name else given.get("p", args[1] if len(args) > 1 else 0.5)
        if ("dropout" in name or "attention" in name) and p:
            why = ATTENTION if "attention" in name else "only modules can be replaced; use mrreg.thin"
            self.found.setdefault(f"{name}()", Swap(f"{name}() with p={p:g}", {}, why))
        return func(*args, **given)
