"""Accelerate, Lightning and the Hugging Face Trainer, with their options, do what the loop by hand does."""

from pathlib import Path
from typing import Any

import pytest
from helpers.trainers import (
    END,
    K,
    Options,
    accelerate,
    by_hand,
    lightning,
    same,
    trainer,
    trainer_arguments,
)
from helpers.transformer_models import Sentences, bert

import mrreg

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the trainers, about themselves
    pytest.mark.filterwarnings("error::mrreg.errors.NoEffectWarning"),
]
ALL: dict[str, Any] = {"accumulate": 2, "clip": 0.05, "bf16": True}
CASES: list[tuple[Any, Options]] = [
    *((use, Options(**ALL, checkpointing=True, statistics="never")) for use in (accelerate, lightning, trainer)),
    *((use, Options(masks="thin", **ALL)) for use in (accelerate, lightning, trainer)),
    (trainer, Options(statistics="sync")),
    (trainer, Options(masks="mask", **ALL, checkpointing=True)),
]
STOP = 4  # one step into the second cycle


@pytest.mark.parametrize(("use", "options"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_as_by_hand_and_resumed_in_mid_cycle(use: Any, options: Options, tmp_path: Path) -> None:
    pytest.importorskip({"lightning": "lightning", "accelerate": "accelerate"}.get(use.__name__, "transformers"))
    undisturbed = use(options, tmp_path, STOP, False)
    assert len(undisturbed.seen) == options.accumulate * END
    assert all(p.requires_grad for p in undisturbed.parameters())
    assert same(undisturbed, by_hand(options, undisturbed.seen, clip_groups=use is lightning))
    resumed = use(options, tmp_path, STOP, True)
    assert len(resumed.seen) == options.accumulate * (END - STOP)
    assert same(undisturbed, resumed)


def trained(net: Any, arguments: Any, resume: str | None, **options: Any) -> Any:
    """A Trainer, after training with the class and its options."""
    import transformers

    chosen: Any = (mrreg.MultirateAdamW, {"lr": 1e-2, "k": K, **options})
    each = transformers.Trainer(net, arguments, train_dataset=Sentences(), optimizer_cls_and_kwargs=chosen)
    each.train(resume_from_checkpoint=resume)
    return each


def test_a_transformer_with_everything_switched_on(tmp_path: Path) -> None:
    """Dropout included: the Trainer restores the random state. Checkpointing and resuming change no bit."""
    on = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "bf16": True}
    checkpointed = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    last = str(tmp_path / f"checkpoint-{STOP}")
    models = [bert() for _ in range(3)]
    for i, (more, resume) in enumerate(((checkpointed, None), (checkpointed, last), ({}, None))):
        arguments = trainer_arguments(tmp_path, STOP, i > 0, **on, **more)
        each = trained(models[i], arguments, resume, model=models[i], weight_decay=0.1, fast="classifier")
        assert [(g["period"], g["weight_decay"]) for g in each.optimizer.param_groups] == [(1, 0.1), (K, 0.1)]
        assert same(models[0], models[i])


def test_without_the_model_the_trainer_is_told_how_to_give_it(tmp_path: Path) -> None:
    model = bert()
    with pytest.raises(TypeError, match=r"MultirateAdamW: model must be the .* with all slow parameters"):
        trained(model, trainer_arguments(tmp_path, STOP, True), None, fast=model.classifier)


def test_a_second_trainer_on_a_model_in_mid_cycle_finds_all_parameters(tmp_path: Path) -> None:
    arguments = trainer_arguments(tmp_path, STOP, True)
    model = bert()
    first = trained(model, arguments, None, model=model, fast="classifier")
    assert all(p.requires_grad for p in model.parameters())
    second = trained(model, arguments, None, model=model, fast=model.classifier)  # takes the parameters over
    assert sum(len(group["params"]) for group in second.optimizer.param_groups) == len(list(model.parameters()))
    assert first.optimizer is not second.optimizer


def test_an_lr_that_is_left_out_is_not_the_trainer_s(tmp_path: Path) -> None:
    import transformers

    model = bert()
    chosen: Any = (mrreg.MultirateAdamW, {"model": model, "k": K, "fast": "classifier"})
    arguments = trainer_arguments(tmp_path, STOP, True)
    each = transformers.Trainer(model, arguments, train_dataset=Sentences(), optimizer_cls_and_kwargs=chosen)
    with pytest.warns(mrreg.NoEffectWarning, match=rf"lr was left out and is 0.001, .* {arguments.learning_rate} on"):
        each.create_optimizer()
