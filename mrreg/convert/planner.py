"""Which masks could stand for each dropout of a model, and which of them go together.

The forward with a dropped unit and the forward with that unit's weights at zero are the same, so what stands between
dropout and layer decides: reshapes and functions with f(0) = 0 let the zero pass, sums and norms do not.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from torch import nn

from mrreg.convert.value_graph import DROPOUTS, Node, ordinary
from mrreg.errors import quoted
from mrreg.masks.module import MultirateMask
from mrreg.masks.targets import Structure, find_targets
from mrreg.module_utils import holders, join, within

# Calls through which a zero stays a zero: names of functions and of module classes, without underscores.
PASSING = re.compile(
    r"[pr]?relu6?|leakyrelu|[sc]?elu|gelu|silu|mish|tanh(shrink)?|hard(tanh|swish|shrink)|soft(sign|shrink)|mul|div"
    r"|truedivide|neg|abs|(feature)?dropout(\dd)?|(adaptive)?(avg|max)pool\dd|view(as)?|reshape(as)?|(un)?flatten"
    r"|(un)?squeeze|transpose|permute|swapaxes|movedim|t|get|contiguous|clone|detach|to|float|half|bfloat16|double"
    r"|type(as)?|getitem|select|narrow|chunk|split|unbind|expand(as)?|p(ack|ad)(padded|packed)sequence"
)
NOWHERE = "nothing known"
ATTENTION = "it acts on attention probabilities, which have no weight"
TRIED = 64  # combinations of masks looked at for a dropout that is called in many places


@dataclass(frozen=True)
class Mask:
    """The mask that the module at some path would get."""

    structure: Structure
    parameters: tuple[str, ...]
    p: float


Way = dict[str, Mask]  # the masks, by path, that together stand for one dropout


@dataclass(eq=False)
class Spot:
    """One dropout: how it could be replaced, the best way first, and what was in the way of others."""

    path: str
    what: str
    p: float
    ways: list[Way] = field(default_factory=list)
    reason: str = ""
    pair: tuple[str, str] | None = None  # the layers before and after it, if only dropout and activations are between


class Planner:
    """Finds the spots of one model, given the graph of its values."""

    def __init__(self, model: nn.Module, nodes: list[Node], unseen: str) -> None:
        self.modules = dict(model.named_modules())
        self.unseen = unseen  # why a dropout may be missing from the graph
        self.uses: dict[str, list[Node]] = {}
        for node in nodes:
            if node.kind != "call":
                self.uses.setdefault(node.name, []).append(node)
        self.holders = holders(model)
        self.masked = [path for path, module in self.modules.items() if isinstance(module, MultirateMask)]

    def spots(self) -> Iterator[Spot]:
        """Every dropout, be it a module or an argument of one."""
        for path, module in self.modules.items():
            if isinstance(module, DROPOUTS):
                yield self._module(path, module)
            elif isinstance(module, nn.RNNBase) and module.dropout:
                yield self._recurrent(path, module)
            elif isinstance(module, nn.MultiheadAttention) and module.dropout:
                yield Spot(join(path, "dropout"), f"MultiheadAttention(dropout={module.dropout})", 0, reason=ATTENTION)

    def _module(self, path: str, module: DROPOUTS) -> Spot:
        spot = Spot(path, f"{type(module).__name__}(p={module.p})", module.p)
        calls = self.uses.get(path, [])
        if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
            spot.reason = "it sets units to a value other than zero"
        elif not ordinary(module):
            spot.reason = "its class computes something else than torch's dropout"
        elif not module.p:
            spot.reason = "p is 0"
        elif not calls:
            spot.reason = self.unseen
        else:
            self._weigh(spot, calls)
        return spot

    def _weigh(self, spot: Spot, calls: list[Node]) -> None:
        """Look at the layers on both sides of every call of a dropout: each call needs masks on one of them."""
        sides = [(_taken(call), _made(call)) for call in calls]
        takers = {use for (uses, _), _ in sides for use in uses}
        makers = {use for _, (uses, _) in sides for use in uses}
        choices: list[list[Way]] = []
        for taken, made in sides:
            after = self._way("input", *taken, spot.p, takers, calls)
            before = self._way("output", *made, spot.p, makers, calls)
            spot.reason = f"its output goes to {after}" if isinstance(after, str) else spot.reason
            choice = [way for way in (after, before) if isinstance(way, dict)]
            if not choice:
                spot.reason = (
                    ATTENTION
                    if any(name.startswith("softmax") for name in made[1])
                    else f"{spot.reason}; its input comes from {before}"
                )
                return
            if choice not in choices:
                choices.append(choice)
        spot.ways = [way for combined in islice(product(*choices), TRIED) if (way := _joint(combined))]
        if [len(choice) for choice in choices] == [2] and len(choices[0][0]) == 1:
            spot.pair = next(iter(choices[0][1])), next(iter(choices[0][0]))

    def _way(
        self, structure: Structure, uses: set[Node], others: set[str], p: float, known: set[Node], calls: list[Node]
    ) -> Way | str:
        """The masks on the layers on one side of a dropout's call, or what forbids them."""
        if others or not uses:
            return ", ".join(sorted(others)) or NOWHERE
        way: Way = {}
        for name in sorted({use.name for use in uses}):
            parameters = (_inputs if structure == "input" else _outputs)(self.modules[name])
            problem = self._problem(name, structure, parameters)
            if not problem and not known.issuperset(self.uses[name]):
                problem = "is used without this dropout too"
            if not problem and structure == "input" and not all(_only(use, calls) for use in uses):
                problem = "takes other values too"
            if problem:
                return f"{name!r}, which {problem}"
            way[name] = Mask(structure, parameters, p)
        return way

    def _problem(self, path: str, structure: Structure, parameters: tuple[str, ...]) -> str:
        """What forbids a mask on these parameters of a layer, or nothing."""
        layer = self.modules[path]
        if any(within(mask, path) for mask in self.masked):
            return "is masked already"
        try:
            masked = find_targets(layer, parameters, structure)
        except ValueError as error:
            return f"cannot be masked ({error})"
        for name in (name for target in masked for name in target.names):
            if tied := [other for other in self.holders[id(layer.get_parameter(name))] if not within(path, other)]:
                return f"shares its {name} with {quoted(tied)}"
        return ""

    def _recurrent(self, path: str, module: nn.RNNBase) -> Spot:
        """Dropout between the layers of a recurrent module: the later layers' input weights."""
        what = f"{type(module).__name__}(dropout={module.dropout})"
        spot = Spot(join(path, "dropout"), what, float(module.dropout))
        parameters = _later(module)
        problem = "has one layer: it drops nothing"
        if parameters:
            problem = self._problem(path, "input", parameters)
        if problem:
            spot.reason = f"{path!r} {problem}"
        else:
            spot.ways = [{path: Mask("input", parameters, spot.p)}]
        return spot


def passes(node: Node) -> bool:
    """Whether units that are zero before a call are zero after it."""
    return node.kind == "dropout" or (
        node.kind == "call" and PASSING.fullmatch(node.name.replace("_", "").lower()) is not None
    )


def _plain(name: str) -> str:
    """How functions, methods, in-place methods and classes of one kind are all called."""
    return name.replace("_", "").lower()


def _taken(call: Node) -> tuple[set[Node], set[str]]:
    """The uses of layers that take a dropout's output, and the names of other calls that do."""
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
            elif passes(user):
                waiting.append(user)
            else:
                others.add(user.name)
    return layers, others


def _made(node: Node) -> tuple[set[Node], set[str]]:
    """The use of a layer that makes a dropout's input, and nobody else's; or the names of what makes it instead."""
    sources = [source for source in dict.fromkeys(node.sources) if source]
    if len(sources) > 1 and _plain(node.name) != "mul":
        return set(), {node.name}
    problems: set[str] = set()
    for source in sources:  # of a product: any factor makes it zero
        if source.kind != "layer" and not passes(source):
            problems.add(f"{source.name} in {source.place!r}" if source.place else source.name)
        elif len(source.users) > 1:
            problems.add(f"{source.name!r}, which others take too")
        elif source.kind == "layer":
            return {source}, set()
        else:
            makers, names = _made(source)
            if makers:
                return makers, set()
            problems |= names
    return set(), problems or {NOWHERE}


def _only(node: Node, calls: list[Node]) -> bool:
    """Whether everything that a layer takes has come through one of these calls."""
    return len(node.sources) == 1 or all(
        source in calls or (source is not None and passes(source) and _only(source, calls)) for source in node.sources
    )


def _joint(ways: Iterable[Way]) -> Way | None:
    """The masks of all the ways, unless they want different ones of one module."""
    joint: Way = {}
    for path, mask in (item for way in ways for item in way.items()):
        if joint.setdefault(path, mask) != mask:
            return None
    return joint


def _inputs(layer: nn.Module) -> tuple[str, ...]:
    """The parameters whose input units are the layer's input."""
    if isinstance(layer, nn.MultiheadAttention):
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        return tuple(name for name in names if layer._parameters[name] is not None)
    if isinstance(layer, nn.RNNBase):
        return tuple(name for name in layer._parameters if name in ("weight_ih_l0", "weight_ih_l0_reverse"))
    return ("weight_ih",) if isinstance(layer, nn.RNNCellBase) else ("weight",)


def _later(layer: nn.RNNBase) -> tuple[str, ...]:
    """The parameters that take what one layer of a recurrent module hands to the next."""
    return tuple(name for name in layer._parameters if name.startswith("weight_ih") and name not in _inputs(layer))


def _outputs(layer: nn.Module) -> tuple[str, ...]:
    """The parameters that make the layer's output units."""
    if isinstance(layer, nn.MultiheadAttention):
        return tuple(join("out_proj", name) for name in _outputs(layer.out_proj))
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return ()
    return tuple(name for name in ("weight", "bias") if layer._parameters.get(name) is not None)


def choose(spots: Iterable[Spot]) -> dict[Spot, Way]:
    """Give as many spots as possible a way of their own; a module has one mask.

    The spot with the fewest ways left comes first, which is exact where spots compete in chains, as they do in
    networks; among equals, the order of the model and the first way.
    """
    waiting = [spot for spot in spots if spot.ways]
    chosen: dict[Spot, Way] = {}
    while waiting:
        free = {spot: [way for way in spot.ways if _fits(way, chosen)] for spot in waiting}
        spot = min(waiting, key=lambda spot: len(free[spot]))
        waiting.remove(spot)
        if free[spot]:
            chosen[spot] = free[spot][0]
        else:
            paths = {path for way in spot.ways for path in way}
            rivals = [rival.path for rival, way in chosen.items() if paths & way.keys()]
            spot.reason = f"the layers beside it have their mask from {quoted(rivals)}"
    return chosen


def _fits(way: Way, chosen: dict[Spot, Way]) -> bool:
    """Whether the modules of a way have no mask yet, or one that other parameters can share."""
    taken = [(mask, other[path]) for path, mask in way.items() for other in chosen.values() if path in other]
    return all(
        (mask.structure, mask.p) == (other.structure, other.p) and not {*mask.parameters} & {*other.parameters}
        for mask, other in taken
    )
