"""FLOPs of a step, forward and backward, by module."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mrreg.thinning.double_copy import DoublePrecision, Inputs, floats_in


def step_flops(twin: nn.Module, inputs: Inputs) -> tuple[int, dict[str, int]]:
    """Count a forward and backward of a copy, all in all and by its innermost modules."""
    trained = [p for p in twin.parameters() if p.requires_grad]
    handles = [p.register_post_accumulate_grad_hook(_forget) for p in trained]  # type: ignore[no-untyped-call]
    try:
        with FlopCounterMode(display=False) as counter, DoublePrecision():  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
            leaving = [tensor.sum() for tensor in floats_in(output) if tensor.requires_grad]
            if leaving:
                torch.stack(leaving).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    counts = {
        name.partition(".")[2]: sum(ops.values()) for name, ops in counter.get_flop_counts().items() if name != "Global"
    }
    inner = {name: count for name, count in counts.items() if not any(_inside(other, name) for other in counts)}
    return counter.get_total_flops(), inner


def _inside(name: str, path: str) -> bool:
    return name != path and (name.startswith(f"{path}.") or not path)


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None  # a gradient of every parameter would double the memory
