"""Masks where a model has dropout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from warnings import warn

from torch import nn

from mrreg.convert.planner import Mask, Planner, Spot, Way, choose
from mrreg.convert.tracer import FUNCTIONAL, follow
from mrreg.convert.value_graph import known
from mrreg.convert.wrap import check_model, replace
from mrreg.errors import NoEffectWarning
from mrreg.masks.module import MultirateMask
from mrreg.masks.targets import hidden_pair
from mrreg.module_utils import common, join, within

WHERE = "swap_dropout"
UNCALLED = "this forward did not call it (attention often reads its p only)"
UNKNOWN = "its neighbours are only known inside nn.Sequential and torch's Transformer layers: pass example_inputs"


@dataclass(frozen=True)
class Swap:
    """What became of one dropout: the structure of the mask at each path that stands for it, and why so."""

    what: str
    masks: Mapping[str, str]
    reason: str

    @property
    def replaced(self) -> bool:
        """Whether masks stand for it now."""
        return bool(self.masks)

    def __str__(self) -> str:
        masks = ", ".join(f"{structure} mask on {path or 'the whole model'}" for path, structure in self.masks.items())
        return f"{self.what} -> {masks or 'left'}: {self.reason}"


class Report(dict[str, Swap]):
    """What became of each dropout, by its path in the model; printed, one line each."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        head = f"{sum(swap.replaced for swap in self.values())} of {len(self)} dropouts replaced by masks"
        return "\n".join([head, *(f"  {path:<{width}}  {swap}" for path, swap in self.items())])


def swap_dropout(
    model: nn.Module, k: int = 5, example_inputs: Any = None, *, rescale: bool = False, boost: float | None = None
) -> tuple[nn.Module, Report]:
    """Replace each dropout of a model by masks with the same p, and report what was done.

    The layer that takes the dropout's output gets a mask over its input units. Where that output goes into a residual
    sum or a norm, the layer that made it gets a mask over its output units, bias included. Dropout between the two
    Linear layers of an nn.Sequential or of a Transformer layer, with an activation that maps 0 to 0, becomes one mask
    over the hidden units if nothing else in there needs a mask. A layer has one mask: where dropouts compete for
    layers, as many of them as possible are replaced. Dropout on attention probabilities has no weight to mask and is
    left. The model is changed in place; use the returned one, since the mask may be on the whole.

    Args:
        model: A model with dropout. Modules replaced by masks become `nn.Identity`, so that paths stay as they were.
        k: Steps per cycle, at least 1. Paper: k.
        example_inputs: What the model is called with: a tensor, a tuple of positions or a mapping of keywords. One
            training forward follows the values through the model. It runs without gradients and hooks on a copy
            that shares the parameters, and leaves random states, buffers and caches alone. Without it, only the order
            inside nn.Sequential and torch's Transformer and recurrent layers is known.
        rescale: Whether masked steps divide what is kept by 1 - p, as nn.Dropout does.
        boost: As in `MultirateMask`.

    Returns:
        The model, and a `Report`: a dict from the path of each dropout to a `Swap`; printed, it says line by line
        what was replaced by what, what was left, and why.

    Raises:
        TypeError, ValueError: If an argument is of the wrong kind or out of range.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> model, report = mrreg.swap_dropout(model, k=5)
        >>> print(report)
        1 of 1 dropouts replaced by masks
          2  Dropout(p=0.5) -> hidden mask on the whole model: it lies between two layers that share its units

    Note:
        nn.Dropout draws units for each example and place, a mask draws them for the whole batch and cycle: as if
        dropout over images or sequences were `nn.Dropout2d` or the dropout of whole features.
    """
    check_model(WHERE, model)
    probe = nn.Linear(1, 1, device="meta")  # draws no random numbers
    MultirateMask(probe, 0.5, k, rescale=rescale, boost=boost)  # bad options show before anything happens
    nodes = known(model) if example_inputs is None else follow(WHERE, model, example_inputs)
    planner = Planner(model, nodes, UNKNOWN if example_inputs is None else UNCALLED)
    modules, spots = planner.modules, list(planner.spots())
    chosen = _paired(choose(spots), planner)
    wrappers: dict[nn.Module, nn.Module] = {
        modules[path]: MultirateMask(
            modules[path],
            mask.p,
            k,
            parameters=mask.parameters or None,
            structure=mask.structure,
            rescale=rescale,
            boost=boost,
        )
        for path, mask in _merged(chosen).items()
    }
    dropouts = {modules[spot.path] for spot in chosen if spot.path in modules}
    wrappers |= {dropout: nn.Identity().train(dropout.training) for dropout in dropouts}
    new = replace(WHERE, model, wrappers)
    for spot in chosen:
        if spot.path not in modules:  # it is the argument of a recurrent module
            recurrent: Any = modules[spot.path.rpartition(".")[0]]
            recurrent.dropout = 0.0
    report = Report({spot.path: _outcome(spot, chosen.get(spot, {})) for spot in spots})
    for node in nodes:
        if node.kind == "call" and node.name in FUNCTIONAL:
            report[f"{node.place}: {node.name}()"] = Swap("a function", {}, "only modules can be replaced")
    if not chosen:
        warn(NoEffectWarning(f"{WHERE}: no mask was put anywhere: {report}"), stacklevel=2)
    return new, report


def _outcome(spot: Spot, way: Way) -> Swap:
    """What is said of a dropout for which a way was chosen, or none."""
    masks = {path: str(mask.structure) for path, mask in way.items()}
    reason = spot.reason
    if "hidden" in masks.values():
        reason = "it lies between two layers that share its units"
    elif "output" in masks.values():
        reason = reason or "the layer that takes its output has another mask"
    elif masks:
        reason = "its output goes there"
    return Swap(spot.what, masks, reason)


def _paired(chosen: dict[Spot, Way], planner: Planner) -> dict[Spot, Way]:
    """Mask the two layers around a dropout as one, where nothing else is masked in a module made for that."""
    for spot, pair in [(spot, spot.pair) for spot in chosen if spot.pair]:
        path = common(*pair)
        others = [*planner.masked, *(name for other, way in chosen.items() if other is not spot for name in way)]
        if not any(within(path, name) for name in others) and pair == _pair(path, planner.modules[path]):
            chosen[spot] = {path: Mask("hidden", (), spot.p)}
    return chosen


def _pair(path: str, module: nn.Module) -> tuple[str, str] | None:
    """The paths of the two layers that have the hidden units of a module between them, if it is such a module."""
    try:
        first, second = hidden_pair(module)
    except ValueError:
        return None
    return join(path, first), join(path, second)


def _merged(chosen: Mapping[Spot, Way]) -> dict[str, Mask]:
    """One mask per path; those that differ in the parameters alone become one."""
    merged: dict[str, Mask] = {}
    for path, mask in (item for way in chosen.values() for item in way.items()):
        parameters = (*merged[path].parameters, *mask.parameters) if path in merged else mask.parameters
        merged[path] = Mask(mask.structure, parameters, mask.p)
    return merged
