"""The recipes that are compared at equal seconds: points of a map over fast set, k, step sizes, optimizer and batch."""

from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.experiments.text.recipes import Recipe


@dataclass(frozen=True)
class Point:
    """A recipe of the map; `rate` multiplies the optimizer's lr, `batch` the usual number of texts a step."""

    recipe: Recipe
    optimizer: Literal["AdamW", "SGD"] = "AdamW"
    rate: float = 1.0
    batch: float = 1.0

    @property
    def name(self) -> str:
        words = [f"{self.optimizer}: {self.recipe.name}"]
        words += [f"lr x {self.rate:g}"] if self.rate != 1 else []
        words += [f"batch x {self.batch:g}"] if self.batch != 1 else []
        return ", ".join(words)

    @property
    def work(self) -> tuple[Recipe, str, float]:
        """Equal for points whose steps cost the same: they differ in step sizes alone."""
        return replace(self.recipe, slow_lr="coupled"), self.optimizer, self.batch


def _two(fast: str, k: int = 5, slow_lr: str = "per_gradient", trained: str = "all") -> Recipe:
    return Recipe(trained, fast, k, slow_lr=slow_lr)


FULL, NO_EMBEDDINGS, HALF = Recipe(), Recipe("layers"), Recipe("half")
PAPERS, HALF_FAST = _two("head", slow_lr="coupled"), _two("half")
FIRST = (
    Point(FULL), Point(HALF), Point(HALF_FAST), Point(PAPERS), Point(NO_EMBEDDINGS),
    Point(_two("half", k=2)), Point(_two("half", trained="layers")), Point(_two("layers")),
    Point(_two("half", slow_lr="coupled")), Point(_two("last")), Point(_two("head", k=2)),
)  # fmt: skip
"""Enough of the map to choose by; drawn before the comparison."""

REST = (
    Point(FULL, "SGD"), Point(HALF, "SGD"), Point(PAPERS, "SGD"), Point(_two("half", slow_lr="coupled"), "SGD"),
    Point(HALF_FAST, "SGD"), Point(HALF, rate=2), Point(HALF_FAST, rate=2), Point(FULL, rate=2),
    Point(FULL, batch=0.5), Point(HALF, batch=0.5), Point(HALF_FAST, batch=0.5), Point(PAPERS, batch=0.5),
    Point(FULL, batch=2), Point(HALF, batch=2), Point(HALF_FAST, batch=2), Point(PAPERS, batch=2),
    Point(_two("last", k=2)), Point(_two("half", k=10)), Point(Recipe("last 2")), Point(_two("head")),
    Point(_two("last", slow_lr="coupled")), Point(_two("last", slow_lr="coupled"), "SGD"),
)  # fmt: skip
"""The rest of it, drawn after the comparison."""

POINTS = {point.name: point for point in (*FIRST, *REST)}
COMPARED = tuple(Point(recipe).name for recipe in (FULL, HALF, HALF_FAST, NO_EMBEDDINGS, PAPERS))
"""The points that are compared with all seeds, named before anything was run; the best of the map joins."""
