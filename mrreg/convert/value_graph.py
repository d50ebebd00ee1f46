"""Graph of the values in a model: layers, dropouts and the calls between them.

`graph_from_structure` reads it off the modules whose order is known without running them; the tracer follows a forward.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mrreg.convert.layers import Kind, role
from mrreg.module_utils import has_stock_forward

# The branches of torch's Transformer layers, each of which ends in a residual sum.
BRANCHES: dict[type[nn.Module], tuple[tuple[str, ...], ...]] = {
    nn.TransformerEncoderLayer: (
        ("self_attn", "dropout1"),
        ("linear1", "activation", "dropout", "linear2", "dropout2"),
    ),
    nn.TransformerDecoderLayer: (
        ("self_attn", "dropout1"),
        ("multihead_attn", "dropout2"),
        ("linear1", "activation", "dropout", "linear2", "dropout3"),
    ),
}


@dataclass(eq=False)
class Node:
    """One use of a layer or dropout, or one call of something else.

    Args:
        name: Path of the layer or dropout; for a functional dropout the name of its site; else what is called.
        kind: Kind of the node.
        sources: Nodes that make its inputs; None for a value that nothing watched has made, such as the model's input.
        place: Path of the module that made the call.
        users: Nodes that take its output.
    """

    name: str
    kind: Kind
    sources: list["Node | None"]
    place: str = ""
    users: list["Node"] = field(default_factory=list)

    def __post_init__(self) -> None:
        for source in self.sources:
            if source is not None and self not in source.users:
                source.users.append(self)


def graph_from_structure(model: nn.Module) -> list[Node]:
    """Read the graph off every Sequential and off torch's Transformer layers."""
    paths = {module: path for path, module in model.named_modules()}  # a module used twice has one name
    chains: list[tuple[list[nn.Module], str]] = []
    inside: set[nn.Module] = set()  # Sequentials that are part of a longer one
    for module, path in paths.items():
        if _is_sequential(module) and module not in inside:
            end = "the model's output" if module is model else f"what follows {path!r}"
            chains.append((list(_members(module, inside)), end))
        for kind, branches in BRANCHES.items():
            if isinstance(module, kind) and has_stock_forward(module):
                chains += [([getattr(module, name) for name in names], "add") for names in branches]
    return [node for members, end in chains for node in _chain(members, end, paths)]


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and has_stock_forward(module)


def _members(sequential: nn.Module, inside: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield the members of a Sequential in order, with Sequentials among them taken apart."""
    for child in sequential._modules.values():  # children() leaves out the second use of a module
        if child is not None and _is_sequential(child):
            inside.add(child)
            yield from _members(child, inside)
        elif child is not None and not isinstance(child, nn.Identity):
            yield child


def _chain(members: Iterable[Any], end: str, paths: dict[nn.Module, str]) -> list[Node]:
    """Return one node per member, each fed by the one before it, and one for what takes the last."""
    nodes: list[Node] = []
    for member in members:
        kind = role(member) if isinstance(member, nn.Module) else "call"
        name = getattr(member, "__name__", type(member).__name__) if kind == "call" else paths[member]
        nodes.append(Node(name, kind, [nodes[-1] if nodes else None]))
    nodes.append(Node(end, "call", list(nodes[-1:])))
    return nodes
