"""FLOPs of a step, forward and backward, by module."""

from torch import nn

from mrreg.module_utils import within
from mrreg.thinning.paths import NoDropout
from mrreg.thinning.twin import LOG, WHERE, DoublePrecision, Inputs, outputs_in, set_generators, state_kept


def step_flops(twin: nn.Module, inputs: Inputs) -> tuple[int, dict[str, int]]:
    """Count a forward and backward of a copy, all in all and by its innermost modules, of those that have parameters.

    Others that pass their input on, as nn.Identity does, stay open in the counter for most of the backward pass.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which takes longer than mrreg

    trained = [p for p in twin.parameters() if p.requires_grad]
    handles = [p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)) for p in trained]  # type: ignore[no-untyped-call]
    set_generators(None)
    try:
        with state_kept(twin), FlopCounterMode(display=False) as counter, DoublePrecision(), NoDropout():  # type: ignore[no-untyped-call]
            output = twin(*inputs.args, **inputs.kwargs)
            if leaving := [tensor.sum() for tensor in outputs_in(output) if tensor.requires_grad]:
                try:
                    sum(leaving).backward()  # type: ignore[union-attr]
                except RuntimeError as error:
                    if WHERE in str(error):
                        raise
                    LOG.info("%s: FLOPs of the backward pass are not counted: %s", WHERE, error)
    finally:
        for handle in handles:
            handle.remove()
    paths = twin.named_modules(remove_duplicate=False)
    own = {name for name, module in paths if next(module.parameters(), None) is not None}
    given = {name.partition(".")[2]: ops for name, ops in counter.get_flop_counts().items() if name != "Global"}
    counts = {name: sum(ops.values()) for name, ops in given.items() if name in own}
    inner = [name for name in counts if not any(name != other and within(name, other) for other in counts)]
    return counter.get_total_flops(), {name: counts[name] for name in inner}
