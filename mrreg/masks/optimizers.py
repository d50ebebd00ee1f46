"""Find out, by trials on small tensors, what an optimizer does with single entries; and look inside wrappers."""

import copy
import inspect
import warnings
from collections import UserDict, defaultdict
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.checks import check_engine
from mrreg.errors import check, check_type, invalid_argument
from mrreg.masks.nested import leaves

WHERE = "attach"
SIDE = 128  # of the trial's matrix: some optimizers treat smaller ones, or fewer than 4096 entries, element by element
STEPS = 20
LR = 0.01
DEPENDENT = "In a trial on a small tensor, what moves an entry changed with the gradients of others."
Begun = dict[tuple[Any, ...], float | None]
DEPTH = 4  # of the attributes in which an optimizer keeps others
NOT_PARTS = "param_groups", "state", "defaults"


def inner_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer whose step moves the parameters: that inside a wrapper, or the optimizer itself.

    A wrapper (Lookahead, sharpness-aware ones, Accelerate's) has one optimizer for an attribute, over the same
    parameters. The steps of that one are counted, whatever the wrapper's own methods are called.
    """
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
    """Refuse an optimizer that cannot hold single entries of masked parameters; of one made of others, try those.

    Return the ids of those that move by a multiple of their gradient and have no state, as in SGD without momentum.
    """
    plain: set[int] = set()
    for each in _parts(optimizer):
        for group in each.param_groups:
            affected = [p for p in group["params"] if id(p) in masked]
            like = max(affected, key=Tensor.dim, default=None)
            if like is None:
                continue
            with _unnoticed(like):
                reason, is_plain = _trial(each, group, like)
            if reason:
                rule = "an optimizer whose update is element-wise"
                raise invalid_argument(TypeError, WHERE, "optimizer", rule, type(each).__name__, reason)
            plain.update(map(id, affected if is_plain else ()))
    return frozenset(plain)


def _parts(optimizer: Optimizer) -> list[Optimizer]:
    return list(_made_of(optimizer, DEPTH, {id(optimizer)})) or [optimizer]


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
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        return f"Its step needs {required[0]!r}: it may step several times per call.", False
    shape = (SIDE, SIDE) if like.dim() > 1 else (SIDE * SIDE,)
    random = torch.Generator("cpu").manual_seed(0)
    start, away, *noise = torch.randn(2 + STEPS, *shape, generator=random, device="cpu").to(like.device, like.dtype)
    away -= start * (away * start).sum() / start.square().sum()  # some project what is orthogonal to the weights
    noise[0].zero_()
    other = torch.rand(shape, generator=random, device="cpu").to(like.device) < 0.5
    one, two = (_twin(optimizer, group, start, LR) for _ in range(2))
    if one is None or two is None:
        return "", False
    is_plain = False
    try:
        for t, each in enumerate(noise):  # ever away from the start: who finds one step size for all finds a larger one
            gradient = away + each / 4
            one.step(gradient)
            two.step(torch.where(other, gradient * (0.5 if t % 2 else -3.0), gradient))
            if t == 0:
                is_plain = _follows(one, two, gradient * other)
            if t in (0, 2, STEPS - 1) and (reason := _cannot_hold(one) or _differ(one, two, ~other)):
                return reason, False
    except Exception as error:
        return f"A trial step on a small tensor failed ({type(error).__name__}: {error}).", False
    return "", is_plain


def _follows(one: "_Twin", two: "_Twin", gradient: Tensor) -> bool:
    """Tell if two optimizers without state have moved apart along the gradient by which theirs differed."""
    if any(path[0] == "state" and isinstance(value, Tensor) and value.dim() for path, value in one.contents()):
        return False
    apart = (one.parameter.detach() - two.parameter.detach()).flatten().double()
    cosine = torch.cosine_similarity(apart, gradient.flatten().double(), 0).abs()
    return float(1 - cosine) < max(torch.finfo(gradient.dtype).eps, 1e-7)  # to rounding


def _cannot_hold(twin: "_Twin") -> str:
    """Say which tensors no masked step can hold: those of another shape than the parameter, or outside of its state."""
    for (place, *path), value in twin.contents():
        name = path[0] if place == "state" else next(reversed(path), "")
        if isinstance(value, Tensor) and value.numel() > 1 and place != "parameter":
            if place != "state":
                return f"It keeps tensors outside of its state, in {name!r}."
            if value.shape != twin.parameter.shape:
                return f"Its state {name!r} has a tensor of another shape than the parameter."
        elif place == "state" and not isinstance(value, Tensor | Number | str | torch.dtype | None):
            return f"Its state {name!r} has a {type(value).__name__}, in which entries cannot be held."
    return ""


def _differ(one: "_Twin", two: "_Twin", there: Tensor) -> str:
    """Say that more than what belongs to other entries has changed with the gradients of those."""
    known = dict(two.contents())
    for path, first in one.contents():
        second = known.get(path)
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            whole = first.shape == second.shape == there.shape
            same = torch.equal(first[there], second[there]) if whole else torch.equal(first, second)
        else:
            same = not isinstance(first, Number) or first == second
        if not same:
            return DEPENDENT
    return ""


class _Twin:
    """An optimizer of the class and options of another, over one small parameter."""

    def __init__(self, optimizer: Any, parameter: nn.Parameter) -> None:
        self.optimizer, self.parameter, self._steps = optimizer, parameter, 0
        if callable(getattr(optimizer, "train", None)):
            optimizer.train()

    def step(self, gradient: Tensor) -> None:
        """Step with a gradient, and the random numbers that any twin has in this step."""
        self.parameter.grad = gradient.clone()
        torch.manual_seed(self._steps)
        self._steps += 1
        step: Any = type(self.optimizer).step
        # hooks of all optimizers must not see a trial
        (step.__wrapped__ if getattr(step, "hooked", False) else step)(self.optimizer)

    def contents(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield all that a step may change, by place and path."""
        yield ("parameter",), self.parameter.detach()
        yield from leaves(self.optimizer.state.get(self.parameter, {}), ("state",))
        own = dict(vars(self.optimizer), group=self.optimizer.param_groups[0])
        own["state"] = [value for p, value in self.optimizer.state.items() if p is not self.parameter]
        for path, value in leaves(own, ("own",)):
            if not {"params", "param_groups", "defaults"}.intersection(path) and value is not self.parameter:
                yield path, value


def _twin(optimizer: Optimizer, group: dict[str, Any], start: Tensor, lr: float | None = None) -> _Twin | None:
    """Build another optimizer of the same class and options; None if it cannot be built."""
    kind: Any = type(optimizer)
    parameter = nn.Parameter(start.clone())
    options = {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
    if "lr" in options and lr is not None:  # it may be 0 in a warm-up
        options["lr"] = torch.full_like(options["lr"], lr) if isinstance(options["lr"], Tensor) else lr
    known = inspect.signature(kind.__init__).parameters
    arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
    groups = [{**options, "params": [parameter]}]
    with suppress(Exception):  # its constructor may want something that its groups do not say
        return _Twin(kind(groups, **arguments), parameter)
    with suppress(Exception):
        own = {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
        twin = kind.__new__(kind)
        vars(twin).update(copy.deepcopy(own), state=defaultdict(dict), param_groups=groups)
        return _Twin(twin, parameter)
    return None


class BeginState:
    """Finds out by a trial what an optimizer begins the state of a parameter with.

    State may be made from the first gradient, as a momentum is; the trial has none, so that it is zero. Nor can decay
    of weights add to it in the place where the trial's parameter is zero.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._known: dict[tuple[Any, ...], Begun] = {}  # for one step, after which options may be others

    def __call__(self, parameter: Tensor) -> Begun:
        """Return by path in the state one number, which all entries begin with, or None for a copy of the parameter."""
        for each in _parts(self._optimizer):
            for group in each.param_groups:
                if any(p is parameter for p in group["params"]):
                    key = id(group), parameter.dim(), parameter.dtype, parameter.device
                    if key not in self._known:
                        self._known[key] = _begun(each, group, parameter)
                    return self._known[key]
        return {}


def _begun(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> Begun:
    found: Begun = {}
    start = torch.tensor([0.0, 1.375, -2.25], device=like.device, dtype=like.dtype)
    with _unnoticed(like), suppress(Exception):
        twin = _twin(optimizer, group, start.view([1] * (like.dim() - 1) + [3]))
        if twin is not None:
            twin.optimizer.state = _States(found, twin.parameter)
            for _ in range(STEPS):
                twin.step(torch.zeros_like(twin.parameter))
    return found


class _States(UserDict[Any, Any]):
    """An optimizer's state, or that of one parameter, that notes what its tensors are when they are put into it."""

    def __init__(self, found: Begun, parameter: Tensor) -> None:
        super().__init__()
        self._found, self._parameter = found, parameter

    def __missing__(self, name: Any) -> Any:
        if not isinstance(name, Tensor):
            raise KeyError(name)
        self[name] = {}
        return self.data[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        if isinstance(name, Tensor):  # the state of a parameter
            self.data[name] = _States(self._found, self._parameter)
            self.data[name].update(value)
            return
        for path, tensor in leaves(value, (name,)):
            if isinstance(tensor, Tensor) and tensor.shape == self._parameter.shape:
                first, *others = tensor.flatten().tolist()
                is_copy = others == self._parameter.flatten().tolist()[1:]
                self._found.setdefault(path, None if is_copy else first)
        self.data[name] = value
