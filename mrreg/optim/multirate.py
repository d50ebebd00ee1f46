"""The engine: an ordinary torch optimizer whose parts train at different rates."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from typing_extensions import Self

from mrreg.distributed.checks import check_model as check_wrappers
from mrreg.errors import invalid_argument, invalid_state, quoted
from mrreg.optim import checkpoint
from mrreg.optim.checks import check_parts, check_periods, initial_groups
from mrreg.optim.clock import Group, asks_for_state_only, has_gradient, is_due, next_syncs
from mrreg.optim.diagnostics import Diagnostics, check_use, collect_metrics, describe
from mrreg.optim.flags import Flags, check_model, is_switched
from mrreg.optim.part import Part, state_for_bases


class Multirate(Optimizer):
    """Train the parts of a network at different rates, each with an optimizer of its own.

    A part of period K gets a gradient at every K-th step only; in between none is computed, which saves the time. Drift
    needs no memory for `SGD` with momentum (not Nesterov's), else one tensor per slow parameter. At step t:

        take the base's step, note its direction      if t mod K == phase
        theta <- theta - lr * direction               else, with drift (Algorithm 1)

    Without drift (Algorithm 2) it moves by K * lr * direction at once and then rests. The direction is the momentum
    buffer where `SGD` or `LangevinSGD` has one, and the base's displacement / lr otherwise, weight decay included.

    Args:
        parts: Pairs (optimizer, period). One period is 1, and each divides the next larger one; None: that of groups.
        drift: True: parts keep moving between their gradients. False: they move once per gradient.
        gradient: Gradient that a part takes, one word or one per part: "sync" for that of its own step; "mean" or "sum"
            over all steps since its last update, which saves no time and needs one more tensor per slow parameter.
        phase: Step of a part's first gradient, one number or one per part: it is due if t mod K == phase mod K. A
            group's own "phase" takes precedence. With `gradient="sum"`, K - 1 updates after every K gradients.
        model: The module with all slow parameters. From its training forwards to the end of `step`, parameters that are
            not due have requires_grad=False. Needed unless `gradient` is "mean" or "sum".

    Raises:
        TypeError: If an argument is of the wrong kind, or the model is missing.
        ValueError: If a parameter is in two parts, periods do not fit, or an optimizer cannot be a part.
        RuntimeError: If the model is in a DistributedDataParallel that waits for the gradients of all parameters.

    Warns:
        NoEffectWarning: Once for each thing that saves no time or trains nothing, as a forward that is not seen.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> head = torch.optim.AdamW(model[2].parameters(), lr=1e-3)
        >>> trunk = torch.optim.SGD(model[1].parameters(), lr=1e-3, momentum=0.9)
        >>> stem = torch.optim.SGD(model[0].parameters(), lr=1e-3)
        >>> optimizer = mrreg.Multirate([(head, 1), (trunk, 5), (stem, 25)], model=model)
        >>> for _ in range(7):
        ...     model(torch.randn(3, 4)).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer.due
        (True, False, False)

    Note:
        The clock counts the calls of `step` that find a gradient and are not skipped by a gradient scaler. A group's
        "period" may be changed; it is read at its sync steps.

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 3.
    """

    def __init__(
        self,
        parts: Iterable[tuple[Optimizer, int | None]],
        *,
        drift: bool = True,
        gradient: str | Iterable[str] = "sync",
        phase: int | Iterable[int] = 0,
        model: nn.Module | None = None,
    ) -> None:
        where = type(self).__name__
        pairs = check_parts(where, parts)
        entries = initial_groups(where, pairs, gradient, phase, drift)
        slow = [p for group, added in entries if is_switched(added) for p in group["params"]]
        if slow or model is not None:
            model = check_model(where, model, slow)
            check_wrappers(where, model, switches=bool(slow))
        bases = [base for base, _ in pairs]
        shared = [key for key in bases[0].defaults if all(key in base.defaults for base in bases)]
        super().__init__([group for group, _ in entries], {key: bases[0].defaults[key] for key in shared})
        for group, added in entries:
            group |= added
        for base in bases:
            self.state.update(base.state)
        self._drift = drift
        self._order: list[Tensor] = [] if model is None else list(model.parameters())  # of a base's own state
        self._begin(bases, model)
        if model is not None:
            check_use(where, model, self.param_groups)

    def _begin(self, bases: list[Optimizer], model: nn.Module | None = None) -> None:
        """Set up the attributes that are not saved."""
        self._bases = [Part(base, self.state, self._drift) for base in bases]
        self._flags = Flags(type(self).__name__, self.param_groups, model)
        self._diagnostics = Diagnostics(self.param_groups)

    @_disable_dynamo
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Move every part; `closure` recomputes the loss and its gradients, and returns the loss."""
        loss = None
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad():
                if self._counts():
                    self._advance()
                    self._flags.schedule(self.param_groups)
        finally:
            self._flags.show()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as torch does, and end a step that was left out after its backward pass."""
        self._flags.zero_grad_begins()
        super().zero_grad(set_to_none)

    def _counts(self) -> bool:
        """Return True if a call is a step. One that torch makes only to create state creates it, and is none."""
        if getattr(self, "found_inf", None):
            return False
        self._diagnostics.call(type(self).__name__, self.param_groups)
        if not has_gradient(self.param_groups):
            return False
        if asks_for_state_only(self.param_groups):
            for part in self._bases:
                part.create_state(self.state)
            return False
        return True

    def _advance(self) -> None:
        where, groups = type(self).__name__, self.param_groups
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            problem = "a CUDA graph would repeat one step of the cycle forever, and the clock would stop"
            raise invalid_state(f"{where}.step", problem, "Capture the model and not the optimizer.")
        now = groups[0]["clock"]
        due = [group for group in groups if is_due(group)]
        changed = any(type(group["period"]) is not int for group in groups)  # as to NumPy's, which none could load
        if changed or any(group["period"] != 1 for group in due):
            check_periods(where, groups)
        ends = next_syncs(groups, due, now)
        if any(part.lacks_direction() for part in self._bases):  # as in a warm-up from 0: the next step may have a rate
            ends = dict.fromkeys(ends, now + 1)
        self._flags.step_begins(groups)
        for part in self._bases:
            part.advance(self.state, ends, now)
        keys: Iterable[object] = self.state if now == 0 and len(self._bases) > 1 else ()
        if counts := [key for key in keys if isinstance(key, str)]:
            problem = f"a part keeps {quoted(counts)} for all its parameters, which the parts would share"
            raise invalid_state(f"{where}.step", problem, "Use this optimizer alone, with periods in its groups.")
        for group in due:
            group["last_sync"], group["next_sync"] = now, ends[id(group)]
        for group in groups:
            group["clock"] = now + 1

    def _parts(self) -> Iterator[tuple[Optimizer, list[Group]]]:
        """Yield base and groups of each part, in the order given, the periods within one base ascending."""
        for part in self._bases:
            groups = part.base.param_groups
            for period in sorted({group["initial_period"] for group in groups}):
                yield part.base, [group for group in groups if group["initial_period"] == period]

    @property
    def due(self) -> tuple[bool, ...]:
        """True for each part that gets a gradient at the next step."""
        return tuple(any(map(is_due, groups)) for _, groups in self._parts())

    def metrics(self) -> dict[str, float]:
        """Return numbers for a logger: steps done, share of entries due; of each part due, period, steps since then."""
        return collect_metrics(self._parts())

    def train(self) -> None:
        """Pass `train()` on to the parts that have it, as schedule-free optimizers do."""
        self._call_bases("train")

    def eval(self) -> None:
        """Pass `eval()` on to the parts that have it, as schedule-free optimizers do."""
        self._call_bases("eval")

    def _call_bases(self, method: str) -> None:
        for part in self._bases:
            if callable(function := getattr(part.base, method, None)):
                part.base.state = self.state  # which the user may have replaced
                function()

    def __repr__(self) -> str:
        first = f"{type(self).__name__} (drift={self._drift}, {self.param_groups[0]['clock']} steps done"
        return "\n".join([first, *describe(self._parts()), ")"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise RuntimeError: the parts are fixed at construction, so that schedulers and saved states fit for life."""
        if "_bases" in self.__dict__:
            problem = "the parts are fixed at construction"
            remedy = "Put parameters that train later into a part from the start, with requires_grad=False."
            raise invalid_state(f"{type(self).__name__}.add_param_group", problem, remedy)
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, with an entry for each parameter that trains without any."""
        saved = super().state_dict()
        trained = {p for group in self.param_groups for p in group["params"] if self._flags.trains(p)}
        checkpoint.add_stateless_entries(saved, self.param_groups, trained)
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, or refuse it and change nothing.

        It is that of an optimizer with the same parts, or of the base optimizer over the same groups, as `split` makes,
        or over `model.parameters()`.
        """
        where = f"{type(self).__name__}.load_state_dict"
        checkpoint.check_form(where, state_dict)
        handle = self.register_load_state_dict_pre_hook(  # runs last: hooks of the user may adapt the dict
            lambda _, saved: checkpoint.fitted(where, saved, self.param_groups, self.state, self._order)
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        ours = {"_drift": self._drift, "_order": self._order, "_off": list(self._flags.off)}
        return super().__getstate__() | ours | {"_copied_bases": [part.for_copy() for part in self._bases]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a copy's attributes, or what torch passes on when it loads a saved state."""
        if "_copied_bases" in state:
            shared = state_for_bases(state["state"])
            bases = []
            for kind, own in state.pop("_copied_bases"):
                bases.append(kind.__new__(kind))
                bases[-1].__setstate__(own | {"state": shared})
            for p in state.pop("_off"):
                p.requires_grad = True
            super().__setstate__(state)
            self._begin(bases)
            return
        before = {"state": self.state, "param_groups": self.param_groups}
        try:
            self._load(state)
        except Exception as error:  # a base finds its own faults
            self._load(before)
            where, rule = f"{type(self).__name__}.load_state_dict", "one that its parts can take"
            raise invalid_argument(ValueError, where, "state_dict", rule, type(error).__name__, f"{error}.") from error

    def _load(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._flags.show()
        remaining = iter(self.param_groups)
        for part in self._bases:
            part.load([next(remaining) for _ in part.base.param_groups], self.state)
        self._diagnostics.loaded(self.param_groups)
        self._flags.schedule(self.param_groups)

    def close(self) -> None:
        """Set `requires_grad` back to what it was at construction; the next step switches it again."""
        self._flags.close()

    def all_trainable(self) -> AbstractContextManager[None]:
        """Let all parameters require gradients in a `with` block, for a backward pass whose gradients you clear."""
        return self._flags.all_trainable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
