"""Find the masks that could replace each dropout of a model, and those of them that go together.

The forward with a dropped unit and the forward with that unit's weights at zero are the same, so what stands between
dropout and layer decides: reshapes and functions with f(0) = 0 let the zero pass, sums and norms do not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

from torch import nn

from mrreg.convert.layers import (
    DROPOUTS,
    input_parameters,
    later_input_parameters,
    output_parameters,
)
from mrreg.convert.value_graph import Node
from mrreg.errors import quoted
from mrreg.masks.module import MultirateMask
from mrreg.masks.targets import Structure, find_targets
from mrreg.module_utils import has_stock_forward, holders, join, within

# Calls through which a zero stays a zero: names of functions and of module classes, without underscores.
ZERO_PRESERVING = re.compile(
    r"[pr]?relu6?|leakyrelu|[sc]?elu|gelu|silu|mish|tanh(shrink)?|hard(tanh|swish|shrink)|soft(sign|shrink)|mul|div"
    r"|truedivide|neg|abs|(feature)?dropout(\dd)?|(adaptive)?(avg|max)pool\dd|view(as)?|reshape(as)?|(un)?flatten"
    r"|(un)?squeeze|transpose|permute|swapaxes|movedim|t|get|contiguous|clone|detach|to|float|half|bfloat16|double"
    r"|type(as)?|getitem|select|narrow|chunk|split|unbind|expand(as)?|p(ack|ad)(padded|packed)sequence"
)
NOWHERE = "nothing known"
ATTENTION = "it acts on attention probabilities, which have no weight"
MAX_COMBINATIONS = 64  # of masks, looked at for a dropout that is called in many places


@dataclass(frozen=True)
class MaskSpec:
    """The mask that the module at some path would get."""

    structure: Structure
    parameters: tuple[str, ...]
    p: float


Placement = dict[str, MaskSpec]  # the masks, by path, that together replace one dropout


@dataclass(eq=False)
class DropoutSite:
    """One source of dropout and how masks could replace it.

    Args:
        path: Path of the dropout; the key of the report.
        what: Its name in the report.
        p: Probability of being dropped.
        placements: The masks that could stand for it, the best first.
        reason: Obstacle to other masks.
        pair: The layers before and after it, if only dropout and activations are between.
    """

    path: str
    what: str
    p: float
    placements: list[Placement] = field(default_factory=list)
    reason: str = ""
    pair: tuple[str, str] | None = None


class Planner:
    """Finds the masks that could replace the dropouts of one model.

    Args:
        model: The model.
        nodes: The graph of its values.
        unseen: Reason for which a dropout may be missing from the graph.
    """

    def __init__(self, model: nn.Module, nodes: list[Node], unseen: str) -> None:
        self.modules = dict(model.named_modules())
        self.unseen = unseen
        self.uses: dict[str, list[Node]] = {}
        for node in nodes:
            if node.kind != "call":
                self.uses.setdefault(node.name, []).append(node)
        self.holders = holders(model)
        self.masked = [path for path, module in self.modules.items() if isinstance(module, MultirateMask)]

    def sites(self) -> Iterator[DropoutSite]:
        """Yield every dropout that is a module or an argument of one."""
        for path, module in self.modules.items():
            if isinstance(module, DROPOUTS):
                yield self._module(path, module)
            elif isinstance(module, nn.RNNBase) and module.dropout:
                yield self._recurrent(path, module)
            elif isinstance(module, nn.MultiheadAttention) and module.dropout:
                what = f"MultiheadAttention(dropout={module.dropout})"
                yield DropoutSite(join(path, "dropout"), what, module.dropout, reason=ATTENTION)

    def _module(self, path: str, module: DROPOUTS) -> DropoutSite:
        site = DropoutSite(path, f"{type(module).__name__}(p={module.p})", module.p)
        if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
            site.reason = "it sets units to a value other than zero"
        elif not has_stock_forward(module):
            site.reason = "its class computes something else than torch's dropout"
        elif not module.p:
            site.reason = "p is 0"
        elif path not in self.uses:
            site.reason = self.unseen
        else:
            self.weigh(site)
        return site

    def weigh(self, site: DropoutSite) -> None:
        """Look at the layers on both sides of every call of a dropout: each call needs masks on one of them."""
        calls = self.uses[site.path]
        sides = [(consumers(call), producers(call)) for call in calls]
        takers = {use for (uses, _), _ in sides for use in uses}
        makers = {use for _, (uses, _) in sides for use in uses}
        choices: list[list[Placement]] = []
        for consuming, producing in sides:
            after = self._placement("input", *consuming, site.p, takers, calls)
            before = self._placement("output", *producing, site.p, makers, calls)
            site.reason = f"its output goes to {after}" if isinstance(after, str) else site.reason
            choice = [placement for placement in (after, before) if isinstance(placement, dict)]
            if not choice:
                attention = any(name.startswith("softmax") for name in producing[1])
                site.reason = ATTENTION if attention else f"{site.reason}; its input comes from {before}"
                return
            if choice not in choices:
                choices.append(choice)
        combinations = islice(product(*choices), MAX_COMBINATIONS)
        site.placements = [placement for combined in combinations if (placement := _joint(combined))]
        if [len(choice) for choice in choices] == [2] and len(choices[0][0]) == 1:
            site.pair = next(iter(choices[0][1])), next(iter(choices[0][0]))

    def _placement(
        self, structure: Structure, uses: set[Node], others: set[str], p: float, known: set[Node], calls: list[Node]
    ) -> Placement | str:
        """Return the masks on the layers on one side of a dropout's call, or the obstacle to them."""
        if others or not uses:
            return ", ".join(sorted(others)) or NOWHERE
        placement: Placement = {}
        for name in sorted({use.name for use in uses}):
            layer = self.modules[name]
            parameters = input_parameters(layer) if structure == "input" else output_parameters(layer)
            problem = self._problem(name, structure, parameters, p)
            if not problem and not known.issuperset(self.uses[name]):
                problem = "is used without this dropout too"
            if not problem and structure == "input" and not all(_only(use, calls) for use in uses):
                problem = "takes other values too"
            if problem:
                return f"{name!r}, which {problem}" if name else f"the model itself, which {problem}"
            placement[name] = MaskSpec(structure, parameters, p)
        return placement

    def _problem(self, path: str, structure: Structure, parameters: tuple[str, ...], p: float) -> str:
        """Return the obstacle to a mask on these parameters of a layer, or nothing."""
        layer = self.modules[path]
        if is_fixed(path):
            return "cannot be replaced in place (put it into an nn.Sequential)"
        if any(within(mask, path) for mask in self.masked):
            return "is masked already"
        try:
            masked = find_targets(layer, parameters, structure)
        except ValueError as error:
            return f"cannot be masked ({error})"
        if all(target.layout and not round(p * target.layout.units) for target in masked):
            return f"has so few units that p = {p:g} rounds to none of them"
        for name in (name for target in masked for name in target.names):
            parameter = layer.get_parameter(name)
            if tied := [other for other in self.holders[id(parameter)] if not within(path, other)]:
                return f"shares its {name} with {quoted(tied)}"
            if not parameter.requires_grad:
                return f"is frozen (no optimizer would drive a mask of its {name})"
        return ""

    def _recurrent(self, path: str, module: nn.RNNBase) -> DropoutSite:
        """Return dropout between the layers of a recurrent module, which masks of the later input weights replace."""
        what = f"{type(module).__name__}(dropout={module.dropout})"
        site = DropoutSite(join(path, "dropout"), what, float(module.dropout))
        parameters = later_input_parameters(module)
        problem = "has one layer: it drops nothing"
        if parameters:
            problem = self._problem(path, "input", parameters, site.p)
        if problem:
            site.reason = f"{path!r} {problem}" if path else f"the model itself {problem}"
        else:
            site.placements = [{path: MaskSpec("input", parameters, site.p)}]
        return site


def is_fixed(path: str) -> bool:
    """Tell if nothing can take the place of a module: it is the model itself, or the one that torch.compile holds."""
    return path.rpartition(".")[2] in ("", "_orig_mod")


def preserves_zero(node: Node) -> bool:
    """Tell if units that are zero before a call are zero after it."""
    return node.kind == "dropout" or (
        node.kind == "call" and ZERO_PRESERVING.fullmatch(_plain_name(node.name)) is not None
    )


def _plain_name(name: str) -> str:
    """Return the common name of functions, methods, in-place methods and classes of one kind."""
    return name.replace("_", "").lower()


def consumers(call: Node) -> tuple[set[Node], set[str]]:
    """Return the uses of layers that take a dropout's output, and the names of other calls that do."""
    layers: set[Node] = set()
    others: set[str] = set()
    seen: set[Node] = set()
    waiting = [call]
    while waiting:
        node = waiting.pop()
        if not node.users:
            others.add("nothing that can be seen")
        for user in set(node.users) - seen:
            seen.add(user)
            if user.kind == "layer":
                layers.add(user)
            elif preserves_zero(user):
                waiting.append(user)
            else:
                others.add(user.name)
    return layers, others


def producers(node: Node) -> tuple[set[Node], set[str]]:
    """Return the use of a layer that alone makes a dropout's input, or the names of the calls that make it instead."""
    sources = [source for source in dict.fromkeys(node.sources) if source]
    if len(sources) > 1 and _plain_name(node.name) != "mul":
        return set(), {node.name}
    problems: set[str] = set()
    for source in sources:  # of a product: any factor makes it zero
        if source.kind != "layer" and not preserves_zero(source):
            problems.add(f"{source.name} in {source.place!r}" if source.place else source.name)
        elif len(source.users) > 1:
            problems.add(f"{source.name!r}, which others take too")
        elif source.kind == "layer":
            return {source}, set()
        else:
            makers, names = producers(source)
            if makers:
                return makers, set()
            problems |= names
    return set(), problems or {NOWHERE}


def _only(node: Node, calls: list[Node]) -> bool:
    """Tell if everything that a layer takes has come through one of these calls."""
    return len(node.sources) == 1 or all(
        source in calls or (source is not None and preserves_zero(source) and _only(source, calls))
        for source in node.sources
    )


def _joint(placements: Iterable[Placement]) -> Placement | None:
    """Return the masks of all the placements, unless they want different ones of one module."""
    joint: Placement = {}
    for path, mask in (item for placement in placements for item in placement.items()):
        if joint.setdefault(path, mask) != mask:
            return None
    return joint


def assign(sites: Iterable[DropoutSite], taken: Mapping[DropoutSite, Placement]) -> dict[DropoutSite, Placement]:
    """Give as many sites as possible a placement of their own beside those that are taken; a module has one mask.

    The site with the fewest placements left comes first, which is exact where sites compete in chains, as they do in
    networks; among equals, the order of the model and the first placement.
    """
    waiting = [site for site in sites if site.placements]
    chosen: dict[DropoutSite, Placement] = {}
    while waiting:
        masks = [*taken.items(), *chosen.items()]
        free = {site: [each for each in site.placements if _fits(each, dict(masks))] for site in waiting}
        site = min(waiting, key=lambda site: len(free[site]))
        waiting.remove(site)
        if free[site]:
            chosen[site] = free[site][0]
        else:
            paths = {path for placement in site.placements for path in placement}
            rivals = [rival.path for rival, placement in masks if paths & placement.keys()]
            site.reason = f"the layers beside it have their mask from {quoted(rivals)}"
    return chosen


def _fits(placement: Placement, chosen: Mapping[DropoutSite, Placement]) -> bool:
    """Tell if the modules of a placement have no mask yet, or one that other parameters can share."""
    taken = [(mask, other[path]) for path, mask in placement.items() for other in chosen.values() if path in other]
    return all(
        (mask.structure, mask.p) == (other.structure, other.p) and not {*mask.parameters} & {*other.parameters}
        for mask, other in taken
    )
