"""Experts: equal to one process that holds them all; the sketch's calls are the hand form's, and bytes are as counted."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from helpers import one_process
from helpers.one_process import losses_of_the_script
from helpers.processes import shared

from ringtree import Link, data, simulate, traced
from ringtree.parallel import experts as by_hand
from ringtree.parallel import model as M
from ringtree.simulated import sketches

STEPS, COUNT, WIDTH = 3, 12, 16
WAYS = {
    "top 1": dict(best=1),
    "top 2": dict(best=2),
    "dropping": dict(best=1, factor=1.0),
    "dropping seconds": dict(best=2, factor=0.75),
}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


@cache
def text():
    return M.tokens_of(data.prose())


def new_model(dtype=torch.float64, best=2, factor=float("inf"), groups=1):
    tokens, symbols = text()
    make = partial(by_hand.Experts, count=COUNT, best=best, make=M.FeedForward, factor=factor)
    net = M.seeded(lambda: M.GPT(len(symbols), layers=2, width=WIDTH, heads=2, feed_forward=make)).to(dtype)
    for layer in by_hand.layers_of(net):
        layer.groups = groups
    return tokens, net


def by_torch(rows, gets, sends, dist, group):
    """torch's own exchange with a backward pass, where ours is."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    arrived = all_to_all_single_autograd(rows, gets, sends, group or torch.distributed.group.WORLD)
    return torch.ops._c10d_functional.wait_tensor(arrived)


@cache
def alone(dtype=torch.float64, weight=0.0, **way):
    """Losses of one process that has all experts, and the gradients of its last step."""
    tokens, net = new_model(dtype, **way)
    losses = one_process.train(
        net, M.batches(tokens, STEPS, 12), lambda net, rows: M.loss_of(net, rows) + weight * by_hand.balance_loss(net)
    )
    return losses, {name: each.grad for name, each in net.named_parameters()}


def trained(dist, dtype=torch.float64, weight=0.0, exchange=None, within=None, **way):
    """Losses, gradients of the last step by the names they have in one process, its calls and counts.

    within: how many ranks share out the experts; left out, all.
    """
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model(dtype, **way)
    noted = traced(dist)
    group, same_experts = grid(dist, within) if within else (None, None)
    by_hand.share_out(net, noted, group, exchange or by_hand.Exchange.apply)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for rows in M.batches(tokens, STEPS, 12):
        noted.forget()
        optimizer.zero_grad()
        loss = M.loss_of(net, rows.chunk(size)[rank])
        if weight:
            loss = loss + weight * by_hand.balance_loss(net, noted)
        loss.backward()
        by_hand.average_gradients(net, noted, same_experts)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / size)
    gradients = {whole_name(name, dist.get_rank(group), within or size): each.grad for name, each in net.named_parameters()}
    calls = [(call.operation, call.nbytes, call.group) for call in noted.notes.calls]
    return losses, gradients, calls, [layer.counts.tolist() for layer in by_hand.layers_of(net)]


def grid(dist, within):
    """The group of `within` neighbors over which experts are shared out, and that of the ranks with the same ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [dist.new_group(list(range(first, first + within))) for first in range(0, size, within)]
    columns = [dist.new_group(list(range(first, size, within))) for first in range(within)]
    return rows[rank // within], columns[rank % within]


def whole_name(name, rank, size):
    parts = name.split(".")
    if "experts" in parts:
        place = parts.index("experts") + 1
        parts[place] = str(int(parts[place]) + rank * COUNT // size)
    return ".".join(parts)


def call(ranks, **given):
    return ranks.call(partial(trained, **given))


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_gradients_are_those_of_one_process(ranks, way):
    size = len(ranks.call(rank_of))
    wanted, gradients = alone(groups=size, **WAYS[way])
    for losses, found, _, _ in call(ranks, **WAYS[way]):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12)


def rank_of(dist):
    return dist.get_rank()


def one_by_one(layer, x):
    """What a layer gives, token by token, as its definition says."""
    result = torch.zeros_like(x)
    for token in range(len(x)):
        probabilities = torch.softmax(layer.router.weight @ x[token], 0)
        weights, chosen = probabilities.topk(layer.best)
        for weight, expert in zip(weights if layer.best == 1 else weights / weights.sum(), chosen):
            result[token] += weight * layer.experts[expert](x[token])
    return result


@pytest.mark.parametrize("best", [1, 2, 3])
def test_a_layer_is_the_weighted_sum_of_the_chosen_experts(best):
    layer = M.seeded(lambda: by_hand.Experts(8, 4, best, M.FeedForward)).double()
    x = torch.randn(20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, wanted = layer(x), one_by_one(layer, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    gradients = (torch.autograd.grad(each.square().sum(), list(layer.parameters())) for each in (found, wanted))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_torchs_exchange_gives_the_same(ranks):
    wanted, gradients = alone()
    for losses, found, _, _ in call(ranks, exchange=by_torch):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12)


def test_experts_on_two_ranks_and_twice(ranks):
    """Where four ranks have the experts twice, those that have the same ones add up their gradients."""
    if len(ranks.call(rank_of)) != 4:
        pytest.skip("needs four ranks")
    wanted, gradients = alone(groups=4, factor=1.0)
    for losses, found, _, _ in call(ranks, within=2, factor=1.0):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12)


def test_the_balance_loss_is_that_of_the_whole_batch(ranks):
    wanted, gradients = alone(weight=0.1)
    for losses, found, _, _ in call(ranks, weight=0.1):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12)


def balances(dist):
    """The mean over ranks of the balance loss, with counts of all ranks and of each rank alone."""
    tokens, net = new_model()
    M.loss_of(net, next(M.batches(tokens, 1, 12)).chunk(dist.get_world_size())[dist.get_rank()])
    both = torch.stack([by_hand.balance_loss(net, dist), by_hand.balance_loss(net)]).detach()
    dist.all_reduce(both)
    return (both / dist.get_world_size()).tolist()


def test_each_ranks_own_balance_is_another_loss(ranks):
    tokens, net = new_model()
    M.loss_of(net, next(M.batches(tokens, 1, 12)))
    whole = by_hand.balance_loss(net).item()
    for together, apart in ranks.call(balances):
        assert together == pytest.approx(whole, abs=1e-12)
        assert apart > whole + 1e-4  # it asks every rank's tokens to be spread evenly


def test_the_balance_loss_is_one_where_all_is_even_and_more_where_not():
    _, net = new_model(best=1)
    for layer in by_hand.layers_of(net):
        layer.chosen = torch.arange(COUNT).unsqueeze(1)
        layer.probabilities = torch.full((COUNT, COUNT), 1 / COUNT)
    assert by_hand.balance_loss(net).item() == pytest.approx(1)
    for layer in by_hand.layers_of(net):
        layer.chosen, layer.probabilities = torch.zeros(COUNT, 1, dtype=int), torch.eye(COUNT)[:1].repeat(COUNT, 1)
    assert by_hand.balance_loss(net).item() == pytest.approx(COUNT)


def test_first_choices_come_before_second_ones():
    chosen = torch.tensor([[1, 0], [0, 1], [0, 2], [0, 2]])
    kept = by_hand.within(chosen, 4, 1.0)  # 8 choices, 4 experts: two each
    assert kept.tolist() == [[True, False], [True, True], [True, True], [False, True]]
    assert by_hand.within(chosen, 4, 1.2).tolist() == [[True, False], [True, True], [True, True], [True, True]]
    assert by_hand.within(chosen, 4, 0.1).tolist() == [[True, False], [True, False], [False, True], [False, False]]


def test_one_process_drops_what_the_ranks_drop_if_it_counts_as_they_do():
    whole, _ = alone(best=1, factor=1.0)
    by_parts, _ = alone(best=1, factor=1.0, groups=4)
    assert abs(whole[0] - by_parts[0]) > 1e-4


def test_an_expert_that_nobody_wants_gets_a_gradient_of_zeros():
    layer = by_hand.Experts(4, 3, 1, M.FeedForward)
    torch.nn.init.zeros_(layer.router.weight)
    layer.router.weight.data[1] = 1
    layer(torch.ones(5, 4)).sum().backward()
    assert layer.counts.tolist() == [0, 5, 0]
    assert [bool(each.up.weight.grad.any()) for each in layer.experts] == [False, True, False]


def test_experts_that_cannot_be_shared_out_are_named(ranks):
    for said in ranks.call(shared_out_badly):
        assert said == "7 experts for {0} ranks: give a multiple of {0}".format(len(ranks.call(rank_of)))


def shared_out_badly(dist):
    try:
        by_hand.share_out(torch.nn.ModuleList([by_hand.Experts(4, 7, 1, M.FeedForward)]), dist)
    except ValueError as error:
        return str(error)


# -- the sketch -----------------------------------------------------------------


def sketched(sent, dtype=torch.float32):
    """The layers of new_model() for a sketch. sent: by layer, what `Mixture` calls so."""
    _, net = new_model(dtype)
    expert = sum(each.numel() for each in M.FeedForward(WIDTH).parameters())
    dense = [layer for layer in sketches.layers_of(net) if ".experts." not in layer.name]
    return dense + [sketches.experts.Mixture("", each, WIDTH, 0.0, expert, dtype) for each in sent]


def in_a_grid_of_two(layers, dist):
    sketches.experts.step(layers, dist, *grid(dist, 2))


@pytest.mark.parametrize("given", [*WAYS.values(), dict(weight=0.1), dict(within=2)], ids=str)
def test_the_sketch_calls_what_the_hand_form_calls(ranks, given):
    size = len(ranks.call(rank_of))
    within = given.get("within")
    if within and size != 4:
        pytest.skip("needs four ranks")
    found = call(ranks, dtype=torch.float32, **given)
    program = partial(sketches.experts.step, balanced="weight" in given)
    inputs = [sketched(np.array([counts for _, _, _, counts in found]).transpose(1, 0, 2))] * size
    if within:
        program = in_a_grid_of_two
        halves = [np.array([counts for _, _, _, counts in found[first : first + 2]]).transpose(1, 0, 2) for first in (0, 2)]
        inputs = [sketched(halves[rank // 2]) for rank in range(4)]
    run = simulate(program, inputs, Link(10e-6, 1e-9))
    for rank, (_, _, calls, _) in enumerate(found):
        assert [(each.operation, each.nbytes, each.group) for each in run.trace.calls if each.rank == rank] == calls


def by_formula(sent, rank, width=WIDTH, itemsize=4):
    """Bytes of all-to-alls that a rank calls in a step, by layer: counts once, rows four times, the longer side of each."""
    here = sent.shape[1] // len(sent)
    out, into = sent[rank].sum(), sent[:, rank * here : (rank + 1) * here].sum()
    return 8 * sent.shape[1] + 4 * max(out, into) * width * itemsize


def test_bytes_by_formula_are_those_of_the_trace(ranks):
    found = call(ranks, dtype=torch.float32, **WAYS["dropping"])
    sent = np.array([counts for _, _, _, counts in found]).transpose(1, 0, 2)
    for rank, (_, _, calls, _) in enumerate(found):
        exchanged = [nbytes for operation, nbytes, _ in calls if operation == "all_to_all_single"]
        assert len(exchanged) == 5 * len(sent)
        assert sum(exchanged) == sum(by_formula(layer, rank) for layer in sent)


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 64])
def test_bytes_of_the_sketch_are_those_of_the_formula(size):
    experts, rows = 2 * size, 96
    sent = np.stack([np.roll(row, 3 * rank) for rank, row in enumerate(sketches.experts.routed(size, experts, rows, 0.3))])
    layers = sketched([sent])
    run = simulate(sketches.experts.step, [layers] * size, Link(1e-6, 1e-9))
    between = layers[-1].between
    for rank in range(size):
        called = [each.nbytes for each in run.trace.calls if each.rank == rank and each.operation == "all_to_all_single"]
        assert sum(called) == by_formula(sent, rank)
    quiet = simulate(sketches.experts.step, [sketched([0 * sent])] * size, Link(1e-6, 1e-9))  # its counts and gradients alone
    leaving = np.array(run.trace.bytes_sent) - quiet.trace.bytes_sent
    for rank in range(size):
        out, into = (rows.sum() - between[rank, rank] for rows in (between[rank], between[:, rank]))
        assert leaving[rank] == 2 * (out + into) * WIDTH * 4


def test_a_hot_expert_makes_all_wait_for_its_rank():
    """Links that cost nothing: a step lasts as long as the rank computes that has most rows."""
    size, rows, row = 8, 800, 1e-6
    for share in (1 / 8, 1 / 4, 1 / 2):
        sent = sketches.experts.routed(size, size, rows, share)
        hot = sketches.experts.Mixture("experts", sent, WIDTH, row)
        run = simulate(sketches.experts.step, [[sketches.Layer("", (1,), 0, 0), hot]] * size, Link(0, 0))
        assert sent.sum() == size * rows
        assert run.makespan == pytest.approx(3 * size * rows * share * row)
        mild = sketches.experts.Mixture("experts", sketches.experts.capped(sent, 1.25), WIDTH, row)
        run = simulate(sketches.experts.step, [[sketches.Layer("", (1,), 0, 0), mild]] * size, Link(0, 0))
        assert run.makespan == pytest.approx(3 * size * min(125, rows * share) * row)


def test_the_sketch_caps_as_the_hand_form_does():
    chosen = torch.tensor([0] * 9 + [1] * 2 + [2] * 1).unsqueeze(1)
    for factor in (0.5, 0.6, 1.0, 1.3, 3.0):
        kept = torch.bincount(chosen[by_hand.within(chosen, 4, factor)], minlength=4)
        assert sketches.experts.capped(np.array([[9, 2, 1, 0]]), factor).tolist() == [kept.tolist()]


def test_its_script_trains_as_one_process():
    tokens, symbols = M.tokens_of(data.prose())
    make = partial(by_hand.Experts, count=4, best=2, make=M.FeedForward)
    net = M.seeded(lambda: M.GPT(len(symbols), feed_forward=make))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    wanted = []
    for rows in M.batches(tokens, 2, 8):
        optimizer.zero_grad()
        loss = M.loss_of(net, rows)
        (loss + 0.01 * by_hand.balance_loss(net)).backward()
        optimizer.step()
        wanted.append(loss.item())
    assert shared(2).call(losses_of_the_script, "experts", 2)[0] == pytest.approx(wanted, abs=5e-5)
