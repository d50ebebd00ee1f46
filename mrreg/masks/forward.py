"""Masked forwards: modules show the present entries of their tensors to the thread that runs the forward."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from threading import get_ident
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import _symbolic_trace
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import checkpoint
from typing_extensions import Self

from mrreg.distributed.checks import SHARD_OUTSIDE
from mrreg.distributed.sharding import is_sharded
from mrreg.errors import add_note, invalid_state
from mrreg.masks.entries import version_of
from mrreg.masks.mask import Mask
from mrreg.masks.tensors import MaskedTensor
from mrreg.module_utils import join, may_be_differentiated, rebuild_attributes, tensors_in

Forward = Callable[..., Any]
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # from torch 2.7 on
_in_transform = torch._C._are_functorch_transforms_active
_is_fx_tracing = getattr(_symbolic_trace, "is_fx_symbolic_tracing", _symbolic_trace.is_fx_tracing)
OTHER_PATH = (
    "units are absent in this step. If it runs without thin, example_inputs took another path: search with that."
)
Attributes = list[tuple[dict[str, Any], str, Any]]  # dictionary, name, value


def _set(attributes: Attributes) -> Attributes:
    """Set attributes, and return what sets them back."""
    before = [(table, name, table[name]) for table, name, _ in attributes]
    for table, name, value in attributes:
        table[name] = value
    return before


class MaskedForward:
    """One masked forward: the tensors it has gathered, and what modules show in the place of their own.

    A tensor is gathered when it is first read: before that, FSDP may hold it in pieces. Where the forward has
    activation checkpoints, modules show the same in its backward pass, which computes parts of it again.
    """

    def __init__(self, mask: Mask, module: nn.Module) -> None:
        if "_is_replica" in vars(module):
            problem = "nn.DataParallel copies the module at every forward, and copies are not masked"
            raise invalid_state(mask.where, problem, "Use DistributedDataParallel.")
        self._mask, self._module = mask, module
        self.thread, self._in_backward = get_ident(), False
        self._step, self._outside, self._has_checkpoint = mask.step, _autograd_mode(), False
        self._gathered: dict[MaskedTensor, tuple[Tensor, Tensor]] = {}  # whole and present entries
        self._read: list[tuple[MaskedTensor, Tensor, int | None]] = []  # what nobody may write to, with versions

    def show(self, tensor: MaskedTensor, value: Tensor) -> Tensor:
        """Return the present entries of a parameter or buffer."""
        # what is made in a checkpoint belongs to its graph, or to none: it is made again at each read, as it will be
        apart = not tensor.writable and (self._in_backward or _autograd_mode() != self._outside)
        self._has_checkpoint |= apart
        found = None if apart else self._gathered.get(tensor)
        if found is not None and found[0] is value:
            return found[1]
        if is_sharded(value):
            problem = f"the parameters are still sharded in the forward, {tensor.name!r} among them"
            remedy = f"{SHARD_OUTSIDE} Apply it to modules that the forward calls."
            raise invalid_state(self._mask.where, problem, remedy)
        small = tensor.gather(value)
        if small is value:
            return value
        if value.requires_grad and not (small.requires_grad or _in_transform()):  # kernels are chosen by it
            small.requires_grad_()
        if attributes := getattr(value, "__dict__", None):  # other libraries keep what they need on the parameter
            small.__dict__.update(attributes)
        if not (tensor.writable or (apart and torch.is_grad_enabled())):
            self._read.append((tensor, small, version_of(small)))
        if not apart:
            self._gathered[tensor] = value, small
        return small

    def is_read_here(self) -> bool:
        """Tell if it is this thread's read that the forward, or its backward pass, sees."""
        return torch._C._current_graph_task_id() != -1 if self._in_backward else self.thread == get_ident()

    def watch(self, output: Any) -> None:
        """Enter again in the backward pass from an output, if that will compute parts of the forward again."""
        for node in {t.grad_fn for t in tensors_in(output) if t.grad_fn is not None and self._has_checkpoint}:
            node.register_prehook(self._enter_backward)

    def _enter_backward(self, _: Any) -> None:
        if self._step is not self._mask.step:
            problem = "an optimizer step came between a masked forward with checkpoints and its backward pass"
            raise invalid_state(self._mask.where, problem, "Its weights are gone: call backward() before step().")
        if self._mask.running is None:
            self._in_backward = True
            self.__enter__()
            torch.autograd.Variable._execution_engine.queue_callback(self._close)

    def leave_backward(self) -> None:
        """Show everything whole, where a backward pass has ended, or failed."""
        if self._in_backward and torch._C._current_graph_task_id() == -1:
            self._close()

    def _close(self) -> None:
        if self._in_backward:
            self.__exit__(None, None, None)
            self._in_backward = False

    def __enter__(self) -> Self:
        self._tables = [_Table(*place, self._mask) for place in self._mask.places(self._module)]
        self._before = _set(self._mask.attributes(self._module))
        self._mask.running = self
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._mask.running = None
        _set(self._before)
        for table in self._tables:
            table.module.__dict__[table.kind] = table.own
        _keep_buffers((tensor, *both) for tensor, both in self._gathered.items())
        unseen = self._mask.unseen if not self._has_checkpoint else []  # there each read has a tensor of its own
        self._mask.unseen = [each for each in unseen if not (each.reads_all or each in self._gathered)]
        written = [tensor.name for tensor, small, version in self._read if version_of(small) != version]
        self._gathered.clear()
        self._read.clear()
        if isinstance(error, Exception):
            self._mask.check_fit(self._module)  # else an error that explains this one
            if self._mask.groups:
                add_note(error, f"{self._mask.where}: {OTHER_PATH}")
        elif written:
            problem = f"the forward writes to {written[0]!r}, of which it sees only what is present, in a copy"
            remedy = "Write to it after the optimizer's step, outside the forward."
            raise invalid_state(self._mask.where, problem, remedy)


def _autograd_mode() -> tuple[bool, object]:
    """Return what differs inside an activation checkpoint: if gradients are on, and which one without is recorded."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # before torch 2.8: who is calling
        frames = (frame for frame, _ in walk_stack(None))
        return torch.is_grad_enabled(), sum(frame.f_code.co_filename == checkpoint.__file__ for frame in frames)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch.is_grad_enabled(), hooks if hooks and hooks[0].__module__ == checkpoint.__name__ else None


@torch.no_grad()
def _keep_buffers(gathered: Iterable[tuple[MaskedTensor, Tensor, Tensor]]) -> None:
    """Write buffers back after a forward: BatchNorm has moved the statistics of channels that are present."""
    for tensor, whole, small in gathered:
        if tensor.writable and small is not whole and not _in_transform():  # in one, torch lets nothing write to them
            tensor.shown(whole).put(small, whole)


class _Table(dict[str, Any]):
    """Stands for `_parameters` or `_buffers` of a module: the thread of a masked forward reads present entries by name.

    Whoever lists the table (state_dict, optimizers, copies), and every other thread, gets the whole tensors.
    """

    def __init__(self, module: nn.Module, kind: str, tensors: Mapping[str, MaskedTensor], mask: Mask) -> None:
        self.own: Any = module.__dict__[kind]
        super().__init__(self.own)
        self.module, self.kind, self._tensors, self._mask = module, kind, tensors, mask
        module.__dict__[kind] = self

    def __getitem__(self, name: str) -> Any:
        running = self._mask.running if name in self._tensors else None
        value = self.own[name]
        return value if running is None or not running.is_read_here() else running.show(self._tensors[name], value)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self.own[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.own),)


def run(mask: Mask, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the forward of the plain class: masked in training mode, on masked steps, and else whole."""
    masked = mask.masking and module.training and may_be_differentiated()
    compiling = torch.compiler.is_compiling()
    if masked and (_is_exporting() if compiling else torch._C._is_tracing() or _is_fx_tracing()):
        problem = "a trace of a masked forward would leave out the same entries for ever"
        raise invalid_state(mask.where, problem, "Call eval() first; torch.compile follows the mask.")
    if compiling and masked and mask.block_group is not None:  # or each cycle would need a graph of its own
        return torch.compiler.disable(run)(mask, module, forward, args, kwargs)  # type: ignore[no-untyped-call]
    if compiling:
        return _run_traced(mask, module, forward, args, kwargs) if masked else forward(module, *args, **kwargs)
    if mask.running is not None:
        mask.running.leave_backward()
    if (running := mask.running) is not None and running.is_read_here():  # as a part of itself
        if not masked:
            problem = "inside its own masked forward the module is called in evaluation mode or without gradients"
            raise invalid_state(mask.where, problem, "Call it whole outside of that.")
        return forward(module, *args, **kwargs)
    if not masked:
        if module.training:
            mask.warn_if_undriven(module)
        with mask.lock if mask.overrides else nullcontext():
            return forward(module, *args, **kwargs)
    mask.leave_step()
    with mask.lock, MaskedForward(mask, module) as running:
        rebuild_attributes([module])  # by its own hooks, which ran before
        output = forward(module, *args, **kwargs)
        running.watch(output)
        return output


def _run_traced(mask: Mask, module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a masked forward that becomes part of a graph, where modules hold the gathered tensors themselves."""
    mask.unseen = []  # graphs cannot tell
    whole = {name: tensor.of(module) for name, tensor in mask.tensors.items()}
    small = {name: tensor.gather(whole[name]) for name, tensor in mask.tensors.items()}
    paths = {inner: path for path, inner in module.named_modules()}  # a module under two names has one place
    at = {
        join(paths[inner], leaf): small[t.name] for inner, _, found in mask.places(module) for leaf, t in found.items()
    }
    before = _set(mask.attributes(module))
    with _reparametrize_module(module, at, tie_weights=False):
        rebuild_attributes([module])
        output = forward(module, *args, **kwargs)
    _set(before)
    _keep_buffers((tensor, whole[name], small[name]) for name, tensor in mask.tensors.items())
    return output
