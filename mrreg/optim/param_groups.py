"""Division of parameters into fast and slow groups."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate, zip_longest
from typing import Any, TypeAlias

from torch import Tensor, nn

from mrreg.distributed.checks import check_model
from mrreg.errors import check, check_int, invalid_argument, quoted, unknown_name
from mrreg.module_utils import check_materialized
from mrreg.optim.clock import Group

Selector: TypeAlias = str | nn.Module | Tensor | Callable[[str, Tensor], bool]
Choice: TypeAlias = Selector | Iterable[Any]
Names: TypeAlias = dict[Tensor, tuple[str, ...]]  # every name a parameter goes by; empty where none is known

# Names that DDP, torch.compile, FSDP1 and activation checkpointing put between those of modules.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def split(
    model: nn.Module | Iterable[Any],
    *,
    fast: Choice | None = None,
    slow: Choice | Mapping[Any, int] | None = None,
) -> list[Group]:
    """Divide parameters into fast and slow groups for `MultirateSGD`, `MultirateAdamW` or any torch optimizer.

    Given only `fast`, every other parameter is slow, and vice versa; given both, they must cover everything. A
    parameter with several names (tied weights) counts once and goes by any of them. Frozen parameters are placed too.

    Args:
        model: A module; parameters or named parameters; or existing parameter groups, whose order and options (`lr`,
            `weight_decay`, names) are kept.
        fast: Parameters that train at every step: names of modules or parameters, glob patterns over them ("layer[34]",
            "*.bias"), modules, parameters, predicates (name, parameter) -> bool, or an iterable of these. Prefixes
            of wrappers ("module.", "_orig_mod.") may be left out of names; predicates do not see them. Paper: theta_F.
        slow: Parts that train at every k-th step, in the same forms. A mapping from any of these to a period makes more
            than two scales: `slow={"stem": 25, "body": 5}`. Paper: theta_S.

    Returns:
        Parameter groups, each with a "period": 1 for fast ones, None for slow ones (filled in by the `k` of the
        optimizer) or the period of the mapping. A group with several periods becomes several groups, fastest first.

    Raises:
        TypeError: If something is of another kind than listed above.
        ValueError: If a choice matches nothing, `fast` and `slow` overlap or leave something out, or a part is empty.
        RuntimeError: If a DistributedDataParallel in the model does not fit.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [(group["param_names"], group["period"]) for group in mrreg.split(model, fast="2")]
        [(['2.weight', '2.bias'], 1), (['0.weight', '0.bias'], None)]
    """
    groups, names = read_checked("split", model)
    periods: dict[Tensor, int | None] = {}
    for argument, choice, period in _parts(fast, slow):
        chosen = choose("split", argument, choice, names)
        both = [_label(p, names) for p in chosen if p in periods]
        rule, remedy = "disjoint from what is already chosen", f"Chosen twice: {quoted(both)}."
        check(not both, "split", argument, rule, _shown(choice), remedy)
        periods |= dict.fromkeys(chosen, period)
    rest = [p for p in names if p not in periods]
    if fast is None or slow is None:
        argument, remedy = "fast" if slow is None else "slow", "Choose fewer; k=1 trains all of them at every step."
        check(rest, "split", argument, "some of the parameters", "all of them", remedy)
    else:
        left_out = quoted(_label(p, names) for p in rest)
        remedy = f"Left out: {left_out}. Give fast or slow alone to have the rest in the other."
        check(not rest, "split", "slow", "everything that is not fast", _shown(slow), remedy)
    periods |= dict.fromkeys(rest, None if slow is None else 1)
    return [part for group in groups for part in _cut(group, periods)]


def biases(model: nn.Module | Iterable[Any], layers: Choice | None = None) -> list[Group]:
    """Put the biases on the slow time scale and everything else on the fast one.

    In the paper this separates the arms of a spiral where plain SGD fails; it saves no time. A bias is any parameter
    with the word bias in its own name ("bias", "in_proj_bias", "bias_ih_l0"), those of normalization layers included.

    Args:
        model: As in `split`; groups must carry names.
        layers: Whose biases are slow, in the forms of `split`; default: those of all layers.

    Returns and raises as `split`, and ValueError if `layers` matches nothing that has a bias.

    Example:
        >>> import mrreg
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
        >>> fast, slow = mrreg.biases(model, layers="0")
        >>> slow["param_names"], slow["period"]
        (['0.bias'], None)

    References:
        Vlaar and Leimkuhler, Multirate Training of Neural Networks, ICML 2022, appendix "Slow Biases".
    """
    groups, names = read_checked("biases", model)
    among = list(names) if layers is None else choose("biases", "layers", layers, names)
    slow = [p for p in among if any("bias" in name.rpartition(".")[2].split("_") for name in names[p])]
    remedy = "Layers made with bias=False have none; parameters without names cannot be told apart."
    check(slow, "biases", "layers", "a choice with at least one bias", _shown(layers), remedy)
    return split(groups, slow=slow)


def read_checked(where: str, model: object) -> tuple[list[Group], Names]:
    """Read groups, and refuse a model in which slow parameters cannot go without gradients."""
    if isinstance(model, nn.Module):
        check_model(where, model, switches=True)
    return read_groups(where, "model", model)


def read_groups(where: str, argument: str, model: object) -> tuple[list[Group], Names]:
    """Copy the groups, each with a list of tensors as "params", and find the names of every parameter."""
    if isinstance(model, nn.Module):
        check_materialized(where, argument, model)
        groups = [_read_group(where, argument, {"params": model.named_parameters()})]
        named: list[tuple[str | None, Tensor]] = list(model.named_parameters(remove_duplicate=False))
    elif isinstance(model, Iterable) and not isinstance(model, str | Tensor | Mapping):
        items = list(model)
        is_groups = bool(items) and isinstance(items[0], Mapping)
        groups = [_read_group(where, argument, item) for item in (items if is_groups else [{"params": items}])]
        named = [pair for g in groups for pair in zip_longest(g.get("param_names", ()), g["params"])]
    else:
        raise invalid_argument(TypeError, where, argument, "a module, parameters or parameter groups", _shown(model))
    names: Names = {}
    for name, p in named:
        names[p] = (*names.get(p, ()), *([] if name is None else [name]))
    check(names, where, argument, "something with parameters", _shown(model), "An iterator ends after use.")
    return groups, names


def _read_group(where: str, argument: str, given: object) -> Group:
    if not isinstance(given, Mapping) or "params" not in given:
        raise invalid_argument(TypeError, where, argument, 'all groups with "params", or no groups', _shown(given))
    params = given["params"]
    items = list(params) if isinstance(params, Iterable) and not isinstance(params, Tensor) else [params]
    names = {"param_names": [name for name, _ in items]} if items and all(map(_is_named, items)) else {}
    tensors = [item[1] for item in items] if names else items
    for item in tensors:
        kind = ValueError if _is_named(item) else TypeError  # some with names and some without, as torch says
        rule = "all tensors, or all pairs of name and tensor"
        check(isinstance(item, Tensor), where, argument, rule, _shown(item), kind=kind)
    return {**given, "params": tensors, **names}


def _parts(fast: Choice | None, slow: Choice | Mapping[Any, int] | None) -> Iterator[tuple[str, Any, int | None]]:
    given = fast is not None or slow is not None
    check(given, "split", "fast", "given, or slow", None, 'Name what trains at every step: fast="fc".')
    if fast is not None:
        yield "fast", fast, 1
    if isinstance(slow, Mapping):
        check(slow, "split", "slow", "a mapping with at least one entry", slow)
        for choice, period in slow.items():
            yield "slow", choice, check_int("split", f"slow[{_shown(choice)!r}]", period)
    elif slow is not None:
        yield "slow", slow, None


def choose(where: str, argument: str, choice: object, names: Names) -> list[Tensor]:
    """Return the parameters that a choice means, in the order of the model."""
    found: set[Tensor] = set()
    for selector in _flat(where, argument, choice):
        found |= _found(where, argument, selector, names)
    remedy = "An iterator such as model.parameters() is empty after its first use."
    check(found, where, argument, "a choice of at least one parameter", _shown(choice), remedy)
    return [p for p in names if p in found]


def _flat(where: str, argument: str, choice: object) -> Iterator[Selector]:
    if isinstance(choice, str | nn.Module | Tensor) or (callable(choice) and not isinstance(choice, type)):
        yield choice
    elif isinstance(choice, Iterable) and not isinstance(choice, Mapping | bytes):
        for item in choice:
            yield from _flat(where, argument, item[1] if _is_named(item) else item)
    else:
        rule = "names, patterns, modules, parameters or predicates"
        raise invalid_argument(TypeError, where, argument, rule, choice)


def _found(where: str, argument: str, selector: Selector, names: Names) -> set[Tensor]:
    """Return none only for a frozen parameter that was left out."""
    if isinstance(selector, str):
        return _found_by_name(where, argument, selector, names)
    if isinstance(selector, Tensor | nn.Module):
        members = [selector] if isinstance(selector, Tensor) else list(selector.parameters())
        strange = any(p.requires_grad and p not in names for p in members)
        remedy = "Choose from the model or the groups that were given first."
        check(not strange, where, argument, "parameters of the model", _shown(selector), remedy)
        found = {p for p in members if p in names}
    else:
        found = {p for p, aliases in names.items() if any(selector(_plain(name), p) for name in aliases or ("",))}
    is_any = found or isinstance(selector, Tensor)
    check(is_any, where, argument, "a choice of at least one parameter", _shown(selector))
    return found


def _found_by_name(where: str, argument: str, pattern: str, names: Names) -> set[Tensor]:
    known: set[str] = set()
    for spell in (str, _plain):  # names as they are come first: a model may really have a part called "module"
        paths = {  # a name and those of all modules that it lies in
            p: {path for name in aliases for path in accumulate(spell(name).split("."), "{}.{}".format)}
            for p, aliases in names.items()
        }
        known = set().union(*paths.values())
        if hits := {path for path in known if path == pattern or fnmatchcase(path, pattern)}:
            return {p for p, names_of in paths.items() if names_of & hits}
    remedy = "Choose by module or parameter, or give the model, or groups made from model.named_parameters()."
    check(known, where, argument, "no name where parameters have none", pattern, remedy)
    rule = "the name of a module with parameters or of a parameter, or a pattern for one"
    raise unknown_name(where, argument, rule, pattern, known)


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _cut(group: Group, periods: Mapping[Tensor, int | None]) -> Iterator[Group]:
    """Divide a group into one per period, fastest first and those without a number last; no parameter comes twice."""
    first = {p: i for i, p in reversed([*enumerate(group["params"])])}
    for period in sorted({periods[p] for p in first}, key=lambda known: (known is None, known)):
        kept = sorted(i for p, i in first.items() if periods[p] == period)
        lists: Group = {key: [group[key][i] for i in kept] for key in ("params", "param_names") if key in group}
        yield {**group, **lists, "period": period}


def _is_named(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Tensor)


def _label(parameter: Tensor, names: Names) -> str:
    return next(iter(names[parameter]), None) or str(_shown(parameter))


def _shown(value: object) -> object:
    """Describe a choice in a few words; the repr of a tensor or a module would fill the screen."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    items = value if isinstance(value, list) else [value]
    if all(isinstance(x, str) for x in items) or isinstance(value, float | None):
        return value
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
