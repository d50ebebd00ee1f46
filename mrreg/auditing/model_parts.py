"""Modules of a model by part, those that the fast part's backward pass reaches, and other fast parts to try."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from torch import Tensor, nn

from mrreg.auditing.profiler import Reach, TrainingPass

PARTS = ("fast", "slow", "frozen")


class ModelParts:
    """Modules of a model, sorted by part.

    Args:
        step: A training pass of the model.
        fast: The parameters of the fast part.
        reach: Way of the fast part's backward pass.
        flops: Forward FLOPs of each module without its children.
    """

    def __init__(self, step: TrainingPass, fast: Set[Tensor], reach: Reach, flops: Mapping[str, int]) -> None:
        self.model, self.fast, self.reach, self.flops = step.model, fast, reach, flops
        self.trained = set(step.trained)
        self.modules = dict(step.model.named_modules())
        self.owners: dict[str, str] = {}  # the part of each module that has parameters, itself or inside
        for name, module in self.modules.items():
            members = list(module.parameters(recurse=False)) or list(module.parameters())
            if members:
                sizes = {part: sum(p.numel() for p in members if self.part(p) == part) for part in PARTS}
                self.owners[name] = max(sizes, key=lambda part: sizes[part])

    def part(self, p: Tensor) -> str:
        """Return the part of a parameter."""
        return "frozen" if p not in self.trained else "fast" if p in self.fast else "slow"

    def kind(self) -> str:
        """Return the kind of data that the model is for, as far as its layers tell."""
        attends = any("attention" in type(module).__name__.lower() for module in self.modules.values())
        if attends and any(isinstance(module, nn.Embedding) for module in self.modules.values()):
            return "text"
        return "images" if any(isinstance(module, nn.Conv2d) for module in self.modules.values()) else ""

    def parts(self, lacking: Set[Tensor]) -> dict[str, dict[str, Any]]:
        """Count tensors, parameters and FLOPs of each part."""
        found: dict[str, dict[str, Any]] = {}
        for part in PARTS:
            members = {name: p for name, p in self.model.named_parameters() if self.part(p) == part}
            found[part] = {
                "tensors": len(members),
                "parameters": sum(p.numel() for p in members.values()),
                "flops": sum(count for name, count in self.flops.items() if self.owners.get(name) == part),
                "without_gradient": [name for name, p in members.items() if p in lacking],
            }
        return found

    def reached(self) -> dict[str, Any]:
        """Return the modules that are not fast and in the fast part's backward, and the fast parameters behind it."""
        apart = {
            name: self._nodes(name)
            for name, module in self.modules.items()
            if (own := list(module.parameters(recurse=False))) and not any(p in self.fast for p in own)
        }
        graph: set[Any] = set().union(*self.reach.behind.values())
        reached = [name for name, nodes in apart.items() if nodes & graph]
        total = sum(self.flops.get(name, 0) for name in apart)
        aliases: dict[Tensor, list[str]] = {}
        for name, p in self.model.named_parameters(remove_duplicate=False):
            aliases.setdefault(p, []).append(name)
        forced = [
            {"names": aliases[p], "modules": count}
            for p, nodes in self.reach.behind.items()
            if (count := sum(bool(apart[name] & nodes) for name in reached))
        ]
        return {
            "reached": reached,
            "reached_share": sum(self.flops.get(name, 0) for name in reached) / total if total else 0.0,
            "forced_by": sorted(forced, key=lambda each: -each["modules"]),
        }

    def _nodes(self, name: str) -> set[Any]:
        """Return the graph nodes of a module; of one that is used without a call, those of the module around it."""
        while name and name not in self.reach.nodes:
            name = name.rpartition(".")[0]
        return self.reach.nodes.get(name, set())

    def slow_layers(self, kind: type[nn.Module]) -> list[str]:
        """Return the layers of a kind in the slow part; one without parameters goes with the layer before it."""
        found, last = [], "slow"
        for name in dict.fromkeys(self.reach.order):
            last = self.owners[name] if any(True for _ in self.modules[name].parameters(recurse=False)) else last
            if isinstance(self.modules[name], kind) and last == "slow" and getattr(self.modules[name], "p", 1) > 0:
                found.append(name)
        return found

    def candidates(self, lacking: Set[Tensor]) -> dict[str, Set[Tensor]]:
        """Return a few fast sets that end at the loss: the last 1, 2 and 4 blocks and half of them."""
        trained = self.trained - lacking
        blocks = sorted(_blocks("", self.model, trained), key=self._first_call)
        found: dict[str, Set[Tensor]] = {}
        for count in sorted({1, 2, 4, len(blocks) // 2} - {0}):
            if count >= len(blocks):
                break
            members = {p for name in blocks[-count:] for p in self.modules[name].parameters()} & trained
            if members and members != trained:
                found[" ".join(blocks[-count:])] = members
        return found

    def holds_attention(self, blocks: list[str]) -> bool:
        """Return True if one of the blocks attends, as those of a Transformer do and its classifier does not."""
        inside = (module for name in blocks for module in self.modules[name].modules())
        return any("attention" in type(module).__name__.lower() for module in inside)

    def _first_call(self, block: str) -> int:
        calls = (i for i, name in enumerate(self.reach.order) if name == block or name.startswith(block + "."))
        return next(calls, len(self.reach.order))


def _blocks(prefix: str, module: nn.Module, trained: Set[Tensor]) -> Iterator[str]:
    """Yield names of children that train; one with over half of the model's parameters is opened."""
    for name, child in module.named_children():
        path, own = f"{prefix}{name}", trained & set(child.parameters())
        large = 2 * sum(p.numel() for p in own) > sum(p.numel() for p in trained)
        if large and any(True for _ in child.children()):
            yield from _blocks(f"{path}.", child, trained)
        elif own:
            yield path
