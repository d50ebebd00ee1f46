"""Put masks into an existing model by name, and take them out again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from mrreg.errors import check, check_share, check_type, invalid_state, unknown_name
from mrreg.masks.install import MultirateMask, check_structure, layer_mask, put_mask, take_mask, uninstall
from mrreg.masks.layers import Structure, find_targets
from mrreg.masks.mask import LAYER_NAME, find_mask
from mrreg.module_utils import check_materialized

WHERE = "mask"


def mask(
    model: nn.Module,
    patterns: Mapping[str, float],
    k: int = 5,
    *,
    parameters: Iterable[str | Tensor] | None = None,
    structure: Structure = "weight",
    rescale: bool | None = None,
    boost: float | None = None,
) -> nn.Module:
    """Give the modules of a model that patterns name a `MultirateMask`, in place.

    A name means that module, be it a layer or a block of them. A pattern with wildcards (`*` also crosses dots) means
    the innermost matching modules that have something to mask; what has nothing is passed over. A module that is used
    under several names gets one mask for all of them.

    Args:
        model: Any module. It is changed in place and returned.
        patterns: From names or glob patterns of modules to p, the probability of being slow.
        k: Steps per cycle, at least 1. Paper: k.
        parameters: As in `MultirateMask`, for every module.
        structure: As in `MultirateMask`.
        rescale: As in `MultirateMask`.
        boost: As in `MultirateMask`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a pattern matches nothing that can be masked, if a module is given two p or a mask inside a
            mask, or if p, k or an option is out of range. The model is unchanged then.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> model = nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 10))
        >>> model = mrreg.mask(model, {"0": 0.2, "2": 0.5}, k=5)
        >>> mrreg.MultirateMask.of(model[2]).p
        0.5
    """
    check_materialized(WHERE, "model", check_type(WHERE, "model", model, nn.Module, "a torch.nn.Module"))
    if any(find_mask(inner) is not None for inner in model.modules()):
        raise invalid_state(WHERE, "the model is thin already", "Put masks into it first, then call mrreg.thin.")
    rule = "a mapping from names or glob patterns to p"
    named = isinstance(patterns, Mapping) and all(isinstance(pattern, str) for pattern in patterns)
    check(named, WHERE, "patterns", rule, patterns, kind=TypeError)
    check(patterns, WHERE, "patterns", "a mapping with at least one pattern", patterns)
    check_structure(structure)
    wanted = list(parameters) if isinstance(parameters, Iterator) else parameters  # it is read for each module
    paths = {module: path for path, module in model.named_modules()}
    chosen: dict[nn.Module, float] = {}
    for pattern, value in patterns.items():
        p = check_share(WHERE, f"p of {pattern!r}", value)
        for module in _matching(model, pattern, lambda each: find_targets(each, wanted, structure)):
            same = chosen.setdefault(module, p) == p
            rule, remedy = f"consistent about the p of {paths[module]!r}", f"{pattern!r} matches it again."
            check(same, WHERE, "patterns", rule, (chosen[module], p), remedy)
    masked = [module for module in paths if module in chosen or isinstance(module, MultirateMask)]
    nested = [[paths[outer], paths[m]] for outer in masked for m in outer.modules() if m in chosen and m is not outer]
    rule = "names of modules without masks, none inside another"
    check(not nested, WHERE, "patterns", rule, nested and nested[0], "mrreg.unwrap takes masks out.")

    made = [layer_mask(module, wanted, structure, rescale, p=p, k=k, boost=boost) for module, p in chosen.items()]
    for module, each in zip(chosen, made, strict=True):
        put_mask(module, each, LAYER_NAME)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Take every mask out of a model, be it a `MultirateMask` or that of `thin`, in place, and return the plain model.

    The parameters are the same objects with the values they have, so optimizers and checkpoints go on; nothing of mrreg
    is left in the model, and nothing is held. Dropouts that `swap_dropout` took out stay out, as `nn.Identity`.

    Args:
        model: A model with or without masks.

    Raises:
        TypeError: If it is no module.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> model = nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 2), p=0.5))
        >>> mrreg.unwrap(model)
        Sequential(
          (0): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    check_materialized("unwrap", "model", check_type("unwrap", "model", model, nn.Module, "a torch.nn.Module"))
    for module in model.modules():
        if find_mask(module) is not None:
            uninstall(module)
        if isinstance(module, MultirateMask):
            take_mask(module, LAYER_NAME)
    return model


def _matching(model: nn.Module, pattern: str, fits: Callable[[nn.Module], object]) -> list[nn.Module]:
    """Return the modules that a name or pattern means: itself, or the innermost that have something to mask."""
    every = dict(model.named_modules(remove_duplicate=False))
    if pattern in every:
        return [every[pattern]]
    names = [name for name in every if "parametrizations" not in name.split(".")]
    hits = {every[name]: name for name in names if fnmatchcase(name, pattern)}
    if not hits:
        raise unknown_name(WHERE, "patterns", "names or patterns that match a module", pattern, every)
    problems: dict[nn.Module, str] = {}
    for module, name in hits.items():
        try:
            fits(module)  # raises if a module has nothing to mask
        except ValueError as error:
            problems[module] = f"{name!r} does not: {error}"
    fitting = hits.keys() - problems.keys()
    first = next(iter(problems.values()), "")
    check(fitting, WHERE, "patterns", "patterns that match something to mask", pattern, first)
    fitting -= {module.out_proj for module in fitting if isinstance(module, nn.MultiheadAttention)}  # never called
    return [module for module in hits if module in fitting and fitting.isdisjoint([*module.modules()][1:])]
