"""Plans: reports of an earlier call, checked against the model that they are given for."""

from torch import nn

from mrreg.errors import SHOWN, invalid_argument
from mrreg.thinning.double_copy import WHERE
from mrreg.thinning.report import ThinReport


def signature(model: nn.Module) -> dict[str, str]:
    """Return what groups depend on, by name: shapes of tensors, classes of modules and their integer attributes."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    found = {name: f"shape {tuple(tensor.shape)}" for name, tensor in tensors}
    for path, module in model.named_modules():
        counts = {name: value for name, value in sorted(vars(module).items()) if type(value) is int and name[0] != "_"}
        found[path] = " ".join([type(module).__qualname__, *(f"{name}={value}" for name, value in counts.items())])
    return found


def fitting(model: nn.Module, plan: ThinReport, k: int) -> ThinReport:
    """Return a plan for k steps per cycle, if it is one for this model."""
    if not isinstance(plan, ThinReport):
        raise invalid_argument(TypeError, WHERE, "plan", "the ThinReport of an earlier call", plan)
    here = signature(model)
    differing = [name for name in dict.fromkeys((*plan.signature, *here)) if plan.signature.get(name) != here.get(name)]
    if differing:
        found = {
            name or type(model).__name__: f"{plan.signature.get(name, 'nothing')}, here {here.get(name, 'nothing')}"
            for name in differing[:SHOWN]
        }
        remedy = f"In all {len(differing)} differ. Give example_inputs instead, to search again."
        raise invalid_argument(ValueError, WHERE, "plan", "one for this model", found, remedy)
    return plan.with_k(k)
