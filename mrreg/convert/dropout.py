"""Masks where a model has dropout."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from warnings import warn

from torch import nn

from mrreg.convert.layers import DROPOUTS, register_linear_layers
from mrreg.convert.planner import ATTENTION, DropoutSite, MaskSpec, Placement, Planner, assign, is_fixed
from mrreg.convert.report import Report, Swap
from mrreg.convert.tracer import DROPOUT_FUNCTION, RandomCall, Trace, modules_called, trace_forward
from mrreg.convert.units import Choice, UnitPlan, find_units, owners
from mrreg.convert.value_graph import graph_from_structure
from mrreg.convert.wrap import check_model, replace_modules
from mrreg.errors import NoEffectWarning
from mrreg.masks.module import MultirateMask
from mrreg.masks.targets import hidden_pair
from mrreg.masks.thin_model import install
from mrreg.module_utils import common, has_stock_forward, join, within
from mrreg.thinning.blocks import BLOCKS
from mrreg.thinning.branches import DROP_PATH, drop_probability
from mrreg.thinning.report import ThinReport

WHERE = "swap_dropout"
UNCALLED = "this forward did not call it (attention often reads its p only)"
UNKNOWN = "its neighbours are only known inside nn.Sequential and torch's Transformer layers: pass example_inputs"
UNREACHED = "the forward holds its layers elsewhere too (in a closure or a list), where they cannot be replaced"
OWNED = "the layers beside it belong to groups of units that other dropouts became"
UNREAD = "what a forward does with it is only seen with example_inputs"
ATTENTION_FUNCTION = re.compile(r".*attention.*")


def swap_dropout(
    model: nn.Module,
    k: int = 5,
    example_inputs: Any = None,
    *,
    rescale: bool | None = None,
    boost: float | None = None,
) -> tuple[nn.Module, Report]:
    """Replace each dropout of a model by masks with the same p, in place, and report what was done.

    The layer that takes the dropout's output gets a mask over its input units. Where that output goes into a residual
    sum or a norm, the layer that made it gets a mask over its output units, bias included. Dropout between the two
    Linear layers of an nn.Sequential or of a Transformer layer, with an activation that maps 0 to 0, becomes one mask
    over the hidden units if nothing else in there needs a mask. A layer has one mask: where dropouts compete for
    layers, as many of them as possible are replaced.

    With `example_inputs`, a dropout between the layers of a group of units that `thin` finds (hidden units, channels)
    drops that group instead, and modules that drop a residual branch at random (DropPath, StochasticDepth) become
    branches that are off for a cycle, all with the same probability. Absent units and branches are not computed. The
    model is then as if made by `thin`, and masks over single layers are groups of it, so that a layer can have several.

    The report lists every source of dropout. Left are dropout on attention probabilities, which have no weight to mask;
    dropout beside frozen layers, whose masks no optimizer would drive; functions, for which the report has the `mask`
    call that does the same; whole branches or layers that a forward skips at random.

    Args:
        model: A model with dropout. Modules replaced by masks become `nn.Identity`, so that paths stay as they were.
        k: Steps per cycle, at least 1. Paper: k.
        example_inputs: Arguments of the model: a tensor, a tuple of positions or a mapping of keywords.
            Training forwards, in which no layer is skipped at random, follow the values through the model and see that
            the masks are reached. They run without gradients and hooks, on a copy of everything but the parameters,
            and leave random states, buffers and caches alone. Without it, only the order inside nn.Sequential and
            torch's Transformer and recurrent layers is known.
        rescale: None or True divides what is kept by the share that is, as nn.Dropout does.
        boost: As in `MultirateMask`.

    Returns:
        The same model, and a `Report`: a dict from the path of each dropout to a `Swap`; printed, it says line by line
        what was replaced by what, what was left, and why. Its `thin` is the `ThinReport` of the groups, if there are.

    Raises:
        TypeError, ValueError: If an argument is of the wrong kind or out of range.
        RuntimeError: If the model cannot be copied to follow a forward.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> model, report = mrreg.swap_dropout(model, k=5)
        >>> print(report)  # doctest: +ELLIPSIS
        1 of 1 dropouts replaced by masks
          2  Dropout(p=0.5) -> input mask on 3: its output goes there
        Masks are held for a cycle: ...

    Note:
        nn.Dropout draws units for each example and place, a mask draws them for the whole batch and cycle: as if
        dropout over images or sequences were `nn.Dropout2d` or the dropout of whole features.
    """
    check_model(WHERE, model)
    probe = nn.Linear(1, 1, device="meta")  # draws no random numbers
    MultirateMask(probe, 0.5, k, rescale=rescale, boost=boost)  # bad options show before anything happens
    register_linear_layers(WHERE, model)
    trace = None if example_inputs is None else trace_forward(WHERE, model, example_inputs)
    nodes = graph_from_structure(model) if trace is None else trace.nodes
    planner = Planner(model, nodes, UNKNOWN if trace is None else UNCALLED)
    sites = list(planner.sites())
    options = {"k": k, "rescale": rescale, "boost": boost}
    plan = UnitPlan(planner.modules, sites, {} if trace is None else _drop_paths(model))
    thin, obstacle = None, ""
    if trace is not None:
        _leave_unreached_dropouts(sites, planner, model, example_inputs, trace)
        thin, obstacle = find_units(model, k, example_inputs, plan)
        _leave_layers_of(thin, sites, planner)
    chosen = _paired(assign([site for site in sites if site not in plan.chosen], {}), planner)
    if trace is not None:
        replacements = _replacements(chosen, planner, options)
        called = modules_called(WHERE, model, example_inputs, replacements, trace)
        _leave_unreached(chosen, planner, replacements, called)
    swaps = {site.path: _outcome(site, chosen.get(site, {}), plan.chosen.get(site)) for site in sites}
    swaps |= dict(_untraced(model) if trace is None else _random_calls(trace, planner, chosen, k, plan))
    partial = trace is None and not all(map(has_stock_forward, model.modules()))
    report = Report(swaps, partial=partial, thin=thin, obstacle=obstacle)
    replace_modules(WHERE, model, _replacements(chosen, planner, options) | _identities(plan.chosen, planner))
    if thin is not None:
        install(model, thin.groups, thin.overrides, k=k, boost=boost, rescale=rescale is not False, flops=thin.flops)
    for site in chosen:
        if site.path not in planner.modules:  # it is the argument of a recurrent module
            recurrent: Any = planner.modules[site.path.rpartition(".")[0]]
            recurrent.dropout = 0.0
    if not chosen and thin is None:
        warn(NoEffectWarning(f"{WHERE}: no mask was put anywhere: {report}"), stacklevel=2)
    elif k == 1:
        problem = "with k=1 every step is a joint one: no unit is ever absent, and the dropouts are gone"
        warn(NoEffectWarning(f"{WHERE}: {problem}. Choose a k of at least 2."), stacklevel=2)
    return model, report


def _drop_paths(model: nn.Module) -> dict[str, float]:
    """Return p of each module that drops its residual branch at random, by path."""
    found = {path: drop_probability(module) for path, module in model.named_modules()}
    return {path: p for path, p in found.items() if p}


def _identities(sites: Iterable[DropoutSite], planner: Planner) -> dict[nn.Module, nn.Module]:
    """Return what takes the places of dropout modules."""
    dropouts = (planner.modules[site.path] for site in sites if site.path in planner.modules)
    return {dropout: nn.Identity().train(dropout.training) for dropout in dropouts}


def _leave_unreached_dropouts(
    sites: Iterable[DropoutSite], planner: Planner, model: nn.Module, example_inputs: Any, trace: Trace
) -> None:
    """Leave the dropouts that a forward still calls when others stand in their place."""
    sites = [site for site in sites if site.placements]
    called = modules_called(WHERE, model, example_inputs, _identities(sites, planner), trace)
    _leave(UNREACHED, [site for site in sites if planner.modules.get(site.path) in called])


def _leave(reason: str, sites: Iterable[DropoutSite]) -> None:
    """Leave dropouts that masks could replace if it were not for some reason."""
    for site in sites:
        if site.placements:
            site.placements, site.reason = [], reason


def _leave_layers_of(thin: ThinReport | None, sites: Iterable[DropoutSite], planner: Planner) -> None:
    """Leave the layers that hold units of groups to those: no mask goes into the layer's place."""
    taken = owners(thin) if thin is not None else []
    planner.masked += taken
    for site in sites:
        free = [each for each in site.placements if not any(within(path, name) for path in each for name in taken)]
        if not free:
            _leave(OWNED, [site])
        site.placements = free


def _replacements(
    chosen: dict[DropoutSite, Placement], planner: Planner, options: Mapping[str, Any]
) -> dict[nn.Module, nn.Module]:
    """Return the masks for the layers and the identities for the dropouts, by the modules in whose place they go."""
    modules = planner.modules
    replacements: dict[nn.Module, nn.Module] = {
        modules[path]: MultirateMask(
            modules[path], mask.p, parameters=mask.parameters or None, structure=mask.structure, **options
        )
        for path, mask in _merged(chosen).items()
    }
    return replacements | _identities(chosen, planner)


def _leave_unreached(
    chosen: dict[DropoutSite, Placement],
    planner: Planner,
    replacements: Mapping[nn.Module, nn.Module],
    called: set[nn.Module],
) -> None:
    """Leave the dropouts whose masks a forward does not call."""
    for site, placement in list(chosen.items()):
        if not {replacements[planner.modules[path]] for path in placement} <= called:
            del chosen[site]
            site.reason = UNREACHED


def _outcome(site: DropoutSite, placement: Placement, units: Choice | None) -> Swap:
    """Return the report entry of a dropout, with the placement or groups that were chosen or none."""
    if units is not None:
        return Swap(site.what, units.masks, units.reason)
    masks = {path: str(mask.structure) for path, mask in placement.items()}
    reason = site.reason
    if "hidden" in masks.values():
        reason = "it lies between two layers that share its units"
    elif "output" in masks.values():
        reason = reason or "the layer that takes its output has another mask"
    elif masks:
        reason = "its output goes there"
    return Swap(site.what, masks, reason)


def _random_calls(
    trace: Trace, planner: Planner, chosen: dict[DropoutSite, Placement], k: int, plan: UnitPlan
) -> Iterator[tuple[str, Swap]]:
    """Yield report entries for random numbers that a forward draws itself: masks replace only DropPath's."""
    sites: dict[str, DropoutSite] = {}
    for name, call in trace.random_calls.items():
        owner = type(planner.modules[call.place]).__name__
        what = owner if DROP_PATH.search(owner) else f"{call.function}()"
        what += "" if call.p is None else f" with p={call.p:g}"
        sites[name] = DropoutSite(name, f"{what} at {call.where}" if call.where else what, call.p or 0.5)
        if DROPOUT_FUNCTION.fullmatch(call.function) and name in planner.uses:
            planner.weigh(sites[name])
        else:
            sites[name].reason = plan.branches.get(call.place, _what_it_drops(call, owner))
    by_hand = assign(sites.values(), chosen)
    for name, site in sites.items():
        if (place := trace.random_calls[name].place) in plan.off:
            yield name, Swap(site.what, {place: BLOCKS}, plan.off[place])
            continue
        yield name, Swap(site.what, {}, _by_hand(site, by_hand[site], k) if site in by_hand else site.reason)


def _what_it_drops(call: RandomCall, owner: str) -> str:
    if ATTENTION_FUNCTION.fullmatch(call.function):
        return ATTENTION
    if DROP_PATH.search(owner) or DROP_PATH.search(call.where):
        return "it drops whole branches, which masks of units cannot"
    if call.scalar:
        return "one number decides, as where layers are skipped at random; the forward was followed with none skipped"
    return "its random numbers are drawn in the forward, which masks do not change"


def _by_hand(site: DropoutSite, placement: Placement, k: int) -> str:
    """Return why a functional dropout is left, and the calls that put its masks."""
    calls = []
    for mask in dict.fromkeys(placement.values()):
        patterns = {path: each.p for path, each in placement.items() if each == mask}
        only = "" if mask.parameters == ("weight",) else f", parameters={list(mask.parameters)}"
        calls.append(f"mrreg.mask(model, {patterns}, k={k}, structure={mask.structure!r}{only})")
    beside = f" between {site.pair[0]!r} and {site.pair[1]!r}" if site.pair else ""
    return f"only modules can be replaced; for this one{beside} take the call out and add {' and '.join(calls)}"


def _untraced(model: nn.Module) -> Iterator[tuple[str, Swap]]:
    """Yield likely dropout rates in modules whose forward is not torch's and was not followed."""
    for path, module in model.named_modules():
        if has_stock_forward(module) or isinstance(module, DROPOUTS):
            continue
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float) and 0 < value < 1:
                yield join(path, name), Swap(f"{type(module).__name__}({name}={value})", {}, UNREAD)


def _paired(chosen: dict[DropoutSite, Placement], planner: Planner) -> dict[DropoutSite, Placement]:
    """Mask the two layers around a dropout as one, where nothing else is masked in a module made for that."""
    for site, pair in [(site, site.pair) for site in chosen if site.pair]:
        path = common(*pair)
        others = [*planner.masked, *(name for other, masks in chosen.items() if other is not site for name in masks)]
        alone = not any(within(path, name) for name in others)
        if alone and not is_fixed(path) and pair == _pair(path, planner.modules[path]):
            chosen[site] = {path: MaskSpec("hidden", (), site.p)}
    return chosen


def _pair(path: str, module: nn.Module) -> tuple[str, str] | None:
    """Return the paths of the two layers around the hidden units of a module, if it is such a module."""
    try:
        first, second = hidden_pair(module)
    except ValueError:
        return None
    return join(path, first), join(path, second)


def _merged(chosen: Mapping[DropoutSite, Placement]) -> dict[str, MaskSpec]:
    """Return one mask per path; those that differ in the parameters alone become one."""
    merged: dict[str, MaskSpec] = {}
    for path, mask in (item for placement in chosen.values() for item in placement.items()):
        parameters = (*merged[path].parameters, *mask.parameters) if path in merged else mask.parameters
        merged[path] = MaskSpec(mask.structure, parameters, mask.p)
    return merged
