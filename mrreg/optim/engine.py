"""One step of all parts: which calls count, who is due, and the clock."""

import warnings
from typing import Any

import torch
from torch.optim import Optimizer

from mrreg.distributed.checks import DDPGuard
from mrreg.errors import NoEffectWarning, invalid_state
from mrreg.optim.diagnostics import MissingGradientDetector, UnscheduledGroupDetector, has_gradient
from mrreg.optim.drift import Group, State
from mrreg.optim.requires_grad import RequiresGradSwitch
from mrreg.optim.stepper import Stepper
from mrreg.optim.sync_clock import asks_for_state_only, is_due, next_syncs
from mrreg.optim.validation import check_periods


class Engine:
    """Steps the parts of a `Multirate`; groups and state are its own, given anew since loading replaces them."""

    def __init__(self, where: str, steppers: list[Stepper], groups: list[Group], switch: RequiresGradSwitch) -> None:
        self.steppers = steppers
        self._where = where
        self._switch = switch
        self._periods: list[int] = []
        self._is_first_step = True
        self._detector = MissingGradientDetector()
        self._schedule_detector = UnscheduledGroupDetector(groups)
        self._ddp_guard = DDPGuard(where, groups, switch.switched(groups))

    def counts(self, groups: list[Group], state: State, found_inf: Any) -> bool:
        """Return True if a call is a step. One that torch makes only to create state creates it, and is none."""
        if found_inf is not None and float(found_inf) != 0:
            return False
        if not has_gradient(groups):
            self._warn(self._detector.check_idle_call(groups))
            return False
        if asks_for_state_only(groups):
            for stepper in self.steppers:
                stepper.create_state(state)
            return False
        return True

    def advance(self, groups: list[Group], state: State) -> None:
        """Move all parts by one step."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            problem = "a CUDA graph would repeat one step of the cycle forever, and the clock would stop"
            raise invalid_state(f"{self._where}.step", problem, "Capture the model and not the optimizer.")
        now = groups[0]["clock"]
        due = [group for group in groups if is_due(group)]
        self._check_periods(groups)
        ends = next_syncs(groups, due, now)
        if self._is_first_step:
            self._ddp_guard.find_wrappers(groups, self._switch.switched(groups))
            self._is_first_step = False
        self._ddp_guard.check_gradients(due)
        self._warn(self._detector.check_step(groups, due))
        self._warn(self._schedule_detector.check(groups))
        for stepper in self.steppers:
            stepper.advance(state, ends, now)
        for group in due:
            group["last_sync"], group["next_sync"] = now, ends[id(group)]
        for group in groups:
            group["clock"] = now + 1

    def _check_periods(self, groups: list[Group]) -> None:
        """Look at the periods again where the user has changed one."""
        periods = [group["period"] for group in groups]
        if periods != self._periods:
            check_periods(self._where, groups)
            for group in groups:
                group["period"] = int(group["period"])  # NumPy's could not be loaded with weights_only=True
            self._periods = periods

    def reload(self, groups: list[Group], state: State) -> None:
        """Give the bases the groups and the state of a load."""
        remaining = iter(groups)
        for stepper in self.steppers:
            stepper.reload([next(remaining) for _ in stepper.base.param_groups], state)
        self._is_first_step = True
        self._schedule_detector = UnscheduledGroupDetector(groups)

    def call_bases(self, method: str, state: State) -> None:
        """Call a method of the bases that have it."""
        for base in self.bases():
            if callable(function := getattr(base, method, None)):
                base.state = state  # which the user may have replaced
                function()

    def bases(self) -> list[Optimizer]:
        """Return the base optimizers in the order of the parts."""
        return [stepper.base for stepper in self.steppers]

    def _warn(self, problem: str) -> None:
        if problem:
            warnings.warn(f"{self._where}: {problem}.", NoEffectWarning, stacklevel=7)
