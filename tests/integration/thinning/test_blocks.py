"""Training with blocks off is training a model whose code skips them, step by step."""

import copy
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.architectures import build, double
from helpers.thin import mask_of
from helpers.thin_oracle import Make, call, kept_units, loss_of
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import mrreg
from mrreg.thinning.paths import NoDropout

K = 3
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.01, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(AdamW, lr=0.001, eps=0.01, weight_decay=0.1),
}


class Branch(nn.Module):
    """A residual branch that a module of its own computes, with its norm."""

    def __init__(self, pre_norm: bool, mix: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8) if pre_norm else nn.Identity()
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.up = nn.Linear(5, 5) if mix else nn.Linear(8, 12)
        self.down = nn.Identity() if mix else nn.Linear(12, 8)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.scale * (self.up(x.mT).mT if self.mix else self.down(torch.relu(self.up(x))))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Two residual branches; the norms come first or last. Code can skip either, or all."""

    def __init__(self, pre_norm: bool) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.norms = nn.ModuleList(nn.Identity() if pre_norm else nn.LayerNorm(8) for _ in range(2))
        self.branches = nn.ModuleList(Branch(pre_norm, mix) for mix in (True, False))

    def forward(self, x: Tensor, factors: tuple[float, float] = (1, 1)) -> Tensor:
        for branch, norm, factor in zip(self.branches, self.norms, factors, strict=True):
            x = norm(x + factor * branch(x) if factor else x)
        return x


class Net(nn.Module):
    def __init__(self, pre_norm: bool, recompute: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(pre_norm) for _ in range(4))
        self.head = nn.Linear(8, 3)
        self.recompute, self.reentrant = recompute, False

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_() if self.recompute else x  # or reentrant checkpoints would stop there
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if self.recompute and self.training else layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]

    def skipping(self, x: Tensor, off: Iterable[str], factor: float, branches: bool) -> Tensor:
        """The forward with branches or whole layers off."""
        gone = set(off)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if branches:
                x = layer(x, tuple(0.0 if f"layers.{i}.branches.{j}" in gone else factor for j in range(2)))
            elif f"layers.{i}" not in gone:
                x = x + factor * (layer(x) - x) if layer.pre_norm else layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Literal:
    """Trains a plain model as `thin` and `attach` promise to train one with blocks."""

    def __init__(
        self, model: nn.Module, group: Any, make: Make, forward: Callable[..., Any], rescale: bool = True
    ) -> None:
        self.model, self.group, self.forward = model, group, forward
        self.optimizer, self.clock = make(model.parameters()), 0
        self.factor = group.units / group.kept if rescale else 1.0

    def off(self) -> list[str]:
        kept = kept_units([self.group], self.clock // K)["blocks"].tolist()
        return [block.name for i, block in enumerate(self.group.blocks) if i not in kept]

    def step(self, inputs: Any) -> tuple[Tensor, set[str]]:
        """One step of a user's loop: the loss, and the names of the parameters that are held."""
        self.optimizer.zero_grad()
        off, masked = self.off(), self.clock % K < K - 1
        loss = loss_of(self.forward(self.model, inputs, off, self.factor))
        loss.backward()  # type: ignore[no-untyped-call]
        held = {name for name, p in self.model.named_parameters() if p.grad is None}
        if not masked:
            held, gradients = set(), [p.grad for p in self.model.parameters()]
            for p in self.model.parameters():
                p.grad = None
            loss = loss_of(self.forward(self.model, inputs, [], 1.0))
            loss.backward()  # type: ignore[no-untyped-call]
            own = {name for block in self.group.blocks for name in block.parameters}  # a norm before a branch is none
            names = [name for name, _ in self.model.named_parameters()]
            held = {name for name, grad in zip(names, gradients, strict=True) if grad is None and name in own}
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer.step()
        if not masked:
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    if name in held:
                        p.add_(p - before[name], alpha=K - 1)
        self.clock += 1
        return loss.detach(), held


def by_hand(branches: bool, model: Net, x: Tensor, off: Iterable[str], factor: float) -> Tensor:
    return model.skipping(x, off, factor, branches)


def plain_net(pre_norm: bool, **options: bool) -> Net:
    torch.manual_seed(0)
    return Net(pre_norm, **options).double()


def batch(t: int) -> Tensor:
    return torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(t)).double()


BRANCHES = {"blocks": {"layers.*.branches.?": 0.4}}
LAYERS = {"blocks": {"layers.?": 0.5}}


@pytest.mark.parametrize(
    ("pre_norm", "p", "rescale", "optimizer"),
    [
        (True, BRANCHES, True, "AdamW"),
        (False, BRANCHES, False, "SGD"),
        (True, LAYERS, False, "AdamW"),
        (True, {"blocks": 0.5}, True, "SGD"),
        (False, LAYERS, True, "AdamW"),
    ],
)
def test_two_cycles_equal_the_literal_loop(pre_norm: bool, p: Any, rescale: bool, optimizer: str) -> None:
    model = plain_net(pre_norm)
    plain = copy.deepcopy(model)
    model, report = mrreg.thin(model, p, K, batch(0), rescale=rescale, boost=K)
    group = report.groups[0]
    assert (group.units, group.kept) == ((8, 5) if p is BRANCHES else (4, 2))
    ours = OPTIMIZERS[optimizer](model.parameters())
    mrreg.attach(ours, model)
    literal = Literal(plain, group, OPTIMIZERS[optimizer], partial(by_hand, p is BRANCHES), rescale)
    for t in range(2 * K + 1):
        expected, held = literal.step(batch(t))
        ours.zero_grad()
        loss = loss_of(model(batch(t)))
        loss.backward()  # type: ignore[no-untyped-call]
        names = dict(model.named_parameters())
        if t % K < K - 1:
            assert held == {name for name, p in names.items() if p.grad is None}
            assert held
        before = {name: copy.deepcopy((names[name].detach(), dict(ours.state[names[name]]))) for name in held}
        ours.step()
        if t % K < K - 1:
            for name, (value, state) in before.items():
                torch.testing.assert_close(
                    (names[name].detach(), dict(ours.state[names[name]])), (value, state), rtol=0, atol=0
                )
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=1e-9, atol=1e-9)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(dict(ours.state[one]), dict(literal.optimizer.state[two]), rtol=1e-9, atol=1e-9)


def replaced(gives: str, model: nn.Module, inputs: Any, off: list[str], factor: float) -> Any:
    """The forward of any model whose blocks are computed and replaced where they are off; none is scaled."""
    assert factor == 1

    def replace(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        first = next(t for t in (*args, *kwargs.values()) if isinstance(t, Tensor))
        value = torch.zeros_like(first) if gives == "zeros" else first
        return (value, *output[1:]) if isinstance(output, tuple) else value

    handles = [model.get_submodule(path).register_forward_hook(replace, with_kwargs=True) for path in off]
    try:
        return call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()


# p, then units, what the first gives, and if it is scaled
CASES: dict[str, tuple[Any, int, str, bool]] = {
    "bert": ({"bert.encoder.layer.*": 0.5}, 2, "input", False),
    "resnet18": (0.5, 2, "input", False),
    "gpt2": ({"transformer.h.*.mlp": 0.5, "transformer.h.*.attn": 0.5}, 4, "zeros", True),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_libraries_train_as_if_they_were_replaced(name: str) -> None:
    p, units, gives, scaled = CASES[name]
    model, inputs = double(build(name))
    plain = copy.deepcopy(model)
    model, report = mrreg.thin(model, {"blocks": p}, K, inputs, rescale=False, boost=K)
    group = report.groups[0]
    first = group.blocks[0]
    assert (group.units, first.gives, first.scaled) == (units, gives, scaled)
    ours = OPTIMIZERS["AdamW"](model.parameters())
    mrreg.attach(ours, model)
    literal = Literal(plain, group, OPTIMIZERS["AdamW"], partial(replaced, gives), rescale=False)
    for _ in range(K + 2):
        with NoDropout():
            expected, held = literal.step(inputs)
            ours.zero_grad()
            loss = loss_of(call(model, inputs))
            loss.backward()  # type: ignore[no-untyped-call]
        ours.step()
        assert held
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-9, atol=1e-9)
        for (key, value), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9, msg=key)


PLANS: dict[str, mrreg.ThinReport] = {}


def ready(model: Net, p: Any = BRANCHES, make: Make = OPTIMIZERS["AdamW"]) -> tuple[Net, torch.optim.Optimizer]:
    if str(p) not in PLANS:
        PLANS[str(p)] = mrreg.thin(plain_net(True), p, K, batch(0))[1]
    model, _ = mrreg.thin(model, k=K, plan=PLANS[str(p)])
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for t in steps:
        optimizer.zero_grad()
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def test_flops_are_those_of_an_average_cycle() -> None:
    _, report = mrreg.thin(plain_net(True), LAYERS, 5, batch(0))
    layer, head = 2 * 6 * (5 * 5 * 8 + 2 * 5 * 8 * 12), 2 * 6 * 8 * 3
    plain = 3 * (4 * layer + head)
    masked = (plain + 2 * head) / 2  # where all were off, the head's input had no gradient
    assert report.masked_share == pytest.approx(masked / plain, rel=1e-6)


def test_a_number_is_for_modules_with_a_skip_of_their_own() -> None:
    _, report = mrreg.thin(plain_net(True), 0.5, K, batch(0), include=["blocks"])
    assert [block.name for block in report["blocks"].blocks] == [f"layers.{i}" for i in range(4)]
    assert [group.kind for group in report.groups] == ["blocks"]
    with pytest.raises(ValueError, match=r"no module with a skip connection of its own.*Name modules: p="):
        mrreg.thin(build("mlp")[0], {"blocks": 0.5}, K, build("mlp")[1])


def test_joint_steps_and_evaluation_drop_nothing() -> None:
    model, optimizer = ready(plain_net(True))
    for t in range(K):
        torch.testing.assert_close(model.eval()(batch(t)), mrreg.unwrap(copy.deepcopy(model))(batch(t)))
        train(model.train(), optimizer, [t])
    mrreg.unwrap(model)
    assert type(model.layers[0]) is Layer
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(("reentrant", "p"), [(False, BRANCHES), (True, LAYERS)])
def test_checkpointing_around_layers_changes_nothing(reentrant: bool, p: Any) -> None:
    model, optimizer = ready(plain_net(True), p)
    other, resumed = ready(plain_net(True, recompute=True), p)
    other.reentrant = reentrant
    for t in range(K + 1):
        torch.manual_seed(t)
        train(model, optimizer, [t])
        torch.manual_seed(t)
        train(other, resumed, [t])
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=1e-12, atol=1e-12)


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def resumed(model: nn.Module) -> Any:
    other, optimizer = ready(plain_net(True))
    train(other, optimizer, range(2))
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("way", [copy.deepcopy, pickled, resumed])
def test_copies_and_resumed_models_share_nothing_and_train_alike(way: Callable[[Any], Any]) -> None:
    model, optimizer = ready(plain_net(True))
    train(model, optimizer, range(1))
    other = way(model)
    its = OPTIMIZERS["AdamW"](other.parameters())
    mrreg.attach(its, other)
    assert mask_of(other) is not mask_of(model)
    assert all(module.forward.switches is mask_of(other) for module in other.modules() if "forward" in vars(module))
    its.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(1, K + 2))
    train(other, its, range(1, K + 2))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
        torch.testing.assert_close(dict(optimizer.state[one]), dict(its.state[two]), rtol=0, atol=0)


def test_zero_gradients_do_not_move_what_is_off() -> None:
    model, optimizer = ready(plain_net(True), make=OPTIMIZERS["SGD"])
    other, resumed = ready(plain_net(True), make=OPTIMIZERS["SGD"])
    for t in range(K + 1):
        train(model, optimizer, [t])

        def evaluate(t: int = t) -> Tensor:
            resumed.zero_grad(set_to_none=False)
            loss = loss_of(other(batch(t)))
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if t % 2:
            resumed.step(evaluate)  # type: ignore[arg-type]
        else:
            evaluate()
            resumed.step()
        assert all(p.grad is not None for p in other.parameters()) or t < K - 1
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_units_inside_of_blocks_are_thin_too() -> None:
    model, optimizer = ready(plain_net(True), {**BRANCHES, "hidden": 0.5})
    mask, names = mask_of(model), dict(model.named_parameters())
    assert {(group.kind, group.kept) for group in mask.groups} == {("blocks", 5), ("hidden", 6)}
    for t in range(2 * K):
        before = {name: p.detach().clone() for name, p in names.items()}
        off = {name for name, tensor in mask.tensors.items() if tensor.off}
        train(model, optimizer, [t])
        for name, p in names.items():
            same = p == before[name]
            if t % K == K - 1:
                assert not same.all()
            elif name in off:
                assert same.all()
            elif name.endswith("1.up.weight"):
                assert same.all(1).sum() == 6


def test_the_report_shows_saves_and_gives_back_blocks(tmp_path: Path) -> None:
    _, report = mrreg.thin(plain_net(True), BRANCHES, K, batch(0))
    line = next(line for line in str(report).splitlines() if line.startswith("blocks "))
    assert line.split()[:6] == ["blocks", "blocks", "left", "out", "8", "5"]
    assert "layers.0.branches.0, layers.0.branches.1" in line
    report.save(tmp_path / "plan.pt")
    loaded = mrreg.ThinReport.load(tmp_path / "plan.pt")
    assert loaded["blocks"] == report["blocks"]
    model, optimizer = ready(plain_net(True))
    train(model, optimizer, range(K))
    other, _ = mrreg.thin(plain_net(True), k=K, plan=loaded)
    again = OPTIMIZERS["AdamW"](other.parameters())
    mrreg.attach(again, other)
    train(other, again, range(K))
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"plan must be one for this model, got \{'layers\.0\."):
        mrreg.thin(build("mlp")[0], plan=loaded)


class Plain(nn.Module):
    """Layers that are no blocks, each for another reason."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.tied.weight
        self.wide, self.narrow = nn.Linear(4, 6), nn.Linear(6, 4)
        self.alone, self.unused, self.tanh = nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()
        self.one, self.two, self.pos = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(1, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tied(x)
        x = x + self.other(x)
        x = self.alone(self.narrow(self.wide(x))) + self.pos
        x = x + self.two(x)
        return x + self.tanh(x) + self.one(x)  # type: ignore[no-any-return]


def test_what_is_no_block_says_why() -> None:
    _, report = mrreg.thin(Plain(), {"blocks": {"*": 0.5}}, K, torch.randn(2, 3, 4))
    assert {name: entry.reason for name, entry in report.items() if entry.kind == "blocks" and entry.reason} == {
        "tied": "the output differs by 1",
        "other": "the output differs by 1",
        "wide": "its output has another shape than its first input",
        "narrow": "its output has another shape than its first input",
        "alone": "nothing goes around it: without it, the output depends on no input",
        "unused": "the forward on example_inputs does not call it",
        "tanh": "it has no parameters of its own, or a MultirateMask",
    }


@pytest.mark.parametrize(
    ("p", "options", "message"),
    [
        ({"blocks": 1.5}, {}, r"p of 'blocks' must be in \[0, 1\], got 1\.5"),
        ({"blocks": {"layers.*": -1}}, {}, r"p of 'layers\.\*' must be in \[0, 1\], got -1"),
        ({"blocks": {"layer.*": 0.5}}, {}, r"p must be names or patterns that match a module, got 'layer\.\*'"),
        ({"blocks": 0.5, "heasd": 0.5}, {}, "p must be kinds or patterns that match a group of units, got 'heasd'"),
    ],
)
def test_wrong_arguments_are_refused(p: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mrreg.thin(plain_net(True), p, K, batch(0), **options)


def test_excluded_blocks_stay() -> None:
    _, report = mrreg.thin(plain_net(True), {"blocks": 0.5}, K, batch(0), exclude=["layers.0"])
    assert (report["blocks"].units, report["layers.0"].reason) == (3, "not asked for")


@pytest.mark.slow
def test_masked_steps_of_a_compiled_model_run_eagerly() -> None:
    from torch._dynamo.testing import CompileCounter

    model, optimizer = ready(plain_net(True))
    other, resumed = ready(plain_net(True))
    torch.compiler.reset()
    counter = CompileCounter()
    compiled: Any = torch.compile(other, backend=counter)
    for t in range(2 * K):
        train(model, optimizer, [t])
        train(compiled, resumed, [t])
        assert counter.frame_count == (t >= K - 1)
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=1e-12, atol=1e-12)
