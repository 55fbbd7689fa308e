"""What each rank holds, and whose, found out by running the program; and mistakes shown as they are."""

import itertools

import pytest
import torch

from ringtree.algorithms import (
    bruck_all_gather,
    bruck_all_to_all,
    chain_broadcast,
    flat_gather,
    flat_reduce,
    mst_all_reduce,
    mst_broadcast,
    mst_reduce,
    mst_scatter,
    pairwise_all_to_all,
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_all_gather_broadcast,
)
from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.simulated import simulate
from ringtree.simulated.following import follow

LINK = Link(10e-6, 1e-9)


def ones(size, count):
    return [torch.ones(count) for _ in range(size)]


def everyone(size, chunk):
    return tuple((rank, chunk, 1) for rank in range(size))


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("program", [ring_all_reduce, mst_all_reduce, recursive_doubling_all_reduce, rabenseifner_all_reduce])
def test_an_all_reduce_ends_with_everyone_in_every_chunk_of_every_rank(program, size):
    followed = follow(program, ones(size, size), LINK)
    for held in followed.end:
        assert held == tuple(everyone(size, chunk) for chunk in range(len(held)))


def test_a_ring_all_reduce_grows_each_chunk_by_one_rank_a_step():
    followed = follow(ring_all_reduce, ones(4, 8), LINK)
    assert followed.columns == (("tensor", 4),)
    assert [len(contents) for contents in followed.sent] == [1] * 24
    by_start = itertools.groupby(range(24), key=lambda index: round(followed.trace[index].start * 1e9))
    assert [{len(followed.sent[index][0]) for index in step} for _, step in by_start] == [{1}, {2}, {3}, {4}, {4}, {4}]


def test_no_rank_of_a_reduce_scatter_ever_holds_the_full_result():
    followed = follow(ring_reduce_scatter, ones(4, 4), LINK)
    full = [[len(content) == 4 for content in held] for held in followed.end]
    assert full == [[chunk == rank for chunk in range(4)] for rank in range(4)]


@pytest.mark.parametrize("program", [flat_reduce, mst_reduce])
def test_a_reduce_leaves_only_its_root_with_everyone(program):
    followed = follow(program, ones(4, 5), LINK)
    assert followed.end[0] == (everyone(4, 0),)
    assert all(held[0] != everyone(4, 0) for held in followed.end[1:])


@pytest.mark.parametrize("program", [mst_broadcast, chain_broadcast, scatter_all_gather_broadcast])
def test_a_broadcast_fills_ranks_that_had_nothing(program):
    followed = follow(program, ones(6, 24), LINK)
    chunks = len(followed.start[0])
    assert followed.start == (tuple(((0, chunk, 1),) for chunk in range(chunks)),) + (((),) * chunks,) * 5
    assert followed.end == (followed.start[0],) * 6


@pytest.mark.parametrize("program", [ring_all_gather, bruck_all_gather])
def test_an_all_gather_begins_with_a_shard_a_rank(program):
    followed = follow(program, ones(5, 10), LINK)
    shards = tuple(((rank, rank, 1),) for rank in range(5))
    assert followed.start == tuple(tuple(shards[rank] if chunk == rank else () for chunk in range(5)) for rank in range(5))
    assert followed.end == (shards,) * 5


def test_a_gather_of_zeros_shows_only_what_is_sent_or_kept():
    inputs = [torch.zeros(4) for _ in range(4)]
    for rank, tensor in enumerate(inputs):
        tensor[rank] = 1
    followed = follow(flat_gather, inputs, LINK)
    assert followed.start == tuple(
        tuple(((rank, chunk, 1),) if chunk == rank else () for chunk in range(4)) for rank in range(4)
    )
    assert followed.end[0] == tuple(((rank, rank, 1),) for rank in range(4))


def test_a_scatter_message_names_all_the_shards_in_it():
    followed = follow(mst_scatter, ones(4, 4), LINK)
    assert [len(contents) for contents in followed.sent] == [2, 1, 1]
    assert followed.end[3][3] == ((0, 3, 1),)


@pytest.mark.parametrize("program", [pairwise_all_to_all, bruck_all_to_all])
def test_an_all_to_all_turns_rows_into_columns(program):
    inputs = [([torch.zeros(2) for _ in range(4)], [torch.ones(2) for _ in range(4)]) for _ in range(4)]
    followed = follow(program, inputs, LINK)
    assert followed.columns == (("outputs", 4), ("inputs", 4))
    assert all(followed.end[rank][src] == ((src, 4 + rank, 1),) for rank in range(4) for src in range(4))


def test_a_rank_that_is_added_twice_is_found():
    def wrong(tensor, dist):
        rank, other = dist.get_rank(), 1 - dist.get_rank()
        received = torch.empty_like(tensor)
        for _ in range(2):
            if rank == 0:
                dist.send(tensor, other)
            else:
                dist.recv(received, other)
                tensor += received

    assert follow(wrong, ones(2, 3), LINK).end[1] == (((0, 0, 2), (1, 0, 1)),)


def test_a_message_shows_when_it_arrives_not_when_it_is_asked_for():
    def eager(tensor, dist):
        if dist.get_rank():
            dist.send(tensor, 0)
            return
        received = [torch.empty_like(tensor) for _ in range(2)]
        works = [dist.irecv(each, src) for each, src in zip(received, (1, 2))]
        for work, each in zip(works, received):
            work.wait()
            tensor += each

    followed = follow(eager, ones(3, 1), LINK)
    assert [changes for changes in followed.changes] == [
        ((0, 0, ((0, 0, 1), (1, 0, 1))),),
        ((0, 0, ((0, 0, 1), (1, 0, 1), (2, 0, 1))),),
    ]


def test_averages_and_maxima_are_followed_too():
    def average(tensor, dist):
        ring_all_reduce(tensor, dist)
        tensor /= dist.get_world_size()

    for program in (average, lambda tensor, dist: ring_all_reduce(tensor, dist, torch.maximum)):
        assert follow(program, ones(3, 3), LINK).end[0] == tuple(everyone(3, chunk) for chunk in range(3))


def test_collectives_and_whole_numbers_are_followed():
    followed = follow(lambda tensor, dist: dist.all_reduce(tensor), [torch.ones(4, dtype=torch.int64)] * 4, LINK)
    assert followed.end[2] == tuple(everyone(4, chunk) for chunk in range(4))


def test_following_moves_nothing_of_yours_and_keeps_the_trace_of_a_plain_run():
    inputs = [torch.arange(8.0) + rank for rank in range(4)]
    followed = follow(ring_all_reduce, inputs, LINK)
    assert inputs[3].tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert list(followed.trace) == list(simulate(ring_all_reduce, inputs, LINK).trace)


def test_chunks_cut_as_told():
    assert follow(mst_broadcast, ones(4, 12), LINK, chunks=3).columns == (("tensor", 3),)


def test_a_program_that_looks_at_its_numbers_is_refused():
    def asking(tensor, dist):
        rank, other = dist.get_rank(), 1 - dist.get_rank()
        flag = tensor[:1].clone()
        if rank == 0:
            dist.send(flag, other)
        else:
            dist.recv(flag, other)
        if flag.item() > 0:
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)

    with pytest.raises(UsageError, match="depend on the numbers"):
        follow(asking, ones(2, 2), LINK)


def test_too_many_runs_are_refused():
    with pytest.raises(UsageError, match="4,096 times, once for each chunk of each rank: give fewer ranks, or chunks="):
        follow(ring_all_reduce, ones(64, 64), LINK)


# -- tensors of the program's own


def ring_of_a_clone(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    chunks = total.tensor_split(size)
    for step in range(2 * size - 2):
        out, mine = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        got = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, out, (rank + 1) % size),
            dist.P2POp(dist.irecv, got, (rank - 1) % size),
        ]):
            work.wait()
        mine.copy_(mine + got if step < size - 1 else got)
    return total


def test_what_a_program_returns_is_followed_under_its_own_name_and_an_input_that_stays_is_left_out():
    followed = follow(ring_of_a_clone, ones(4, 8), LINK)
    assert (followed.columns, followed.sources, followed.own) == ((("total", 4),), (("x", 4),), 1)
    assert followed.start == tuple(tuple(((rank, chunk, 1),) for chunk in range(4)) for rank in range(4))
    assert followed.end == (tuple(everyone(4, chunk) for chunk in range(4)),) * 4


def test_what_a_program_returns_has_its_name_wherever_it_is_made():
    def by_name(x, dist):
        got = torch.empty_like(x)
        for work in [dist.isend(x, 1 - dist.get_rank()), dist.irecv(got, 1 - dist.get_rank())]:
            work.wait()
        answer = x + got
        return answer

    def nameless(x, dist):
        return by_name(x, dist) / 2

    for program, name in ((by_name, "answer"), (nameless, "returned")):
        followed = follow(program, ones(2, 3), LINK)
        assert followed.columns == ((name, 1),)
        assert followed.end == ((everyone(2, 0),),) * 2


def test_a_clone_from_which_parts_are_sent_is_followed_beside_what_is_returned():
    def passing_on(x, dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        total, mine = x.clone(), x.clone()
        for _ in range(size - 1):
            got = torch.empty_like(x)
            works = [dist.isend(mine, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
            for work in works:
                work.wait()
            total, mine = total + got, got
        return total

    followed = follow(passing_on, ones(3, 2), LINK)
    assert followed.columns == (("total", 1), ("mine", 1))
    assert [held[0] for held in followed.end] == [everyone(3, 0)] * 3
    assert {rank: content for changes in followed.changes[:3] for rank, place, content in changes if place == 1} == {
        rank: (((rank - 1) % 3, 0, 1),) for rank in range(3)
    }


def test_room_that_a_program_makes_holds_nothing_until_something_comes():
    def shift(x, dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        got = torch.empty_like(x)
        operations = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return got

    def by_clones(x, dist):
        return mst_broadcast(got := x.clone(), dist) or got

    for dtype in (torch.float32, torch.int64):
        followed = follow(shift, [torch.ones(2, dtype=dtype)] * 3, LINK)
        assert followed.columns == (("got", 1),) and followed.start == (((),),) * 3
        assert followed.end == ((((2, 0, 1),),), (((0, 0, 1),),), (((1, 0, 1),),))
    followed = follow(by_clones, ones(3, 2), LINK)
    assert followed.columns == (("got", 1),) and followed.start == ((((0, 0, 1),),), ((),), ((),))


def test_parts_of_an_answer_of_another_length_are_found_by_what_lies_in_them():
    def bordered(x, dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        wide, came = x.new_zeros(len(x) + 1), x.new_empty(1)
        wide[1:] = x
        works = [dist.isend(x[-1:].clone(), rank + 1)] if rank < size - 1 else []
        works += [dist.irecv(came, rank - 1)] if rank else []
        for work in works:
            work.wait()
        if rank:
            wide[:1] = came
        return wide

    followed = follow(bordered, ones(3, 6), LINK, chunks=2)
    assert followed.columns == (("wide", 2),)
    followed = follow(bordered, ones(3, 6), LINK)
    (name, count), *_ = followed.columns
    assert (name, count) == ("wide", 4)  # the border, and the three parts of x
    assert followed.start[1] == ((), ((1, 0, 1),), ((1, 1, 1),), ((1, 2, 1),))
    assert followed.end[1] == (((0, 2, 1),), ((1, 0, 1),), ((1, 1, 1),), ((1, 2, 1),))


def test_a_number_that_a_program_makes_itself_is_nobodys():
    def counted(x, dist):
        both = torch.cat([x, torch.ones(1)])
        ring_all_reduce(both, dist)
        return both[:-1]

    followed = follow(counted, ones(2, 1), LINK)
    assert followed.columns == (("returned", 1), ("both", 2))
    assert followed.end == ((everyone(2, 0), everyone(2, 0), ()),) * 2
    assert {origin for contents in followed.sent for content in contents for origin in content} <= {(0, 0, 1), (1, 0, 1)}


def test_what_is_multiplied_is_followed_too():
    def scaled(x, weight, dist):
        if dist.get_rank() == 0:
            dist.send(weight * x, 1)
            return x
        got = torch.empty_like(x)
        dist.recv(got, 0)
        return weight * got

    followed = follow(scaled, [(torch.full((2,), 3.0), torch.full((2,), 2.0)) for _ in range(2)], LINK, chunks=1)
    assert followed.sources == (("x", 1), ("weight", 1))
    assert followed.sent == ((((0, 0, 1), (0, 1, 1)),),)
    assert followed.end[1][-1] == ((0, 0, 1), (0, 1, 1), (1, 1, 1))


def test_a_matrix_is_cut_by_its_rows():
    def sums(rows, dist):
        total = rows.sum(0)
        dist.all_reduce(total)
        return total

    assert follow(sums, [torch.ones(3, 2)] * 2, LINK).sources == (("rows", 3),)


def test_messages_may_be_left_out_and_what_they_changed_stays():
    def both(x, dist):
        total = x.clone()
        if dist.get_rank() == 0:
            dist.send(total, 1)
        else:
            dist.recv(total, 0)
        dist.all_reduce(total)
        return total

    from ringtree.speaks import of_a_collective

    followed = follow(both, ones(2, 2), LINK)
    own = followed.without(lambda message: of_a_collective(message.tag))
    assert len(followed.trace) > 1 == len(own.trace) == len(own.sent)
    assert own.end == followed.end
    assert len(own.without(lambda message: True).trace) == 0


def _added_then_overwritten(x, dist):
    total = x.clone()
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = total.tensor_split(size)
    for adds in (True, False):
        mine = chunks[(rank - 1) % size]
        got = torch.empty_like(mine) if adds else mine
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, chunks[rank], right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        if adds:
            mine += got
    return total


def test_a_sum_that_is_overwritten_later_shows_both_its_parts():
    followed = follow(_added_then_overwritten, [torch.ones(2)] * 2)
    assert followed.start == ((((0, 0, 1),), ((0, 1, 1),)), (((1, 0, 1),), ((1, 1, 1),)))
    assert (0, 1, ((0, 1, 1), (1, 1, 1))) in [change for changes in followed.changes for change in changes]
    assert followed.end[0][1] == ((1, 1, 1),)
