"""Put masks into an existing model by name, and take them out again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice

import torch
from torch import Tensor, nn

from mrreg.errors import check, check_share, check_type, invalid_argument, invalid_state, quoted, unknown_name
from mrreg.masks.install import MultirateMask, check_structure, layer_mask, put_mask, take_mask, uninstall
from mrreg.masks.layers import Structure, find_targets
from mrreg.masks.mask import LAYER_NAME, find_mask
from mrreg.module_utils import check_materialized, common, holders, join, within

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
            mask, if a masked parameter also belongs to a module outside, or if p, k or an option is out of range. The
            model is unchanged then.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> model = nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 10))
        >>> model = mrreg.mask(model, {"0": 0.2, "2": 0.5}, k=5)
        >>> mrreg.MultirateMask.of(model[2]).p
        0.5
    """
    check_model(WHERE, model)
    rule = "a mapping from names or glob patterns to p"
    named = isinstance(patterns, Mapping) and all(isinstance(pattern, str) for pattern in patterns)
    check(named, WHERE, "patterns", rule, patterns, kind=TypeError)
    check(patterns, WHERE, "patterns", "a mapping with at least one pattern", patterns)
    check_structure(structure)
    wanted = list(parameters) if isinstance(parameters, Iterator) else parameters  # it is read for each module
    search = _Search(model, lambda module: bool(find_targets(module, wanted, structure)))
    chosen: dict[nn.Module, float] = {}
    for pattern, value in patterns.items():
        p = check_share(WHERE, f"p of {pattern!r}", value)
        for module in search.matching(pattern):
            same = chosen.setdefault(module, p) == p
            rule, remedy = f"consistent about the p of {search.path[module]!r}", f"{pattern!r} matches it again."
            check(same, WHERE, "patterns", rule, (chosen[module], p), remedy)
    search.refuse_nested(set(chosen))
    for module in chosen:
        search.refuse_tied(module, [target.name for target in find_targets(module, wanted, structure)])

    made = [layer_mask(module, p, k, wanted, structure, rescale, boost) for module, p in chosen.items()]
    for module, each in zip(chosen, made, strict=True):
        put_mask(module, each, LAYER_NAME)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Take every mask out of a model, be it a `MultirateMask` or that of `thin`, in place, and return the plain model.

    The parameters are the same objects with the values they have, so optimizers and checkpoints go on; nothing of mrreg
    is left in the model. Dropouts that `swap_dropout` took out stay out: they are `nn.Identity` now. Call `remove` on
    the handle of `attach` too, or it goes on holding entries.

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
    check_model("unwrap", model)
    for module in model.modules():
        if find_mask(module) is not None:
            uninstall(module)
        if isinstance(module, MultirateMask):
            take_mask(module, LAYER_NAME)
    return model


def check_model(where: str, model: object) -> None:
    """Refuse modules that masks cannot be put into: scripted modules, and parameters that have no shape yet."""
    module = check_type(where, "model", model, nn.Module, "a torch.nn.Module")
    scripted = isinstance(module, torch.jit.ScriptModule)
    check(not scripted, where, "model", "a torch.nn.Module, not a scripted one", model, kind=TypeError)
    check_materialized(where, "model", module)
    if where != "unwrap" and any(find_mask(inner) is not None for inner in module.modules()):
        raise invalid_state(where, "the model is thin already", "Put masks into it first, then call mrreg.thin.")


class _Search:
    """Finds the modules that names and patterns mean, and says what forbids a mask on them."""

    def __init__(self, model: nn.Module, fits: Callable[[nn.Module], object]) -> None:
        self.names = dict(model.named_modules(remove_duplicate=False))
        self.path = {module: path for path, module in model.named_modules()}
        self.holders = holders(model)
        self.fits = fits  # raises a ValueError if a module has nothing to mask

    def matching(self, pattern: str) -> list[nn.Module]:
        """Return the modules that a name or pattern means: itself, or the innermost that have something to mask."""
        if pattern in self.names:
            return [self.names[pattern]]
        names = [name for name in self.names if "parametrizations" not in name.split(".")]
        hits = {self.names[name]: name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            raise unknown_name(WHERE, "patterns", "names or patterns that match a module", pattern, self.names)
        problems: dict[nn.Module, str] = {}
        for module, name in hits.items():
            try:
                self.fits(module)
            except ValueError as error:
                problems[module] = f"{name!r} does not: {error}"
        fitting = hits.keys() - problems.keys()
        first = next(iter(problems.values()), "")
        check(fitting, WHERE, "patterns", "patterns that match something to mask", pattern, first)
        fitting -= {module.out_proj for module in fitting if isinstance(module, nn.MultiheadAttention)}
        return [module for module in hits if module in fitting and not any(m in fitting for m in _inside(module))]

    def refuse_nested(self, chosen: set[nn.Module]) -> None:
        """Refuse a mask inside a mask, and one on a layer that is read but never called."""
        masked = chosen | {module for module in self.path if isinstance(module, MultirateMask)}
        for outer in masked:
            clash = [inner for inner in _inside(outer) if inner in masked and chosen & {inner, outer}]
            fine = not clash and not (outer in chosen and isinstance(outer, MultirateMask))
            rule, both = "names of modules without masks, none inside another", map(self.path.get, (outer, *clash[:1]))
            check(fine, WHERE, "patterns", rule, list(both), "mrreg.unwrap takes masks out.")
        for module, path in self.path.items():
            if isinstance(module, nn.MultiheadAttention):
                remedy = f"{path!r} reads its weights itself: mask {path!r} with parameters=['out_proj.weight']."
                rule, inner = "names of modules that are called", module.out_proj
                check(inner not in chosen, WHERE, "patterns", rule, self.path.get(inner), remedy)

    def refuse_tied(self, module: nn.Module, parameters: Iterable[str]) -> None:
        """Refuse a masked tensor that other modules have too: they would use it without the mask."""
        path = self.path[module]
        for name in parameters:
            owners = self.holders[id(module.get_parameter(name))]
            if outside := [owner for owner in owners if not within(path, owner)]:
                remedy = f"Mask what holds both, {common(path, outside[0])!r}, with parameters=[...] naming it."
                rule, both = "names of modules that share no masked parameter with others", f"also in {quoted(outside)}"
                raise invalid_argument(ValueError, WHERE, "patterns", rule, f"{join(path, name)}, {both}", remedy)


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules inside a module."""
    return islice(module.modules(), 1, None)
