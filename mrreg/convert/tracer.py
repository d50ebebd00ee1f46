"""Follow one real forward of a model: which layer, dropout or function takes the value that another has made.

Hooks see the modules, a torch function mode sees what happens between them (a residual sum, a reshape, a functional
activation), and a dispatch mode sees every random number that is drawn on the way.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from mrreg import isolation
from mrreg.convert.layers import DROPOUTS, arity, role
from mrreg.convert.value_graph import Node
from mrreg.errors import add_note
from mrreg.isolation import (
    ExtremeNumbers,
    copied_state,
    deep_copy,
    generators_moved,
    random_state_kept,
    set_extreme_generators,
)
from mrreg.module_utils import has_stock_forward, tensors_in

DROPOUT_FUNCTION = re.compile(r"(feature_)?(alpha_)?dropout(\dd)?_?")
INPUT, OUTPUT = "the model's input", "the model's output"
TORCH = f"{Path(torch.__file__).parent}{os.sep}"


@dataclass
class RandomCall:
    """A place in a forward where random numbers are drawn outside of torch's dropout modules.

    Args:
        place: Path of the module in whose forward it happens.
        function: The function that draws.
        where: File, line and function of the code that calls it.
        p: Probability of being dropped, where the call says it.
        scalar: One number for all, as code draws it that skips whole layers.
    """

    place: str
    function: str
    where: str = ""
    p: float | None = None
    scalar: bool = False


@dataclass
class Trace:
    """Findings of one forward.

    Args:
        largest: True if random numbers came out as large as possible, False if as small.
        nodes: The graph of its values.
        random_calls: Random numbers that were drawn in functions, by the name of the site.
        modules: Paths of the modules that were called.
    """

    largest: bool
    nodes: list[Node] = field(default_factory=list)
    random_calls: dict[str, RandomCall] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def trace_forward(where: str, model: nn.Module, example_inputs: Any) -> Trace:
    """Run a forward as in training and return what it has shown.

    Code that skips layers at random compares a random number with a threshold. So random numbers come out as large as
    possible, which by custom means that nothing is skipped; if modules were left out, the forward is run again with
    small ones, and the one that has called more modules counts.

    Args:
        where: The public function to name in errors.
        model: The model; it is left as it was.
        example_inputs: A tuple is several positions, a mapping keywords, anything else one argument.
    """
    first = _trace(where, model, example_inputs, largest=True)
    left_out = {path for path, module in model.named_modules() if role(module) != "call"} - first.modules
    if not left_out or not first.random_calls:
        return first
    return max(first, _trace(where, model, example_inputs, largest=False), key=lambda trace: len(trace.modules))


def modules_called(
    where: str, model: nn.Module, example_inputs: Any, replacements: Mapping[nn.Module, nn.Module], trace: Trace
) -> set[nn.Module]:
    """Return the modules that a forward calls while others stand in the place of some."""
    called: set[nn.Module] = set()
    with _isolated(where, model, trace.largest):
        parents = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        for parent in parents:
            parent._modules.update({n: replacements.get(m, m) for n, m in parent._modules.items() if m is not None})
        with _RandomNumbers(None, trace.largest), _every_call(called):
            _run(where, model, example_inputs, None)
    return called


@contextmanager
def _every_call(called: set[nn.Module]) -> Iterator[None]:
    handle = register_module_forward_pre_hook(lambda module, _: called.add(module))
    try:
        yield
    finally:
        handle.remove()


def _trace(where: str, model: nn.Module, example_inputs: Any, *, largest: bool) -> Trace:
    with _isolated(where, model, largest):
        tracer = ForwardTracer(model, largest)
        with _RandomNumbers(tracer, largest):
            output = _run(where, model, example_inputs, tracer)
        for name in generators_moved():
            tracer.trace.random_calls[f"the model: {name}"] = RandomCall("", name, scalar=True)
    tracer.note(OUTPUT, output)
    return tracer.trace


@contextmanager
def _isolated(where: str, model: nn.Module, largest: bool) -> Iterator[None]:
    """Let a forward leave nothing behind and skip nothing at random."""
    with copied_state(where, model), random_state_kept(model), torch.no_grad(), _uncompiled(), catch_warnings():
        simplefilter("ignore")
        set_extreme_generators(largest)
        torch.default_generator.manual_seed(0)  # for whole numbers; the same on every rank
        yield


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled modules eagerly, without importing the compiler for it."""
    compiling = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if compiling else nullcontext():  # takes effect when it is made
        yield


def _run(where: str, model: nn.Module, example_inputs: Any, tracer: "ForwardTracer | None") -> Any:
    """Call a model on a copy of its example inputs."""
    positions, keywords = (example_inputs if type(example_inputs) is tuple else (example_inputs,)), {}
    if isinstance(example_inputs, Mapping):
        positions, keywords = (), {name: deep_copy(value) for name, value in example_inputs.items()}
    positions = deep_copy(positions)
    if tracer:
        tracer.note(INPUT, (), (positions, keywords))
    try:
        with tracer or nullcontext():
            return model(*positions, **keywords)
    except Exception as error:
        call = "a tuple gives several arguments, a mapping keywords, anything else one argument"
        add_note(error, f"{where}: raised by the model's forward on example_inputs ({call}).")
        raise


class ForwardTracer(TorchFunctionMode):
    """Notes which call has made each tensor of a forward, and which calls take it."""

    def __init__(self, model: nn.Module, largest: bool) -> None:
        super().__init__()
        self.trace = Trace(largest)
        self.function = ""  # the outermost torch function that runs
        self._site = ""  # name of the random call that it has made
        self._makers: dict[int, tuple[Tensor, Node]] = {}  # holds the tensor, or another could get its id
        self._open: list[tuple[str, nn.Module]] = []  # the modules being run
        self._within: list[list[Node | None]] = []  # what fed the layers being run; inside them nothing is noted
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # its inside cannot be seen
                self._hook(path, module)

    def _hook(self, path: str, module: nn.Module) -> None:
        kind, count = role(module), arity(module)

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._open.append((path, module))
            self.trace.modules.add(path)
            if kind != "call":
                self._within.append([self._maker(tensor) for tensor in islice(tensors_in((args, kwargs)), count)])

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            self._open.pop()
            if kind != "call":
                self._add(Node(path, kind, self._within.pop()), output)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)

    @property
    def place(self) -> str:
        """Path of the innermost module that runs."""
        return self._open[-1][0] if self._open else ""

    def _maker(self, tensor: Tensor) -> Node | None:
        return self._makers[id(tensor)][1] if id(tensor) in self._makers else None

    def _add(self, node: Node, output: Any) -> None:
        if not self._within:
            self.trace.nodes.append(node)
            self._makers.update({id(tensor): (tensor, node) for tensor in tensors_in(output)})

    def note(self, name: str, inputs: Any, output: Any = None) -> None:
        """Add a call, unless all that it takes comes from nowhere."""
        sources: list[Node | None] = [maker for tensor in tensors_in(inputs) if (maker := self._maker(tensor))]
        dropout = bool(self._site and DROPOUT_FUNCTION.fullmatch(name))
        if sources or dropout or name == INPUT:
            self._add(
                Node(self._site if dropout else name, "dropout" if dropout else "call", sources, self.place), output
            )

    def note_random(self, operation: str, p: float | None, scalar: bool) -> None:
        """Add a random call, unless a module in which it happens stands for it in the report."""
        if any(_reports_itself(module) for _, module in self._open):
            return
        function = self.function or operation
        call = RandomCall(self.place, function, _caller(), p, scalar)
        name = base = f"{self.place or 'the model'}: {function}()"
        number = 1
        while name in self.trace.random_calls and self.trace.random_calls[name].where != call.where:
            number += 1
            name = f"{base} #{number}"
        self._site = name
        self.trace.random_calls.setdefault(name, call)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        self.function, self._site = name, ""
        try:
            output = func(*args, **(kwargs or {}))
            changed = args[:1] if name == "__setitem__" else output
            idle = DROPOUT_FUNCTION.fullmatch(name) and any(output is tensor for tensor in tensors_in((args, kwargs)))
            if not self._within and not idle and any(tensor.is_floating_point() for tensor in tensors_in(changed)):
                self.note(name, (args, kwargs), changed)
        finally:
            self.function, self._site = "", ""
        return output


class _RandomNumbers(ExtremeNumbers):  # type: ignore[no-untyped-call]
    """Tells a tracer of random numbers that are drawn, and makes them as large or as small as possible."""

    def __init__(self, tracer: ForwardTracer | None, largest: bool) -> None:
        super().__init__(largest)
        self.tracer = tracer

    def note(self, operation: str, p: float | None, scalar: bool) -> None:
        """Pass it on."""
        if self.tracer:
            self.tracer.note_random(operation, p, scalar)


def _reports_itself(module: nn.Module) -> bool:
    """Return True if the noise of a module is in the report by the module's own arguments."""
    takes_p = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and has_stock_forward(module)
    return isinstance(module, DROPOUTS) or takes_p


def _caller() -> str:
    """Return file, line and function of the code outside of torch that is running."""
    frame: Any = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((__file__, isolation.__file__, TORCH)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""
