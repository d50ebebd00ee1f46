"""Forwards of a thin model: modules show the kept entries of their tensors to the thread that runs the forward."""

import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from typing_extensions import Self

from mrreg.distributed.checks import SHARD_OUTSIDE
from mrreg.distributed.sharding import is_sharded
from mrreg.errors import NoEffectWarning, invalid_state
from mrreg.masks.checkpoints import CheckpointGuard
from mrreg.masks.mask import Mask
from mrreg.masks.tensors import GatheredTensor
from mrreg.module_utils import join, rebuild_attributes

Forward = Callable[..., Any]


class MaskedForward:
    """One masked forward: the tensors it has gathered, and what modules show in the place of their own.

    A tensor is gathered when it is first read: before that, FSDP may hold it in pieces.
    """

    def __init__(self, mask: Mask, model: nn.Module) -> None:
        self._mask, self._model = mask, model
        self.thread = get_ident()
        self._guard = CheckpointGuard(mask.where)
        self._gathered: dict[GatheredTensor, tuple[Tensor, Tensor]] = {}  # whole and kept entries
        self._attributes: list[tuple[dict[str, Any], str, Any]] = []

    def show(self, tensor: GatheredTensor, value: Tensor) -> Tensor:
        """Return the kept entries of a parameter or buffer."""
        self._guard.note_read()
        found = self._gathered.get(tensor)
        if found is not None and found[0] is value:
            return found[1]
        if is_sharded(value):
            remedy = f"{SHARD_OUTSIDE} Apply it to modules that the forward calls."
            raise invalid_state(
                self._mask.where, f"the parameters are still sharded in the forward, {tensor.name!r} among them", remedy
            )
        small = tensor.gather(value)
        if small is value:
            return value
        if attributes := getattr(value, "__dict__", None):  # other libraries keep what they need on the parameter
            small.__dict__.update(attributes)
        self._gathered[tensor] = value, small
        return small

    def check(self, output: Any) -> None:
        """Raise if a reentrant checkpoint inside the forward has read kept entries."""
        self._guard.check_output(output)

    def __enter__(self) -> Self:
        self._mask.running = self
        self._tables = [Table(*place, self._mask) for place in self._mask.places(self._model)]
        self._set_attributes()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._mask.running = None
        self._reset_attributes()
        for table in self._tables:
            table.restore()
        with torch.no_grad():
            for tensor, (whole, small) in self._gathered.items():
                if tensor.is_buffer and small is not whole:  # BatchNorm has moved the statistics of kept channels
                    tensor.shown.entries(whole).put(small, whole)
        if isinstance(error, Exception):
            self._mask.explain(self._model, error)

    def _set_attributes(self) -> None:
        for attributes, name, value in self._mask.attributes(self._model):
            self._attributes.append((attributes, name, attributes[name]))
            attributes[name] = value

    def _reset_attributes(self) -> None:
        while self._attributes:
            attributes, name, value = self._attributes.pop()
            attributes[name] = value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Show everything whole to a plain forward that this one contains."""
        thread, self.thread = self.thread, 0
        self._reset_attributes()
        try:
            yield
        finally:
            self.thread = thread
            self._set_attributes()


class Table(MutableMapping[str, Any]):
    """Stands for `_parameters` or `_buffers` of a module: the thread of a masked forward reads kept entries by name.

    Whoever lists the table (state_dict, optimizers, copies), and every other thread, gets the whole tensors.
    """

    def __init__(self, module: nn.Module, kind: str, tensors: Mapping[str, GatheredTensor], mask: Mask) -> None:
        self.own: Any = module.__dict__[kind]
        self._module, self._kind, self._tensors, self._mask = module, kind, tensors, mask
        module.__dict__[kind] = self

    def restore(self) -> None:
        """Give the module its own table back."""
        self._module.__dict__[self._kind] = self.own

    def __getitem__(self, name: str) -> Any:
        if name not in self._tensors:
            return self.own[name]
        running = self._mask.running
        if running is not None and running.thread == get_ident():
            return running.show(self._tensors[name], self.own[name])
        return self.own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __contains__(self, name: object) -> bool:
        return name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)

    def items(self) -> Any:
        """Return the whole tensors, with their names."""
        return self.own.items()

    def values(self) -> Any:
        """Return the whole tensors."""
        return self.own.values()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.own),)


def run(
    mask: Mask, model: nn.Module, training: bool, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the forward of the plain class: masked in training mode, on masked steps, and else whole."""
    masked = mask.masking and training
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        if masked and mask.block_group is not None:  # or each cycle would need a graph of its own
            return torch.compiler.disable(run)(mask, model, training, forward, args, kwargs)  # type: ignore[no-untyped-call]
        return _run_traced(mask, model, forward, args, kwargs) if masked else forward(model, *args, **kwargs)
    running = mask.running
    if running is not None and running.thread == get_ident():
        if masked:
            return forward(model, *args, **kwargs)
        with running.paused():
            return forward(model, *args, **kwargs)
    if not masked:
        if training and not mask.attached:
            _warn_undriven(mask)
        with mask.lock if mask.overrides else nullcontext():
            return forward(model, *args, **kwargs)
    if "_is_replica" in vars(model):
        problem = "nn.DataParallel copies the model at every forward, and copies cannot leave units out"
        raise invalid_state(mask.where, problem, "Use DistributedDataParallel.")
    mask.forward_ran.masked = True
    mask.warn_if_moved()
    with mask.lock, MaskedForward(mask, model) as running:
        rebuild_attributes([model])  # by its own hooks, which ran before
        output = forward(model, *args, **kwargs)
        running.check(output)
        return output


def _warn_undriven(mask: Mask) -> None:
    """Warn once that nothing drives this mask; without gradients there is no training to warn of."""
    if not mask.warned and mask.p > 0 and torch.is_grad_enabled():
        mask.warned = True
        message = f"{mask.where}: no optimizer drives this mask, so it is dense. Call mrreg.attach(optimizer, model)."
        warnings.warn(message, NoEffectWarning, stacklevel=6)


def _run_traced(mask: Mask, model: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a masked forward that becomes part of a graph, where modules hold the gathered tensors themselves."""
    mask.forward_ran.masked = True
    whole = {tensor.name: tensor.of(model) for tensor in mask.tensors.values()}
    small = {tensor.name: tensor.gather(whole[tensor.name]) for tensor in mask.tensors.values()}
    before = [(attributes, name, attributes[name]) for attributes, name, _ in mask.attributes(model)]
    for attributes, name, value in mask.attributes(model):
        attributes[name] = value
    paths = {module: path for path, module in model.named_modules()}  # a module under two names has one place
    at = {
        join(paths[module], leaf): small[t.name] for module, _, found in mask.places(model) for leaf, t in found.items()
    }
    with _reparametrize_module(model, at, tie_weights=False):
        rebuild_attributes([model])
        output = forward(model, *args, **kwargs)
    for attributes, name, value in before:
        attributes[name] = value
    for tensor in mask.tensors.values():
        if tensor.is_buffer and small[tensor.name] is not whole[tensor.name]:
            tensor.shown.entries(whole[tensor.name]).put(small[tensor.name], whole[tensor.name])
    return output
