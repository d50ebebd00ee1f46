"""Report of the sources of dropout in a model: by which masks each was replaced, or why it was left."""

from collections.abc import Mapping
from dataclasses import dataclass

from mrreg.thinning.report import ThinReport

FUNCTIONS = "Dropout in functions (F.dropout, scaled_dot_product_attention) is only seen with example_inputs."
HELD = (
    "Masks are held for a cycle: code that needs fresh noise at every forward (Monte Carlo dropout, two different "
    "passes of one batch) gets none from them."
)


@dataclass(frozen=True)
class Swap:
    """Outcome for one source of dropout.

    Args:
        what: The dropout.
        masks: The structure of the mask at each path that stands for it; empty where it was left.
        reason: Reason for the outcome.
    """

    what: str
    masks: Mapping[str, str]
    reason: str

    @property
    def replaced(self) -> bool:
        """True if masks have replaced it."""
        return bool(self.masks)

    def __str__(self) -> str:
        masks = ", ".join(f"{structure} mask on {path}" for path, structure in self.masks.items())
        return f"{self.what} -> {masks or 'left'}: {self.reason}"


class Report(dict[str, Swap]):
    """Outcomes for all sources of dropout by their paths in the model; printed, one line each.

    Args:
        swaps: The outcomes.
        partial: True if there may be more, in functions that only a forward shows.
        thin: The groups of units that stand for some of them, if there are.
        obstacle: What kept groups from being looked for.
    """

    def __init__(
        self, swaps: Mapping[str, Swap], *, partial: bool = False, thin: ThinReport | None = None, obstacle: str = ""
    ) -> None:
        super().__init__(swaps)
        self.partial, self.thin, self.obstacle = partial, thin, obstacle

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        replaced = sum(swap.replaced for swap in self.values())
        seen = "dropouts seen without example_inputs" if self.partial else "dropouts"
        lines = [f"{replaced} of {len(self)} {seen} replaced by masks"]
        lines += [f"  {path:<{width}}  {swap}" for path, swap in self.items()]
        notes = [FUNCTIONS] if self.partial else []
        notes += [HELD] if replaced else []
        notes += [self.thin.summary()] if self.thin else []
        notes += [f"Groups of units were not looked for: {self.obstacle}"] if self.obstacle else []
        return "\n".join(lines + notes)
