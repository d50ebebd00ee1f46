"""Estimate before training the saving of multirate training."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from mrreg.auditing.model_parts import ModelParts
from mrreg.auditing.profiler import (
    WHERE,
    Cost,
    TrainingPass,
    backward,
    costs,
    flops,
    preserve_state,
    reach,
    step_bytes,
    update_seconds,
)
from mrreg.auditing.report import advice, is_advised_against, render
from mrreg.errors import invalid_argument
from mrreg.module_utils import tensors_in
from mrreg.optim.param_groups import Choice, split
from mrreg.theory import expected_speedup_from_costs

PERIODS = (2, 3, 5, 10)
KEPT = 0.8  # a suggested fast set saves at least this much of the time that the best candidate saves


class Audit(dict[str, Any]):
    """Findings of `audit`: a dict of plain numbers, names and lists (JSON takes it), readable when printed."""

    def __str__(self) -> str:
        return render(self)

    def speedup(self, k: int) -> float:
        """Return how many times faster training gets with a gradient of the slow part at every k-th step.

        Args:
            k: Steps per gradient of the slow part, at least 1. Paper: k.
        """
        return _speedup(self["seconds"], k)


def audit(
    model: nn.Module,
    fast: Choice,
    example_inputs: Any,
    loss_fn: Callable[[Any], Tensor] | None = None,
) -> Audit:
    """Measure, before training, what `fast` would save, and say what stands in the way.

    A few forward and backward passes are run in turns, with gradients for all parameters, for the fast ones alone and
    for other fast sets; the cost of a step of SGD with momentum is measured too. With F, B, U for the seconds of
    forward, backward and update, and F', B', U' for those of a step in which only the fast part gets a gradient,

        speed-up(k) = k (F + B + U) / (F + B + U + (k - 1) (F' + B' + U')),    at most 1 + B / F

    Afterwards the model is as it was: flags, gradients, buffers, modes, hooks and torch's random state. Under
    `torch.autocast` mixed precision is measured. A model in evaluation mode is measured in training mode.

    Args:
        model: The model on the device where it will be trained.
        fast: Parameters to train at every step, in the forms of `split`: names, glob patterns, modules, parameters, a
            predicate, or a list of these. Paper: theta_F.
        example_inputs: One batch as in training: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        loss_fn: Turns the model's output into one number. None: the output's `loss` where there is one, else the mean
            of the squares of its first floating-point tensor.

    Returns:
        A dict that prints as a report. "parts": tensors, parameters and forward FLOPs of "fast", "slow" and "frozen",
        and the names without a gradient. "seconds": forward, backward and update of a full and of a fast step.
        "flops": of forward, backward and fast_backward. "bytes": of a full and a fast step beyond the model (on a GPU
        the peak, else activations kept and gradients). "periods": speed-up and bytes for k in 2, 3, 5, 10 (the peak of
        a cycle is that of its full step). "reached": slow or frozen modules that the fast part's backward goes
        through, "reached_share" their share of the FLOPs, "forced_by" the fast parameters behind it. "batch_norm",
        "dropout": such layers in the slow part. "candidates": other fast sets. "suggestions": for each k the largest
        candidate of which the advice does not warn and which saves 80 % of the time that the best one saves.
        "kind": "text", "images" or "". "advice": sentences. `report.speedup(k)` works for any k.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If `fast` fits nothing or everything (near names are listed), the loss is not one number, or no
            gradient reaches the model or its fast part.

    Example:
        >>> import mrreg, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> report = mrreg.audit(model, fast="4", example_inputs=torch.randn(32, 8))
        >>> report["parts"]["fast"]["parameters"], report["reached"]
        (130, [])
        >>> report.speedup(5) > 1
        True

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, sec. 4 and its appendix on cost.
    """
    if not isinstance(model, nn.Module):
        raise invalid_argument(TypeError, WHERE, "model", "an nn.Module", type(model).__name__)
    chosen = {p for group in split(model, fast=fast) if group["period"] == 1 for p in group["params"]}
    trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not chosen & set(trained):
        remedy = "Unfreeze it, or choose another part."
        raise invalid_argument(
            ValueError, WHERE, "fast", "a choice of at least one parameter with requires_grad=True", "none", remedy
        )
    args, kwargs = _inputs(example_inputs)
    if loss_fn is not None and not callable(loss_fn):
        raise invalid_argument(TypeError, WHERE, "loss_fn", "a function, or None", type(loss_fn).__name__)
    with preserve_state(model):
        step = TrainingPass(model, args, kwargs, loss_fn or _default_loss, trained)
        return _report(step, chosen & set(trained))


def _inputs(given: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return arguments and keyword arguments, cut off from the graph that they may belong to."""
    if isinstance(given, Tensor):
        return (_detached(given),), {}
    if isinstance(given, tuple | list):
        return tuple(map(_detached, given)), {}
    if isinstance(given, Mapping):
        return (), {name: _detached(value) for name, value in given.items()}
    rule = "a tensor, a tuple of arguments or a mapping of keyword arguments"
    raise invalid_argument(TypeError, WHERE, "example_inputs", rule, type(given).__name__)


def _detached(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _default_loss(output: Any) -> Tensor:
    """Return the loss in an output, or the mean of squares of the first tensor in it that can have a gradient."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    for each in tensors_in(output):
        if each.is_floating_point():
            return each.float().square().mean()
    rule = "given where the output has no loss and no floating-point tensor"
    raise invalid_argument(ValueError, WHERE, "loss_fn", rule, type(output).__name__)


def _report(step: TrainingPass, fast: Set[Tensor]) -> Audit:
    """Measure everything, and draw the conclusions."""
    everything = set(step.trained)
    lacking = _without_gradient(step, everything)
    found = reach(step, fast)
    own_flops, full_backward = flops(step, everything)
    model = ModelParts(step, fast, found, own_flops)
    candidates = model.candidates(lacking)
    measured = costs(step, {"full": everything, "fast": fast} | candidates)
    updates = update_seconds(step)
    seconds = _seconds(step, fast, measured["full"], measured["fast"], updates)
    sizes = {"full": step_bytes(step, everything), "fast": step_bytes(step, fast)}
    others = [
        _candidate(
            ModelParts(step, members, reach(step, members), own_flops),
            name.split(" "),
            _seconds(step, members, measured["full"], measured[name], updates),
        )
        | {"yours": members == fast}
        for name, members in candidates.items()
    ]
    advised = [each for each in others if not is_advised_against(each, model.kind())]
    report = Audit(
        model=type(step.model).__name__,
        kind=model.kind(),
        device=str(step.device),
        threads=torch.get_num_threads(),
        parts=model.parts(lacking),
        seconds=seconds,
        flops={"forward": sum(own_flops.values()), "backward": full_backward, "fast_backward": flops(step, fast)[1]},
        bytes=sizes,
        periods=[_period(seconds, sizes, k) for k in PERIODS],
        **model.reached(),
        inputs_need_gradient=any(each.requires_grad for each in tensors_in((step.args, step.kwargs))),
        batch_norm=model.slow_layers(_BatchNorm),
        dropout=model.slow_layers(_DropoutNd),
        candidates=others,
        suggestions=[_suggestion(advised, k) for k in PERIODS if advised],
    )
    report["advice"] = advice(report)
    return report


def _without_gradient(step: TrainingPass, everything: Set[Tensor]) -> set[Tensor]:
    """Return the parameters that a full backward gives no gradient."""
    loss = step.loss(everything)
    if not loss.requires_grad:
        remedy = "Its forward must not run under no_grad or end in a detached tensor."
        rule = "a model whose loss has a gradient"
        raise invalid_argument(ValueError, WHERE, "model", rule, type(step.model).__name__, remedy)
    backward(loss)
    return {p for p in step.trained if p.grad is None}


def _seconds(
    step: TrainingPass, fast: Set[Tensor], full: Cost, part: Cost, updates: tuple[float, float]
) -> dict[str, dict[str, float]]:
    """Return the seconds of the full and the fast step; slow parameters drift in the latter."""
    update, drift = updates
    entries, quick = (sum(p.numel() for p in each) for each in (step.trained, fast))
    return {
        "full": {"forward": full.forward, "backward": full.backward, "update": update * entries},
        "fast": {
            "forward": part.forward,
            "backward": part.backward,
            "update": update * quick + drift * (entries - quick),
        },
    }


def _speedup(seconds: Mapping[str, Mapping[str, float]], k: int) -> float:
    """Predict the speed-up; all that a fast step costs beyond a full step's forward counts as its backward.

    A measurement may be off, but only the backward pass of slow parts is ever saved.
    """
    full, fast = seconds["full"], seconds["fast"]
    back = full["backward"] + full["update"]
    beyond = sum(fast.values()) - full["forward"]
    predicted = expected_speedup_from_costs(full["forward"], back, min(max(beyond, 0.0), back), k)
    return min(predicted, 1 + full["backward"] / full["forward"]) if full["forward"] else predicted


def _period(seconds: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int], k: int) -> dict[str, Any]:
    mean = (sizes["full"] + (k - 1) * sizes["fast"]) / k
    return {"k": k, "speedup": _speedup(seconds, k), "peak_bytes": sizes["full"], "mean_bytes": round(mean)}


def _candidate(parts: ModelParts, blocks: list[str], seconds: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return one other fast set, with what it would give."""
    return {
        "fast": blocks,
        "parameters": sum(p.numel() for p in parts.fast),
        "holds_attention": parts.holds_attention(blocks),
        "reached_share": parts.reached()["reached_share"],
        "speedup": {str(k): _speedup(seconds, k) for k in PERIODS},
    }


def _suggestion(candidates: list[dict[str, Any]], k: int) -> dict[str, Any]:
    """Return the largest candidate that costs little speed: fresher gradients at nearly the same price."""
    saved = [1 - 1 / each["speedup"][str(k)] for each in candidates]
    good = [each for each, share in zip(candidates, saved, strict=True) if share >= KEPT * max(saved)]
    largest = max(good, key=lambda each: int(each["parameters"]))
    return {"k": k, "fast": largest["fast"], "speedup": largest["speedup"][str(k)]}
