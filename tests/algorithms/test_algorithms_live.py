"""The algorithms on live ranks over Gloo: the functions that the simulator runs, unchanged."""

import pytest
import torch
from helpers.processes import shared
from helpers.programs import assert_definition, inputs_of, options_of, program_of

from ringtree.cost import Link
from ringtree.live.link.tracing import traced
from ringtree.simulated import simulate
from ringtree.theory import ALGORITHMS, cost_of, find

SIZE = 4


@pytest.fixture(scope="module")
def ranks():
    return shared(SIZE)


def on_this_rank(dist, name, count, root, dtype):
    row, rank = find(name), dist.get_rank()
    options = options_of(row, SIZE, root)
    tensor = inputs_of(SIZE, count, dtype)[rank]
    output = program_of(row, **options)(tensor, dist)
    return tensor.tolist() if output is None else [block.tolist() for block in output]


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
def test_live_ranks_end_with_the_definition(ranks, name):
    """Lengths that do not divide, and lengths so short that chunks are empty."""
    row = find(name)
    for count, root, dtype in ((11, 2, torch.float32), (2, 0, torch.int64), (0, 1, torch.uint8)):
        outputs = ranks.call(on_this_rank, name, count, root, dtype)
        inputs = inputs_of(SIZE, count, dtype)
        made = [[torch.tensor(block, dtype=dtype) for block in output] for output in outputs]
        if row.collective != "all_to_all":
            made = [torch.tensor(output, dtype=dtype) for output in outputs]
        assert_definition(row, inputs, made, options_of(row, SIZE, root).get("root", 0))


def traced_messages(dist, name, count):
    live = traced(dist)
    row = find(name)
    program_of(row, **options_of(row, SIZE))(inputs_of(SIZE, count, torch.float32)[dist.get_rank()], live)
    trace = live.trace()
    return sorted((each.src, each.dst, each.nbytes) for each in trace), trace.bytes_sent


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
def test_a_live_trace_has_the_messages_of_the_simulated_one(ranks, name):
    row = find(name)
    options = options_of(row, SIZE)
    run = simulate(program_of(row, **options), inputs_of(SIZE, 10, torch.float32), Link(1.0, 0.0))
    expected = sorted((each.src, each.dst, each.nbytes) for each in run.trace)
    for messages, sent in ranks.call(traced_messages, name, 10):
        assert messages == expected
        assert sent == list(cost_of(name, SIZE, 40, Link(1.0, 0.0), **options).sent)


def built_in(dist):
    from ringtree.algorithms import ring_all_reduce

    mine, theirs = (torch.arange(10.0) * (dist.get_rank() + 1) for _ in range(2))
    ring_all_reduce(mine, dist, torch.maximum)
    dist.all_reduce(theirs, op=dist.ReduceOp.MAX)
    return mine.equal(theirs)


def test_ring_all_reduce_agrees_with_the_built_in_call(ranks):
    assert ranks.call(built_in) == [True] * SIZE
