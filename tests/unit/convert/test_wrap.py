"""Masks by name: what patterns mean, what is refused and leaves the model alone; and the way back."""

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from helpers.masks import of
from torch import Tensor, nn

import mrreg
from mrreg import MultirateMask


class Block(nn.Module):
    """A block with a parameter of its own, as a Vision Transformer has."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 6))
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x + self.place))))  # type: ignore[no-any-return]


def model() -> nn.Module:
    """Names: fc1, act, blocks, blocks.{0,1}, blocks.{0,1}.{norm,up,down}, head."""
    return nn.Sequential(
        nn.ModuleDict(
            {
                "fc1": nn.Linear(6, 6),
                "act": nn.ReLU(),
                "blocks": nn.Sequential(Block(), Block()),
                "head": nn.Linear(6, 3),
            }
        )
    )[0]


def masked(module: nn.Module) -> dict[str, float]:
    return {path: of(m).p for path, m in module.named_modules() if isinstance(m, MultirateMask)}


MEANT: dict[str, tuple[Mapping[str, float], dict[str, float]]] = {
    "a whole block": ({"blocks.0": 0.5}, {"blocks.0": 0.5}),
    "wildcards": (
        {"blocks.*.up": 0.5, "blocks.[1-9].down": 0.1},
        {"blocks.0.up": 0.5, "blocks.1.up": 0.5, "blocks.1.down": 0.1},
    ),
    "blocks by wildcard": ({"blocks.?": 0.5}, {"blocks.0": 0.5, "blocks.1": 0.5}),
    "everything": (
        {"*": 0.5},
        {"fc1": 0.5, **{f"blocks.{i}.{layer}": 0.5 for i in range(2) for layer in ("up", "down")}, "head": 0.5},
    ),
    "twice with one p": ({"head": 0.5, "h*": 0.5}, {"head": 0.5}),
    "the model": ({"": 0.5}, {"": 0.5}),
    "p of 0 and 1": ({"fc1": 0, "head": 1}, {"fc1": 0.0, "head": 1.0}),
}


@pytest.mark.parametrize(("patterns", "expected"), MEANT.values(), ids=MEANT.keys())
def test_what_patterns_mean(patterns: Mapping[str, float], expected: dict[str, float]) -> None:
    plain = model()
    wrapped = mrreg.mask(plain, patterns, k=3)
    assert masked(wrapped) == expected
    assert wrapped is plain
    assert mrreg.unwrap(wrapped) is plain


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no match": ({"patterns": {"fc2": 0.5}}, ValueError, r"mask: patterns must be .* got 'fc2'. Did you mean 'fc1'\?"),
    "no match at all": ({"patterns": {"zzz*": 0.5}}, ValueError, "There is: '', 'act', 'blocks'"),
    "nothing to mask": ({"patterns": {"act": 0.5}}, ValueError, "MultirateMask: module must be a module with a par"),
    "nothing to mask among matches": ({"patterns": {"*norm": 0.5}}, ValueError, "match something to mask, got '.norm'"),
    "two p": (
        {"patterns": {"fc1": 0.5, "fc*": 0.2}},
        ValueError,
        r"the p of 'fc1', got \(0.5, 0.2\). 'fc\*' matches it again",
    ),
    "parent and child": (
        {"patterns": {"blocks.0": 0.5, "blocks.0.up": 0.5}},
        ValueError,
        r"\['blocks.0', 'blocks.0.up'\]",
    ),
    "child and parent": ({"patterns": {"blocks.*.up": 0.5, "": 0.5}}, ValueError, "none inside another"),
    "text": ({"patterns": "fc1"}, TypeError, "mask: patterns must be a mapping"),
    "no pattern": ({"patterns": {}}, ValueError, "at least one pattern"),
    "no text": ({"patterns": {1: 0.5}}, TypeError, "from names or glob patterns"),
    "bad p of the second": (
        {"patterns": {"fc1": 0.5, "head": 1.5}},
        ValueError,
        r"mask: p of 'head' must be in \[0, 1\], got 1.5",
    ),
    "p is True": ({"patterns": {"fc1": True}}, TypeError, "p of 'fc1' must be a number"),
    "p is NaN": ({"patterns": {"fc1": float("nan")}}, ValueError, "p of 'fc1' must be in"),
    "bad k": ({"patterns": {"fc1": 0.5}, "k": 0}, ValueError, "k must be"),
    "bad parameters": ({"patterns": {"fc1": 0.5}, "parameters": ["wait"]}, ValueError, "Did you mean 'weight'"),
    "class": ({"model": nn.Linear, "patterns": {"0": 0.5}}, TypeError, "Linear is a class: give an instance"),
    "not unpacked": ({"model": (nn.Linear(2, 2), {}), "patterns": {"0": 0.5}}, TypeError, "in a tuple: unpack it"),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_leaves_the_model_alone(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    plain = model()
    before = repr(plain)
    with pytest.raises(kind, match=message):
        mrreg.mask(**{"model": plain, **arguments})
    assert repr(plain) == before


def test_masks_do_not_nest_over_two_calls() -> None:
    plain = mrreg.mask(model(), {"blocks.0.up": 0.5})
    for name in ("blocks.0.up", "blocks.0", "*"):
        with pytest.raises(ValueError, match=r"names of modules without masks|without masks inside"):
            mrreg.mask(plain, {name: 0.5})
    with pytest.raises(ValueError, match=r"\['blocks.0', 'blocks.0.up'\]. mrreg.unwrap takes"):
        mrreg.mask(mrreg.mask(model(), {"blocks.0": 0.5}), {"blocks.0.up": 0.5})
    assert masked(mrreg.mask(plain, {"head": 0.5})) == {"blocks.0.up": 0.5, "head": 0.5}


def test_options_reach_every_mask() -> None:
    names = (name for name in ("bias",))
    wrapped = mrreg.mask(model(), {"*": 0.5}, 7, parameters=names, structure="output", rescale=True, boost=2)
    found = [m for m in wrapped.modules() if isinstance(m, MultirateMask)]
    assert len(found) == 6  # a norm has no output units
    assert {(m.k, m.structure, m.rescale, m.boost, m.targets[0].name) for m in map(of, found)} == {
        (7, "output", True, 2, "bias")
    }


def test_a_shared_module_gets_one_mask_in_all_its_places() -> None:
    shared = nn.Linear(6, 6)
    plain = nn.Sequential(shared, nn.ReLU(), shared, nn.ModuleDict({"again": shared}))
    wrapped = mrreg.mask(plain, {"2": 0.5})
    assert wrapped is plain
    assert plain[0] is plain[2] is plain.get_submodule("3.again")
    assert isinstance(plain[0], MultirateMask)
    mrreg.unwrap(plain)
    assert plain[0] is plain[2] is plain.get_submodule("3.again") is shared


def test_a_shared_module_has_one_p_whatever_name_is_used() -> None:
    shared = nn.Linear(6, 6)
    with pytest.raises(ValueError, match="the p of '0'"):
        mrreg.mask(nn.Sequential(shared, shared), {"0": 0.5, "1": 0.2})


def test_tied_weights_need_a_mask_around_both() -> None:
    encoder, decoder = nn.Embedding(5, 6), nn.Linear(6, 5)
    decoder.weight = encoder.weight
    both = nn.ModuleDict({"lm": nn.ModuleDict({"encoder": encoder, "decoder": decoder})})
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"used inside its mask only, got 'tied to lm.encoder.weight'. Mask their com"):
        mrreg.attach(optimizer, mrreg.mask(copy.deepcopy(both), {"lm.decoder": 0.5}))
    assert masked(mrreg.mask(both, {"lm": 0.5})) == {"lm": 0.5}


def test_the_projection_of_attention_is_masked_through_attention() -> None:
    """torch reads out_proj.weight and never calls out_proj: a mask on it would do nothing."""
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    wrapped = mrreg.mask(copy.deepcopy(layer), {"self_attn": 0.5}, parameters=["out_proj.weight"])
    assert masked(wrapped) == {"self_attn": 0.5}
    assert masked(mrreg.mask(layer, {"*": 0.5})) == {"self_attn": 0.5, "linear1": 0.5, "linear2": 0.5}


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("call", [lambda m: mrreg.mask(m, {"0": 0.5}), mrreg.swap_dropout, mrreg.unwrap])
def test_what_cannot_be_taken_apart_is_refused(call: Callable[[nn.Module], object]) -> None:
    with pytest.raises(RuntimeError, match=r"no shape yet for '0.bias', '0.weight'. Run one forward first."):
        call(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises((TypeError, ValueError), match="scripted"):
        call(torch.jit.trace(nn.Linear(1, 1), torch.ones(1)))  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_a_compiled_model_can_get_masks_and_lose_them() -> None:
    """torch.compile holds on to the module that it was given; what is inside can change."""
    compiled: Any = torch.compile(nn.Sequential(nn.Linear(6, 6)), backend="eager")
    x = torch.ones(2, 6)
    dense = compiled(x)
    mrreg.mask(compiled, {"*": 0.5})
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    mrreg.attach(optimizer, compiled)
    assert not torch.equal(compiled(x), dense)
    mrreg.unwrap(compiled)
    assert torch.equal(compiled(x), dense)


# the way back


@pytest.mark.parametrize(
    ("patterns", "way"),
    [
        ({"*": 0.5}, lambda m: m),
        ({"": 0.5}, copy.deepcopy),
        ({"fc1": 0.5}, lambda m: pickle.loads(pickle.dumps(m))),
    ],
)
def test_unwrap_gives_the_plain_model_back(patterns: dict[str, float], way: Callable[[Any], Any]) -> None:
    plain = model()
    types, keys = [type(m) for m in plain.modules()], list(plain.state_dict())
    parameters = dict(plain.named_parameters())
    wrapped = way(mrreg.mask(plain, patterns))
    inside = set(wrapped.parameters())
    back = mrreg.unwrap(wrapped)
    assert [type(m) for m in back.modules()] == types
    assert list(back.state_dict()) == keys
    assert set(back.parameters()) == inside
    assert all(torch.equal(p, parameters[name]) for name, p in back.named_parameters())
    assert all((p is parameters[name]) == (back is plain) for name, p in back.named_parameters())
    hooks = [value for m in back.modules() for name, value in vars(m).items() if name.endswith("_hooks") and value]
    assert hooks == []


def test_unwrap_without_masks_changes_nothing() -> None:
    plain = model()
    before = repr(plain)
    assert mrreg.unwrap(mrreg.unwrap(plain)) is plain
    assert repr(plain) == before
    with pytest.raises(TypeError, match=r"unwrap: model must be a torch.nn.Module, got .int."):
        mrreg.unwrap(3)  # type: ignore[arg-type]


def test_unwrap_in_the_middle_of_a_cycle_trains_on_as_plain() -> None:
    """Also while the optimizer is still attached: nothing is held and nothing is boosted any more."""
    plain = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    wrapped = mrreg.mask(plain, {"*": 0.5}, k=3)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    mrreg.attach(optimizer, wrapped)
    x = torch.randn(8, 6)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(x).pow(2).sum())
        optimizer.step()

    step(wrapped, optimizer)
    back = mrreg.unwrap(wrapped)
    twin = copy.deepcopy(back)
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(7):
        step(back, optimizer)
        step(twin, other)
        assert all(torch.equal(p, q) for p, q in zip(back.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("put", [lambda m: mrreg.mask(m, {"0": 0.5}), lambda m: mrreg.swap_dropout(m)])
def test_a_thin_model_takes_no_masks(put: Callable[[nn.Module], object]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    mrreg.thin(model, example_inputs=torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="the model is thin already"):
        put(model)
