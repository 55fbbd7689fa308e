"""NCCL's rules of pairing, strictly: the programs whose verdicts are known, and what the report says."""

import pytest
import torch

from ringtree import Deadlock, ProgramError, algorithms, compute, simulate
from ringtree.cost import Link
from ringtree.theory import ALGORITHMS

LINK = Link(1.0, 0.0)


def verdicts(program, size=4):
    """(on Gloo, by NCCL's rules): None, or the error."""
    found = []
    for rules in ("gloo", "nccl"):
        try:
            simulate(program, [()] * size, LINK, rules=rules)
            found.append(None)
        except ProgramError as error:
            found.append(error)
    return found


def around(dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.ones(1), torch.zeros(1), (rank + 1) % size, (rank - 1) % size


def send_then_receive(dist):
    x, y, right, left = around(dist)
    dist.send(x, right)
    dist.recv(y, left)


def isend_then_receive(dist):
    x, y, right, left = around(dist)
    work = dist.isend(x, right)
    dist.recv(y, left)
    work.wait()


def unbatched(dist):
    x, y, right, left = around(dist)
    for work in [dist.isend(x, right), dist.irecv(y, left)]:
        work.wait()


def first_receives(dist):
    x, y, right, left = around(dist)
    if dist.get_rank() == 0:
        dist.recv(y, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(y, left)


def batched(dist):
    x, y, right, left = around(dist)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()


def swap(dist):
    if dist.get_rank() < 2:
        x, y, other = torch.ones(1), torch.zeros(1), 1 - dist.get_rank()
        for work in [dist.isend(x, other), dist.irecv(y, other)]:
            work.wait()


def swap_in_turn(dist):
    if dist.get_rank() < 2:
        x, other = torch.ones(1), 1 - dist.get_rank()
        for step in (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send):
            step(x, other)


def tags_in_another_order(dist):
    if dist.get_rank() == 0:
        works = [dist.isend(torch.zeros(1), 1, tag=tag) for tag in (1, 2)]
    elif dist.get_rank() == 1:
        works = [dist.irecv(torch.zeros(1), 0, tag=tag) for tag in (2, 1)]
    else:
        works = []
    for work in works:
        work.wait()


def reduce_before_and_after(dist):
    x = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(x)
        dist.send(x, 1)
        return
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    dist.all_reduce(x)


def two_groups(dist, blocking, used=False):
    x, rank = torch.ones(1), dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])]
    mine = [group for group in groups if rank in group.ranks]
    for group in mine if used else ():
        dist.barrier(group=group)
    works = [
        dist.all_reduce(x.clone(), group=group, async_op=not blocking) for group in (reversed(mine) if rank == 2 else mine)
    ]
    for work in works if not blocking else ():
        work.wait()


def three_of_four(dist):
    if dist.get_rank() != 3:
        dist.all_reduce(torch.ones(1))


def batch_of_two(dist):
    if dist.get_rank() < 2:
        x, y, other = torch.ones(1), torch.zeros(1), 1 - dist.get_rank()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]):
            work.wait()


def batch_meets_receive(dist):
    if dist.get_rank() == 0:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1)]):
            work.wait()
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)


def batch_meets_receive_later(dist):
    """The same where the group's communicator is there already."""
    dist.barrier()
    batch_meets_receive(dist)


PROGRAMS = [  # (program, whether it ends on Gloo, the rules that hold it on NCCL)
    (send_then_receive, False, None),
    (isend_then_receive, True, {"pairs"}),
    (unbatched, True, {"pairs"}),
    (first_receives, True, set()),
    (batched, True, set()),
    (swap, True, {"order", "rendezvous"}),
    (swap_in_turn, True, set()),
    (reduce_before_and_after, False, None),
    (lambda dist: two_groups(dist, blocking=True), False, None),
    (lambda dist: two_groups(dist, blocking=False), True, {"group"}),
    (lambda dist: two_groups(dist, blocking=False, used=True), True, {"groups"}),
    (three_of_four, False, None),
    (batch_of_two, True, {"group"}),
    (batch_meets_receive, True, {"group", "pairs", "batches"}),
    (batch_meets_receive_later, True, {"pairs", "batches", "rendezvous"}),
]


@pytest.mark.parametrize("program, ends, rules", PROGRAMS, ids=lambda each: getattr(each, "__name__", None))
def test_the_known_programs_have_their_verdicts(program, ends, rules):
    gloo, nccl = verdicts(program)
    assert (gloo is None) is ends
    assert (nccl is None) is (rules == set())
    if rules:
        assert isinstance(nccl, Deadlock) and set(nccl.rules) == rules
    elif not ends:
        assert str(nccl) == str(gloo)  # what hangs by itself is told as ever


def test_tags_are_not_there():
    gloo, nccl = verdicts(tags_in_another_order)
    assert gloo is None
    assert "tag 1 meets tag 2: rank 0's isend to rank 1" in str(nccl) and "there are no tags" in str(nccl)


def test_the_report_names_ranks_lines_and_rules():
    with pytest.raises(Deadlock) as problem:
        simulate(unbatched, [()] * 4, LINK, rules="nccl")
    first, *lines = str(problem.value).split("\n  ")
    assert first == "deadlock by NCCL's rules, communicators made when first used (no device_id)."
    held = "rank 0 is held in isend to rank 1: rank 1 has not come to make the communicator of the two  [unbatched, line "
    assert lines[0].startswith(held)
    assert lines[4] == "they wait in a circle: rank 0 → rank 1 → rank 2 → rank 3 → rank 0"
    assert lines[5].startswith("rule: the first unbatched message between two ranks makes a communicator of the two")
    assert lines[6] == "give sends and receives that belong together to one batch_isend_irecv"
    assert problem.value.waits == {0: 1, 1: 2, 2: 3, 3: 0}


def test_a_read_holds_the_program_and_an_unread_result_does_not():

    def held(dist, reads):
        x, y = torch.zeros(1), torch.zeros(1)
        if dist.get_rank() < 2:  # their communicator is there
            (dist.send if dist.get_rank() == 0 else dist.recv)(x, 1 - dist.get_rank())
        if dist.get_rank() == 0:
            dist.recv(x, 1)  # waits on the GPU alone, until the program reads
            if reads:
                x.item()
            dist.recv(y, 2)
        if dist.get_rank() == 1:
            dist.recv(y, 2)
            dist.send(x, 0)
        if dist.get_rank() == 2:
            works = [dist.isend(x, 0), dist.isend(x, 1)]
            for work in works:
                work.wait()

    # rank 2's communicator with rank 0 needs rank 0's program, which a read holds until rank 1 has sent
    gloo, nccl = verdicts(lambda dist: held(dist, reads=True), 3)
    assert gloo is None and "when first used" in str(nccl) and "pairs" in nccl.rules
    # without the read the program of rank 0 comes; with one communicator for all, rank 2's sends still run in turn
    gloo, nccl = verdicts(lambda dist: held(dist, reads=False), 3)
    assert gloo is None and "made at the start" in str(nccl)


def test_a_work_for_a_whole_batch_as_nccl_gives_it():
    def program(dist):
        x, y, right, left = around(dist)
        return len(dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]))

    assert simulate(program, [()] * 2, LINK, rules="nccl").outputs == [1, 1]
    assert simulate(program, [()] * 2, LINK).outputs == [2, 2]


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row.name)
@pytest.mark.parametrize("size", [2, 4, 5, 8])
def test_every_algorithm_of_the_book_ends_by_nccls_rules(row, size):
    from test_algorithms import inputs_of, options_of, program_of

    options = options_of(row, size)
    inputs = inputs_of(size, 10, torch.float32)

    def program(x, dist):
        dist.barrier()  # an algorithm in which some ranks take no part needs the group's communicator to be there
        program_of(row, **options)(x, dist)

    plain = simulate(program, inputs, LINK)
    strict = simulate(program, inputs, LINK, rules="nccl")
    assert [strict.makespan, strict.messages] == [plain.makespan, plain.messages]


def test_overlapping_computing_with_collectives_is_allowed():
    def program(dist):
        works = []
        for _ in range(3):
            compute(1.0)
            works.append(dist.all_reduce(torch.ones(2), async_op=True))
        for work in works:
            work.wait()

    assert verdicts(program) == [None, None]


def test_rules_that_are_none_are_refused():
    with pytest.raises(ValueError, match='simulate got rules=.mpi.: give "gloo" or "nccl"'):
        simulate(algorithms.ring_all_reduce, [torch.ones(4)] * 2, LINK, rules="mpi")
