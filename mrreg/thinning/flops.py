"""FLOPs of a step, forward and backward."""

from torch import nn

from mrreg.thinning.paths import NoDropout
from mrreg.thinning.twin import LOG, WHERE, DoublePrecision, Inputs, outputs_in, set_generators, state_kept


def step_flops(twin: nn.Module, inputs: Inputs) -> int:
    """Count a forward and backward of a copy."""
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
    return counter.get_total_flops()
