"""The simulator: a rank program's own results and times, and clear words for what is wrong with it."""

import gc
import heapq
import json
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from helpers.collectives import collectives, expected_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtree import algorithms, calls, compute
from ringtree import collectives as collectives_table
from ringtree.algorithms import ring_all_gather, ring_all_reduce, two_trees_all_reduce
from ringtree.cost import Link, Machine
from ringtree.simulated import Deadlock, ProgramError, Sketch, simulate
from ringtree.simulated.agenda import Agenda
from ringtree.simulated.dist import SimulatedDist, algorithm_of

LINK = Link(2.0, 0.5)  # a message of n bytes takes 2 + n/2 seconds


def run(program, size, machine=LINK, **options):
    return simulate(program, [()] * size, machine, **options)


def byte_tensor(count):
    return torch.zeros(count, dtype=torch.uint8)


def messages(trace):
    return [(each.src, each.dst, each.start, each.end) for each in trace]


# -- moving tensors ------------------------------------------------------------


def test_a_message_takes_alpha_and_beta_and_moves_the_tensor():
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.send(x, dst=1)
        if dist.get_rank() == 1:
            assert dist.recv(x, src=0) == 0

    given = [torch.tensor([42.0]), torch.tensor([0.0])]
    result = simulate(program, given, LINK)
    assert [output.tolist() for output in result.outputs] == [[42.0], [42.0]]
    assert given[1].tolist() == [0.0]  # the caller's own stay as they are
    assert (result.makespan, result.messages) == (2 + 4 * 0.5, 1)
    [message] = result.trace
    assert (message.src, message.dst, message.nbytes, message.start, message.end) == (0, 1, 4, 0.0, 4.0)


def test_an_output_is_what_the_program_returns_or_its_first_input():
    assert run(lambda dist: dist.get_rank() * 10, 3).outputs == [0, 10, 20]
    outputs = simulate(lambda x, y, dist: None, [(torch.ones(1), torch.zeros(1))] * 2, LINK).outputs
    assert [output.tolist() for output in outputs] == [[1.0], [1.0]]


def test_a_program_sees_its_own_rank_and_the_size():
    assert run(lambda dist: (dist.get_rank(), dist.get_world_size()), 3).outputs == [(0, 3), (1, 3), (2, 3)]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(0, 30), st.sampled_from([torch.uint8, torch.float64, torch.bool]))
def test_what_is_sent_is_what_arrives(size, count, dtype):
    def program(x, dist):
        right, left = (dist.get_rank() + 1) % size, (dist.get_rank() - 1) % size
        y = torch.empty_like(x)
        works = [dist.isend(x, right), dist.irecv(y, left)] if size > 1 else [dist]
        for work in works if size > 1 else ():
            work.wait()
        return y if size > 1 else x

    inputs = [(torch.arange(count) + rank).to(dtype) for rank in range(size)]
    outputs = simulate(program, inputs, LINK, trace=False).outputs
    assert [output.tolist() for output in outputs] == [inputs[rank - 1].tolist() for rank in range(size)]


# -- the clock -----------------------------------------------------------------


def test_a_blocking_send_is_a_rendezvous():
    def program(dist):
        x = byte_tensor(4)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        if dist.get_rank() == 1:
            dist.recv(x, 2)
            dist.recv(x, 0)
        if dist.get_rank() == 2:
            dist.send(x, 1)

    trace = run(program, 3).trace
    assert messages(trace) == [(2, 1, 0.0, 4.0), (0, 1, 4.0, 8.0)]
    assert trace[1].send_posted == 0.0
    assert trace.time(0, "wait") == 8.0


def test_a_rank_sends_one_message_at_a_time_and_receives_another_meanwhile():
    def program(dist):
        x, y = byte_tensor(4), byte_tensor(4)
        if dist.get_rank() == 0:
            for work in [dist.isend(x, 1), dist.isend(x, 2), dist.irecv(y, 1)]:
                work.wait()
        elif dist.get_rank() == 1:
            for work in [dist.irecv(y, 0), dist.isend(x, 0)]:
                work.wait()
        else:
            dist.recv(y, 0)

    assert messages(run(program, 3).trace) == [(0, 1, 0.0, 4.0), (1, 0, 0.0, 4.0), (0, 2, 4.0, 8.0)]


def test_a_message_that_fits_into_an_earlier_gap_takes_it():
    long, short = 20, 0

    def program(dist):
        works = {
            0: lambda: [dist.isend(byte_tensor(long), 2)],
            1: lambda: [dist.isend(byte_tensor(long), 2), dist.isend(byte_tensor(short), 3)],
            2: lambda: [dist.irecv(byte_tensor(long), 0), dist.irecv(byte_tensor(long), 1)],
            3: lambda: [dist.irecv(byte_tensor(short), 1)],
        }[dist.get_rank()]()
        for work in works:
            work.wait()

    # rank 1's long message waits until rank 2 has received another; the short one goes before it
    assert sorted(messages(run(program, 4).trace)) == [(0, 2, 0.0, 12.0), (1, 2, 12.0, 24.0), (1, 3, 0.0, 2.0)]


def test_a_gap_is_kept_for_a_shorter_message_when_a_later_gap_was_taken():
    sends = [(3, 1, 2), (3, 2, 2), (0, 2, 30), (3, 1, 10), (3, 0, 2), (2, 1, 2), (2, 1, 4)]

    def program(dist):
        works = []
        for src, dst, count in sends:
            if dist.get_rank() == src:
                works.append(dist.isend(byte_tensor(count), dst))
            if dist.get_rank() == dst:
                works.append(dist.irecv(byte_tensor(count), src))
        for work in works:
            work.wait()

    # rank 3 is kept from sending by its receivers' other messages, save to rank 0
    assert (3, 0, 0.0, 3.0) in messages(run(program, 4).trace)


@pytest.mark.parametrize("polls", [False, True])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 30)), max_size=40))
def test_no_port_ever_carries_two_messages_at_once(polls, sends):
    sends = [(src, dst, count) for src, dst, count in sends if src != dst]

    def program(dist):
        works = []
        for src, dst, count in sends:
            if dist.get_rank() == src:
                works.append(dist.isend(byte_tensor(count), dst))
            if dist.get_rank() == dst:
                works.append(dist.irecv(byte_tensor(count), src))
        for work in works:
            while polls and not work.is_completed():
                pass
            work.wait()

    result = run(program, 5)
    assert len(result.trace) == result.messages == len(sends)
    for port in ("src", "dst"):
        for rank in range(5):
            busy = sorted((each.start, each.end) for each in result.trace if getattr(each, port) == rank)
            assert all(first[1] <= second[0] for first, second in zip(busy, busy[1:]))


def test_polling_ends_when_the_message_has_arrived():
    def program(dist):
        x = byte_tensor(4)
        if dist.get_rank() == 0:
            dist.recv(x, 2)
            dist.send(x, 1)
        if dist.get_rank() == 1:
            work, polls = dist.irecv(x, 0), 0
            while not work.is_completed():
                polls += 1
            assert polls > 0
        if dist.get_rank() == 2:
            dist.send(x, 0)

    assert messages(run(program, 3).trace) == [(2, 0, 0.0, 4.0), (0, 1, 4.0, 8.0)]


def test_two_that_poll_for_each_other_both_end():
    def program(dist):
        other, x, y = 1 - dist.get_rank(), byte_tensor(4), byte_tensor(4)
        works = [dist.isend(x, other), dist.irecv(y, other)]
        while not all(work.is_completed() for work in works):
            pass

    assert run(program, 2).makespan == 4.0


def test_a_poll_that_finds_nothing_lets_the_program_go_on():
    def program(dist):
        x, y = byte_tensor(4), byte_tensor(4)
        if dist.get_rank() == 0:
            work = dist.irecv(x, 1)
            assert not any(work.is_completed() for _ in range(20))
            dist.send(y, 1)  # rank 1 answers only this
            work.wait()
        else:
            dist.recv(x, 0)
            dist.send(y, 0)

    assert run(program, 2).makespan == 8.0


def test_of_two_messages_polled_for_the_first_to_arrive_is_seen_first():
    def program(dist):
        if dist.get_rank() == 0:
            works = {1: dist.irecv(byte_tensor(40), 1), 2: dist.irecv(byte_tensor(4), 2)}
            order = []
            while works:
                order += [peer for peer, work in works.items() if work.is_completed()]
                works = {peer: work for peer, work in works.items() if peer not in order}
            return order
        if dist.get_rank() == 1:
            dist.recv(byte_tensor(20), 3)
            dist.send(byte_tensor(40), 0)
        if dist.get_rank() == 2:
            dist.send(byte_tensor(4), 0)
        if dist.get_rank() == 3:
            dist.send(byte_tensor(20), 1)

    assert run(program, 4).outputs[0] == [2, 1]


def test_a_rank_that_polls_for_one_message_goes_on_polling_when_another_comes():
    def program(dist):
        rank, x, y = dist.get_rank(), byte_tensor(4), byte_tensor(4)
        if rank == 0:
            works = [dist.irecv(x, 3), dist.irecv(y, 1)]
            while not works[1].is_completed():
                pass
            works[0].wait()
        if rank == 1:
            dist.recv(x, 3)
            dist.send(x, 0)
        if rank == 2:
            dist.send(x, 3)
        if rank == 3:
            work = dist.irecv(x, 2)
            while not work.is_completed():
                pass
            dist.send(x, 0)  # by now rank 0 has polled so often that it waits
            dist.send(x, 1)

    assert messages(run(program, 4).trace) == [(2, 3, 0.0, 4.0), (3, 0, 4.0, 8.0), (3, 1, 8.0, 12.0), (1, 0, 12.0, 16.0)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_polls_for_two_messages_sees_whichever_comes(first):
    def program(dist):
        rank, x, y = dist.get_rank(), byte_tensor(4), byte_tensor(4)
        if rank == 0:
            works = {1: dist.irecv(x, 1), 2: dist.irecv(y, 2)}
            works[first + 1].is_completed()
            while works:
                for peer in [peer for peer, work in works.items() if work.is_completed()]:
                    works.pop(peer)
                    if peer == 1:
                        dist.send(x, 2)  # rank 2 answers only this
        if rank == 1:
            work = dist.irecv(x, 3)
            while not work.is_completed():
                pass
            dist.send(x, 0)  # by now rank 0 has polled so often that it waits
        if rank == 2:
            dist.recv(x, 0)
            dist.send(x, 0)
        if rank == 3:
            dist.send(x, 1)

    assert messages(run(program, 4).trace) == [(3, 1, 0.0, 4.0), (1, 0, 4.0, 8.0), (0, 2, 8.0, 12.0), (2, 0, 12.0, 16.0)]


def test_a_rank_that_polled_goes_on_when_what_it_polls_for_comes_and_not_later():
    def poll(work):
        while not work.is_completed():
            pass

    def program(dist):
        rank, x = dist.get_rank(), byte_tensor(4)
        if rank == 0:
            long = dist.isend(byte_tensor(40), 2)
            poll(dist.irecv(x, 1))
            dist.recv(x, 4)
            long.wait()
        if rank == 1:
            poll(dist.irecv(x, 3))
            dist.send(x, 0)
            dist.recv(byte_tensor(2), 3)
            dist.recv(x, 4)
        if rank == 2:
            poll(dist.irecv(x, 3))
            dist.recv(byte_tensor(40), 0)
        if rank == 3:
            for work in [dist.isend(x, 2), dist.isend(x, 1)]:
                poll(work)
            dist.send(byte_tensor(2), 1)
        if rank == 4:
            for work in [dist.isend(x, 0), dist.isend(x, 1)]:
                work.wait()

    moved = messages(run(program, 5).trace)
    assert {(0, 2, 4.0, 26.0), (1, 0, 8.0, 12.0), (3, 1, 12.0, 15.0)} <= set(moved)
    assert moved[-2:] == [(4, 0, 12.0, 16.0), (4, 1, 16.0, 20.0)]  # rank 0 asks at 12, though its long message goes on


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 9))), max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_earliest_rank_goes_first_and_of_those_at_one_time_the_smallest(steps, chance):
    agenda, heap = Agenda(), []
    for step in steps:
        if heap and chance.random() < 0.2:  # one is taken off again
            leaves = heap.pop(chance.randrange(len(heap)))
            heapq.heapify(heap)
            agenda.remove(*leaves)
        if step is None:
            assert agenda.pop() == (heapq.heappop(heap)[1] if heap else None)
        elif step[1] not in [rank for _, rank in heap]:  # a rank is on the agenda once
            assert agenda.before(*step) == (bool(heap) and heap[0] < step)
            agenda.put(*step)
            heapq.heappush(heap, step)
        assert sorted(agenda) == sorted(heap)


def test_reducing_takes_gamma_a_byte():
    def program(x, dist):
        other = torch.zeros_like(x)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(other, 0)
            torch.add(x, other, out=x)

    inputs = [byte_tensor(8)] * 2
    assert simulate(program, inputs, LINK).makespan == 6.0
    result = simulate(program, inputs, LINK, gamma=0.25)
    assert result.makespan == 6.0 + 2.0
    assert result.trace.time(1, "compute") == 2.0


def test_a_rank_that_has_reduced_asks_for_its_messages_after_ranks_that_are_earlier():
    def program(dist):
        x = byte_tensor(4)
        if dist.get_rank() == 0:
            for work in [dist.irecv(byte_tensor(4), 1), dist.irecv(byte_tensor(4), 2)]:
                work.wait()
        else:
            if dist.get_rank() == 1:
                x.add_(1)  # takes until 1.0
            dist.send(x, 0)

    assert messages(run(program, 3, gamma=0.25).trace) == [(2, 0, 0.0, 4.0), (1, 0, 4.0, 8.0)]


def test_the_same_input_gives_the_same_trace():
    inputs = [torch.arange(37.0) + rank for rank in range(7)]
    first, second = (simulate(two_trees_all_reduce, inputs, LINK, gamma=0.1).trace for _ in range(2))
    assert list(first) == list(second)
    assert first.spans == second.spans


def test_without_a_trace_the_times_are_the_same():
    inputs = [torch.zeros(12)] * 5
    kept, not_kept = (simulate(ring_all_reduce, inputs, LINK, trace=trace) for trace in (True, False))
    assert not_kept.trace is None
    assert (not_kept.makespan, not_kept.messages) == (kept.makespan, kept.messages) == (8 * (2 + 0.5 * 12), 40)


# -- machines ------------------------------------------------------------------


def swap_with(distance):
    def program(dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        peer = (rank + distance) % size
        for work in [dist.isend(byte_tensor(4), peer), dist.irecv(byte_tensor(4), (rank - distance) % size)]:
            work.wait()

    return program


def test_links_inside_and_between_nodes_differ():
    machine = Machine(Link(1.0, 0.0), Link(5.0, 0.0), ranks_per_node=2)
    trace = run(swap_with(1), 4, machine).trace
    assert {(each.src, each.dst): each.end - each.start for each in trace} == {
        (0, 1): 1.0,
        (1, 2): 5.0,
        (2, 3): 1.0,
        (3, 0): 5.0,
    }


BYTES_INSIDE, BYTES_BETWEEN = Link(0.0, 0.25), Link(0.0, 1.25)  # a number of 4 bytes takes 1 s, and 5 s between nodes


def test_ranks_of_a_node_can_share_a_card():
    own, shared = (Machine(BYTES_INSIDE, BYTES_BETWEEN, ranks_per_node=2, cards_per_node=cards) for cards in (None, 1))
    assert run(swap_with(2), 4, own).makespan == 5.0
    assert run(swap_with(2), 4, shared).makespan == 10.0
    assert run(swap_with(1), 2, shared).makespan == 1.0  # inside a node nothing is shared


@pytest.mark.parametrize("cards, rounds", [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1), (None, 1)])
def test_the_ranks_of_a_node_share_out_its_cards(cards, rounds):
    machine = Machine(BYTES_INSIDE, BYTES_BETWEEN, ranks_per_node=4, cards_per_node=cards)
    assert run(swap_with(4), 8, machine).makespan == 5.0 * rounds


def test_a_card_without_a_gap_is_not_held_for_the_latency():
    machine = Machine(Link(1.0, 0.0), Link(5.0, 0.25, gap=0.0), ranks_per_node=4, cards_per_node=1)
    assert run(swap_with(4), 8, machine).makespan == 4 * 1.0 + 5.0  # four messages one after the other, and one latency


def test_a_card_works_beside_its_ranks_port():
    def program(dist):
        if dist.get_rank() == 0:
            for work in [dist.isend(torch.zeros(1), 1), dist.isend(torch.zeros(1), 2)]:
                work.wait()
        elif dist.get_rank() < 3:
            dist.recv(torch.zeros(1), 0)

    one_port, card = (Machine(BYTES_INSIDE, BYTES_BETWEEN, ranks_per_node=2, cards_per_node=cards) for cards in (None, 2))
    assert run(program, 4, one_port).makespan == 6.0
    assert run(program, 4, card).makespan == 5.0


@pytest.mark.parametrize("options", [{}, {"checked": True}, {"autograd": True}], ids=["", "checked", "autograd"])
@pytest.mark.parametrize("place", ["rows", "parameter", "inference"])
def test_contents_move_as_bytes_do_whatever_the_shapes_and_torchs_rules_for_gradients(place, options):
    def program(dist):
        if dist.get_rank() == 0:
            dist.send(torch.arange(6.0), 1)
        elif dist.get_rank() == 1:
            with torch.inference_mode(place == "inference"):
                into = torch.zeros(2, 3)
            into = torch.nn.Parameter(into) if place == "parameter" else into
            dist.recv(into, 0)
            return into.tolist()

    assert run(program, 3, **options).outputs[1] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


# -- groups, tags, collectives -------------------------------------------------


def test_tags_keep_messages_apart():
    def program(dist):
        x, y = torch.tensor([1]), torch.tensor([2])
        if dist.get_rank() == 0:
            for work in [dist.isend(x, 1, tag=7), dist.isend(y, 1, tag=8)]:
                work.wait()
        else:
            for work in [dist.irecv(y, 0, tag=8), dist.irecv(x, 0, tag=7)]:
                work.wait()
        return x.item(), y.item()

    assert run(program, 2).outputs == [(1, 2), (1, 2)]


def test_a_group_has_ranks_of_its_own():
    def program(dist):
        group = dist.new_group([1, 3])
        x = torch.tensor([dist.get_rank()])
        dist.all_reduce(x, group=group)
        if dist.get_rank(group) == 0:
            dist.send(x, group_dst=1, group=group)
        if dist.get_rank(group) == 1:
            dist.recv(x, group_src=0, group=group)
        return dist.get_rank(group), dist.get_world_size(group), x.item()

    assert run(program, 4).outputs == [(-1, 2, 0), (0, 2, 4), (-1, 2, 2), (1, 2, 4)]


def test_ranks_that_make_other_groups_are_found_where_the_run_is_checked():
    def members_only(dist, **options):
        group = dist.new_group([0, 1], **options) if dist.get_rank() < 2 else None
        if group:
            dist.all_reduce(torch.ones(1), group=group)

    wanted = r"rank 2 called new_group for no group, and rank 0 for \[\[0, 1\]\]: every rank must call it for every group"
    with pytest.raises(ProgramError, match=wanted):
        run(members_only, 3, checked=True)
    run(lambda dist: members_only(dist, use_local_synchronization=True), 3, checked=True)
    with pytest.raises(ProgramError, match=r"rank 1 called new_group for \[\[1\], \[0\]\], and rank 0 for \[\[0\], \[1\]\]"):
        run(lambda dist: [dist.new_group([each ^ dist.get_rank()]) for each in (0, 1)], 2, checked=True)


def test_every_collective_of_torch_gives_its_result():
    assert run(collectives, 4).outputs == [expected_of(rank) for rank in range(4)]


def test_a_collective_costs_what_its_algorithm_costs():
    inputs = [torch.zeros(16)] * 4
    called = simulate(lambda x, dist: dist.all_reduce(x), inputs, LINK)
    assert called.makespan == simulate(algorithm_of("all_reduce"), inputs, LINK).makespan


def test_uneven_blocks_go_to_and_fro():
    def program(dist):
        rank = dist.get_rank()
        output = torch.zeros(3 if rank == 0 else 1)
        received, sent = ([1, 2], [1, 1]) if rank == 0 else ([1, 0], [2, 0])
        dist.all_to_all_single(output, torch.arange(2.0) + 10 * rank, received, sent)
        return output.tolist()

    assert run(program, 2).outputs == [[0.0, 10.0, 11.0], [1.0]]


def test_a_programs_own_messages_do_not_meet_those_of_a_collective():
    def program(dist):
        x, y = torch.tensor([float(dist.get_rank())]), torch.tensor([-1.0])
        right, left = (dist.get_rank() + 1) % 3, (dist.get_rank() - 1) % 3
        works = [dist.isend(x.clone(), right), dist.irecv(y, left)]
        dist.all_reduce(x)
        for work in works:
            work.wait()
        return x.item(), y.item()

    assert run(program, 3).outputs == [(3.0, 2.0), (3.0, 0.0), (3.0, 1.0)]


def test_a_queue_of_messages_on_one_way_keeps_its_order():
    def program(dist):
        numbers = [torch.tensor([number]) for number in range(5)] if dist.get_rank() == 0 else [torch.tensor([-1])] * 5
        if dist.get_rank() == 0:
            for work in [dist.isend(each, 1) for each in numbers]:
                work.wait()
            return None
        return [dist.recv(each, 0) or each.item() for each in numbers]

    assert run(program, 2).outputs[1] == [0, 1, 2, 3, 4]


def test_a_new_row_of_the_table_is_a_collective_of_the_simulator(monkeypatch):
    def double_reduce(tensor, group=None, async_op=False, *, dst=None, group_dst=None, op=dist.ReduceOp.SUM):
        """torch.distributed's, if it had one."""

    def double_then_reduce(tensor, dist, root, op):
        tensor.mul_(2)
        algorithms.mst_reduce(tensor, dist, root, op)

    functions = {"double_reduce": "one"}
    row = replace(collectives_table.find("reduce"), name="double_reduce", calls=functions, algorithm="double_then_reduce")
    monkeypatch.setattr(collectives_table, "TABLE", (*collectives_table.TABLE, row))
    monkeypatch.setattr(dist, "double_reduce", double_reduce, raising=False)
    monkeypatch.setattr(algorithms, "double_then_reduce", double_then_reduce, raising=False)

    def program(dist):
        x = torch.tensor([1.0 + dist.get_rank()])
        dist._call(calls.read("double_reduce", (x,), dict(dst=1, op=dist.ReduceOp.AVG)), algorithm_of("double_reduce"), None)
        return x.item()

    assert run(program, 3).outputs[1] == 4.0


@pytest.mark.parametrize("name", collectives_table.call_names())
def test_every_function_of_the_table_is_there_and_runs_its_rows_algorithm(name):
    assert callable(getattr(SimulatedDist, name))
    assert algorithm_of(name) is getattr(algorithms, collectives_table.find(name).algorithm)


def test_a_collective_takes_its_arguments_as_torch_does():
    def program(dist):
        group, x = dist.new_group([0, 2]), torch.tensor([1.0 + dist.get_rank()])
        dist.broadcast(x, 2, group)  # the group by its place
        dist.all_reduce(group=group, tensor=x)
        return x.item()

    assert run(program, 3).outputs == [6.0, 2.0, 6.0]
    with pytest.raises(ProgramError, match=r"rank 0: all_reduce: got an unexpected .* 'root'  \[<lambda>, line \d+: run\("):
        run(lambda dist: dist.all_reduce(torch.zeros(1), root=0), 2)
    with pytest.raises(ProgramError, match="scatter: missing a required argument: 'tensor'"):
        run(lambda dist: dist.scatter(src=0), 2)


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda dist: dist.all_reduce(torch.zeros(1), op="sum"),
            "rank 0: all_reduce was given op='sum': give one of dist.ReduceOp",
        ),
        (
            lambda dist: dist.send(torch.zeros(1), 1, tag=-1),
            "rank 0: a message was given tag=-1: give a whole number, 0 or more",
        ),
        (lambda dist: compute("long"), "rank 0: compute got seconds='long': give how long it takes"),
        (lambda dist: Sketch(8)[::2], "rank 0: a Sketch is cut into pieces without gaps"),
    ],
)
def test_a_call_that_cannot_be_meant_is_one_line_with_the_programs_own(call, said):
    with pytest.raises(ProgramError) as problem:
        run(call, 2)
    (line,) = problem.value._render_traceback_()
    assert said in line and "[<lambda>, line" in line and "\n" not in line


def test_what_a_program_raises_itself_stays_what_it_was():
    def program(dist):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as problem:
        run(program, 2)
    assert not isinstance(problem.value, ProgramError)


def test_what_the_simulator_lacks_is_named():
    with pytest.raises(AttributeError, match="the simulator has no 'monitored_barrier': rank programs use get_rank"):
        run(lambda dist: dist.monitored_barrier(), 2)
    with pytest.raises(ValueError, match=r"the root is rank 0, which is not in the group of ranks \[1, 2\]"):
        run(lambda dist: dist.broadcast(torch.zeros(1), src=0, group=dist.new_group([1, 2])), 3)


# -- what goes wrong -----------------------------------------------------------


def test_two_blocking_sends_are_a_deadlock_that_names_ranks_and_lines():
    def program(x, dist):
        other = 1 - dist.get_rank()
        dist.send(x, other)
        dist.recv(x, other)

    with pytest.raises(Deadlock) as problem:
        simulate(program, [torch.zeros(1)] * 2, LINK)
    text = str(problem.value)
    assert text.startswith("deadlock.\n  rank 0 waits to send to rank 1  [program, line ")
    assert "dist.send(x, other)" in text and text.endswith("they wait in a circle: rank 0 → rank 1 → rank 0")
    assert problem.value.waits == {0: 1, 1: 0}


def test_a_wait_for_a_rank_that_has_finished_is_told_as_such():
    def program(x, dist):
        if dist.get_rank():
            dist.recv(x, src=0)

    with pytest.raises(Deadlock, match="deadlock: ranks 1 and 2 can never finish") as problem:
        simulate(program, [torch.zeros(1)] * 3, LINK)
    assert "rank 1 waits to receive from rank 0, which has finished" in str(problem.value)
    assert problem.value.waits == {1: 0, 2: 0}


def test_a_rank_that_skips_a_collective_is_found_out_at_once():
    def program(x, dist):
        if dist.get_rank() != 2:
            dist.all_reduce(x)

    began = time.monotonic()
    with pytest.raises(Deadlock, match="rank 0 waits in all_reduce for rank 2, which has finished"):
        simulate(program, [torch.zeros(4)] * 4, LINK)
    assert time.monotonic() - began < 5


def test_polling_for_what_never_comes_is_a_deadlock():
    def program(x, dist):
        if dist.get_rank() == 1:
            work = dist.irecv(x, 0)
            while not work.is_completed():
                pass

    with pytest.raises(Deadlock, match="rank 1 waits to receive from rank 0, which has finished"):
        simulate(program, [torch.zeros(1)] * 2, LINK)


@pytest.mark.parametrize(
    "theirs, said",
    [
        (torch.zeros(3), "which expects 12 bytes of torch.float32"),
        (torch.zeros(2, dtype=torch.int32), "which expects 8 bytes of torch.int32"),
    ],
)
def test_sizes_and_dtypes_have_to_agree(theirs, said):
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)

    with pytest.raises(ProgramError, match="rank 0 sends 8 bytes of torch.float32 to rank 1 ") as problem:
        simulate(program, [torch.zeros(2), theirs], LINK)
    assert said in str(problem.value)
    assert "line" in str(problem.value) and "dist.send(x, 1)" in str(problem.value) and "dist.recv(x, 0)" in str(problem.value)


def test_a_message_that_is_never_received_is_an_error():
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.isend(x, 1)

    with pytest.raises(ProgramError, match=r"rank 0 sent 4 bytes to rank 1, which never received them  \[program, line"):
        simulate(program, [torch.zeros(1)] * 2, LINK)


def test_a_receive_that_nothing_was_sent_for_is_an_error():
    def program(x, dist):
        if dist.get_rank() == 1:
            dist.irecv(x, 0)

    with pytest.raises(ProgramError, match="rank 1 asked for a message from rank 0, which never sent it"):
        simulate(program, [torch.zeros(1)] * 2, LINK)


@pytest.mark.parametrize("peer, said", [(0, "itself"), (2, "rank 2"), (-1, "rank -1"), (None, "rank None"), (1.0, "rank 1.0")])
def test_a_peer_is_another_rank(peer, said):
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.send(x, peer)

    with pytest.raises(ProgramError, match=f"rank 0 wants to send to {said}: give another rank, from 0 to 1") as problem:
        simulate(program, [torch.zeros(1)] * 2, LINK)
    assert "dist.send(x, peer)" in str(problem.value)


@pytest.mark.parametrize("sender, said", [(0, "rank 0 sends rank 1"), (1, "rank 0 receives from rank 1 into")])
def test_a_message_has_no_gaps_in_memory(sender, said):
    def program(x, dist):
        mine = x[::2] if dist.get_rank() == 0 else x[:2]
        dist.send(mine, 1 - sender) if dist.get_rank() == sender else dist.recv(mine, sender)

    with pytest.raises(ProgramError, match=f"{said} a tensor with gaps in memory") as problem:
        simulate(program, [torch.zeros(4)] * 2, LINK)
    assert "dist.send(mine" in str(problem.value)


@pytest.mark.parametrize(
    "operations, said",
    [
        (lambda dist, x: [dist.P2POp(dist.send, x, 1)], "rank 0 gives P2POp send: give it isend or irecv of the object"),
        (lambda dist, x: [dist.P2POp("isend", x, 1)], "rank 0 gives P2POp 'isend': give it isend or irecv of the object"),
        (lambda dist, x: [], "rank 0 gives batch_isend_irecv an empty list: give it a list of one or more dist.P2POp"),
        (lambda dist, x: dist.P2POp(dist.isend, x, 1), "batch_isend_irecv a tuple: give it a list of one or more dist.P2POp"),
        (lambda dist, x: [dist.isend], "rank 0 gives batch_isend_irecv a list with a method: give it a list of dist.P2POp"),
    ],
)
def test_a_batch_is_a_list_of_isends_and_irecvs(operations, said):
    def program(x, dist):
        dist.batch_isend_irecv(operations(dist, x))

    with pytest.raises(ProgramError, match=said) as problem:
        simulate(program, [torch.zeros(1)] * 2, LINK)
    assert "line" in str(problem.value)


def test_an_error_of_the_program_says_on_which_rank():
    def program(dist):
        if dist.get_rank() == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError) as problem:
        run(program, 3)
    assert problem.value.__notes__ == ["raised on simulated rank 1"]


def test_a_program_that_loops_for_ever_is_ended():
    def program(dist):
        while dist.get_rank() == 1:
            pass

    began = time.monotonic()
    with pytest.raises(ProgramError, match="had not ended after 0.3 s of real time; rank 1 was running  .program, line"):
        run(program, 2, seconds=0.3)
    assert time.monotonic() - began < 5


def test_a_program_that_is_stopped_inside_a_library_is_told_by_its_own_line_first():
    def program(dist):
        while True:
            json.dumps(list(range(1000)), indent=1)

    with pytest.raises(ProgramError, match=r"rank 0 was running  .program, line \d+: "):
        run(program, 1, seconds=0.3)


@pytest.mark.parametrize("program", [lambda dist: None, lambda dist: dist.send(byte_tensor(1), 1 - dist.get_rank())])
def test_the_garbage_collector_is_left_as_it_was(program):
    gc.unfreeze()
    before = gc.get_threshold()
    try:
        run(program, 2)
    except Deadlock:
        pass
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_a_run_inside_a_run_leaves_the_garbage_collector_to_the_outer_one():
    def program(dist):
        run(lambda dist: None, 2)
        return gc.get_freeze_count(), gc.get_threshold()

    for frozen, threshold in run(program, 2).outputs:
        assert frozen and threshold != gc.get_threshold()


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="simulate got no inputs"):
        simulate(ring_all_reduce, [], LINK)


# -- checked mode --------------------------------------------------------------


def swap(during):
    def program(x, dist):
        y = torch.zeros_like(x)
        other = 1 - dist.get_rank()
        works = [dist.isend(x, other), dist.irecv(y, other)]
        during(x, y)
        for work in works:
            work.wait()
        return x + y

    return lambda **options: simulate(program, [torch.ones(4)] * 2, LINK, **options)


@pytest.mark.parametrize(
    "during, said",
    [
        (lambda x, y: x.zero_(), "rank 0 changes the buffer that it is sending to rank 1"),
        (lambda x, y: x[2:].add_(1), "rank 0 changes the buffer that it is sending to rank 1"),
        (lambda x, y: y.sum(), "rank 0 reads the buffer for a message from rank 1 that may not have arrived"),
        (lambda x, y: y[:1] + 1, "rank 0 reads the buffer for a message from rank 1 that may not have arrived"),
        (lambda x, y: y.tolist(), "rank 0 reads the buffer for a message from rank 1 that may not have arrived"),
        (lambda x, y: y.fill_(3), "rank 0 changes the buffer for a message from rank 1 that may not have arrived"),
    ],
)
def test_a_buffer_in_flight_is_left_alone(during, said):
    swap(during)()  # unchecked, nobody notices
    with pytest.raises(ProgramError) as problem:
        swap(during)(checked=True)
    assert str(problem.value).startswith(said)
    assert "wait() for" in str(problem.value) and "isend" in str(problem.value)


def test_reading_what_is_being_sent_is_fine():
    result = swap(lambda x, y: x.sum())(checked=True)
    assert result.outputs[0].tolist() == [2.0] * 4


def test_after_the_wait_a_buffer_is_free():
    def program(x, dist):
        works = [dist.isend(x, 1)] if dist.get_rank() == 0 else [dist.irecv(x, 0)]
        while not works[0].is_completed():
            pass
        x += 1

    assert simulate(program, [torch.ones(2), torch.zeros(2)], LINK, checked=True).outputs[1].tolist() == [2.0, 2.0]


# -- sizes without contents ----------------------------------------------------


def test_a_sketch_is_cut_as_a_tensor_is():
    for count in (0, 3, 10):
        sketch, tensor = Sketch(count), torch.zeros(count)
        for parts in (1, 3, 4):
            cut, real = sketch.tensor_split(parts), tensor.tensor_split(parts)
            assert [len(part) for part in cut] == [len(part) for part in real]
            assert [part.storage_offset() for part in cut if len(part)] == [part.storage_offset() for part in real if len(part)]
            assert len(cut[-1]) == len(real[-1])
            assert [len(part) for part in cut[1:] + cut[:1]] == [len(part) for part in real[1:] + real[:1]]
        assert (sketch.nbytes, sketch[1:].numel(), sketch.shape) == (tensor.nbytes, tensor[1:].numel(), tensor.shape)
    with pytest.raises(IndexError):
        Sketch(4).tensor_split(2)[2]


def test_a_sketch_goes_away_without_the_garbage_collector():
    def alive():
        return sum(type(each) is Sketch for each in gc.get_objects())

    gc.disable()
    try:
        before, sketch = alive(), Sketch(10)
        parts = [sketch.tensor_split(3)[1], sketch[2:], torch.empty_like(sketch), sketch.clone()]
        assert alive() == before + 1 + len(parts)
        del sketch, parts
        assert alive() == before
    finally:
        gc.enable()


def test_parts_of_a_sketch_lie_in_it_and_parts_of_parts_too():
    sketch = Sketch(12)
    inner = sketch.tensor_split(2)[1].tensor_split(3)[2]
    assert (inner.storage_offset(), len(inner)) == (10, 2)
    assert inner.untyped_storage() is sketch
    assert inner.data_ptr() == sketch.data_ptr() + 40
    assert Sketch(12).data_ptr() != sketch.data_ptr()


def test_a_sketch_says_what_it_cannot_do():
    with pytest.raises(NotImplementedError, match="a Sketch has no contents for sum: simulate with tensors instead"):
        torch.sum(Sketch(4))


def test_a_petabyte_can_be_simulated():
    result = simulate(ring_all_gather, [Sketch(1 << 48)] * 4, Link(0.0, 1.0), trace=False)
    assert result.makespan == 3 * 4 * 2**46


def test_checked_finds_a_message_that_nobody_waits_for():
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.isend(x, 1)
        else:
            dist.recv(x, 0)

    assert simulate(program, [torch.ones(2)] * 2, LINK).messages == 1
    with pytest.raises(ProgramError, match=r"rank 0 never waited for its isend to rank 1 .*: wait\(\) for it before the end"):
        simulate(program, [torch.ones(2)] * 2, LINK, checked=True)


def test_checked_finds_a_collective_that_nobody_waits_for():
    with pytest.raises(ProgramError, match="rank 0 never waited for its all_reduce"):
        simulate(lambda x, dist: dist.all_reduce(x, async_op=True), [torch.ones(2)] * 2, LINK, checked=True)


def test_ranks_that_wait_inside_no_grad_leave_the_callers_mode_as_it_was():
    @torch.no_grad()
    def program(x, dist):
        ring_all_reduce(x, dist)

    simulate(program, [torch.ones(4)] * 4, Link(1.0, 0.0))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        simulate(program, [torch.ones(4)] * 4, Link(1.0, 0.0))
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_one_batch_that_sends_and_receives_the_same_memory_is_told_so():
    def program(x, dist):
        other = 1 - dist.get_rank()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, x, other)]):
            work.wait()

    with pytest.raises(ProgramError, match="rank 0 sends from and receives into the same memory in one batch"):
        simulate(program, [torch.ones(1)] * 2, Link(1e-6, 1e-9), checked=True)
