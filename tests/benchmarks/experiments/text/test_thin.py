"""Thin fine-tuning: what each method leaves out of the encoder."""

import pytest
import torch
from torch import nn

from benchmarks.experiments.text import thin

CONFIG = thin.Config(1, 4, {"SST-2": 16}, encoder="tiny")


@pytest.mark.parametrize("name", thin.METHODS)
def test_methods_differ_in_what_they_leave_out_alone(name: str) -> None:
    method = thin.METHODS[name]
    net = thin.network(CONFIG, method, 2, seed=3)
    ids = torch.randint(1, 64, (2, 6), generator=torch.Generator().manual_seed(0))
    plain = thin.network(CONFIG, thin.Method(), 2, seed=3).eval()(ids, ids.bool())
    torch.testing.assert_close(net.eval()(ids, ids.bool()), plain)
    if method.kind != "thin":  # which nothing drives here
        torch.manual_seed(0)
        assert torch.allclose(net.train()(ids, ids.bool()), plain) == (method.kind == "none")


def test_its_own_dropout_is_everywhere_where_it_comes_with() -> None:
    net = thin.network(CONFIG, thin.METHODS[thin.DROPOUT], 2, seed=0)
    assert {module.p for module in net.modules() if isinstance(module, nn.Dropout)} == {thin.OWN}


def test_heads_and_hidden_units_are_thin() -> None:
    kept = {entry.kind: entry.kept for entry in thin.plan("tiny", 0.5, 2).values() if entry.admitted}
    assert kept == {"heads": 1, "hidden": 16}
