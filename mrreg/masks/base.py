"""Common ground of all masks: the clock of an optimizer tells them the phase of a cycle and when to draw."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class ForwardRan:
    """Note that a masked forward has run; shared by a mask with its compiled graphs and replicas."""

    masked = False


@dataclass
class MoveReport:
    """Shared by the masks of an optimizer: a warning that their weights move outside its steps, given once.

    Args:
        tolerated: Moves between two steps that are no fault: one where a wrapper may climb before it steps.
        given: True once the warning has been given.
    """

    tolerated: int = 0
    given: bool = False


class CyclicMask:
    """Turns the clock of an optimizer into the phase of a cycle: what is slow, and if forwards are masked."""

    p: float  # share of slow entries or units; the largest, where there are several
    k: int
    _masking: bool  # whether forwards in training mode are masked
    _attached: bool
    _drawn: tuple[Any, ...] | None  # what the slow subset was drawn from
    _forward_ran: ForwardRan

    @property
    def boost(self) -> float:
        """Factor of the slow step."""
        raise NotImplementedError

    def _root(self) -> nn.Module:
        """Return the module that the masked parameters are in."""
        raise NotImplementedError

    def _masked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the masked parameters with their names in the root."""
        raise NotImplementedError

    def _draws(self) -> int:
        """Return the number of slow subsets that are drawn, each with an index of its own."""
        raise NotImplementedError

    def _draw(self, seed: int, first: int, cycle: int) -> None:
        """Draw the slow subsets of a cycle; the first has the index `first`."""
        raise NotImplementedError

    def _clear_mask(self) -> None:
        """Have no slow subset."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Become dense and undriven."""
        raise NotImplementedError

    def _forget_versions(self) -> None:
        """Note that parameters were written to legitimately."""

    def warn_if_unused(self) -> None:
        """Warn once, at the end of a masked step, that no masked forward has run."""

    def _set_phase(self, clock: int, seed: int, first: int) -> None:
        """Enter the phase after `clock` steps."""
        cycle, phase = divmod(clock, self.k)
        if self.p > 0 and (self.k > 1 or self.boost != 1):  # also for a joint step whose boost may be set yet
            if self._drawn != (seed, first, cycle, self.p):
                with torch.inference_mode(False):  # the next cycle may be drawn elsewhere into the same memory
                    self._draw(seed, first, cycle)
                vars(self).update(_drawn=(seed, first, cycle, self.p))
        elif self._drawn is not None:
            self._clear_mask()
        # at every step, and Module's own __setattr__ is slow
        vars(self).update(_masking=self.p > 0 and phase < self.k - 1, _attached=True)
