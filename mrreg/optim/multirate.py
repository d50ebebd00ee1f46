"""The engine: an ordinary torch optimizer whose parts train at different rates."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from mrreg.distributed.checks import ParallelWatch
from mrreg.distributed.sharding import local_all
from mrreg.errors import NoEffectWarning, invalid_argument, invalid_state
from mrreg.optim.accumulation import Gathered, begin, gather
from mrreg.optim.base_step import Step, call, copied, create_state, plain_step, rebuilt
from mrreg.optim.diagnostics import GradientWatch, have_gradient
from mrreg.optim.drift import Course, Group, Held, has_buffer, keep, measure, rest, step_size
from mrreg.optim.requires_grad import Flags, watch_others
from mrreg.optim.state_validation import STATELESS, check_saved, of_bases
from mrreg.optim.sync_clock import AT_START, is_at_rest, next_syncs, position
from mrreg.optim.validation import check_gradients, check_parts, check_periods, planned


class Multirate(Optimizer):
    """Train the parts of a network at different rates, each with an optimizer of its own.

    A part of period K gets a gradient at every K-th step only; in between nobody computes one, which is where the time
    is saved. It is an ordinary torch optimizer: the training loop, schedulers, hooks and checkpoints stay as they are.
    Memory beyond that of the bases: nothing for `SGD` with momentum and without Nesterov's; else, with drift, one
    tensor per parameter of period above 1.

    At step t, for a part of period K:

        take the base's step, note its direction      if t mod K == 0
        theta <- theta - lr * direction               else, with drift (Algorithm 1)

    Without drift (Algorithm 2) it moves by K * lr * direction at once and then rests. The direction is the momentum
    buffer where `SGD` or `LangevinSGD` has one, and the base's displacement / lr otherwise, weight decay included.

    Args:
        parts: Pairs (optimizer, period). One period must be 1, and each must divide the next larger one. None as the
            period: every parameter group of that optimizer brings its own "period".
        drift: Whether parts keep moving between their gradients.
        gradient: What a part takes as its gradient: "sync", the one of its own step; "mean" or "sum", that of all its
            gradients since its last update. One word, or one per part. The last two need a gradient at every step, so
            they save no time, and hold one more tensor per parameter of period above 1.

    Raises:
        TypeError: If something is of another kind than above.
        ValueError: If a parameter is in two parts, periods do not fit, or an optimizer is not element-wise.
        RuntimeError: If the model is in a DistributedDataParallel that waits for gradients of all parameters.

    Warns:
        NoEffectWarning: Once, if fast parameters get no gradient between sync steps.

    Example:
        >>> import mrreg
        >>> import torch
        >>> from torch import nn
        >>> stem, trunk, head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        >>> optimizer = mrreg.Multirate(
        ...     [
        ...         (torch.optim.AdamW(head.parameters(), lr=1e-3), 1),
        ...         (torch.optim.SGD(trunk.parameters(), lr=1e-3, momentum=0.9), 5),
        ...         (torch.optim.SGD(stem.parameters(), lr=1e-3), 25),
        ...     ]
        ... )
        >>> for _ in range(7):
        ...     head(trunk(stem(torch.randn(3, 4)))).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer.due
        (True, False, False)
        >>> optimizer
        Multirate (drift=True, 7 steps done
          part 0: AdamW, period 1, 2 tensors, 18 parameters, lr 0.001, due
          part 1: SGD, period 5, 2 tensors, 72 parameters, lr 0.001, 2 of 5
          part 2: SGD, period 25, 2 tensors, 40 parameters, lr 0.001, 7 of 25
        )

    Note:
        Between steps, `requires_grad` of every parameter that was trainable at construction says whether its part needs
        a gradient at the next step. Flags that you set are left alone; all are given back when the optimizer is
        garbage-collected, by `close()`, and at the end of a `with` block. To freeze a slow part in mid-run call
        `close()` first: a flag that is off already cannot show that you set it. The part drifts to its next sync step.

    Note:
        The clock counts calls of `step` that do something: not those that a gradient scaler skips, nor those without
        any gradient. "period" in `param_groups` may be changed; it is read at the sync steps of its group.

    Note:
        Differs from the paper: all gradients of a step come from one mini-batch and one backward pass, so Algorithm 2
        takes the first fast gradient of a cycle before the slow parameters move.

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 3.
    """

    def __init__(
        self,
        parts: Iterable[tuple[Optimizer, int | None]],
        *,
        drift: bool = True,
        gradient: str | Iterable[str] = "sync",
    ) -> None:
        where = type(self).__name__
        pairs = check_parts(where, parts)
        if not isinstance(drift, bool):
            raise invalid_argument(TypeError, where, "drift", "True or False", drift)
        plans = planned(where, pairs, check_gradients(where, gradient, len(pairs)), drift)
        bases = [base for base, _ in pairs]
        shared = [key for key in bases[0].defaults if all(key in base.defaults for base in bases)]
        for group, plan in plans:
            group |= plan
        super().__init__([group for group, _ in plans], {key: bases[0].defaults[key] for key in shared})
        for base in bases:
            self.state.update(base.state)
        self._drift = drift
        self._begin(bases, Flags.of(group["params"] for group in self.param_groups))

    def _begin(self, bases: list[Optimizer], flags: Flags) -> None:
        """Set up what is not saved."""
        for base in bases:
            base.state = self.state
        self._bases = [(base, plain_step(base)) for base in bases]
        self._periods: list[int] = []
        self._flags = flags
        watch_others()
        self._courses: dict[int, Course] = {}
        self._first = True
        self._watch = GradientWatch()
        self._parallel = ParallelWatch(type(self).__name__, self.param_groups, self._slow())
        self._finalizer = weakref.finalize(self, flags.restorer())
        self._finalizer.atexit = False
        self._switch()

    def _switch(self) -> None:
        """Let every parameter require a gradient just where its part needs one at the next step."""
        for index, group in enumerate(self.param_groups):
            self._flags.set(index, group["clock"] == group["next_sync"] or group["gradient"] != "sync")

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @_disable_dynamo
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every part: those that are due by their optimizer, the others along their direction.

        Args:
            closure: Recomputes the loss and its gradients, and returns the loss; called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            if self._counts():
                self._advance()
        return loss

    def _counts(self) -> bool:
        """Whether this call is a step; where torch only wants state to exist, see to that."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0:
            return False
        if not have_gradient(self.param_groups):
            self._warn(self._watch.idle_complaint(self.param_groups))
            return False
        if is_at_rest(self.param_groups):
            for base, step in self._bases:
                create_state(base, step, self.state, self._drift)
            for group in self.param_groups:
                begin(group, self.state)
            return False
        return True

    def _check_periods(self) -> None:
        """Look at the periods again where the user has changed one."""
        periods = [group["period"] for group in self.param_groups]
        if periods != self._periods:
            check_periods(type(self).__name__, self.param_groups)
            for group in self.param_groups:
                group["period"] = int(group["period"])  # NumPy's could not be loaded with weights_only=True
            self._periods = periods

    def _advance(self) -> None:
        """One step of all parts."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            problem = "a CUDA graph would repeat one step of a cycle for ever, and the clock would stand"
            raise invalid_state(f"{type(self).__name__}.step", problem, "Capture the model and not the optimizer.")
        now = self.param_groups[0]["clock"]
        due = [group for group in self.param_groups if group["next_sync"] == now]
        self._check_periods()
        ends = next_syncs(self.param_groups, due, now)
        if self._first:
            self._parallel.look(self.param_groups, self._slow())
            self._first = False
        self._parallel.check(due)
        self._warn(self._watch.complaint(self.param_groups, due))
        for base, step in self._bases:
            mine = [group for group in base.param_groups if group["next_sync"] == now]
            for group in base.param_groups:
                if group["next_sync"] != now:
                    self._between(base, group)
            if mine:
                base.state = self.state  # which the user may have replaced
                self._sync(base, step, mine, ends, now)
        for group in due:
            group["last_sync"], group["next_sync"] = now, ends[id(group)]
        for group in self.param_groups:
            group["clock"] = now + 1
        self._switch()

    def _sync(self, base: Optimizer, step: Step, groups: list[Group], ends: dict[int, int], now: int) -> None:
        """Let a base take its step on the groups that are due, and note the directions of those that will be held."""
        gathered = [Gathered(g, self.state, now - g["last_sync"]) for g in groups if g["gradient"] != "sync"]
        held: list[Held] = []

        def prepare() -> None:
            held.extend(self._measured(base, group) for group in groups if ends[id(group)] > now + 1)

        try:
            call(base, step, groups, prepare)
        finally:
            for each in gathered:
                each.give_back()
        for group, params, finish in held:
            if self._drift:
                shared = has_buffer(base, group)
                self._courses[id(group)] = keep(params, finish(), shared, self.state)
            elif params:
                rest_of_cycle = (now + 1 - ends[id(group)]) * step_size(group)
                torch._foreach_add_(local_all(params), local_all(finish()), alpha=rest_of_cycle)

    def _measured(self, base: Optimizer, group: Group) -> Held:
        """Before the step of a base, what will tell the directions of a group after it."""
        params = [p for p in group["params"] if p.grad is not None]
        if self._drift:
            group["moving"] = len(params)
            if len(params) < len(group["params"]):
                rest([p for p in group["params"] if p.grad is None], self.state)
        return Held(group, params, measure(base, group, params, self.state))

    def _between(self, base: Optimizer, group: Group) -> None:
        """A step between two sync steps of a group."""
        if self._drift:
            course = self._courses.get(id(group))
            if course is None or not course.fits(self.state):
                course = self._courses[id(group)] = Course.found(base, group, self.state)
            course.advance(step_size(group))
        if group["gradient"] != "sync":
            gather(group, self.state)

    def _warn(self, problem: str) -> None:
        if not problem:
            return
        message = (
            f"{type(self).__name__}: {problem}. Where layers run under activation checkpointing with "
            "use_reentrant=True, a frozen input cuts off all gradients: use use_reentrant=False."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=7)

    def _slow(self) -> Iterator[Tensor]:
        """The parameters whose requires_grad is switched."""
        for index, group in enumerate(self.param_groups):
            if group["period"] > 1 and group["gradient"] == "sync":
                yield from self._flags.trainable(index)

    @property
    def due(self) -> tuple[bool, ...]:
        """For each part, whether it gets a gradient at the next step."""
        return tuple(any(group["clock"] == group["next_sync"] for group in groups) for _, groups in self._parts())

    def _parts(self) -> Iterator[tuple[Optimizer, list[Group]]]:
        """Base and groups of each part, in the order given, the periods within one base ascending."""
        for base, _ in self._bases:
            for period in sorted({group["initial_period"] for group in base.param_groups}):
                yield base, [group for group in base.param_groups if group["initial_period"] == period]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} (drift={self._drift}, {self.param_groups[0]['clock']} steps done"]
        for index, (base, groups) in enumerate(self._parts()):
            first, params = groups[0], [p for group in groups for p in group["params"]]
            lrs = ", ".join(dict.fromkeys(f"{step_size(group):g}" for group in groups))
            lines.append(
                f"  part {index}: {type(base).__name__}, period {first['period']}, {len(params)} tensors, "
                f"{sum(p.numel() for p in params):,} parameters, lr {lrs}, {position(first)}"
            )
        return "\n".join([*lines, ")"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the parts are fixed at construction, so that schedulers and saved states fit for life.

        Args:
            param_group: What torch would add.
        """
        if "_bases" in self.__dict__:
            problem = "the parts are fixed at construction"
            remedy = "Put parameters that train later into a part from the start, with requires_grad=False."
            raise invalid_state(f"{type(self).__name__}.add_param_group", problem, remedy)
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with an entry for parameters that train without state beside others with one.

        Without it, torch's `set_state_dict` refuses a fast part of plain SGD beside a slow part that drifts.
        """
        saved = super().state_dict()
        for i, group in enumerate(saved["param_groups"] if saved["state"] else ()):
            trained = set(self._flags.trainable(i))
            for index, p in zip(group["params"], self.param_groups[i]["params"], strict=True):
                if p in trained:
                    saved["state"].setdefault(index, {STATELESS: True})
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, or refuse it and change nothing.

        Args:
            state_dict: From `state_dict()` of an optimizer with the same parts.
        """
        where = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state_dict, dict):
            raise invalid_argument(
                TypeError, where, "state_dict", "the state_dict() of an optimizer", type(state_dict).__name__
            )

        def check(_: Optimizer, saved: dict[str, Any]) -> None:
            check_saved(where, self._bases, saved)

        handle = self.register_load_state_dict_pre_hook(check)  # the last one: those of the user may adapt the dict
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        own = {
            "_drift": self._drift,
            "_flags": self._flags.saved(),
            "_bases": [copied(base) for base, _ in self._bases],
        }
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_bases" in state:
            theirs = of_bases(state["state"])
            bases = [rebuilt(kind, own | {"state": theirs}) for kind, own in state.pop("_bases")]
            flags = Flags(state.pop("_flags"))
            super().__setstate__(state)
            self._begin(bases, flags)
            return
        for mine, new in zip(self.param_groups, state["param_groups"], strict=True):
            known = AT_START | {key: mine[key] for key in ("period", "initial_period", "gradient", "drift")}
            new |= {key: value for key, value in known.items() if key not in new}
        for p in [p for p, own in state["state"].items() if STATELESS in own]:
            del state["state"][p]
        super().__setstate__(state)
        remaining = iter(self.param_groups)
        for base, _ in self._bases:
            groups = [next(remaining) for _ in base.param_groups]
            base.__setstate__({"state": of_bases(self.state), "param_groups": groups})
            base.state = self.state
        self._courses.clear()
        self._first = True
        self._switch()

    def close(self) -> None:
        """Give `requires_grad` back as it was at construction; a later step takes it up again."""
        self._flags.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
