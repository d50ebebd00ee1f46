"""Calls with other tensors in the place of parameters: the same as torch's function, which costs more."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call as torch_functional_call

import mrreg
from mrreg.masks.functional_call import functional_call


class Tied(nn.Module):
    """One weight under two names, at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
        self.inner[1].weight = self.first.weight

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        out: Tensor = self.inner(self.first(x)) + shift
        return out


MODULES: dict[str, tuple[nn.Module, list[str], tuple[int, ...]]] = {
    "linear": (nn.Linear(4, 3), ["weight"], (2, 4)),
    "tied": (Tied(), ["first.weight"], (2, 4)),
    "tied, the other name": (Tied(), ["inner.1.weight", "inner.1.bias"], (2, 4)),
    "lstm": (nn.LSTM(4, 3, num_layers=2), ["weight_ih_l0", "weight_hh_l1"], (5, 2, 4)),
    "transformer": (
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        ["self_attn.in_proj_weight", "linear2.weight"],
        (2, 3, 4),
    ),
    "parametrized": (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        ["parametrizations.weight.original1"],
        (2, 4),
    ),
}


def _values(module: nn.Module, names: list[str]) -> dict[str, Tensor]:
    return {name: torch.randn_like(module.get_parameter(name)).requires_grad_() for name in names}


def _held(module: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(p)) for name, p in module.named_parameters(remove_duplicate=False)]


def _flat(out: Any) -> Tensor:
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first


@pytest.mark.parametrize("case", MODULES)
def test_it_computes_what_functional_call_computes(case: str) -> None:
    module, names, shape = MODULES[case]
    x, values, before = torch.randn(shape), _values(module, names), _held(module)
    ours, theirs = (_flat(call(*args)) for call, args in (
        (functional_call, (values, module, (x,), {})),
        (torch_functional_call, (module, values, (x,))),
    ))  # fmt: skip
    assert torch.equal(ours, theirs)
    grads = [torch.autograd.grad(out.square().sum(), list(values.values())) for out in (ours, theirs)]
    assert all(map(torch.equal, *grads))
    assert not torch.equal(ours, _flat(module(x)))
    assert _held(module) == before


def test_keyword_arguments_arrive() -> None:
    module, x = Tied(), torch.zeros(1, 4)
    values = _values(module, ["first.weight"])
    assert torch.equal(
        functional_call(values, module, (x,), {"shift": 2.0}),
        torch_functional_call(module, values, (x,), {"shift": 2.0}),
    )


def test_parameters_are_back_after_a_forward_that_fails() -> None:
    module = Tied()
    before = _held(module)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        functional_call(_values(module, ["first.weight"]), module, (torch.zeros(1, 5),), {})
    assert _held(module) == before


def test_an_unknown_name_changes_nothing() -> None:
    module = Tied()
    before = _held(module)
    with pytest.raises(AttributeError, match="absent"):
        functional_call({"first.weight": torch.zeros(4, 4), "absent": torch.zeros(4)}, module, (torch.zeros(1, 4),), {})
    assert _held(module) == before


def test_inside_a_functional_call_of_somebody_else() -> None:
    """There the parameters are already other tensors, perhaps of a functorch transform."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = functional_call({"weight": self.inner.weight * 2}, self.inner, (x,), {})
            return out

    outer, x, weights = Outer(), torch.randn(3, 4), torch.randn(5, 1, 4)
    out = torch.vmap(lambda w: torch_functional_call(outer, {"inner.weight": w}, (x,)))(weights)
    torch.testing.assert_close(out, 2 * x @ weights.transpose(1, 2))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_scripted_modules_and_data_parallel_are_refused_by_torch() -> None:
    for module in (torch.jit.script(nn.Linear(4, 3)), nn.DataParallel(nn.Linear(4, 3))):
        name = "weight" if isinstance(module, torch.jit.ScriptModule) else "module.weight"
        with pytest.raises(RuntimeError, match="stateless API"):
            functional_call({name: torch.zeros(3, 4)}, module, (torch.zeros(1, 4),), {})


class Asked(nn.Module):
    """Calls back in the middle of its forward."""

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(4, 4), ask

    def forward(self, x: Tensor) -> Tensor:
        self.ask(self)
        out: Tensor = self.layer(x)
        return out


def _other_thread(look: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result()


READERS: dict[str, Any] = {
    "deepcopy": lambda m: copy.deepcopy(m).layer.weight,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).layer.weight,
    "another thread": lambda m: _other_thread(lambda: m.layer.weight),
    "parameters in another thread": lambda m: _other_thread(lambda: next(m.parameters())),
    "state dict in another thread": lambda m: _other_thread(m.state_dict)["layer.weight"],
}


def _nothing(_: nn.Module) -> None:
    """A module's `ask` that can be pickled."""


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_the_module_meanwhile_finds_its_parameters(reader: str) -> None:
    found = []

    def ask(module: Any) -> None:
        module.ask = _nothing
        found.append(READERS[reader](module))
        assert module.layer.weight is instead  # here

    module, instead = Asked(ask), torch.zeros(4, 4)
    functional_call({"layer.weight": instead}, module, (torch.zeros(1, 4),), {})
    assert torch.equal(found[0], module.layer.weight)
    assert module.layer.weight.any()
    assert type(module.layer._parameters) is dict


@pytest.mark.parametrize("where", ["hook", "saved by torch"])
def test_a_model_saved_during_a_masked_forward_has_its_true_weights(where: str) -> None:
    saved = {}

    def ask(module: Any) -> None:
        module.ask = _nothing
        if where == "hook":
            saved.update({name: value.clone() for name, value in model.state_dict().items()})
        else:
            torch.save(model, file := io.BytesIO())
            file.seek(0)
            saved.update(torch.load(file, weights_only=False).state_dict())

    model = nn.Sequential(mrreg.MultirateMask(Asked(ask), p=0.5, k=3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    model(torch.zeros(1, 4))
    assert torch.equal(saved["0.layer.weight"], model.state_dict()["0.layer.weight"])
    assert (saved["0.layer.weight"] != 0).all()


def test_calls_in_several_threads_leave_every_parameter_in_its_place() -> None:
    module, x = nn.LSTM(4, 8, num_layers=2), torch.randn(3, 2, 4)
    model = mrreg.MultirateMask(module, p=0.5, k=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    before, held = [p.clone() for p in module.parameters()], _held(module)
    wanted = torch.autograd.grad(model(x)[0].sum(), list(module.parameters()))

    def gradients(_: int) -> bool:
        found = torch.autograd.grad(model(x)[0].sum(), list(module.parameters()))
        return all(map(torch.allclose, found, wanted))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(gradients, range(150)))
    assert _held(module) == held
    assert all(map(torch.equal, module.parameters(), before))
    assert all(type(inner._parameters) is dict for inner in module.modules())


def test_what_a_forward_sets_stays_but_not_in_the_place_of_what_it_does_not_see() -> None:
    new = nn.Parameter(torch.ones(4))

    def ask(module: Any) -> None:
        module.layer.bias = new
        module.layer.register_parameter("more", nn.Parameter(torch.ones(1)))
        del module.layer.more
        seen = torch_functional_call(module.layer, {"weight": torch.ones(4, 4)}, (torch.ones(1, 4),))
        assert torch.equal(seen, torch.full((1, 4), 5.0))
        weight = module.layer.weight
        del module.layer.weight
        module.layer.weight = nn.Parameter(weight.detach() + 2)

    module = Asked(ask)
    before = module.layer.weight
    out = functional_call({"layer.weight": torch.zeros(4, 4)}, module, (torch.ones(1, 4),), {})
    assert torch.equal(out, torch.full((1, 4), 9.0))
    assert module.layer.weight is before
    assert module.layer.bias is new
    assert sorted(module.layer._parameters) == ["bias", "weight"]


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_layers_inside_see_the_tensors_too(how: str) -> None:
    plain, x = nn.Linear(4, 3), torch.randn(2, 4)
    make: Any = getattr(torch.jit, how)
    scripted = make(plain) if how == "script" else make(plain, x)
    module = nn.Sequential(scripted, nn.ReLU())
    weight = torch.randn(3, 4)
    out = functional_call({"0.weight": weight}, module, (x,), {})
    assert torch.equal(out, torch_functional_call(nn.Sequential(plain, nn.ReLU()), {"0.weight": weight}, (x,)))
    assert torch.equal(module(x), plain(x).relu())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, of any such input
@pytest.mark.parametrize("where", ["layer", "method"])
def test_what_is_compiled_inside_a_mask_has_a_graph_for_either_phase(where: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    module = Asked(_nothing)
    plain = copy.deepcopy(module)
    if where == "layer":
        module.layer.compile(backend=backend, fullgraph=True)
    else:
        module.forward = torch.compile(module.forward, backend=backend, fullgraph=True)  # type: ignore[method-assign]
    models = [mrreg.MultirateMask(m, p=0.5, k=3) for m in (module, plain)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        mrreg.attach(optimizer, model)
    for _ in range(12):
        x = torch.randn(2, 4)
        outs = [model(x) for model in models]
        assert torch.equal(*outs)
        for out, optimizer in zip(outs, optimizers, strict=True):
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
    assert len(graphs) == 2


def test_calls_inside_calls_see_both() -> None:
    inner, x = nn.Linear(4, 4), torch.ones(1, 4)

    def ask(module: Any) -> None:
        out = functional_call({"bias": torch.full((4,), 3.0)}, module.layer, (x,), {})
        assert torch.equal(out, torch.full((1, 4), 3.0))

    module = Asked(ask)
    module.layer = inner
    nn.init.ones_(inner.bias)
    out = functional_call({"layer.weight": torch.zeros(4, 4)}, module, (x,), {})
    assert torch.equal(out, torch.ones(1, 4))
    assert type(inner._parameters) is dict


def test_a_mask_loaded_during_its_forward_has_what_was_loaded() -> None:
    def ask(module: Any) -> None:
        module.ask = _nothing
        mask.load_state_dict({"layer.weight": torch.ones(4, 4), "layer.bias": torch.ones(4)})

    mask = mrreg.MultirateMask(Asked(ask), p=0.5, k=3)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    mask(torch.zeros(1, 4))
    assert all((p == 1).all() for p in mask.parameters())
