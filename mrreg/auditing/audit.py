"""Estimate before training the saving of multirate training."""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from mrreg.auditing.measure import WHERE, Cost, Pass, Trace
from mrreg.errors import check, check_int, check_type, quoted
from mrreg.isolation import left_as_it_was
from mrreg.module_utils import tensors_in
from mrreg.optim.flags import living
from mrreg.optim.param_groups import Choice, choose, read_checked
from mrreg.theory import expected_speedup_from_costs

PERIODS = (2, 3, 5, 10)
SMALL_GAIN = 1.1  # speed-up at k = 5 below which there is hardly anything to gain
LARGE_SHARE = 0.5  # share of the slow part's FLOPs in the fast part's backward from which the fast part lies early

ALWAYS = (
    'With AdamW use slow_lr="per_gradient": its update has size lr whatever the gradient is.',
    "With SGD the coupled lr (the default) must be below about 1/k of the largest lr that is stable for the slow part.",
    "Freezing the slow part costs less still: compare with it at equal seconds (docs/when-it-helps.md says where the "
    "one or the other was ahead).",
)


class Audit(dict[str, Any]):
    """Findings of `audit`: a dict of plain numbers, names and lists (JSON takes it), readable when printed."""

    def __str__(self) -> str:
        parts, periods, sizes, seconds = (self[key] for key in ("parts", "periods", "bytes", "seconds"))
        through = f"{len(self['reached'])} modules that are not fast ({self['reached_share']:.0%} of their FLOPs)"
        lines = [
            f"{self['model']} on {self['device']} ({self['threads']} CPU threads)",
            *_table(
                ("part", "tensors", "parameters"),
                *((name, each["tensors"], each["parameters"]) for name, each in parts.items()),
            ),
            *_table(
                ("step", "forward (ms)", "backward (ms)", "memory (MiB)"),
                *((name, *(1e3 * x for x in each.values()), sizes[name] / 2**20) for name, each in seconds.items()),
            ),
            "Times faster with a slow gradient at every k-th step:",
            *_table(
                ("", *(f"k = {each['k']}" for each in periods)),
                ("times faster", *(each["speedup"] for each in periods)),
                ("mean memory (MiB)", *(each["mean_bytes"] / 2**20 for each in periods)),
            ),
            f"The fast part's backward goes through {through}: {quoted(self['reached'])}.",
            *(f"- {each}" for each in self["advice"]),
        ]
        return "\n".join(lines)

    def speedup(self, k: int) -> float:
        """Return how many times faster training gets with a slow gradient at every k-th step, k at least 1."""
        full, fast = (Cost(**self["seconds"][step]) for step in ("full", "fast"))
        rest = min(max(sum(fast) - full.forward, 0.0), full.backward)  # only backward is saved, though timings are off
        return expected_speedup_from_costs(full.forward, full.backward, rest, check_int("Audit.speedup", "k", k))


def audit(model: nn.Module, fast: Choice, example_inputs: Any, loss_fn: Callable[[Any], Tensor] | None = None) -> Audit:
    """Measure, before training, what `fast` would save, and say what stands in the way.

    A few forward and backward passes are run in turns, with gradients for all parameters and for the fast ones alone.
    With F, B for the seconds of forward and backward, and F', B' for those of a step in which only the fast part gets
    a gradient,

        speed-up(k) = k (F + B) / (F + B + (k - 1) (F' + B')),    at most 1 + B / F

    What the optimizer's own step takes is left out: it is about the same either way.

    Afterwards the model is as it was: flags, gradients, buffers, modes, hooks and random state. Under `torch.autocast`
    mixed precision is measured. A model in evaluation mode is measured in training mode.

    Args:
        model: The model on the device where it will be trained.
        fast: Parameters to train at every step, in the forms of `split`. Paper: theta_F.
        example_inputs: One batch as in training: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        loss_fn: Turns the model's output into one number. None: the output's `loss` where there is one, else the mean
            of the squares of its first floating-point tensor.

    Returns:
        A dict that prints as a report. "parts": tensors, parameters and names without a gradient of "fast", "slow" and
        "frozen". "seconds": forward and backward of a full and of a fast step. "flops": of
        forward, backward and fast_backward. "bytes": of a full and a fast step beyond the model (on a GPU the peak,
        else activations kept and gradients). "periods": speed-up and bytes for k in 2, 3, 5, 10. "reached": modules
        that are not fast and that the fast part's backward goes through, "reached_share" their share of the FLOPs,
        "forced_by" the names of the fast parameter behind it, that farthest from the loss. "batch_norm": such layers
        in the slow part. "advice": sentences. `report.speedup(k)` works for any k.

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
    names = read_checked(WHERE, check_type(WHERE, "model", model, nn.Module, "an nn.Module"))[1]
    chosen = choose(WHERE, "fast", fast, names)
    check(len(chosen) < len(names), WHERE, "fast", "some of the parameters", "all of them", "Choose fewer.")
    args, kwargs = _inputs(example_inputs)
    function = loss_fn is None or (callable(loss_fn) and not isinstance(loss_fn, type))
    check(function, WHERE, "loss_fn", "a function, or None", loss_fn, kind=TypeError)
    for flags in list(living):  # until their next step: what optimizers have switched off would count as frozen
        flags.close()
    with left_as_it_was(model):
        trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        rule, remedy = "a choice of at least one parameter with requires_grad=True", "Unfreeze it, or choose another."
        check(set(chosen) & set(trained), WHERE, "fast", rule, "none", remedy)
        if not model.training:
            model.train()
        step = Pass(model, args, kwargs, loss_fn or _default_loss, trained, trained[0].device)
        return _report(step, set(chosen) & set(trained))


def _inputs(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cut arguments and keyword arguments off from the graph that they may belong to."""
    rule = "a tensor, a tuple of arguments or a mapping of keyword arguments"
    known = isinstance(given, Tensor | tuple | list | Mapping)
    check(known, WHERE, "example_inputs", rule, type(given).__name__, kind=TypeError)
    named = dict(given) if isinstance(given, Mapping) else {}
    args = () if named else (given,) if isinstance(given, Tensor) else tuple(given)
    found: Any = tree_map_only(Tensor, lambda each: each.detach().requires_grad_(each.requires_grad), (args, named))
    return found  # type: ignore[no-any-return]


def _default_loss(output: Any) -> Tensor:
    """Return the loss in an output, or the mean of squares of the first tensor in it that can have a gradient."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    numbers = [each for each in tensors_in(output) if each.is_floating_point()]
    rule = "given where the output has no loss and no floating-point tensor"
    check(numbers, WHERE, "loss_fn", rule, type(output).__name__)
    return numbers[0].float().square().mean()


def _report(step: Pass, fast: Set[Tensor]) -> Audit:
    everything = set(step.trained)
    full = step.trace(everything)
    remedy = "Its forward must not run under no_grad or end in a detached tensor."
    check(full.arrived, WHERE, "model", "a model whose loss has a gradient", type(step.model).__name__, remedy)
    part = step.trace(fast)
    remedy = "Choose a part that a gradient reaches; under activation checkpointing set use_reentrant=False."
    check(part.arrived, WHERE, "fast", "a part that the loss depends on", "one that it does not", remedy)
    costs = step.compare({"full": everything, "fast": fast})
    sizes = {"full": step.bytes(everything), "fast": step.bytes(fast)}
    report = Audit(
        model=type(step.model).__name__,
        device=str(step.device),
        threads=torch.get_num_threads(),
        **_parts(step, fast, full),
        seconds={name: cost._asdict() for name, cost in costs.items()},
        bytes=sizes,
        **_reached(step.model, fast, part),
        inputs_need_gradient=any(each.requires_grad for each in tensors_in((step.args, step.kwargs))),
    )
    report["flops"] = {"forward": sum(full.flops.values()), "backward": full.backward_flops}
    report["flops"]["fast_backward"] = part.backward_flops
    report["periods"] = [
        {"k": k, "speedup": report.speedup(k), "peak_bytes": sizes["full"]}
        | {"mean_bytes": round((sizes["full"] + (k - 1) * sizes["fast"]) / k)}
        for k in PERIODS
    ]
    report["advice"] = list(_advice(report))
    return report


def _parts(step: Pass, fast: Set[Tensor], full: Trace) -> dict[str, Any]:
    """Count tensors and parameters of each part, and name BatchNorm layers of the slow one."""
    trained = set(step.trained)
    part_of = {p: "fast" if p in fast else "slow" if p in trained else "frozen" for p in step.model.parameters()}
    parts = {}
    for part in ("fast", "slow", "frozen"):
        own = {name: p for name, p in step.model.named_parameters() if part_of[p] == part}
        lost = [name for name, p in own.items() if p in trained.difference(full.arrived)]
        size = sum(p.numel() for p in own.values())
        parts[part] = {"tensors": len(own), "parameters": size, "without_gradient": lost}
    norms = [(name, layer) for name, layer in step.model.named_modules() if isinstance(layer, _BatchNorm)]
    slow = [name for name, layer in norms if any(part_of[p] == "slow" for p in layer.parameters())]
    return {"parts": parts, "batch_norm": slow}


def _reached(model: nn.Module, fast: Set[Tensor], part: Trace) -> dict[str, Any]:
    """Return the modules that are not fast and in the fast part's backward, and the fast parameter behind it."""
    own = ((name, set(module.parameters(recurse=False))) for name, module in model.named_modules())
    apart = [name for name, params in own if params and fast.isdisjoint(model.get_submodule(name).parameters())]
    reached = [name for name in apart if part.reaches(name)]
    flops, total = (sum(part.flops.get(name, 0) for name in names) for names in (reached, apart))
    farthest = [name for name, p in model.named_parameters(remove_duplicate=False) if p is part.arrived[-1]]
    share = flops / total if total else 0.0
    return {"reached": reached, "reached_share": share, "forced_by": farthest if reached else []}


def _advice(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice from the numbers of one audit."""
    if report["reached_share"] >= LARGE_SHARE and report["forced_by"]:
        name, *tied = report["forced_by"]
        also = f" (tied to {quoted(tied)})" if tied else ""
        yield (
            f"{name!r}{also} is fast but lies early: its backward goes through {len(report['reached'])} modules that "
            f"are not fast, {report['reached_share']:.0%} of their FLOPs. Make it slow."
        )
    if report["inputs_need_gradient"]:
        yield "An input has requires_grad=True, so that every backward goes through the whole model."
    gain = next(each["speedup"] for each in report["periods"] if each["k"] == 5)
    if gain < SMALL_GAIN:
        yield f"At k = 5 a step is only {gain:.2f} times faster: this fast part hardly saves time."
    lacking = [name for part in ("fast", "slow") for name in report["parts"][part]["without_gradient"]]
    if lacking:
        yield f"No gradient reaches {quoted(lacking)}: the loss does not depend on them."
    if report["batch_norm"]:
        count = len(report["batch_norm"])
        yield f"{count} BatchNorm layers are slow, but their statistics move at every forward: see mrreg.batch_norm."
    yield from ALWAYS


def _table(*rows: tuple[Any, ...]) -> list[str]:
    cells = [
        [f"{x:.2f}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) else x for x in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
