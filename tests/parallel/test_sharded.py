"""Sharded: equal to one process, by hand and by FSDP2; bytes 2 : 2 : 3, memory by the formula; sketches call the same."""

from functools import partial

import pytest
import torch
from helpers import one_process
from helpers.processes import shared

from ringtree import Link, data, simulate, traced
from ringtree.parallel import counting
from ringtree.parallel import model as M
from ringtree.parallel import sharded as by_hand
from ringtree.simulated import sketches

STEPS, ROWS = 3, 12
ADAM = partial(torch.optim.AdamW, lr=3e-3)
WAYS = {
    "zero1": (by_hand.ZeRO1, {}),
    "zero2": (by_hand.ZeRO2, {}),
    "zero3": (by_hand.ZeRO3, {}),
    "without prefetch": (by_hand.ZeRO3, {"ahead": 0}),
    "all ahead": (by_hand.ZeRO3, {"ahead": 9}),
    "kept": (by_hand.ZeRO3, {"reshard": False}),
}
TIMES_SENT = {"zero1": 2, "zero2": 2, "zero3": 3, "without prefetch": 3, "all ahead": 3, "kept": 2}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


def new_model(dtype=torch.float64):
    tokens, symbols = M.tokens_of(data.prose())
    return tokens, M.seeded(lambda: M.GPT(len(symbols), layers=3, width=32, heads=2)).to(dtype)


def units_of(net):
    return [[net.token, net.place], *[[block] for block in net.blocks], [net.norm, net.head]]


def alone(dtype=torch.float64):
    """Losses of one process on whole batches, the last of them after `STEPS` steps."""
    tokens, net = new_model(dtype)
    return one_process.train(net, M.batches(tokens, STEPS, ROWS))


def two_by_two(dist, noted):
    sharing = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    return {"group": sharing[rank // 2], "replicas": replicas[rank % 2]}


def trained(dist, way, dtype=torch.float64, hybrid=False):
    """Losses, and the calls of the last step: (operation, bytes, group)."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    (tokens, net), noted = new_model(dtype), traced(dist)
    form, settings = WAYS[way]
    if hybrid:
        settings = {**settings, **two_by_two(dist, noted)}
    sharded, losses = form(units_of(net), noted, ADAM, **settings), []
    for rows in M.batches(tokens, STEPS, ROWS):
        noted.forget()
        loss = M.loss_of(net, rows.chunk(size)[rank])
        loss.backward()
        sharded.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / size)
    return losses, [(call.operation, call.nbytes, call.group) for call in noted.notes.calls]


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_one_process(ranks, way):
    wanted = alone()
    for losses, _ in ranks.call(trained, way):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)


def padded(units, size):
    """Bytes of all parameters in fp32, each unit padded to a multiple of the ranks."""
    counts = [sum(parameter.numel() for module in unit for parameter in module.parameters()) for unit in units]
    return 4 * sum(-(-count // size) * size for count in counts)


def payload(way, net, size):
    units = [sum(units_of(net), [])] if way == "zero1" else units_of(net)
    return TIMES_SENT[way] * padded(units, size)


def sketch_of(way):
    form, settings = WAYS[way]
    return partial(getattr(sketches.sharded, form.__name__.lower()), **settings)


def sketched(way, net, size, **more):
    layers = sketches.sharded.layers_of([sum(units_of(net), [])] if way == "zero1" else units_of(net))
    return simulate(partial(sketch_of(way), **more), [layers] * size, Link(10e-6, 1e-9)).trace


def calls_of(trace, rank):
    return [(call.operation, call.nbytes, call.group) for call in trace.calls if call.rank == rank]


@pytest.mark.parametrize("way", WAYS)
def test_the_sketch_calls_what_the_hand_form_calls(ranks, way):
    live = [calls for _, calls in ranks.call(trained, way, torch.float32)]
    size, (_, net) = len(live), new_model()
    trace = sketched(way, net.float(), size)
    assert live == [calls_of(trace, rank) for rank in range(size)]
    assert sum(nbytes for _, nbytes, _ in live[0]) == payload(way, net, size)


@pytest.mark.parametrize("size", [2, 5, 16, 64])
@pytest.mark.parametrize("way", ["zero1", "zero2", "zero3"])
def test_a_rank_sends_two_two_and_three_times_its_parameters(way, size):
    """Over (p−1)/p, on any number of ranks: what the sketch's rings send."""
    _, net = new_model()
    assert sketched(way, net.float(), size).bytes_sent == [payload(way, net, size) * (size - 1) // size] * size


@pytest.mark.parametrize("way", ["zero3", "kept"])
def test_two_groups_that_share_and_average(way):
    """HSDP, 2 × 2: gathers and reduce-scatters inside a pair, and half of the gradients to the other pair."""
    wanted = alone()
    for losses, _ in shared(4).call(trained, way, torch.float64, True):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
    live = [calls for _, calls in shared(4).call(trained, way, torch.float32, True)]
    _, net = new_model()
    trace = sketched(way, net.float(), 4, shards=2)
    for rank in range(4):
        ours = calls_of(trace, rank)
        for group in {group for _, _, group in live[rank]}:
            assert [call for call in live[rank] if call[2] == group] == [call for call in ours if call[2] == group]
        assert len(live[rank]) == len(ours)
    reduced = sum(nbytes for operation, nbytes, _ in live[0] if operation == "all_reduce")
    assert reduced == padded(units_of(net), 2) / 2


# -- memory --------------------------------------------------------------------


def held_by(dist, way):
    """Bytes that a rank keeps between two steps, and at most within one: of parameters, gradients and optimizer's state."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model(torch.float32)
    form, settings = WAYS[way]

    def parts():
        shards = [flat.shard for flat in sharded.flats]
        pieces = [piece for flat in sharded.flats for piece in flat.pieces]
        filling = sharded.gradients.held() if hasattr(sharded, "gradients") else []
        return {
            "parameters": [*net.parameters(), *shards],
            "gradients": [*(each.grad for each in [*net.parameters(), *pieces]), *filling],
            "state": [value for each in sharded.optimizer.state.values() for value in each.values() if value.dim()],
        }

    most = counting.watch(net, parts)
    sharded = form(units_of(net), dist, ADAM, **settings)
    for rows in M.batches(tokens, 2, ROWS):
        M.loss_of(net, rows.chunk(size)[rank]).backward()
        sharded.step()
    return {name: counting.held(tensors) for name, tensors in parts().items()}, most


def test_a_rank_keeps_what_the_formula_says(ranks):
    size, (_, net) = len(ranks.call(rank_of)), new_model()
    flat, units = padded([sum(units_of(net), [])], size), padded(units_of(net), size)
    wanted = {
        "zero1": {"parameters": flat, "gradients": flat, "state": 2 * flat // size},
        "zero2": {"parameters": units, "gradients": 0, "state": 2 * units // size},
        "zero3": {"parameters": units // size, "gradients": 0, "state": 2 * units // size},
    }
    for way, kept in wanted.items():
        found = [now for now, _ in ranks.call(held_by, way)]
        for now in found:
            assert now | {"state": kept["state"]} == kept
            assert now["state"] <= kept["state"]  # padding has no state
        assert sum(now["state"] for now in found) == 2 * sum(4 * each.numel() for each in net.parameters())


def rank_of(dist):
    return dist.get_rank()


def test_at_most_two_units_are_whole():
    """One that computes and one ahead; the gradients of one that fills and one under way, and the tensor just ready."""
    size, (_, net) = 4, new_model()
    block = padded([[net.blocks[0]]], size)
    shards = padded(units_of(net), size) // size
    largest = 4 * max(each.numel() for each in net.blocks[0].parameters())
    reduced = padded([*units_of(net)[2:]], size) // size  # what is under way counts here, too
    for way, units in ("zero3", 2), ("without prefetch", 1), ("all ahead", None):
        for _, most in shared(size).call(held_by, way):
            assert most["parameters"] == shards + (units * block if units else padded(units_of(net), size))
            assert most["gradients"] == reduced + 2 * block + largest


def test_activations_of_a_block_are_sixteen_widths_a_token():
    _, net = new_model(torch.float32)
    rows = torch.zeros(5, 7, 32, requires_grad=True)
    heads, width = 2, 32
    nbytes = counting.kept_for_backward(net, lambda: net.blocks[0](rows))
    assert nbytes == 4 * 5 * 7 * (16 * width + heads + 4)


def test_shared_memory_is_held_once():
    whole = torch.zeros(10)
    assert counting.held([whole, whole[:3], None, torch.zeros(2, dtype=torch.float64)]) == 40 + 16
    whole.untyped_storage().resize_(0)
    assert counting.held([whole]) == 0


# -- what a user may do ----------------------------------------------------------


def looked_at_between_steps(dist, reshard):
    """Losses where the model is also evaluated before each step and after it."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model()
    sharded, losses = by_hand.ZeRO3(units_of(net), dist, ADAM, reshard=reshard), []
    for rows in M.batches(tokens, STEPS, ROWS):
        with torch.no_grad():
            losses.append(M.loss_of(net, rows).item())
        M.loss_of(net, rows.chunk(size)[rank]).backward()
        with torch.no_grad():
            M.loss_of(net, rows)
        sharded.step()
    return losses


@pytest.mark.parametrize("reshard", [True, False])
def test_a_model_can_be_evaluated_at_any_time(reshard):
    wanted = alone()
    for losses in shared(4).call(looked_at_between_steps, reshard):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)


def accumulated(dist, way):
    """The loss after one step whose gradients came in two parts, and how many reduce-scatters that took."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    (tokens, net), noted = new_model(), traced(dist)
    form, settings = WAYS[way]
    if way == "zero3":
        settings = two_by_two(dist, noted)
    sharded = form(units_of(net), noted, ADAM, **settings)
    first, second = M.batches(tokens, 2, ROWS)
    for rows in first.chunk(size)[rank].chunk(3):
        (M.loss_of(net, rows) / 3).backward()
        if way != "zero1":
            sharded.finish()
    sharded.step()
    with torch.no_grad():
        return M.loss_of(net, second).item(), sum(call.operation == "reduce_scatter_single" for call in noted.notes.calls)


@pytest.mark.parametrize("way", ["zero1", "zero2", "zero3"])
def test_accumulated_gradients_of_whole_ones_are_sent_once_and_of_shards_each_time(way):
    wanted = alone()[1]
    for loss, sent in shared(4).call(accumulated, way):
        assert loss == pytest.approx(wanted, abs=1e-12, rel=0)
        assert sent == (1 if way == "zero1" else 3 * 5)


# -- torch's own -----------------------------------------------------------------


def by_torch(dist, settings, dtype=torch.float64, mesh=None):
    """Losses, and the calls of the last step, of FSDP2 with the hand form's units."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model(dtype)
    mesh = init_device_mesh("cpu", mesh or (size,), mesh_dim_names=("replicas", "shards")[: len(mesh or [0])])
    for unit in units_of(net):
        fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh, **settings)
    fully_shard(net, mesh=mesh)
    optimizer, losses = ADAM(net.parameters()), []
    for rows in M.batches(tokens, STEPS, ROWS):
        optimizer.zero_grad()
        with counting.Calls() as seen:
            loss = M.loss_of(net, rows.chunk(size)[rank])
            loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / size)
    return losses, seen.calls


def counted_backward(dist, trials):
    """What `Calls` sees of FSDP2's backward pass alone, of some; and what it sees of an all-reduce in another thread."""
    from threading import Thread

    from torch.distributed.fsdp import fully_shard

    tokens, net = new_model(torch.float32)
    for unit in units_of(net):
        fully_shard(unit if len(unit) > 1 else unit[0])
    fully_shard(net)
    found = []
    for rows in M.batches(tokens, trials, ROWS):
        loss = M.loss_of(net, rows)
        with counting.Calls() as seen:
            loss.backward()
        found.append([operation for operation, *_ in seen.calls])
    with counting.Calls() as seen:
        thread = Thread(target=dist.all_reduce, args=(torch.ones(3),))
        thread.start()
        thread.join()
    return found, seen.calls


def test_of_a_backward_pass_alone_every_gather_is_counted_each_time():
    for trials, elsewhere in shared(2).call(counted_backward, 5):
        assert [sorted(calls) for calls in trials] == [["allgather"] * 5 + ["reduce_scatter"] * 5] * 5
        assert elsewhere == []


def in_torchs_words(calls):
    names = {"all_gather_single": "allgather", "reduce_scatter_single": "reduce_scatter", "all_reduce": "allreduce"}
    return [(names[operation], nbytes, len(group)) for operation, nbytes, group in calls]


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("mesh", [None, (2, 2)])
def test_fsdp2_in_the_same_units_makes_the_same_calls(reshard, mesh):
    """In the same order, in each group; but for its padding: by rows, of each tensor."""
    settings = {"reshard_after_forward": reshard}
    wanted = alone()
    for losses, _ in shared(4).call(by_torch, settings, torch.float64, mesh):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
    found = shared(4).call(by_torch, settings, torch.float32, mesh)
    by_us = shared(4).call(trained, "zero3" if reshard else "kept", torch.float32, mesh is not None)
    two_rows = 4 * 2 * 32 if mesh is None else 0  # of the embedding and of the head: four ranks make 76 rows of 74
    for (_, theirs), (_, ours) in zip(found, by_us, strict=True):
        wanted = [
            (operation, nbytes + (two_rows if nbytes < 20_000 else 0), size)
            for operation, nbytes, size in in_torchs_words(ours)
        ]
        for among in {"allgather", "reduce_scatter"}, {"allreduce"}:  # in HSDP of two groups
            assert [call for call in theirs if call[0] in among] == [call for call in wanted if call[0] in among]
        assert len(theirs) == len(wanted)
