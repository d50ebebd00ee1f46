"""What swap_dropout sees in a forward: random numbers drawn in functions, layers skipped at random, closures."""

import copy
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mrreg
from mrreg import isolation

X = torch.randn(4, 6)
ATTENTION = "it acts on attention probabilities, which have no weight"


class Net(nn.Module):
    """Two layers and the forward that uses them."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.steps, self.one, self.two = forward, nn.Linear(6, 6), nn.Linear(6, 6)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        return self.steps(self, x)


def swapped(model: nn.Module, inputs: Any = X) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(6, 6), nn.Sigmoid(), model)  # something to replace in any case
    return mrreg.swap_dropout(model, k=3, example_inputs=inputs)


class TestFunctions:
    """Functional dropout is reported with the call that puts its masks."""

    @pytest.mark.parametrize(
        ("forward", "call", "masks"),
        [
            (
                lambda m, x: m.two(F.dropout(torch.relu(m.one(x)), 0.3, m.training)),
                "mrreg.mask(model, {'3.two': 0.3}, k=3, structure='input')",
                {"two": "input"},
            ),
            (
                lambda m, x: x + F.dropout(m.two(m.one(x)), p=0.3, training=m.training),
                "mrreg.mask(model, {'3.two': 0.3}, k=3, structure='output', parameters=['weight', 'bias'])",
                {"two": "output"},
            ),
            (
                lambda m, x: (m.one(y := torch.dropout(x, 0.3, m.training)), m.two(y)),
                "mrreg.mask(model, {'3.one': 0.3, '3.two': 0.3}, k=3, structure='input')",
                {"one": "input", "two": "input"},
            ),
        ],
    )
    def test_the_report_has_a_call_that_can_be_pasted(self, forward: Any, call: str, masks: dict[str, str]) -> None:
        model, report = swapped(Net(forward))
        name, swap = next((name, swap) for name, swap in report.items() if "dropout()" in name)
        assert name == "3: dropout()"
        assert not swap.replaced
        assert swap.what.startswith("dropout() with p=0.3 at test_tracer.py:")
        assert swap.reason.endswith(call)
        assert str(report).startswith("1 of 2 dropouts")
        eval(call, {"mrreg": mrreg, "model": model})
        for path, structure in masks.items():
            mask = model[3].get_submodule(path)  # type: ignore[index]
            assert isinstance(mask, mrreg.MultirateMask)
            assert (mask.p, mask.k, mask.structure) == (0.3, 3, structure)

    def test_layers_of_several_kinds_get_a_call_each(self) -> None:
        attention = nn.MultiheadAttention(6, 2)
        model, report = swapped(
            Net(lambda m, x: m.one(m.att(y := F.dropout(x, 0.3), y, y)[0]) + m.two(y), att=attention)
        )
        reason = report["3: dropout()"].reason
        calls = re.findall(r"mrreg\.mask\(.*?\)(?= and|$)", reason)
        assert len(calls) == 2
        for call in calls:
            eval(call, {"mrreg": mrreg, "model": model})
        masks = {path: mask for path, mask in model.named_modules() if isinstance(mask, mrreg.MultirateMask)}
        assert {path: [t.name for t in mask.targets] for path, mask in masks.items()} == {
            "1": ["weight"],
            "3.att": ["in_proj_weight"],
            "3.two": ["weight"],
        }

    def test_the_layers_on_both_sides_are_named(self) -> None:
        _, report = swapped(Net(lambda m, x: m.two(F.dropout(m.one(x), 0.3))))
        assert "between '3.one' and '3.two'" in report["3: dropout()"].reason

    def test_each_call_has_a_line_and_a_module_called_twice_has_one(self) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            for _ in range(2):
                x = m.one(F.dropout(x, 0.1))
            return m.two(F.dropout(x, 0.2))  # type: ignore[no-any-return]

        _, report = swapped(Net(forward))
        assert [name for name in report if name.startswith("3")] == ["3: dropout()", "3: dropout() #2"]
        assert [report[name].what[:24] for name in report if name.startswith("3")] == [
            "dropout() with p=0.1 at ",
            "dropout() with p=0.2 at ",
        ]

    @pytest.mark.parametrize("off", [{"p": 0.0}, {"training": False}])
    def test_functions_that_drop_nothing_are_not_reported(self, off: dict[str, Any]) -> None:
        _, report = swapped(Net(lambda m, x: m.two(F.dropout(x, **off))))
        assert list(report) == ["0"]

    def test_a_function_whose_layer_has_a_mask_says_so(self) -> None:
        model = Net(lambda m, x: x + F.dropout(m.drop(m.two(x)), 0.3), drop=nn.Dropout(0.1))
        _, report = swapped(model)
        assert report["3.drop"].masks == {"3.two": "output"}
        assert "have their mask from '3.drop'" in report["3: dropout()"].reason

    @pytest.mark.parametrize(
        "attend",
        [
            lambda m, q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if m.training else 0.0),
            lambda m, q: F.dropout((q @ q.mT).softmax(-1), 0.3, m.training) @ q,
            lambda m, q: F.multi_head_attention_forward(
                q, q, q, 6, 2, m.weights, None, None, None, False, 0.3, m.two.weight, None, training=m.training
            )[0],
        ],
        ids=["scaled_dot_product", "by hand", "multi_head"],
    )
    def test_attention_dropout_is_never_left_out(self, attend: Any) -> None:
        def forward(m: Any, x: Tensor) -> Tensor:
            return m.two(attend(m, m.one(x).view(1, 4, 6)))  # type: ignore[no-any-return]

        model = Net(forward)
        model.weights = nn.Parameter(torch.randn(18, 6))
        _, report = swapped(model)
        (left,) = [swap for swap in report.values() if not swap.replaced]
        assert "p=0.3" in left.what
        assert left.reason == ATTENTION
        assert str(report).startswith("1 of 2 ")

    @pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
    def test_fused_attention_tells_its_rate(self, kernel: str) -> None:
        operation = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention").default
        name = operation._schema.name.removeprefix("aten::")
        assert isolation.RANDOM_OPERATION.fullmatch(name)
        assert isolation._drop_rate(name, isolation._arguments(operation, (), {"dropout_p": 0.2})) == (0.2, True)
        assert isolation._drop_rate(name, isolation._arguments(operation, (), {})) == (0.0, False)

    def test_fused_dropout_tells_its_rate(self) -> None:
        _, report = swapped(Net(lambda m, x: m.two(torch.native_dropout(x, 0.3, m.training)[0])))
        assert report["3: native_dropout()"].what.startswith("native_dropout() with p=0.3")
        _, report = swapped(Net(lambda m, x: m.two(torch.native_dropout(x, 0.3, False)[0])))
        assert list(report) == ["0"]

    def test_noise_that_drops_nothing_is_not_dropout(self) -> None:
        _, report = swapped(Net(lambda m, x: m.two(x + torch.randn_like(x))))
        assert list(report) == ["0"]

    def test_dropout_by_hand_is_reported(self) -> None:
        _, report = swapped(Net(lambda m, x: m.two(x * torch.bernoulli(torch.full_like(x, 0.5)))))
        assert "random numbers are drawn in the forward" in report["3: bernoulli()"].reason


class DropPath(nn.Module):
    """Stochastic depth as many libraries have it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop_prob = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.drop_prob:
            return x
        return x * x.new_empty(x.shape[0], 1).bernoulli_(1 - self.drop_prob)


def drop_path(x: Tensor, p: float) -> Tensor:
    return x * torch.floor(torch.rand(x.shape[0], 1) + 1 - p)


def test_branches_that_are_dropped_are_reported() -> None:
    ops = pytest.importorskip("torchvision.ops")
    for branch in (DropPath(0.2), ops.StochasticDepth(0.2, "row"), ops.StochasticDepth(0.2, "batch")):
        _, report = swapped(Net(lambda m, x: x + m.path(m.two(x)), path=branch))
        (left,) = [swap for swap in report.values() if not swap.replaced]
        assert left.what.startswith(f"{type(branch).__name__} with p=0.2")
        assert left.reason == "p is so small that all of them run"
    _, report = swapped(Net(lambda m, x: x + drop_path(m.two(x), 0.2)))
    assert "drops whole branches" in report["3: rand()"].reason
    _, report = swapped(Net(lambda m, x: x + m.path(m.two(x)), path=DropPath(0.0)))
    assert list(report) == ["0"]


def test_without_inputs_the_report_says_what_it_cannot_see() -> None:
    own: Any = Net(lambda m, x: F.dropout(x), path=DropPath(0.2))
    own.attention_dropout = 0.1
    _, report = mrreg.swap_dropout(nn.Sequential(nn.Dropout(), nn.Linear(6, 6), nn.ReLU(), own))
    assert [name for name, swap in report.items() if not swap.replaced] == ["3.attention_dropout", "3.path.drop_prob"]
    assert "only seen with example_inputs" in str(report)
    _, report = mrreg.swap_dropout(nn.Sequential(nn.Dropout(), nn.Linear(6, 6)))
    assert "example_inputs" not in str(report)


class Skipping(nn.Module):
    """Blocks with dropout, each of which runs only if the dice say so."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self.run = run
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or self.run():
                x = x + block(x)
        return x


DICE: dict[str, Callable[[], Any]] = {
    "torch.rand": lambda: torch.rand(()) >= 0.7,
    "torch.rand, item": lambda: torch.rand(1).item() >= 0.7,
    "torch.rand of what is kept": lambda: torch.rand(()) < 0.3,
    "uniform": lambda: torch.empty(()).uniform_(0, 1) > 0.7,
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.3)),
    "bernoulli, compared": lambda: torch.equal(torch.bernoulli(torch.tensor([0.3])), torch.ones(1)),
    "bernoulli, bool": lambda: torch.empty((), dtype=torch.bool).bernoulli_(0.3),
    "random.random": lambda: random.random() >= 0.7,
    "random.uniform": lambda: random.uniform(0, 1) >= 0.7,
    "numpy": lambda: np.random.rand() >= 0.7,  # noqa: NPY002
    "numpy, what is kept": lambda: np.random.uniform(0, 1) < 0.3,  # noqa: NPY002
}


@pytest.mark.parametrize("run", DICE.values(), ids=DICE.keys())
def test_no_layer_is_skipped_while_a_forward_is_followed(run: Callable[[], Any]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        model, report = mrreg.swap_dropout(Skipping(run), k=3, example_inputs=X)
        assert [name for name, m in model.named_modules() if isinstance(m, mrreg.MultirateMask)] == [
            f"blocks.{i}" for i in range(4)
        ]
        (left,) = [swap for swap in report.values() if not swap.replaced]
        assert "skipped at random" in left.reason


def test_layers_that_one_draw_skips_together_are_followed() -> None:
    for keep in (lambda: torch.rand(4) >= 0.7, lambda: torch.rand(4) < 0.3):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            model: Any = Skipping(lambda: True)
            model.forward = lambda x, m=model, keep=keep: sum(
                (block(x) for block, run in zip(m.blocks, keep(), strict=True) if run), x
            )
            _, report = mrreg.swap_dropout(nn.Sequential(model), example_inputs=X)
            found.append([name for name, swap in report.items() if swap.replaced])
            assert any(not swap.replaced for swap in report.values())
        assert found == [[f"0.blocks.{i}.2" for i in range(4)]] * 3


def test_sampling_by_rejection_ends() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        noise = np.random.randn() + random.randrange(1000) + random.gauss(0, 1)  # noqa: NPY002
        return m.two(m.drop(x)) + noise if np.random.rand() < 0.5 else x  # noqa: NPY002

    _, report = mrreg.swap_dropout(Net(forward, drop=nn.Dropout()), example_inputs=X)
    assert report["drop"].replaced


class Closures(nn.Module):
    """A forward that goes by a closure, with BatchNorm inside."""

    def __init__(self, close: Callable[[nn.ModuleDict], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {"up": nn.Linear(6, 6), "norm": nn.BatchNorm1d(6), "drop": nn.Dropout(0.5), "down": nn.Linear(6, 6)}
        )
        self.run = close(self.parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def by_container(parts: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: parts.down(parts.drop(torch.relu(parts.norm(parts.up(x)))))


def by_layer(parts: Any) -> Callable[[Tensor], Tensor]:
    up, norm, drop, down = parts.values()
    return lambda x: down(drop(torch.relu(norm(up(x)))))


def by_list(parts: Any) -> Callable[[Tensor], Tensor]:
    layers = list(parts.values())

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run


def test_a_closure_is_followed() -> None:
    model = Closures(by_container)
    before = copy.deepcopy(model.state_dict())
    _, report = mrreg.swap_dropout(model, example_inputs=X)
    assert report["parts.drop"].masks == {"parts.down": "input"}
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in before.items())


@pytest.mark.parametrize("close", [by_layer, by_list])
def test_layers_that_a_closure_holds_are_left_as_they_are(close: Any) -> None:
    """The closure would go on calling them, without their masks."""
    model = Closures(close)
    before, text = copy.deepcopy(model.state_dict()), repr(model)
    with pytest.warns(mrreg.NoEffectWarning):
        _, report = mrreg.swap_dropout(model, example_inputs=X)
    assert "holds its layers elsewhere too" in report["parts.drop"].reason
    assert repr(model) == text
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert type(model.parts["drop"]) is nn.Dropout


def test_frozen_layers_keep_their_dropout() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(6, 2))

    for inputs in (None, X):
        net: Any = model()
        net[1].requires_grad_(False)
        net, report = mrreg.swap_dropout(net, example_inputs=inputs)
        assert type(net[0]) is nn.Dropout
        assert re.search(r"'1', which is frozen \(no optimizer would drive", report["0"].reason)
        assert report["3"].masks == ({"4": "input"} if inputs is None else {"1": "hidden"})
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        with mrreg.attach(optimizer, net):
            net(X)
    rnn = nn.Sequential(nn.LSTM(6, 6, 2, dropout=0.5)).requires_grad_(False)
    with pytest.warns(mrreg.NoEffectWarning, match="frozen"):
        mrreg.swap_dropout(rnn)


def test_the_model_itself_is_never_replaced() -> None:
    """Code that ignores the return value trains with the masks too."""
    for model in (
        nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6)),
        nn.TransformerEncoderLayer(6, 2, 12),
    ):
        same, report = mrreg.swap_dropout(model, example_inputs=X)
        assert same is model
        assert all(m in model.modules() for m in same.modules())
        assert any(swap.replaced for swap in report.values())
    with pytest.warns(mrreg.NoEffectWarning, match="the model itself cannot be replaced in place"):
        mrreg.swap_dropout(nn.LSTM(6, 6, 2, dropout=0.5))


@pytest.mark.slow
def test_compiled_models_and_layers() -> None:
    """Their forward is followed without compiling it; the module that a compiled one holds stays where it is."""
    pair = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6))
    compiled: Any = torch.compile(pair)
    _, report = mrreg.swap_dropout(compiled, example_inputs=X)
    assert report["_orig_mod.2"].masks == {"_orig_mod.3": "input"}
    compiled = torch.compile(nn.Linear(6, 6))
    _, report = mrreg.swap_dropout(nn.Sequential(compiled, nn.Dropout(0.5), nn.Linear(6, 6)), example_inputs=X)
    assert report["1"].masks == {"0._orig_mod": "hidden"}


@pytest.mark.slow
def test_a_model_that_cannot_be_followed_does_not_turn_compilation_off() -> None:
    import torch._dynamo

    model: Any = Net(lambda m, x: m.two(m.drop(x)), drop=nn.Dropout())
    model.lock = (_ for _ in ())
    with pytest.raises(RuntimeError, match="cannot be copied"):
        mrreg.swap_dropout(model, example_inputs=X)
    graphs: list[Any] = []
    torch.compile(nn.Linear(6, 6), backend=lambda graph, _: graphs.append(graph) or graph)(X)  # type: ignore[func-returns-value]
    assert graphs
