"""Groups of units where a model has dropout."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from mrreg.convert.sites import ATTENTION, Option, Site, find_choices
from mrreg.errors import check, check_int, warn
from mrreg.masks.install import check_thinnable, install
from mrreg.module_utils import join
from mrreg.thinning.build import search
from mrreg.thinning.counts import kept
from mrreg.thinning.paths import copied
from mrreg.thinning.report import ThinEntry, ThinReport

WHERE = "swap_dropout"
DROP_PATH = re.compile(r"drop_?path|stochastic_?depth", re.IGNORECASE)
DROPOUTS = nn.modules.dropout._DropoutNd
NO_ZEROS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
TAKEN = "the units beside it already stand for another dropout"
HELD = "Masks are held for a cycle: code that needs fresh noise at every forward (Monte Carlo dropout) gets none."


@dataclass(frozen=True)
class Swap:
    """Outcome for one source of dropout."""

    what: str
    masks: Mapping[str, str]  # kind of the units that are absent in its place, by layer; empty where it was left
    reason: str = ""

    @property
    def replaced(self) -> bool:
        """True if masks have replaced it."""
        return bool(self.masks)

    def __str__(self) -> str:
        masks = ", ".join(f"{kind} mask on {path}" for path, kind in self.masks.items())
        return f"{self.what} -> {masks or f'left: {self.reason}'}"


class Report(dict[str, Swap]):
    """Outcomes for all sources of dropout by their paths in the model; printed, one line each."""

    def __init__(self, swaps: Mapping[str, Swap], thin: ThinReport | None = None) -> None:
        super().__init__(swaps)
        self.thin = thin  # the groups that stand for some

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        replaced = sum(swap.replaced for swap in self.values())
        lines = [f"{replaced} of {len(self)} dropouts replaced by masks"]
        lines += [f"  {path:<{width}}  {swap}" for path, swap in self.items()]
        lines += [HELD] if replaced else []
        lines += [self.thin.summary()] if self.thin else []
        return "\n".join(lines)


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
    tried: a float64 copy of the model has to compute the same as with these units dropped. The model is then as if made
    by `thin`. What is left stays as it is, and the report says why: dropout in functions, on attention probabilities,
    beside layers that cannot be followed; for DropPath it says which blocks `thin` can have off for a cycle.

    Args:
        model: A model with dropout. Modules that are replaced become `nn.Identity`, so that paths stay as they were.
        k: Steps per cycle, at least 1. Paper: k.
        example_inputs: Arguments of one training forward: a tensor, a tuple of positions or a mapping of keywords.
        rescale: None or True divides what is kept by its share, as nn.Dropout does; a dropout is left if no weight can.
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
    check_thinnable(WHERE, model)
    k = check_int(WHERE, "k", k)
    check(isinstance(rescale, bool | None), WHERE, "rescale", "None, True or False", rescale, kind=TypeError)
    check(example_inputs is not None, WHERE, "example_inputs", "what one training forward takes", None)
    sites = dict(_sites(model))
    with copied(model, example_inputs, WHERE) as (twin, paths, plain):
        find_choices(model, twin, example_inputs, paths, sites, rescale is not False)
    others = dict(_elsewhere(model, plain.dropped))
    chosen, thin = _search(model, k, example_inputs, sites)
    report = Report({path: _outcome(site, chosen.get(path)) for path, site in sites.items()} | others, thin)
    if thin is None:
        told = f"no mask was put anywhere: {report}" if report else "the model has no dropout. Call mrreg.thin"
        warn(f"{WHERE}: {told}.")
        return model, report
    thin.dropouts = tuple(path for path in thin.dropouts if path not in chosen)  # the others are still on
    install(model, thin.groups, thin.overrides, k=k, boost=boost, rescale=rescale is not False, flops=thin.flops)
    put_out = {module: nn.Identity().train(module.training) for module in map(model.get_submodule, chosen)}
    for parent in list(model.modules()):
        parent._modules.update({name: put_out[each] for name, each in parent._modules.items() if each in put_out})
    return model, report


def _sites(model: nn.Module) -> Iterator[tuple[str, Site]]:
    """Yield the dropouts that are modules, or arguments of one."""
    for path, module in model.named_modules():
        if isinstance(module, DROPOUTS):
            stock = type(module).forward.__module__.startswith("torch.nn.")  # whatever else a subclass changes
            reason = "" if stock else "its class computes something else than torch's dropout"
            reason = "it sets units to a value other than zero" if isinstance(module, NO_ZEROS) else reason
            yield path, Site(f"{type(module).__name__}(p={module.p})", module.p, reason if module.p else "p is 0")
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout:
            call = f'{{"{path}": {module.dropout:g}}}, structure="input", parameters=["weight_ih_l[!0]*"]'
            inside = f"it is inside the layer; before this, by hand: mrreg.mask(model, {call})"
            why = ATTENTION if isinstance(module, nn.MultiheadAttention) else inside
            yield join(path, "dropout"), Site(f"{type(module).__name__}(dropout={module.dropout})", module.dropout, why)


def _search(
    model: nn.Module, k: int, inputs: Any, sites: Mapping[str, Site]
) -> tuple[dict[str, list[Option]], ThinReport | None]:
    """Give each dropout its units, but those that another one has, and leave those that the trial of all refuses."""
    taken: dict[tuple[str, int], tuple[str, int]] = {}
    chosen: dict[str, list[Option]] = {}
    for path, site in sites.items():
        places = {place: (each.group.name, each.group.units) for each in site.options for place in each.places}
        if places and all(taken.get(place, units) == units for place, units in places.items()):
            taken |= places
            chosen[path] = site.options
    while chosen:
        groups: dict[str, ThinEntry] = {}
        present: dict[str, float] = {}
        for path, options in chosen.items():
            for name, each in {option.group.name: option.group for option in options}.items():
                present[name] = present.get(name, 1.0) * (1 - sites[path].p)  # of several dropouts in a row
                groups[name] = replace(each, kept=kept(each, 1 - present[name]))

        def choose(found: list[ThinEntry], groups: Mapping[str, ThinEntry] = groups) -> list[ThinEntry]:
            asked = [groups.get(each.name) or each.refused(each.reason or "not asked for") for each in found]
            return list({each.name: each for each in (*asked, *groups.values())}.values())

        report = search(model, k, inputs, choose)
        refused = {name: report[name].reason for name in groups if not report[name].admitted}
        if not refused:
            return chosen, report
        for path, options in tuple(chosen.items()):
            if reason := next((refused[each.group.name] for each in options if each.group.name in refused), ""):
                sites[path].reason = reason
                del chosen[path]
    return {}, None


def _outcome(site: Site, options: list[Option] | None) -> Swap:
    if options is None:
        return Swap(site.what, {}, site.reason or TAKEN)
    masks: dict[str, str] = {}
    for each in options:
        read = [slot.name for slot in each.group.slots if slot.role == "consumer"]
        names = read if each.group.keeps_shape else [f"{each.group.name}."]
        masks |= {name.rpartition(".")[0] or name: each.word for name in names}
    return Swap(site.what, masks)


def _elsewhere(model: nn.Module, dropped: Mapping[tuple[str, str], float]) -> Iterator[tuple[str, Swap]]:
    """Yield what drops whole branches, for which `thin` has blocks, and the dropout in functions that are called."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        p = vars(module).get("drop_prob", vars(module).get("p"))
        if p and DROP_PATH.search(type(module).__name__):
            call = f'mrreg.thin(model, p={{"blocks": {{"{name.rpartition(".")[0]}": {p:g}}}}}, ...)'
            why = f"it drops a whole branch; {call} has the block around it off for a cycle"
            yield name, Swap(f"DropPath(p={p:g})", {}, why)
    for (name, function), p in dropped.items():
        if not isinstance(modules.get(name), DROPOUTS | nn.MultiheadAttention | nn.RNNBase):
            why = "only modules can be replaced: make it an nn.Dropout, or set its p to 0 and use mrreg.thin"
            why = ATTENTION if function == "scaled_dot_product_attention" else why
            yield f"{name}: {function}()".removeprefix(": "), Swap(f"{function}() with p={p:g}", {}, why)
