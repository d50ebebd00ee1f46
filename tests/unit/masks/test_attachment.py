"""What attach accepts and refuses, and that it leaves no trace."""

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from helpers.masks import batch, bits, held_bits, masks, mlp, of, plain_mlp, same_bits, train
from torch import nn

import mrreg


def _sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


class Wrapper(torch.optim.Optimizer):
    """Like Accelerate's: an Optimizer by name, without torch's constructor and tables."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step()


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda m: None, TypeError, "optimizer must be a torch.optim.Optimizer.*got 'NoneType'"),
        (lambda m: torch.optim.SGD, TypeError, "SGD is a class: give an instance"),
        (lambda m: [], ValueError, "optimizer must be at least one optimizer"),
        (lambda m: m, TypeError, "optimizer must be a torch.optim.Optimizer.*got 'Sequential'"),
        (lambda m: Wrapper(None), TypeError, "optimizer must be a torch.optim.Optimizer.*got 'Wrapper'"),
        (lambda m: torch.optim.LBFGS(m.parameters()), TypeError, "element-wise, got 'LBFGS'. Its step needs 'closure'"),
        (
            lambda m: torch.optim.Adafactor(m.parameters()),
            TypeError,
            "got 'Adafactor'. Its state 'row_var' has a tensor of another shape",
        ),
        (lambda m: [_sgd(m), m], TypeError, "optimizer must be a torch.optim.Optimizer.*got 'Sequential'"),
        (lambda m: torch.optim.SparseAdam(list(m.parameters())), TypeError, "element-wise, got 'SparseAdam'"),
        (
            lambda m: [_sgd(m), torch.optim.Adam(m.parameters())],
            ValueError,
            'one for each masked parameter, got "2 that',
        ),
        (lambda m: _sgd(m[0]), ValueError, "owner of every masked parameter, got \"none for '2.bias', '2.weight'\""),
        (
            lambda m: [torch.optim.SGD([p], lr=0.1) for p in m.parameters()],
            ValueError,
            "one for all parameters of the mask '0'",
        ),
        (
            lambda m: torch.optim.SGD([{"params": m.parameters(), "period": 3}], lr=0.1),
            ValueError,
            "0.weight must be in a part of period 1, got 3",
        ),
    ],
)
def test_optimizers_that_cannot_drive_are_refused(make: Any, kind: type[Exception], says: str) -> None:
    model = mlp(parameters=["*"])
    with pytest.raises(kind, match=says):
        mrreg.attach(make(model), model)
    assert not any(of(mask).attached for mask in masks(model))


@pytest.mark.parametrize(
    ("model", "seed", "kind", "says"),
    [
        (None, 0, TypeError, "model must be an nn.Module, or a list of them, got 'NoneType'"),
        (nn.Linear, 0, TypeError, "model must be.*Linear is a class: give an instance"),
        ((mlp(), {}), 0, TypeError, "model must be an nn.Module, or a list of them, got 'tuple'.*unpack it"),
        (plain_mlp(), 0, ValueError, "model must be a module with a mask, got 'Sequential'"),
        (mlp(), -1, ValueError, "seed must be a whole number, at least 0, got -1"),
        (mlp(), 0.5, TypeError, "seed must be a whole number.*got 0.5"),
        (mlp(), None, TypeError, "seed must be a whole number.*got None"),
    ],
)
def test_other_arguments_are_checked(model: Any, seed: Any, kind: type[Exception], says: str) -> None:
    optimizer = torch.optim.SGD((model if isinstance(model, nn.Module) else mlp()).parameters(), lr=0.1)
    with pytest.raises(kind, match=f"attach: {says}"):
        mrreg.attach(optimizer, model, seed)


def test_a_mask_that_attention_reads_and_never_calls_is_refused() -> None:
    model = nn.TransformerEncoderLayer(4, 2, 8)
    model.self_attn.out_proj = mrreg.MultirateMask(model.self_attn.out_proj)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    says = "attach: model must be .*called, got 'a mask on self_attn.out_proj'. .*parameters=.'out_proj.weight'"
    with pytest.raises(ValueError, match=says):
        mrreg.attach(optimizer, model)


def test_ties_to_the_outside_name_both_owners() -> None:
    embed, out = mrreg.MultirateMask(nn.Embedding(9, 4)), nn.Linear(4, 9, bias=False)
    out.weight = embed.weight
    model = nn.ModuleDict({"out": out, "embed": embed})
    with pytest.raises(ValueError, match=r"embed.weight must be.*tied to out.weight.*common parent"):
        mrreg.attach(_sgd(model), model)


@pytest.mark.parametrize("deep", [False, True])
def test_a_mask_that_is_used_in_several_places_is_one_mask(deep: bool) -> None:
    layer = nn.Linear(6, 6)
    block = nn.Sequential(layer, nn.Tanh()) if deep else layer
    model = mrreg.mask(nn.Sequential(block, block), {"0.0" if deep else "0": 0.5}, k=3)
    plain = mrreg.unwrap(copy.deepcopy(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    (mask,) = masks(model)
    with torch.no_grad():
        weight = next(p for p in plain.parameters() if p.dim() == 2)
        weight.mul_(bits(mask)["weight"] != 0)
    assert torch.allclose(model(batch(0)), plain(batch(0)))
    model.load_state_dict(model.state_dict())
    train(model, optimizer, 1)
    assert optimizer.param_groups[0]["mask_clock"] == 1


def test_removing_leaves_no_trace() -> None:
    model, plain = mlp(), plain_mlp()
    ours, theirs = _sgd(model, momentum=0.9), _sgd(plain, momentum=0.9)
    before = [set(group) for group in ours.param_groups]
    with mrreg.attach(ours, model) as handle:
        train(model, ours, 2)
    handle.remove()  # a second time
    assert [set(group) for group in ours.param_groups] == before
    assert not ours._optimizer_step_post_hooks
    assert not ours._optimizer_step_pre_hooks
    assert not ours._optimizer_load_state_dict_post_hooks
    plain.load_state_dict(model.state_dict())
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for mask in masks(model):
        assert not bits(mask)
        of(mask).warned = True
    assert train(model, ours, range(2, 6)) == train(plain, theirs, range(2, 6))
    assert same_bits(model, plain)


def test_an_optimizer_that_is_gone_leaves_its_masks_undriven() -> None:
    model = mlp()
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    assert all(of(mask).attached for mask in masks(model))
    del optimizer
    gc.collect()
    assert not any(of(mask).attached or bits(mask) for mask in masks(model))
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)


def test_wrapped_optimizers_are_driven_through_their_wrapper() -> None:
    model = mlp()
    outer = Wrapper(Wrapper(_sgd(model)))
    mrreg.attach(outer, model)
    train(model, outer.optimizer.optimizer, 2)
    assert outer.optimizer.optimizer.param_groups[0]["mask_clock"] == 2


def test_clock_k_and_seed_are_ints_in_every_group() -> None:
    model = mlp()
    optimizer = torch.optim.SGD([{"params": m.parameters()} for m in masks(model)], lr=0.1)
    mrreg.attach(optimizer, model, seed=9)
    train(model, optimizer, 4)
    for group in optimizer.param_groups:
        assert (group["mask_clock"], group["mask_k"], group["mask_seed"]) == (4, 3, 9)


def test_masks_with_several_k_share_the_clock() -> None:
    model = nn.Sequential(mrreg.MultirateMask(nn.Linear(6, 4), k=2), mrreg.MultirateMask(nn.Linear(4, 3), k=3))
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    phases = []
    for t in range(6):
        phases.append([of(mask).masking for mask in masks(model)])
        train(model, optimizer, range(t, t + 1))
    assert phases == [[t % 2 < 1, t % 3 < 2] for t in range(6)]
    optimizer.load_state_dict(optimizer.state_dict())
    assert [of(mask).k for mask in masks(model)] == [2, 3]


def test_the_seed_and_the_position_choose_the_subset() -> None:
    def drawn(seed: int) -> list[torch.Tensor]:
        model = nn.Sequential(*(mrreg.MultirateMask(nn.Linear(20, 20)) for _ in range(2)))
        optimizer = _sgd(model)
        mrreg.attach(optimizer, model, seed)
        return [bits(mask)["weight"] for mask in masks(model)]

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(*first)


def test_copies_of_optimizer_and_model_go_on_after_attach() -> None:
    model = mlp()
    optimizer = _sgd(model, momentum=0.9)
    mrreg.attach(optimizer, model, seed=4)
    train(model, optimizer, 4)
    for copied, twin in (copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))):
        with pytest.warns(mrreg.NoEffectWarning):
            copied(batch(0))
        mrreg.attach(twin, copied)
        assert twin.param_groups[0]["mask_seed"] == 4
        reference, other = copy.deepcopy((model, optimizer))
        mrreg.attach(other, reference)
        assert train(copied, twin, range(4, 9)) == train(reference, other, range(4, 9))
        assert same_bits(copied, reference)


@pytest.mark.parametrize("structure", ["weight", "output"])
def test_masks_on_layers_that_are_frozen_at_attach_act_once_these_train(structure: Any) -> None:
    model = mlp(structure=structure)
    model[0].requires_grad_(False)
    optimizer = _sgd(model[2])
    mrreg.attach(optimizer, model)
    train(model, optimizer, 3)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, optimizer, range(3, 4))
    held = held_bits(model[0], optimizer)
    train(model, optimizer, range(4, 5))
    assert held
    assert all(torch.equal(read(), before) for read, before in held)


def test_masks_that_no_one_of_several_optimizers_has_are_reported_once_their_layers_train() -> None:
    model: Any = nn.Sequential(mlp(), mrreg.MultirateMask(nn.Linear(3, 3)))
    model[1].requires_grad_(False)
    first, second = _sgd(model[0][0]), _sgd(model[0][2])
    mrreg.attach([first, second], model)
    model(batch(0)).sum().backward()
    model[1].requires_grad_(True)
    first.add_param_group({"params": list(model[1].parameters())})
    with pytest.warns(mrreg.NoEffectWarning, match="no optimizer drives this mask") as caught:
        model(batch(0)).sum().backward()
    assert caught[0].filename == __file__


def test_attached_in_inference_mode() -> None:
    model = mrreg.MultirateMask(nn.Linear(3, 2), k=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.inference_mode():
        mrreg.attach(optimizer, model)
    for _ in range(5):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert optimizer.param_groups[0]["mask_clock"] == 5


class Reading(nn.Module):
    """Reads the weight of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.layer.weight)


def _step(model: nn.Module, call: Any, penalty: float = 0.0) -> None:
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    for _ in range(4):
        (call(torch.ones(2, 4)).sum() + penalty * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_weight_that_is_used_past_its_mask_is_reported_once() -> None:
    model = mrreg.mask(Reading(), {"layer": 0.5}, k=5)
    with pytest.warns(
        mrreg.NoEffectWarning, match=r"the mask of a Linear has no effect.*or mask the module that your loop calls"
    ) as caught:
        _step(model, model)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:.*Function.*should not be instantiated")  # torch 2.11, while it compiles one
@pytest.mark.parametrize("compiled", [False, True])
def test_a_mask_that_is_called_is_not_reported(compiled: bool) -> None:
    for model in (mrreg.MultirateMask(Reading(), p=0.5, k=5), nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 4)))):
        _step(model, torch.compile(model, backend="aot_eager") if compiled else model, penalty=0.1)


def test_a_gradient_that_a_closure_has_not_renewed_is_not_reported() -> None:
    model = mrreg.MultirateMask(nn.Linear(4, 4), p=0.5, k=2)
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    for group in optimizer.param_groups:
        group["mask_clock"] = 1
    optimizer.load_state_dict(optimizer.state_dict())  # as a resume before a joint step

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss.item()

    for _ in range(3):
        optimizer.step(closure)


def test_training_in_evaluation_mode_is_reported() -> None:
    model = mrreg.MultirateMask(nn.Linear(4, 4)).eval()
    with pytest.warns(mrreg.NoEffectWarning, match=r"has no effect.* in training mode"):
        _step(model, model)
