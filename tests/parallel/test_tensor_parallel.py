"""Tensor parallel: equal to one process, by hand and by DTensor; the sketch's calls are the hand form's."""

from collections import Counter
from functools import partial

import pytest
import torch
from helpers.processes import shared

from ringtree import Link, data, simulate, traced
from ringtree.parallel import counting, data_parallel
from ringtree.parallel import model as M
from ringtree.parallel import tensor_parallel as by_hand
from ringtree.simulated import sketches

STEPS, LAYERS, WIDTH, HEADS, CONTEXT, ROWS = 3, 2, 48, 12, 24, 4  # what 2, 3 and 4 divide
WAYS = {
    "tensor": {},
    "sequence": {"sequence": True},
    "gather twice": {"sequence": True, "gather_twice": True},
}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


def new_model(dtype=torch.float64):
    tokens, symbols = M.tokens_of(data.prose())
    return tokens, M.seeded(lambda: M.GPT(len(symbols), LAYERS, WIDTH, HEADS, CONTEXT)).to(dtype)


def batches(tokens, rows=ROWS):
    return M.batches(tokens, STEPS, rows, CONTEXT)


def trained(net, loss_of, after=lambda: None, rows=ROWS):
    """The loss of each step."""
    tokens, _ = M.tokens_of(data.prose())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in batches(tokens, rows):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        after()
        optimizer.step()
        yield loss.item()


def alone(dtype=torch.float64, rows=ROWS):
    _, net = new_model(dtype)
    return list(trained(net, partial(M.loss_of, net), rows=rows))


def live(dist, way, dtype=torch.float64, forgetful=False):
    """Losses, and the calls of the last step: (operation, bytes, group)."""
    torch.set_num_threads(1)
    noted, (_, net) = traced(dist), new_model(dtype)
    by_hand.share(net, noted, **WAYS[way])

    def loss_of(batch):
        noted.forget()
        return M.loss_of(net, batch)

    def after():
        if WAYS[way] and not forgetful:
            by_hand.sum_of_parts(net, noted)

    return list(trained(net, loss_of, after)), calls_of(noted.notes.calls)


def calls_of(calls):
    return [(call.operation, call.nbytes, call.group) for call in calls]


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_one_process(ranks, way):
    wanted = alone()
    for losses, _ in ranks.call(live, way):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)


def test_in_32_bits_the_losses_agree_to_four_decimals(ranks):
    wanted = [f"{loss:.4f}" for loss in alone(torch.float32)]
    for losses, _ in ranks.call(live, "tensor", torch.float32):
        assert [f"{loss:.4f}" for loss in losses] == wanted


def sketch_of(size, way, layers=LAYERS, width=WIDTH, positions=ROWS * CONTEXT, **more):
    model = sketches.transformer(layers, width, positions, rate=1e9, vocabulary=74, context=CONTEXT, dtype=torch.float32)
    program = partial(sketches.tensor_parallel.step, **WAYS[way], **more)
    return simulate(lambda dist: program(model, positions * width, dist), [()] * size, Link(10e-6, 1e-9)), model


@pytest.mark.parametrize("way", WAYS)
def test_the_sketch_calls_what_the_hand_form_calls(ranks, way):
    found = [calls for _, calls in ranks.call(live, way, torch.float32)]
    run, _ = sketch_of(len(found), way)
    for rank, calls in enumerate(found):
        assert calls_of(call for call in run.trace.calls if call.rank == rank) == calls


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 32, 64])
def test_payload_bytes_are_the_formulas(size):
    """A block makes four calls on n bytes of activations; `sequence` eight, of which `gather_twice` makes two more."""
    layers, width, positions = 3, 192, 384
    numbers = positions * width
    norms = layers * 5 * width + 2 * width
    for way, calls, ends in ("tensor", 4, 0), ("sequence", 8, 2), ("gather twice", 10, 2):
        run, _ = sketch_of(size, way, layers, width, positions)
        for rank in (0, size - 1):
            sizes = [call.nbytes for call in run.trace.calls if call.rank == rank]
            assert sizes == [4 * numbers] * (layers * calls + ends) + [4 * norms] * bool(ends)


def test_an_all_reduce_and_its_two_halves_send_alike():
    sent = {way: sketch_of(4, way)[0].trace.bytes_sent[0] for way in ("tensor", "sequence")}
    numbers, norms = ROWS * CONTEXT * WIDTH, LAYERS * 5 * WIDTH + 2 * WIDTH
    assert sent["tensor"] == 4 * LAYERS * 1.5 * 4 * numbers
    # and in addition the two ends, where embedding and head are whole, and the norms
    assert sent["sequence"] == sent["tensor"] + 2 * 0.75 * 4 * numbers + 1.5 * 4 * norms


def test_ranks_share_the_computing():
    for way in WAYS:
        run, model = sketch_of(4, way)
        head, blocks = model[-1], model[1:-1]
        shared_out = sum(block.forward + block.backward for block in blocks) / 4
        assert run.trace.time(0, "compute") == pytest.approx(head.forward + head.backward + shared_out)


def forgotten(dist):
    losses, _ = live(dist, "sequence", forgetful=True)
    return losses


def test_norms_whose_gradients_are_not_summed_drift_apart():
    for losses in shared(4).call(forgotten):
        assert losses[0] == pytest.approx(alone()[0], abs=1e-12)
        assert abs(losses[-1] - alone()[-1]) > 1e-4


def gradients(dist, way):
    """Each rank's gradients after one backward pass, by name."""
    tokens, net = new_model()
    by_hand.share(net, dist, **WAYS[way])
    M.loss_of(net, next(batches(tokens))).backward()
    if WAYS[way]:
        by_hand.sum_of_parts(net, dist)
    return {name: parameter.grad for name, parameter in net.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
def test_every_gradient_is_that_of_one_process_or_its_share(ranks, way):
    tokens, net = new_model()
    M.loss_of(net, next(batches(tokens))).backward()
    wanted = {name: parameter.grad for name, parameter in net.named_parameters()}
    found = ranks.call(gradients, way)
    size = len(found)
    for rank, mine in enumerate(found):
        assert mine.keys() == wanted.keys()
        for name, whole in wanted.items():
            if "qkv" in name:
                whole = whole.unflatten(0, (3, size, -1))[:, rank].flatten(0, 1)
            elif "feed_forward.up" in name:
                whole = whole.chunk(size)[rank]
            elif name.endswith(("attention.out.weight", "down.weight")):
                whole = whole.chunk(size, 1)[rank]
            torch.testing.assert_close(mine[name], whole, rtol=0, atol=1e-14)


def kept_bytes(dist, way):
    """Bytes that a block keeps for its backward pass: of two blocks, less those of one."""
    torch.set_num_threads(1)
    tokens, kept = M.tokens_of(data.prose())[0], []
    for layers in 1, 2:
        net = M.GPT(74, layers, WIDTH, HEADS, CONTEXT)
        if way:
            by_hand.share(net, dist, **WAYS[way])
        kept.append(counting.kept_for_backward(net, lambda: M.loss_of(net, next(batches(tokens)))))
    return kept[1] - kept[0]


def test_what_a_block_keeps_for_the_backward_pass(ranks):
    """In activations: 4 whole and 12 shared; with `sequence` 2 whole and 14 shared; without what was gathered, all 16 shared.

    And for each position two numbers of each norm, and one of each head.
    """
    count, positions = len(ranks.call(rank_of)), ROWS * CONTEXT
    cases = (None, 16, 1, 1), ("tensor", 4, count, 1), ("sequence", 2, count, count), ("gather twice", 0, count, count)
    for way, whole, size, norms in cases:
        numbers = positions * (WIDTH * (whole + (16 - whole) / size) + 4 / norms + HEADS / size)
        assert ranks.call(kept_bytes, way) == [4 * numbers] * count


def rank_of(dist):
    return dist.get_rank()


def refused(dist):
    try:
        by_hand.share(M.GPT(74, 1, 32, heads=2), dist)
    except ValueError as error:
        return str(error)


def test_heads_that_cannot_be_shared_are_told():
    expected = "2 heads cannot be shared by 4 ranks: give a number that divides them"
    assert set(shared(4).call(refused)) == {expected}


# -- data × tensor -------------------------------------------------------------


def two_dimensions(dist, sequence=False, dtype=torch.float64):
    """Losses over all rows, and the calls of the last step, on a grid of 2 × 2."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    data = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    noted, (_, net) = traced(dist), new_model(dtype)
    by_hand.share(net, noted, tensor, sequence)
    averaging = data_parallel.Overlapped(net, noted, 20_000, group=data)

    def loss_of(batch):
        noted.forget()
        return M.loss_of(net, batch.chunk(2)[rank // 2])

    def after():
        averaging.finish()
        if sequence:
            by_hand.sum_of_parts(net, noted, tensor)

    losses = torch.tensor(list(trained(net, loss_of, after)), dtype=torch.float64)
    dist.all_reduce(losses, group=data)
    return (losses / 2).tolist(), calls_of(noted.notes.calls)


@pytest.mark.parametrize("sequence", [False, True])
def test_data_times_tensor_is_one_process_too(sequence):
    wanted = alone()
    for losses, _ in shared(4).call(two_dimensions, sequence):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)


@pytest.mark.parametrize("sequence", [False, True])
def test_the_sketch_of_two_dimensions_calls_the_same_in_each_group(sequence):
    found = [calls for _, calls in shared(4).call(two_dimensions, sequence, torch.float32)]
    positions = ROWS // 2 * CONTEXT
    model = sketches.transformer(LAYERS, WIDTH, positions, rate=1e9, vocabulary=74, context=CONTEXT, dtype=torch.float32)

    def program(dist):
        tensor, data = ([dist.new_group(members) for members in grid] for grid in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
        rank = dist.get_rank()
        groups = {"tensor": tensor[rank // 2], "data": data[rank % 2]}
        sketches.tensor_parallel.step(model, positions * WIDTH, dist, **groups, nbytes=20_000, sequence=sequence)

    run = simulate(program, [()] * 4, Link(10e-6, 1e-9))
    for rank, calls in enumerate(found):
        sketched = calls_of(call for call in run.trace.calls if call.rank == rank)
        for group in {group for _, _, group in calls}:
            assert [call for call in sketched if call[2] == group] == [call for call in calls if call[2] == group]
        assert len(sketched) == len(calls)
    local = sketches.tensor_parallel.shared_by(2, model)
    data = [nbytes for _, nbytes, group in found[0] if group == (0, 2)]
    assert sum(data) == sum(layer.nbytes for layer in local) and len(data) > 3


# -- torch's own ---------------------------------------------------------------


def heads_together(net, size):
    """A qkv whose rows lie so that a contiguous part is the queries, keys and values of some heads."""
    for block in net.blocks:
        qkv = block.attention.qkv
        qkv.weight = torch.nn.Parameter(qkv.weight.detach().unflatten(0, (3, size, -1)).transpose(0, 1).flatten(0, 2))
        block.attention.heads //= size
    return net


def by_torch(net, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {"attention.qkv": columns, "attention.out": rows, "feed_forward.up": columns, "feed_forward.down": rows}
    for block in heads_together(net, mesh.size()).blocks:
        parallelize_module(block, mesh, plan)
    return net


def dtensors(dist, dtype=torch.float64):
    """Losses, and the calls of one step, by DTensor."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    tokens, net = new_model(dtype)
    by_torch(net, init_device_mesh("cpu", (dist.get_world_size(),)))
    losses = list(trained(net, partial(M.loss_of, net)))
    with counting.Calls() as seen:
        M.loss_of(net, next(batches(tokens))).backward()
    return losses, seen.calls


def test_dtensor_is_equal_and_makes_the_same_calls():
    wanted = alone()
    for losses, _ in shared(4).call(dtensors):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)
    by_us = shared(4).call(live, "tensor", torch.float32)
    for (_, theirs), (_, ours) in zip(shared(4).call(dtensors, torch.float32), by_us, strict=True):
        assert theirs == [("allreduce", nbytes, 4) for _, nbytes, _ in ours]


def fsdp_by_dtensor(dist, dtype=torch.float64):
    """Losses over all rows, and the calls of one step, of FSDP2 times DTensor on 2 × 2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tokens, net = new_model(dtype)
    for block in by_torch(net, mesh["tensor"]).blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])

    def loss_of(batch):
        return M.loss_of(net, batch.chunk(2)[mesh.get_local_rank("data")])

    losses = torch.tensor(list(trained(net, loss_of)), dtype=torch.float64)
    dist.all_reduce(losses, group=mesh.get_group("data"))
    with counting.Calls() as seen:
        loss_of(next(batches(tokens))).backward()
    return (losses / 2).tolist(), seen.calls


def test_fsdp2_times_dtensor_is_equal_and_sends_half_of_the_rows_and_of_the_matrices():
    for losses, _ in shared(4).call(fsdp_by_dtensor):
        assert losses == pytest.approx(alone(), abs=1e-12, rel=0)
    small = sketches.transformer(LAYERS, WIDTH, 1, rate=1e9, vocabulary=74, context=CONTEXT, dtype=torch.float32)
    embedding, *blocks, head = [layer.nbytes for layer in sketches.tensor_parallel.shared_by(2, small)]
    numbers = ROWS // 2 * CONTEXT * WIDTH
    for _, calls in shared(4).call(fsdp_by_dtensor, torch.float32):
        assert Counter(calls) == {
            ("allreduce", 4 * numbers, 2): 4 * LAYERS,
            ("allgather", embedding + head, 2): 1,
            ("allgather", blocks[0], 2): 2 * LAYERS,
            ("reduce_scatter", blocks[0], 2): LAYERS,
            ("reduce_scatter", embedding + head, 2): 1,
        }
