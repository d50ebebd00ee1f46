"""Layers and dropouts that a forward is made of, and the parameters that hold a layer's input and output units."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrize import is_parametrized

from mrreg.isolation import copied_state, random_state_kept
from mrreg.masks.layer_registry import LINEAR, LINEAR_TRANSPOSED, register_layer, registered_layout
from mrreg.module_utils import has_stock_forward, join

DROPOUTS = nn.modules.dropout._DropoutNd
LAYERS = (
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.MultiheadAttention),
    *(nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase),
)

Kind = Literal["layer", "dropout", "call"]


def role(module: nn.Module) -> Kind:
    """Return the role of a module in the graph."""
    if isinstance(module, DROPOUTS):
        return "dropout"
    known = isinstance(module, LAYERS) and has_stock_forward(module)
    return "layer" if known or registered_layout(module) else "call"


def arity(module: nn.Module) -> int:
    """Return how many inputs a layer multiplies by weights: query, key and value, the two of Bilinear, or one."""
    return {nn.MultiheadAttention: 3, nn.Bilinear: 2}.get(type(module), 1)


def input_parameters(layer: nn.Module) -> tuple[str, ...]:
    """Return the parameters whose input units are the layer's input."""
    if layout := registered_layout(layer):
        return _present(layer, *(name for name, dims in layout.items() if "input" in dims))
    if isinstance(layer, nn.MultiheadAttention):
        return _present(layer, "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    if isinstance(layer, nn.RNNBase):
        return _present(layer, "weight_ih_l0", "weight_ih_l0_reverse")
    return ("weight_ih",) if isinstance(layer, nn.RNNCellBase) else ("weight",)


def later_input_parameters(layer: nn.RNNBase) -> tuple[str, ...]:
    """Return the parameters of a recurrent module that read the output of the layer before."""
    first = input_parameters(layer)
    return tuple(name for name in layer._parameters if name.startswith("weight_ih") and name not in first)


def output_parameters(layer: nn.Module) -> tuple[str, ...]:
    """Return the parameters that make the layer's output units."""
    if layout := registered_layout(layer):
        return _present(layer, *(name for name, dims in layout.items() if "output" in dims))
    if isinstance(layer, nn.MultiheadAttention):
        return tuple(join("out_proj", name) for name in output_parameters(layer.out_proj))
    return () if isinstance(layer, nn.RNNBase | nn.RNNCellBase) else _present(layer, "weight", "bias")


def _present(layer: nn.Module, *names: str) -> tuple[str, ...]:
    """Return those of the names under which a layer has a tensor, also one that it computes from parameters."""
    own = {name: layer._parameters.get(name, vars(layer).get(name)) for name in names}
    return tuple(name for name in names if own[name] is not None or is_parametrized(layer, name))


def register_linear_layers(where: str, model: nn.Module) -> None:
    """Register the classes of a model that are not torch's and compute what nn.Linear does (seen by a trial)."""
    tried: set[type[nn.Module]] = set()
    for module in model.modules():
        if type(module) not in tried and _may_be_linear(module):
            tried.add(type(module))
            for layout in (LINEAR, LINEAR_TRANSPOSED):
                if _computes_linear(where, module, transposed=layout is LINEAR_TRANSPOSED):
                    register_layer(type(module), layout)
                    break


def _may_be_linear(module: nn.Module) -> bool:
    """Return True if a module has the parameters of nn.Linear and nothing else, and a forward that is not torch's."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if isinstance(module, torch.jit.ScriptModule) or registered_layout(module) or has_stock_forward(module):
        return False
    if module._modules or weight is None or own.keys() - {"weight", "bias"} or type(weight) is not nn.Parameter:
        return False
    shaped = weight.dim() == 2 and (bias is None or bias.dim() == 1)
    return shaped and weight.is_floating_point() and not weight.is_meta


def _computes_linear(where: str, module: Any, *, transposed: bool) -> bool:
    """Compare a layer with nn.Linear on random inputs and parameters: those it has may hide a difference (LoRA's)."""
    try:
        with copied_state(where, module), random_state_kept(module), torch.no_grad():
            values: dict[str, Tensor] = {name: torch.randn_like(p) for name, p in module.named_parameters()}
            weight = values["weight"].T if transposed else values["weight"]
            inputs = torch.randn(2, 3, weight.shape[1]).to(weight)
            wanted = nn.functional.linear(inputs, weight, values.get("bias"))
            output = functional_call(module, values, (inputs,))
    except Exception:  # it takes something else, or cannot be copied
        return False
    if not isinstance(output, Tensor) or output.shape != wanted.shape:
        return False
    return bool((output - wanted).float().norm() <= 1e-2 * wanted.float().norm())
