"""Find out, by trials on small tensors, what an optimizer does with single entries; look inside wrappers and state."""

import copy
import inspect
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.distributed.sharding import local
from mrreg.errors import check, check_type, invalid_argument

WHERE = "attach"
SIDE = 128  # of the trial's matrix: some optimizers treat smaller ones, or fewer than 4096 entries, element by element
STEPS = 20
LR = 0.01
DEPTH = 4  # of the attributes in which an optimizer keeps others
NOT_PARTS = "param_groups", "state", "defaults"
Path = tuple[Any, ...]  # keys and positions that lead to something in nested dicts and lists


def inner_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer that a wrapper (Lookahead, Accelerate's) has over the same parameters, or the optimizer."""
    seen: list[Any] = []
    while not any(optimizer is each for each in seen):
        seen.append(optimizer)
        check_engine(WHERE, "optimizer", optimizer)
        inside = list(_made_of(optimizer, 0, {id(optimizer)}))
        if len(inside) == 1 and _parameters(optimizer) <= _parameters(inside[0]):
            optimizer = inside[0]
    rule = "a torch.optim.Optimizer with step hooks, or a wrapper of one over the same parameters"
    found = check_type(WHERE, "optimizer", optimizer, Optimizer, rule)
    hooked = hasattr(found, "_optimizer_step_post_hooks")
    check(hooked, WHERE, "optimizer", rule, type(optimizer).__name__, kind=TypeError)
    return found


def _parameters(optimizer: Any) -> set[int]:
    return {id(p) for group in getattr(optimizer, "param_groups", None) or () for p in group["params"]}


def examine(optimizer: Optimizer, masked: Container[int]) -> frozenset[int]:
    """Refuse an optimizer that cannot hold single entries; return the ids of parameters that move by their gradient."""
    plain: set[int] = set()
    for part, group in _groups(optimizer):
        if affected := [p for p in group["params"] if id(p) in masked]:
            reason, is_plain = _trial(part, group, max(affected, key=Tensor.dim))
            if reason:
                rule = "an optimizer whose update is element-wise"
                raise invalid_argument(TypeError, WHERE, "optimizer", rule, type(part).__name__, reason)
            plain.update(map(id, affected if is_plain else ()))
    return frozenset(plain)


def begun(optimizer: Optimizer, parameter: Tensor) -> dict[Path, Any]:
    """Return the state that an optimizer begins a parameter with: a copy of the parameter, or the same number in all.

    A trial tells it, a step without gradient or decay. What is neither is made from the gradient, and begins with zero.
    """
    found: dict[Path, Any] = {}
    for part, group in _groups(optimizer):
        if any(p is parameter for p in group["params"]):
            with _unnoticed(parameter), suppress(Exception):
                twin = _Twin(part, group, parameter.detach(), weight_decay=0.0)
                twin.step(torch.zeros_like(twin.parameter))
                found = leaves(twin.optimizer.state[twin.parameter])
    for value in found.values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            here, weights = local(value), local(parameter)
            if torch.allclose(here, weights.to(here.dtype), rtol=0.01, atol=0):
                here.copy_(weights)
            elif here.numel() and (here != here.flatten()[0]).any():
                here.zero_()
    return found


def _groups(optimizer: Optimizer) -> list[tuple[Optimizer, dict[str, Any]]]:
    """Return the groups of an optimizer, or of those that it is made of, each with the optimizer that steps it."""
    parts = list(_made_of(optimizer, DEPTH, {id(optimizer)})) or [optimizer]
    return [(part, group) for part in parts for group in part.param_groups]


def _made_of(value: Any, depth: int, seen: set[int]) -> Iterator[Optimizer]:
    """Yield the optimizers that an object keeps in its attributes, in lists, or in objects of its own."""
    if isinstance(value, Tensor | nn.Module | type):
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        value = [each for name, each in getattr(value, "__dict__", {}).items() if name not in NOT_PARTS]
    for each in value:
        if id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, Optimizer):
                yield each
            elif depth:
                yield from _made_of(each, depth - 1, seen)


@contextmanager
def _unnoticed(like: Tensor) -> Iterator[None]:
    """Move no random state and warn of nothing in a trial."""
    with warnings.catch_warnings(), torch.random.fork_rng([like.device] if like.is_cuda else []), torch.enable_grad():
        warnings.simplefilter("ignore")
        yield


def _trial(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> tuple[str, bool]:
    """Return why single entries of a group's parameters cannot be held, if so, and if they move by their gradient."""
    shape = (SIDE, SIDE) if like.dim() > 1 else (SIDE * SIDE,)
    random = torch.Generator("cpu").manual_seed(0)
    start, away, *noise = torch.randn(2 + STEPS, *shape, generator=random, device="cpu").to(like.device, like.dtype)
    away -= start * (away * start).sum() / start.square().sum()  # some project what is orthogonal to the weights
    noise[0].zero_()
    other = torch.rand(shape, generator=random, device="cpu").to(like.device) < 0.5
    is_plain = False
    with _unnoticed(like):
        try:
            one, two = (_Twin(optimizer, group, start, lr=LR) for _ in range(2))  # its own may be 0 in a warm-up
            moved = _Twin(optimizer, group, start, apart=True, lr=LR)
            for t, each in enumerate(noise):  # ever away from the start: one step size for all would be found larger
                gradient = away + each / 4
                one.step(gradient)
                two.step(torch.where(other, gradient * (0.5 if t % 2 else -3.0), gradient))
                if t == 0:
                    is_plain = _follows(one, two, gradient * other)
                moved.step(gradient)
                if t == STEPS - 1 and torch.equal(moved.parameter, start):
                    return "It does not step on the parameters in its groups, but on some that it keeps.", False
                if t in (0, 2, STEPS - 1) and (reason := _fault(one, two, ~other)):
                    return reason, False
        except Exception as error:
            return f"A trial step on a small tensor failed ({type(error).__name__}: {error}).", False
    return "", is_plain


def _follows(one: "_Twin", two: "_Twin", gradient: Tensor) -> bool:
    """Tell if two optimizers without state have moved apart along the gradient by which theirs differed."""
    if any(path[0] == "state" and isinstance(value, Tensor) and value.dim() for path, value in one.contents().items()):
        return False
    apart = (one.parameter.detach() - two.parameter.detach()).flatten().double()
    cosine = torch.cosine_similarity(apart, gradient.flatten().double(), 0).abs()
    return float(1 - cosine) < max(torch.finfo(gradient.dtype).eps, 1e-7)  # to rounding


def _fault(one: "_Twin", two: "_Twin", there: Tensor) -> str:
    """Say what an optimizer keeps that no masked step can hold, or what other entries' gradients have changed."""
    known = two.contents()
    for path, value in one.contents().items():
        name, second, same = ".".join(map(str, path[1:])), known.get(path), True
        if isinstance(value, Tensor):
            whole = value.numel() > 1
            if whole and (path[0] == "own" or value.shape != there.shape):
                return f"It keeps {name!r}, which is no state with one entry for each entry of the parameter."
            pair = (value, second) if isinstance(second, Tensor) else (value, value)
            same = torch.equal(*(each[there] if whole else each for each in pair))
        elif isinstance(value, Number):
            same = not isinstance(second, Number) or value == second
        elif path[0] == "state" and not isinstance(value, str | torch.dtype | None):
            return f"It keeps {name!r}, a {type(value).__name__}, in which entries cannot be held."
        if not same:
            return "In a trial on a small tensor, what moves an entry changed with the gradients of others."
    return ""


class _Twin:
    """An optimizer of the class and options of another, over one parameter of its own."""

    def __init__(self, optimizer: Optimizer, group: Any, start: Tensor, apart: bool = False, **other: float) -> None:
        kind: Any = type(optimizer)
        self.parameter, self._steps = nn.Parameter(start.clone()), 0
        first = nn.Parameter(start.clone()) if apart else self.parameter
        options = {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
        for name in other.keys() & options.keys():
            old, new = options[name], other[name]
            options[name] = torch.full_like(old, new) if isinstance(old, Tensor) else new
        known = inspect.signature(kind.__init__).parameters
        arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
        groups = [{**options, "params": [first]}]
        try:
            self.optimizer: Any = kind(groups, **arguments)
        except Exception:  # its constructor may want something that its groups do not say
            own = {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
            self.optimizer = kind.__new__(kind)
            vars(self.optimizer).update(copy.deepcopy(own), state=defaultdict(dict), param_groups=groups)
        self.optimizer.param_groups[0]["params"] = [self.parameter]  # if apart another one, as in masked steps
        if first in self.optimizer.state:
            self.optimizer.state[self.parameter] = self.optimizer.state.pop(first)
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()

    def step(self, gradient: Tensor) -> None:
        """Step with a gradient, and the random numbers that any twin has in this step."""
        self.parameter.grad = gradient.clone()
        torch.default_generator.manual_seed(self._steps)  # torch.manual_seed formats the stack several times
        if self.parameter.is_cuda:
            torch.cuda.manual_seed(self._steps)
        self._steps += 1
        step: Any = type(self.optimizer).step
        # hooks of all optimizers must not see a trial
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(self.optimizer)

    def contents(self) -> dict[Path, Any]:
        """Return all that a step may change, by place and path."""
        optimizer, parameter = self.optimizer, self.parameter
        own = {name: value for name, value in vars(optimizer).items() if name not in NOT_PARTS}
        others = [value for p, value in optimizer.state.items() if p is not parameter]
        own |= {"group": optimizer.param_groups[0], "state": others}
        found = leaves(optimizer.state.get(parameter, {}), ("state",)) | leaves(own, ("own",))
        kept = {path: value for path, value in found.items() if "params" not in path and value is not parameter}
        return {("parameter",): parameter.detach()} | kept


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return what lies in nested mappings and sequences, by its path."""
    found: dict[Path, Any] = {}
    replaced(value, found.setdefault, path)
    return found


def replaced(value: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return nested mappings and sequences with other things in them."""
    if isinstance(value, tuple):
        parts = replaced([*value], change, path)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if not isinstance(value, MutableMapping | list | deque):
        return change(path, value)
    made: Any = copy.copy(value)
    for name, each in value.items() if isinstance(value, MutableMapping) else enumerate(value):
        made[name] = replaced(each, change, (*path, name))
    return made
