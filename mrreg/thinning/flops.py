"""FLOPs of a step, forward and backward, by module."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mrreg.isolation import set_generators
from mrreg.masks.checkpoints import CheckpointGuard
from mrreg.thinning.double_copy import WHERE, DoublePrecision, Inputs, outputs_in
from mrreg.thinning.paths import buffers_kept


def step_flops(twin: nn.Module, inputs: Inputs, thin: frozenset[int] = frozenset()) -> tuple[int, dict[str, int]]:
    """Count a forward and backward of a copy, all in all and by its innermost modules, of those that have parameters.

    Others that pass their input on, as nn.Identity does, stay open in the counter for most of the backward pass.
    A checkpoint inside the forward must not recompute anything of the parameters whose ids are in `thin`.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes longer than mrreg

    trained = [p for p in twin.parameters() if p.requires_grad]
    handles = [p.register_post_accumulate_grad_hook(_forget) for p in trained]  # type: ignore[no-untyped-call]
    watch = _ThinReads(thin)
    set_generators(None)
    try:
        with buffers_kept(twin), FlopCounterMode(display=False) as counter, DoublePrecision(), watch:  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
            watch.guard.check_output(output)
            leaving = [tensor.sum() for tensor in outputs_in(output) if tensor.requires_grad]
            if leaving:
                torch.stack(leaving).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    own = {
        name
        for name, module in twin.named_modules(remove_duplicate=False)
        if next(module.parameters(), None) is not None
    }
    given = {name.partition(".")[2]: ops for name, ops in counter.get_flop_counts().items() if name != "Global"}
    counts = {name: sum(ops.values()) for name, ops in given.items() if name in own}
    inner = {name: count for name, count in counts.items() if not any(_inside(other, name) for other in counts)}
    return counter.get_total_flops(), inner


class _ThinReads(TorchFunctionMode):
    """Tells a guard of each function that takes a thin parameter."""

    def __init__(self, thin: frozenset[int]) -> None:
        super().__init__()
        self.thin, self.guard = thin, CheckpointGuard(WHERE)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.thin and any(id(each) in self.thin for each in (*args, *kwargs.values())):
            self.guard.note_read()
        return func(*args, **kwargs)


def _inside(name: str, path: str) -> bool:
    return name != path and (name.startswith(f"{path}.") or not path)


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None  # a gradient of every parameter would double the memory
