"""Ranks that cannot go on inside a collective: the report names the collective and the program's own line."""

import re

import pytest
import torch

import ringtree
from ringtree import Deadlock, Link, ProgramError, simulate
from ringtree.waits import Wait, collective_wait, describe_circle, message_wait, read_report


def report(program, size=4, **options):
    with pytest.raises(ProgramError) as problem:
        simulate(program, [torch.ones(1)] * size, Link(1e-6, 1e-9), **options)
    assert not re.search(r"(ring|mst|dissemination|pairwise)_", str(problem.value)), "an algorithm of ours"
    return problem.value


def alone(x, dist):
    if dist.get_rank() == 0:
        dist.all_reduce(x)


def a_send_meets_it(x, dist):
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.broadcast(x, src=0)


def a_batch_meets_it(x, dist):
    if dist.get_rank() == 0:
        got = torch.zeros(1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, got, 1)]):
            work.wait()
    else:
        dist.barrier()


def in_a_group(x, dist):
    group = dist.new_group([1, 3])
    if dist.get_rank() == 3:
        dist.barrier(group=group)


def two_groups(x, dist):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    if dist.get_rank() < 2:
        for group in (one, two) if dist.get_rank() == 0 else (two, one):
            dist.all_reduce(x, group=group)


def waited_for(x, dist):
    if dist.get_rank() != 1:
        work = dist.all_reduce(x, async_op=True)
        work.wait()


def polled(x, dist):
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass


def behind_another(x, dist):
    if dist.get_rank() != 1:
        dist.all_reduce(x, async_op=True)
        dist.barrier()


def left_to_itself(x, dist):
    if dist.get_rank() == 0:
        dist.all_reduce(x, async_op=True)


def the_first_of_two_groups(x, dist):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 2])
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, group=one, async_op=True)
        other = dist.broadcast(x, src=0, group=two, async_op=True)
        work.wait()
        other.wait()


def some_finished(x, dist):
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    elif dist.get_rank() == 2:
        dist.barrier()


def an_earlier_one(x, dist):
    first = dist.get_rank() < 2
    dist.broadcast(x, src=0) if first else dist.recv(x, 0)
    dist.broadcast(x, src=0)


REPORTS = {
    alone: [r"rank 0 waits in all_reduce for ranks 1, 2 and 3, which have finished  \[alone, line \d+: dist.all_reduce\(x\)\]"],
    a_send_meets_it: [
        r"rank 0 waits to send to rank 1, which waits in broadcast  \[a_send_meets_it, line \d+: dist.send\(x, 1\)\]",
        r"rank 1 waits in broadcast for rank 0  \[a_send_meets_it, line \d+: dist.broadcast\(x, src=0\)\]",
    ],
    a_batch_meets_it: [
        r"rank 0 waits to send to rank 1, which waits in barrier  \[a_batch_meets_it, line \d+: work.wait\(\)\]",
        r"rank 1 waits in barrier for rank 0  \[a_batch_meets_it, line \d+: dist.barrier\(\)\]",
        "rank 0 → rank 1 → rank 0",
    ],
    in_a_group: [
        r"rank 3 waits in barrier for rank 1, which has finished  \[in_a_group, line \d+: dist.barrier\(group=group\)\]"
    ],
    two_groups: [
        r"rank 0 waits in all_reduce for rank 1, which waits in another group  \[two_groups, line",
        r"rank 1 waits in all_reduce for rank 0, which waits in another group  \[two_groups, line",
        "rank 0 → rank 1 → rank 0",
    ],
    waited_for: [
        r"rank 0 waits in all_reduce for rank 1, which has finished  \[waited_for, line \d+: work.wait\(\)\], called at  "
        r"\[waited_for, line \d+: work = dist.all_reduce\(x, async_op=True\)\]"
    ],
    polled: [
        r"waits in all_reduce for ranks 1, 2 and 3, which have finished  \[polled, .*?\], called at  \[polled, .*dist.all_reduce"
    ],
    behind_another: [
        r"rank 0 waits in all_reduce for rank 1, which has finished  \[behind_another, line \d+: dist.all_reduce\(x, async_op=True\)\], "
        r"and behind it for its barrier  \[behind_another, line \d+: dist.barrier\(\)\]"
    ],
    left_to_itself: [
        r"rank 0 has ended, and still waits in all_reduce for ranks 1, 2 and 3, which have finished  \[left_to_itself"
    ],
    the_first_of_two_groups: [
        r"rank 0 waits in all_reduce for rank 1, which has finished  \[.*line \d+: work.wait\(\)\], called at"
    ],
    some_finished: [
        r"rank 0 waits to receive from rank 1, which has finished  \[some_finished",
        r"rank 2 waits in barrier for ranks 0, 1 and 3, of which ranks 1 and 3 have finished  \[some_finished",
    ],
    an_earlier_one: [
        r"rank 0 waits in broadcast for ranks? .*  \[an_earlier_one",
        r"rank [23] waits to receive from rank 0, which waits in",
    ],
}


@pytest.mark.parametrize("program", REPORTS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("rules", ["gloo", "nccl"])
def test_a_deadlock_names_the_collective_and_the_programs_line(program, rules):
    problem = report(program, rules=rules)
    assert isinstance(problem, Deadlock)
    for words in REPORTS[program]:
        assert re.search(words, str(problem)), str(problem)
    assert ("this run follows Gloo's rules. NCCL's allow less at once" in str(problem)) is (rules == "nccl")
    read = read_report(str(problem))
    assert {wait.rank for wait in read.waits} == set(problem.waits)
    assert all(problem.waits[wait.rank] in wait.others for wait in read.waits)
    assert all(
        wait.finished and problem.waits[wait.rank] in wait.finished for wait in read.waits if ", which ha" in str(problem)
    )


def test_a_rank_waits_first_for_one_that_has_finished():
    def program(x, dist):
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)

    assert report(program, 3).waits == {0: 2, 1: 0}


def sized(sizes, dtypes=(torch.float32,) * 4, call="all_reduce", **options):
    def program(x, dist):
        rank = dist.get_rank()
        ringtree.compute(float(rank))  # the last comes when the first two have long met
        work = getattr(dist, call)(torch.ones(sizes[rank], dtype=dtypes[rank]), **options)
        return work and work.wait()

    return program


def gathered(x, dist):
    rank = dist.get_rank()
    dist.gather(torch.ones(2 if rank == 1 else 3), [torch.ones(3) for _ in range(4)] if rank == 0 else None, dst=0)


def exchanged(x, dist):
    size = dist.get_world_size()
    given, taken = [1] * size, [1] * size
    if dist.get_rank() == 1:
        given[0] = 3
    dist.all_to_all_single(torch.zeros(sum(taken)), torch.zeros(sum(given)), taken, given)


def two_lines(x, dist):
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.all_reduce(torch.ones(2))


DIFFER = {
    "sizes": (sized([8, 6, 6, 6]), "all_reduce has 8 numbers on rank 0 and 6 numbers on ranks 1, 2 and 3  [program, line"),
    "the last is the odd one": (sized([6, 6, 6, 8]), "has 6 numbers on ranks 0, 1 and 2 and 8 numbers on rank 3  [program"),
    "async": (
        sized([6, 8, 6, 6], async_op=True),
        "all_reduce has 6 numbers on ranks 0, 2 and 3 and 8 numbers on rank 1  [program",
    ),
    "types": (
        sized([8] * 4, [torch.float32] * 3 + [torch.float64]),
        "all_reduce has float32 on ranks 0, 1 and 2 and float64 on rank 3  [program",
    ),
    "both, in a broadcast": (
        sized([1, 1, 4, 4], [torch.int32, torch.int32, torch.int64, torch.int64], "broadcast", src=0),
        "broadcast has 1 number (int32) on rank",
    ),
    "shards": (gathered, "gather has 3 numbers on ranks 0 and 2 and 2 numbers on rank 1  [gathered, line"),
    "splits": (
        exchanged,
        "in all_to_all_single rank 1 gives 3 numbers to rank 0, which takes 1 number from it  [exchanged, line",
    ),
    "two lines": (two_lines, "[rank 0: two_lines, line"),
}


@pytest.mark.parametrize("what", DIFFER)
@pytest.mark.parametrize("rules", ["gloo", "nccl"])
def test_tensors_that_do_not_fit_in_a_collective_are_told_for_all_its_ranks(what, rules):
    program, said = DIFFER[what]
    assert said in str(report(program, rules=rules))


def test_tensors_that_do_not_fit_are_told_where_another_rank_never_ends():
    def program(x, dist):
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1 + dist.get_rank()), group=both(dist))
        both(dist)
        while dist.get_rank() == 2:
            pass

    def both(dist):
        return dist.new_group([0, 1])

    assert "all_reduce has 1 number on rank 0 and 2 numbers on rank 1" in str(report(program, 3, seconds=0.2))


def test_what_is_said_of_waits_is_read_again():
    place = "  [f, line 3: dist.recv(x[0], src=0)]"
    waits = {
        0: message_wait(True, 1, ", which waits in all_reduce"),
        1: message_wait(False, 2, ", which has finished"),
        2: collective_wait("barrier", {0: "", 1: "", 3: ""}),
        3: collective_wait("all_reduce", {0: ", which has finished", 4: ", which has finished"}),
        4: collective_wait("all_gather", {0: ", which waits in barrier", 5: ", which has finished"}),
        5: collective_wait("all_gather", {6: ", which waits in another group"}),
        6: message_wait(False, None),  # for any rank: nobody is named
    }
    text = "\n  ".join(["deadlock.", *(f"rank {rank} {said}{place}" for rank, said in waits.items()), "rank 7 finished"])
    found = read_report(f"{text}\n  {describe_circle({0: 1, 1: 0})}\n")
    line = place.strip()[1:-1]
    assert found.waits == [
        Wait(0, "send", (1,), (), line),
        Wait(1, "recv", (2,), (2,), line),
        Wait(2, "barrier", (0, 1, 3), (), line),
        Wait(3, "all_reduce", (0, 4), (0, 4), line),
        Wait(4, "all_gather", (0, 5), (5,), line),
        Wait(5, "all_gather", (6,), (), line),
    ]
    assert found.circle == [0, 1, 0]
    assert read_report("collective 3 of the group is all_reduce on rank 0") == ([], [])
