"""One rule of ports: for how long a message keeps them, when it arrives, and who is served first."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtree import Link, Machine, Sketch, compute, cost_of, simulate
from ringtree.algorithms import chain_tree_all_reduce, multi_tree_all_reduce, two_trees_all_reduce
from ringtree.errors import UsageError
from ringtree.ports import book

CARD = {"alpha": 5e-6, "beta": 1 / 50e9}
GAPS = [None, 2.5e-6, 0.3e-6, 0.0]


def exchange(x, dist):
    """Every rank with every other, all posted at once, in rotated order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = []
    for step in range(1, size):
        halves.append(dist.P2POp(dist.isend, x, (rank + step) % size))
        halves.append(dist.P2POp(dist.irecv, x.clone(), (rank - step) % size))
    for work in dist.batch_isend_irecv(halves) if halves else ():
        work.wait()


def scatter(x, dist):
    """Rank 0 posts all its sends at once."""
    shards = x.tensor_split(dist.get_world_size())
    if dist.get_rank() == 0:
        works = [dist.isend(shards[other], other) for other in range(1, dist.get_world_size())]
    else:
        works = [dist.irecv(shards[dist.get_rank()], 0)]
    for work in works:
        work.wait()


def seconds(program, size, nbytes, machine):
    return simulate(program, [Sketch(nbytes, torch.uint8)] * size, machine, trace=False).makespan


# -- how long, and until when ---------------------------------------------------


@pytest.mark.parametrize("gap", GAPS)
def test_a_port_is_kept_for_the_gap_and_the_bytes_and_a_message_arrives_after_the_latency(gap):
    link = Link(**CARD, gap=gap)
    run = simulate(scatter, [Sketch(8 * 1024, torch.uint8)] * 8, link)
    busy = link.gap + 1024 * link.beta
    starts, ends = zip(*sorted((message.start, message.end) for message in run.trace))
    assert starts == pytest.approx([place * busy for place in range(7)])
    assert ends == pytest.approx([start + link.alpha + 1024 * link.beta for start in starts])


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("size", [*range(2, 17), 48])
def test_an_all_to_all_that_is_posted_at_once_takes_a_slot_for_each_other_rank(size, gap):
    link = Link(**CARD, gap=gap)
    slots = size - 2  # and then the last message's own time
    assert seconds(exchange, size, 100, link) == pytest.approx(slots * (link.gap + 100 * link.beta) + link.time(100))


def test_a_gap_turns_who_wins():
    """32 ranks, 1 KiB and 1 MiB: with one port in the textbook's sense a tree beats posting everything, with a gap it loses."""
    textbook, real = Link(**CARD), Link(**CARD, gap=0.3e-6)
    for nbytes in (1 << 10, 1 << 20):
        tree = cost_of("mst_scatter", 32, nbytes, textbook).time
        assert cost_of("mst_scatter", 32, nbytes, real).time == tree
        assert seconds(scatter, 32, nbytes, real) < tree < seconds(scatter, 32, nbytes, textbook)


@pytest.mark.parametrize("gap", GAPS)
def test_a_card_does_not_change_the_rule(gap):
    """A network card for each rank, at ranks that are nodes of their own, is what a rank's own port is."""
    link = Link(**CARD, gap=gap)
    for program in (scatter, exchange):
        assert seconds(program, 8, 4096, Machine(link, link, ranks_per_node=1, cards_per_node=1)) == seconds(
            program, 8, 4096, link
        )


def test_inside_a_node_a_card_changes_nothing():
    inside = Link(1e-6, 1 / 371e9, gap=0.1e-6)
    machine = Machine(inside, Link(**CARD, gap=0.3e-6), ranks_per_node=8, cards_per_node=8)
    assert seconds(exchange, 8, 1 << 14, machine) == seconds(exchange, 8, 1 << 14, Machine(inside, ranks_per_node=8))


@pytest.mark.parametrize("program", [chain_tree_all_reduce, two_trees_all_reduce, multi_tree_all_reduce])
def test_with_several_messages_at_a_port_a_gap_saves_time(program):
    def cost(gap):
        return cost_of(program, 64, 1 << 16, Link(**CARD, gap=gap), ranks_per_node=8)

    assert cost(0.5e-6).time < 0.95 * cost(None).time
    assert cost(0.5e-6).rounds == cost(None).rounds  # which are counted as the textbook counts them


# -- once through each card -----------------------------------------------------

NODES = Machine(Link(1e-6, 1 / 371e9, gap=0.1e-6), Link(**CARD, gap=0.3e-6), ranks_per_node=4, cards_per_node=4)
CALLS = {  # what is called with the full vector and one's shard, and the program that it should be on nodes of four
    "all_reduce": (lambda whole, mine, dist, **group: dist.all_reduce(whole, **group), "multi_ring_all_reduce"),
    "all_gather": (lambda whole, mine, dist, **group: dist.all_gather_single(whole, mine, **group), "multi_ring_all_gather"),
    "reduce_scatter": (
        lambda whole, mine, dist, **group: dist.reduce_scatter_single(mine, whole, **group),
        "multi_ring_reduce_scatter",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_of_torch_goes_once_through_each_card(call):
    program, name = CALLS[call]
    entries = [(Sketch(1 << 20), Sketch(1 << 16)) for _ in range(16)]
    time = simulate(program, entries, NODES, trace=False).makespan
    assert time == pytest.approx(cost_of(name, 16, 4 << 20, NODES, ranks_per_node=4).time, rel=1e-12)
    assert time < cost_of(name.removeprefix("multi_"), 16, 4 << 20, NODES, cards="one").time


@pytest.mark.parametrize("members", [[0, 4, 8, 12], [0, 1, 2, 3], [0, 1, 2, 4]], ids=["one a node", "one node", "unequal"])
def test_a_group_with_one_card_a_node_or_none_has_one_ring(members):
    def program(whole, mine, dist):
        group = dist.new_group(members)
        dist.all_reduce(whole, group=group)

    entries = [(Sketch(1 << 10), Sketch(1 << 6)) for _ in range(16)]
    assert simulate(program, entries, NODES).messages == len(members) * 2 * (len(members) - 1)


# -- who is first ---------------------------------------------------------------


def test_of_messages_that_are_ready_together_the_earlier_sends_go_first_then_the_smaller_senders():
    def program(x, dist):
        if dist.get_rank() == 3:
            works = [dist.irecv(x.clone(), sender) for sender in (2, 1, 0)]
        elif dist.get_rank() == 0:
            works = [dist.isend(x, 4), dist.isend(x, 3)]
        elif dist.get_rank() == 4:
            works = [dist.irecv(x, 0)]
        else:
            works = [dist.isend(x, 3)]
        for work in works:
            work.wait()

    trace = simulate(program, [torch.zeros(1)] * 5, Link(1.0, 0.0)).trace
    assert [(each.src, each.start) for each in sorted(trace, key=lambda each: each.start) if each.dst == 3] == [
        (1, 0.0),
        (2, 1.0),
        (0, 2.0),
    ]


def test_a_moment_is_over_only_when_nobody_has_more_to_do_at_it():
    """Rank 1 starts a collective beside itself, which takes its turn at the same moment, and the senders of rank 1 are not all
    there yet: of rank 0 it is the second message, so that of rank 2 is first."""

    def program(x, dist):
        alone = dist.new_group([1])
        if dist.get_rank() == 0:
            works = [dist.isend(x, 3), dist.isend(x, 1)]
        elif dist.get_rank() == 1:
            works = [dist.irecv(x.clone(), 0), dist.irecv(x.clone(), 2)]
            works.append(dist.all_reduce(x.clone(), group=alone, async_op=True))
        else:
            works = [dist.isend(x, 1) if dist.get_rank() == 2 else dist.irecv(x.clone(), 0)]
        for work in works:
            work.wait()

    trace = simulate(program, [torch.zeros(1)] * 4, Link(1.0, 0.0)).trace
    assert sorted((each.start, each.src, each.dst) for each in trace) == [(0.0, 0, 3), (0.0, 2, 1), (1.0, 0, 1)]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_moments_messages_are_booked_by_place_and_sender(data):
    """Programs that post everything, some of it after computing, against a booking of our own, moment by moment."""
    size = data.draw(st.integers(2, 6))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] != pair[1])
    wanted = data.draw(st.lists(st.tuples(pairs, st.integers(0, 3)), min_size=1, max_size=14))
    late = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    alpha = data.draw(st.integers(0, 4))
    gap = data.draw(st.integers(0, alpha))
    link = Link(float(alpha), 1.0, float(gap))

    def program(dist):
        works = []
        compute(float(late[dist.get_rank()]))
        for (src, dst), nbytes in wanted:
            x = torch.zeros(nbytes, dtype=torch.uint8)
            if src == dist.get_rank():
                works.append(dist.isend(x, dst))
            elif dst == dist.get_rank():
                works.append(dist.irecv(x, src))
        for work in works:
            work.wait()

    trace = simulate(program, [()] * size, link).trace
    out, into = [[] for _ in range(size)], [[] for _ in range(size)]
    messages = [(max(late[src], late[dst]), number, src, dst, nbytes) for number, ((src, dst), nbytes) in enumerate(wanted)]
    waits = [[message for message in messages if message[2] == rank] for rank in range(size)]
    expected = []
    for when in sorted({message[0] for message in messages}):
        ready = [message for message in messages if message[0] == when]
        for message in sorted(ready, key=lambda message: (waits[message[2]].index(message), message[2])):
            _, _, src, dst, nbytes = message
            start = book((out[src], into[dst]), float(when), gap + nbytes)
            expected.append((src, dst, nbytes, start, start + alpha + nbytes))
        waits = [[message for message in rank if message not in ready] for rank in waits]
    assert sorted((m.src, m.dst, m.nbytes, m.start, m.end) for m in trace) == sorted(expected)


# -- the link itself ------------------------------------------------------------


@pytest.mark.parametrize("gap", [-1e-9, 2e-6, float("nan"), "1", True])
def test_a_gap_is_part_of_the_latency(gap):
    with pytest.raises(UsageError, match="Link got gap=.* give seconds from 0 to alpha"):
        Link(1e-6, 1e-9, gap)


def test_without_a_gap_a_link_is_the_textbooks():
    assert Link(1e-6, 1e-9) == Link(1e-6, 1e-9, 1e-6) and Link(1e-6, 1e-9).is_textbook
    assert str(Link(1e-6, 1e-9)) == "α 1 µs, 1 GB/s"
    assert str(Link.of(1e-6, bandwidth=1e9, gap=3e-7)) == "α 1 µs, 1 GB/s, gap 300 ns"
