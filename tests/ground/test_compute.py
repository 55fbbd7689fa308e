"""Computing beside communication: what `ringtree.compute` does where, and collectives that run beside their rank."""

import time

import pytest
import torch
from helpers.collectives import collectives, expected_of
from helpers.processes import shared
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtree import Deadlock, Link, ProgramError, Sketch, compute, computing, emulate, simulate, traced
from ringtree.algorithms import ring_all_reduce
from ringtree.collectives import call_names
from ringtree.errors import UsageError
from ringtree.live.link.emulated import EmulatedLink
from ringtree.live.link.tracing import Traced

LINK = Link(2.0, 0.5)  # a message of n bytes takes 2 + n/2 seconds


def run(program, size, **options):
    return simulate(program, [()] * size, LINK, **options)


# -- simulated -----------------------------------------------------------------


def test_computing_moves_the_ranks_clock_and_calls_nothing():
    def program(dist):
        assert compute(1.5 * (1 + dist.get_rank()), "forward", work=lambda: 1 / 0) is None

    result = run(program, 3)
    assert result.makespan == 4.5
    assert [(span.rank, span.start, span.end, span.label, span.kind) for span in result.trace.spans] == [
        (rank, 0.0, 1.5 * (1 + rank), "forward", "compute") for rank in range(3)
    ]


def test_a_message_waits_for_the_rank_that_computes():
    def program(dist):
        if dist.get_rank() == 0:
            compute(10.0)
            dist.send(torch.zeros(4, dtype=torch.uint8), 1)
        else:
            dist.recv(torch.zeros(4, dtype=torch.uint8), 0)

    result = run(program, 2)
    assert [(message.start, message.end) for message in result.trace] == [(10.0, 14.0)]
    assert result.trace.exposed == [4.0, 14.0]


def reduce_while_computing(seconds, async_op):
    def program(x, dist):
        work = dist.all_reduce(x, async_op=async_op)
        compute(seconds)
        if work:
            work.wait()

    return program


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 7), st.integers(1, 40), st.integers(0, 300))
def test_what_runs_beside_computing_takes_the_longer_of_the_two(size, count, tenths):
    """A ring keeps every rank as busy as the others, so that nobody waits for anybody."""
    inputs, seconds = [Sketch(count * size)] * size, tenths / 10
    alone = simulate(ring_all_reduce, inputs, LINK).makespan
    beside = simulate(reduce_while_computing(seconds, True), inputs, LINK)
    after = simulate(reduce_while_computing(seconds, False), inputs, LINK)
    assert beside.makespan == pytest.approx(max(alone, seconds))
    assert after.makespan == pytest.approx(alone + seconds)
    assert beside.trace.exposed == pytest.approx([max(0.0, alone - seconds)] * size)
    assert after.trace.exposed == pytest.approx([alone] * size)


def test_collectives_of_a_group_run_in_order_and_those_of_two_groups_at_once():
    def program(dist, groups):
        made = [dist.new_group([0, 1]) if each else None for each in groups]
        works = [dist.broadcast(torch.zeros(16, dtype=torch.uint8), src=0, group=group, async_op=True) for group in made]
        for work in works:
            work.wait()

    # one message of 10 s each; in one group they come one after the other, and even in two they share the port
    for groups in ([0, 0], [0, 1]):
        result = run(lambda dist: program(dist, groups), 2)
        assert [(message.start, message.end) for message in result.trace] == [(0.0, 10.0), (10.0, 20.0)]
        first, second = [call for call in result.trace.calls if call.rank == 0]
        assert (first.start, first.end) == (0.0, 10.0)
        assert (second.start, second.end) == ((0.0, 20.0) if groups[1] else (10.0, 20.0))


class Beside:
    """A dist whose collectives are all called with async_op=True, and waited for at once."""

    def __init__(self, dist):
        self.dist = dist

    def __getattr__(self, name):
        method = getattr(self.dist, name)
        if name not in call_names():
            return method

        def call(*args, **kwargs):
            work = method(*args, **kwargs, async_op=True)
            assert work is None or work.wait()

        return call


def test_every_collective_runs_beside_its_rank():
    assert run(lambda dist: collectives(Beside(dist)), 4).outputs == [expected_of(rank) for rank in range(4)]


def every_collective_live(dist):
    slow = emulate(dist, Link(1e-4, 0))
    return [collectives(Beside(each)) for each in (traced(dist), slow, traced(slow))]


def test_every_collective_runs_beside_a_live_rank():
    for rank, results in enumerate(shared(4).call(every_collective_live)):
        assert results == [expected_of(rank)] * 3


def test_a_call_without_async_op_waits_for_those_before_it():
    def program(x, y, dist):
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(y)
        assert work.is_completed()
        return x.item(), y.item()

    inputs = [(torch.tensor([1.0]), torch.tensor([float(rank)])) for rank in range(3)]
    result = simulate(program, inputs, LINK)
    assert result.outputs == [(3.0, 3.0)] * 3
    assert result.makespan == 2 * simulate(ring_all_reduce, [torch.ones(1)] * 3, LINK).makespan


def test_a_rank_outside_the_group_gets_no_work():
    def program(dist):
        group = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        return work.wait() if work else None

    assert run(program, 3).outputs == [True, True, None]


def test_polling_a_collective_ends_when_it_has():
    def program(x, dist):
        work, polls = dist.all_reduce(x, async_op=True), 0
        while not work.is_completed():
            compute(1.0)
            polls += 1
        return x.item(), polls

    result = simulate(program, [torch.ones(1)] * 2, LINK)
    assert [output for output, _ in result.outputs] == [2.0, 2.0]
    assert result.makespan == pytest.approx(simulate(ring_all_reduce, [torch.ones(1)] * 2, LINK).makespan, abs=1.0)


def test_calls_say_what_was_called_where_and_when():
    def program(x, dist):
        group = dist.new_group([0, 2])
        compute(1.0)
        dist.all_reduce(x, group=group)
        dist.broadcast(x, src=1)

    calls = simulate(program, [torch.zeros(2)] * 3, LINK).trace.calls
    assert [(call.operation, call.group, call.nbytes, call.posted, call.beside) for call in calls if call.rank == 0] == [
        ("all_reduce", (0, 2), 8, 1.0, False),
        ("broadcast", (0, 1, 2), 8, 9.0, False),
    ]
    assert [call.operation for call in calls if call.rank == 1] == ["broadcast"]


def test_a_collective_that_not_all_call_is_a_deadlock_even_where_nobody_waits():
    def program(dist, waits):
        if dist.get_rank() != 2:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            if waits:
                work.wait()

    with pytest.raises(Deadlock) as problem:
        run(lambda dist: program(dist, False), 3)
    ended = "rank 1 has ended, and still waits in all_reduce for rank 2, which has finished  [program, line "
    assert ended in str(problem.value)
    with pytest.raises(Deadlock) as problem:
        run(lambda dist: program(dist, True), 3)
    assert "rank 1 waits in all_reduce for rank 2, which has finished  [" in str(problem.value)
    assert "work.wait()], called at  [program, line " in str(problem.value)
    assert problem.value.waits[1] == 2


def test_ranks_that_call_different_collectives_are_told_so():
    def program(dist):
        if dist.get_rank() == 1:
            dist.broadcast(torch.ones(1), src=0)
        else:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(
        ProgramError, match=r"collective 1 of the group is all_reduce \(SUM\) on rank 0 .* broadcast \(root 0\) on rank 1"
    ):
        run(program, 2)


def test_a_buffer_of_a_collective_under_way_may_not_be_touched():
    def program(dist, touch, waits):
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        if waits:
            work.wait()
        touch(x)
        work.wait()

    for touch in (lambda x: x.add_(1), lambda x: x + 1, lambda x: x.tolist()):
        with pytest.raises(ProgramError, match="a buffer of its all_reduce, which may still be running"):
            run(lambda dist: program(dist, touch, False), 2, checked=True)
        run(lambda dist: program(dist, touch, True), 2, checked=True)


def test_what_a_collective_raises_beside_its_rank_is_told_with_the_rank():
    def program(dist):
        dist.all_reduce(torch.ones(4)[: 1 + dist.get_rank()], async_op=True)

    with pytest.raises(ProgramError, match="all_reduce has 1 number on rank 0 and 2 numbers on rank 1"):
        run(program, 2)


def test_a_run_inside_a_run_has_its_own_clock():
    def inner(dist):
        compute(5.0)

    def program(dist):
        compute(1.0)
        inside = run(inner, 2).makespan
        compute(1.0)
        return inside

    result = run(program, 2)
    assert result.outputs == [5.0, 5.0] and result.makespan == 2.0


# -- live ----------------------------------------------------------------------


def live_compute(dist):
    link = traced(dist)
    began = time.monotonic()
    said = compute(0.05, "asleep"), compute(9.0, "work", work=lambda: 42)
    took = time.monotonic() - began
    work = link.all_reduce(torch.ones(2), async_op=True)
    compute(0.01, "beside", work=lambda: None)
    work.wait()
    link.all_reduce(torch.ones(2))
    link.broadcast(torch.ones(2), src=0)
    return said, took, link.notes, link.trace()


def test_live_ranks_do_the_work_or_sleep_and_note_it():
    for rank, (said, took, notes, trace) in enumerate(shared(4).call(live_compute)):
        assert said == (None, 42)
        assert 0.05 <= took < 9.0
        assert [span.label for span in notes.spans if span.kind == "compute"] == ["asleep", "work", "beside"]
        mine = [call for call in trace.calls if call.rank == rank]
        assert [(call.operation, call.group, call.nbytes, call.beside) for call in mine] == [
            ("all_reduce", (0, 1, 2, 3), 8, True),
            ("all_reduce", (0, 1, 2, 3), 8, False),
            ("broadcast", (0, 1, 2, 3), 8, False),
        ]
        assert all(call.posted <= call.start <= call.end for call in mine)
        assert [span.label for span in notes.spans if span.kind == "wait"] == ["all_reduce", "all_reduce", "broadcast"]


def unfinished(dist):
    link = traced(dist)
    work = link.all_reduce(torch.ones(2), async_op=True)
    try:
        link.trace()
    except ValueError as problem:
        return str(problem)
    finally:
        work.wait()


def test_a_trace_is_joined_when_every_collective_is_over():
    assert "has not waited for its all_reduce: wait() for every collective" in shared(4).call(unfinished)[0]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(UsageError, match="give how long it takes, a finite number of seconds, 0 or more"):
        compute(seconds)


def test_work_that_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="compute got work=3"):
        compute(1.0, work=3)


# -- which link it goes by -----------------------------------------------------------


class Alone:
    """As much of torch.distributed as `traced` needs of a rank alone."""

    def get_rank(self):
        return 0

    def get_world_size(self):
        return 1


def labels(tracer):
    return [span.label for span in tracer.notes.spans]


def test_what_was_traced_last_of_all_that_is_in_use_notes_what_is_computed():
    first = traced(Alone())
    compute(0, "alone")
    second = traced(Alone())
    compute(0, "two")
    assert (labels(first), labels(second)) == (["alone"], ["two"])
    del second
    compute(0, "alone again")
    assert labels(first) == ["alone", "alone again"]


def test_only_traced_and_emulate_change_what_is_computed():
    first = traced(Alone())
    made = Traced(Alone()), EmulatedLink(None, LINK)
    began = time.monotonic()
    compute(60, "work", work=lambda: None)
    assert labels(first) == ["work"] and not labels(made[0]) and time.monotonic() - began < 50


def test_computing_lasts_as_long_as_it_says_while_an_emulated_link_is_in_use():
    links = [EmulatedLink(None, LINK) for _ in range(2)]
    for each in links:
        computing.lasting(each)
    for left in (2, 1):
        began = time.monotonic()
        compute(0.05, work=lambda: None)
        assert time.monotonic() - began >= 0.05, left
        links.pop()
        each = None
    began = time.monotonic()
    compute(60, work=lambda: None)
    assert time.monotonic() - began < 50
