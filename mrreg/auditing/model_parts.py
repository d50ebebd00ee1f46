"""What is in a model: its modules by part, those that the fast part's backward pass reaches, and other fast parts."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mrreg.auditing.profiler import Passes, Reach

PARTS = ("fast", "slow", "frozen")


@dataclass
class Inventory:
    """The modules of a model as its parts see them."""

    model: nn.Module
    fast: Set[Tensor]
    trained: Set[Tensor]
    reach: Reach
    flops: Mapping[str, int]
    modules: dict[str, nn.Module]
    owners: dict[str, str]  # module -> its part, as far as it or something in it has parameters

    @classmethod
    def of(cls, passes: Passes, fast: Set[Tensor], reach: Reach, own_flops: Mapping[str, int]) -> "Inventory":
        """Sort the modules."""
        modules = dict(passes.model.named_modules())
        new = cls(passes.model, fast, set(passes.trained), reach, own_flops, modules, {})
        for name, module in modules.items():
            members = list(module.parameters(recurse=False)) or list(module.parameters())
            if members:
                sizes = {part: sum(p.numel() for p in members if new.part(p) == part) for part in PARTS}
                new.owners[name] = max(sizes, key=lambda part: sizes[part])
        return new

    def part(self, p: Tensor) -> str:
        """The part of a parameter."""
        return "frozen" if p not in self.trained else "fast" if p in self.fast else "slow"

    def parts(self, lacking: Set[Tensor]) -> dict[str, dict[str, Any]]:
        """Tensors, parameters and FLOPs of each part."""
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
        """Slow and frozen modules that the fast part's backward goes through, and which fast parameters are why."""
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
        """What a module put into the graph; of one that is used without a call, what the module around it did."""
        while name and name not in self.reach.nodes:
            name = name.rpartition(".")[0]
        return self.reach.nodes.get(name, set())

    def slow_layers(self, kind: type[nn.Module]) -> list[str]:
        """Layers of a kind in the slow part; one without parameters goes with the layer called before it."""
        found, last = [], "slow"
        for name in dict.fromkeys(self.reach.order):
            last = self.owners[name] if any(True for _ in self.modules[name].parameters(recurse=False)) else last
            if isinstance(self.modules[name], kind) and last == "slow" and getattr(self.modules[name], "p", 1) > 0:
                found.append(name)
        return found

    def candidates(self, lacking: Set[Tensor]) -> dict[str, Set[Tensor]]:
        """A few fast sets that end at the loss: the last 1, 2 and 4 blocks and half of them."""
        blocks = sorted(_blocks("", self.model, self.trained - lacking), key=self._first_call)
        found: dict[str, Set[Tensor]] = {}
        for count in sorted({1, 2, 4, len(blocks) // 2} - {0}):
            if count >= len(blocks):
                break
            on = {p for name in blocks[-count:] for p in self.modules[name].parameters()} & self.trained - lacking
            if on and on != self.trained - lacking:
                found[" ".join(blocks[-count:])] = on
        return found

    def _first_call(self, block: str) -> int:
        calls = (i for i, name in enumerate(self.reach.order) if name == block or name.startswith(block + "."))
        return next(calls, len(self.reach.order))


def _blocks(prefix: str, module: nn.Module, trained: Set[Tensor]) -> Iterator[str]:
    """Names of children that train; one with over half of the model's parameters is opened."""
    for name, child in module.named_children():
        path, own = f"{prefix}{name}", trained & set(child.parameters())
        large = 2 * sum(p.numel() for p in own) > sum(p.numel() for p in trained)
        if large and any(True for _ in child.children()):
            yield from _blocks(f"{path}.", child, trained)
        elif own:
            yield path
