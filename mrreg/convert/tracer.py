"""Follow one real forward of a model: which layer, dropout or function takes the value that another has made.

Hooks see the modules, a torch function mode sees what happens between them (a residual sum, a reshape, a functional
activation). Nothing of it stays behind: the forward runs on a copy that shares the parameters.
"""

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mrreg.convert.value_graph import Node, arity, role
from mrreg.errors import invalid_state

# Functions that drop: they are in the graph whatever they take.
FUNCTIONAL = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def follow(where: str, model: nn.Module, example_inputs: Any) -> list[Node]:
    """Run one forward as in training and return its graph.

    A tuple of example inputs is several positions, a mapping keywords, anything else one argument.
    """
    positions, keywords = (example_inputs if type(example_inputs) is tuple else (example_inputs,)), {}
    if isinstance(example_inputs, Mapping):
        positions, keywords = (), {name: _copy(value) for name, value in example_inputs.items()}
    positions = _copy(positions)
    twin = _twin(where, model)
    watch = _Watch(twin, (positions, keywords))
    with _random_state_kept(model), torch.no_grad(), catch_warnings():
        simplefilter("ignore")
        try:
            with watch:
                output = twin(*positions, **keywords)
        except Exception as error:
            call = "a tuple gives several arguments, a mapping keywords, anything else one argument"
            error.add_note(f"{where}: raised by the model's forward on example_inputs ({call}).")
            raise
    watch.note("the model's output", output)
    return watch.nodes


def _copy(value: Any, shared: dict[int, Any] | None = None) -> Any:
    """A deepcopy that also takes tensors with an autograd history, such as cached activations."""
    with _Copies():
        return copy.deepcopy(value, shared)


class _Copies(TorchFunctionMode):
    """While it is on, deepcopy of a tensor is a clone without history."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def _twin(where: str, model: nn.Module) -> nn.Module:
    """A copy in training mode: the parameters are the model's, everything else its own, and no hook of anybody's."""
    try:
        twin: nn.Module = _copy(model, {id(parameter): parameter for parameter in model.parameters()})
    except Exception as error:
        raise invalid_state(
            where,
            f"the model cannot be copied to follow one forward ({type(error).__name__}: {error})",
            "Call it before the model is wrapped or compiled, or leave out example_inputs.",
        ) from error
    twin.train()
    for module in twin.modules():
        module._forward_hooks.clear()  # a hook may write down what it sees, and this forward is nobody's business
        module._forward_pre_hooks.clear()
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()  # in training it refuses a single example
    return twin


@contextmanager
def _random_state_kept(model: nn.Module) -> Iterator[None]:
    """Leave the global generators of torch, Python and NumPy as they were."""
    devices = {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(state)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


class _Watch(TorchFunctionMode):
    """Notes which call has made each tensor of a forward, and which calls take it."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._made: dict[int, tuple[Tensor, Node]] = {}  # holds the tensor, or another could get its id
        self._open: list[str] = []  # paths of the modules being run
        self._within: list[list[Node | None]] = []  # what fed the layers being run; inside them nothing is noted
        self._add(Node("the model's input", "call", []), inputs)
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # nobody can look into one
                self._hook(path, module)

    def _hook(self, path: str, module: nn.Module) -> None:
        kind, count = role(module), arity(module)

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._open.append(path)
            if kind != "call":
                self._within.append([self._maker(tensor) for tensor in _tensors((args, kwargs))[:count]])

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            self._open.pop()
            if kind != "call":
                self._add(Node(path, kind, self._within.pop()), output)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)

    def _maker(self, tensor: Tensor) -> Node | None:
        return self._made[id(tensor)][1] if id(tensor) in self._made else None

    def _add(self, node: Node, output: Any) -> None:
        if not self._within:
            self.nodes.append(node)
            self._made.update({id(tensor): (tensor, node) for tensor in _tensors(output)})

    def note(self, name: str, inputs: Any, output: Any = None) -> None:
        """Add a call, unless all that it takes comes from nowhere."""
        sources: list[Node | None] = [maker for tensor in _tensors(inputs) if (maker := self._maker(tensor))]
        if sources or name in FUNCTIONAL:
            self._add(Node(name, "call", sources, self._open[-1] if self._open else ""), output)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        changed = args[:1] if name == "__setitem__" else output
        idle = name in FUNCTIONAL and any(output is tensor for tensor in _tensors((args, kwargs)))  # p = 0
        if not self._within and not idle and any(tensor.is_floating_point() for tensor in _tensors(changed)):
            self.note(name, (args, kwargs), changed)
        return output
