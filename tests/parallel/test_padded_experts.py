"""Experts in boxes of fixed size: what `experts` computes, without a question to the GPU."""

import math

import pytest
import torch
from helpers.processes import shared

from ringtree.parallel import counting, experts
from ringtree.parallel import model as M
from ringtree.parallel.padded_experts import PaddedExperts

WIDTH, COUNT = 8, 6


def layer_of(form, factor, best=2):
    return M.seeded(lambda: form(WIDTH, COUNT, best, M.FeedForward, factor)).double()


def tokens_of(rank):
    return torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


@pytest.mark.parametrize("best", [1, 2, 3])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, COUNT])
def test_one_process_computes_what_experts_does(factor, best):
    plain, padded = (layer_of(form, factor, best) for form in (experts.Experts, PaddedExperts))
    x = tokens_of(0)
    found = [layer(x) for layer in (plain, padded)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-14)
    for y in found:
        y.square().sum().backward()
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        gradient = torch.zeros_like(one) if one.grad is None else one.grad
        torch.testing.assert_close(gradient, other.grad, rtol=0, atol=1e-13)


def on_ranks(dist, factor):
    torch.set_num_threads(1)
    layer, x = layer_of(PaddedExperts, factor), tokens_of(dist.get_rank()).requires_grad_()
    layer.share_out(dist)
    y = layer(x)
    y.square().sum().backward()
    router = layer.router.weight.grad.clone()
    dist.all_reduce(router)
    return y.detach(), x.grad, router, [each.grad for each in layer.experts.parameters()]


@pytest.mark.parametrize("factor", [1.0, 3.0])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_them_compute_what_one_process_does(size, factor):
    layer = layer_of(PaddedExperts, factor)
    outputs, inputs = [], []
    for rank in range(size):
        inputs.append(tokens_of(rank).requires_grad_())
        outputs.append(layer(inputs[-1]))
        outputs[-1].square().sum().backward()
    found = shared(size).call(on_ranks, factor)
    for (y, gradient, router, _), wanted, x in zip(found, outputs, inputs):
        torch.testing.assert_close(y, wanted.detach(), rtol=0, atol=1e-14)
        torch.testing.assert_close(gradient, x.grad, rtol=0, atol=1e-13)
        torch.testing.assert_close(router, layer.router.weight.grad, rtol=0, atol=1e-12)
    gradients = [each for _, _, _, held in found for each in held]
    for ours, wanted in zip(gradients, layer.experts.parameters(), strict=True):
        torch.testing.assert_close(ours, wanted.grad, rtol=0, atol=1e-12)


def waits_of(dist, form, factor):
    layer = layer_of(form, factor)
    layer.share_out(dist) if form is PaddedExperts else experts.share_out(layer, dist)
    with counting.Waits() as waits:
        layer(tokens_of(dist.get_rank()))
    return dict(waits.found)


def test_the_host_waits_for_nothing_in_its_forward_pass():
    assert shared(2).call(waits_of, PaddedExperts, 2.0) == [{}, {}]
    for found in shared(2).call(waits_of, experts.Experts, math.inf):
        assert found == {"nonzero": 1, "bincount": 1, "tolist": 3, "repeat_interleave": 1}


def test_no_shape_depends_on_the_data():
    """On a device that has no data at all the forward pass runs through, and that of `experts` does not."""
    assert layer_of(PaddedExperts, 1.25).to("meta")(tokens_of(0).to("meta")).shape == (3, 5, WIDTH)
    with pytest.raises((NotImplementedError, RuntimeError)):
        layer_of(experts.Experts, math.inf).to("meta")(tokens_of(0).to("meta"))


def refused(dist):
    try:
        layer_of(PaddedExperts, 1.0).share_out(dist)
    except ValueError as error:
        return str(error)


def test_experts_that_ranks_cannot_share_are_told():
    assert set(shared(4).call(refused)) == {"6 experts for 4 ranks: give a multiple of 4"}
