"""Weight decay enters the direction, once per gradient."""

import pytest
import torch
from helpers.optimizers import adamw, network, sgd

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")  # gradients are put in by hand


class TestWeightDecay:
    """Report 14: decay that moves parameters without a gradient. Ours enters the direction, once per gradient."""

    def test_no_gradient_no_decay(self) -> None:
        for make, drift in ((sgd, True), (adamw, True), (sgd, False)):
            net = network()
            optimizer = make(net, weight_decay=0.5, drift=drift)
            before = net.trunk.weight.clone()
            for _ in range(5):
                net.head.weight.grad = torch.ones_like(net.head.weight)
                optimizer.step()
            assert torch.equal(net.trunk.weight, before)

    def test_a_cycle_decays_by_k_times_the_lr(self) -> None:
        net = network(torch.float64)
        optimizer = adamw(net, weight_decay=0.5)
        before = net.trunk.weight.detach().clone()
        for _ in range(3):
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        torch.testing.assert_close(net.trunk.weight.detach(), before * (1 - 3 * 0.01 * 0.5))
