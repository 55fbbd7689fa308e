"""A trace tells what moved and when, from every rank's own notes."""

import time

import pytest
import torch
from helpers.processes import shared

from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.live.link.emulated import emulate
from ringtree.live.link.tracing import shortest, traced
from ringtree.simulated import simulate
from ringtree.theory import ALGORITHMS, find
from ringtree.trace import Message, Note, Notes, Span, Trace


@pytest.fixture(scope="module")
def ranks():
    return shared(4)


def note(src, dst, sends, posted, end=None, nbytes=8, tag=0, start=None):
    return Note(src, dst, nbytes, tag, sends, posted, (0, 0), start, end)


def notes_of(*messages, size=2, spans=()):
    return [
        Notes(
            rank,
            size,
            "test",
            [each for each in messages if rank == (each.src if each.sends else each.dst)],
            [span for span in spans if span.rank == rank],
        )
        for rank in range(size)
    ]


# -- joining -------------------------------------------------------------------


def test_a_message_starts_when_both_have_asked_and_ends_when_the_receiver_has_it():
    send, receive = note(0, 1, True, posted=10.0, end=13.5), note(0, 1, False, posted=12.0, end=13.0)
    [message] = Trace.join(notes_of(send, receive))
    assert (message.start, message.end) == (2.0, 3.0)
    assert (message.send_posted, message.recv_posted) == (0.0, 2.0)


def test_an_emulated_links_own_times_are_kept():
    send = note(0, 1, True, posted=1.0, end=9.0, start=4.0)
    receive = note(0, 1, False, posted=2.0, end=9.0, start=4.0)
    [message] = Trace.join(notes_of(send, receive))
    assert (message.start, message.end) == (3.0, 8.0)


def test_the_first_send_of_a_channel_belongs_to_the_first_receive():
    halves = [
        note(0, 1, True, 0.0, 5.0, nbytes=8),
        note(0, 1, True, 1.0, 6.0, nbytes=16),
        note(0, 1, True, 2.0, 7.0, nbytes=32, tag=5),
        note(0, 1, False, 0.0, 7.0, nbytes=32, tag=5),
        note(0, 1, False, 1.0, 5.0, nbytes=8),
        note(0, 1, False, 2.0, 6.0, nbytes=16),
    ]
    trace = Trace.join(notes_of(*halves))
    assert [(each.nbytes, each.tag, each.end) for each in trace] == [(8, 0, 5.0), (16, 0, 6.0), (32, 5, 7.0)]


def test_joining_needs_every_half():
    with pytest.raises(UsageError, match="rank 0 sent 1 messages to rank 1 with tag 0, which received 0"):
        Trace.join(notes_of(note(0, 1, True, 0.0, 1.0)))


def test_joining_needs_every_wait():
    with pytest.raises(UsageError, match="rank 1 has not waited for a message from rank 0"):
        Trace.join(notes_of(note(0, 1, True, 0.0, 1.0), note(0, 1, False, 0.0)))


@pytest.mark.parametrize("given", [[], [0], [0, 0], [1]])
def test_joining_needs_every_rank_once(given):
    with pytest.raises(UsageError, match="give those of every rank, once each"):
        Trace.join([Notes(rank, 2, "test") for rank in given])


def test_a_joined_trace_begins_at_zero_with_whatever_came_first():
    span = Span(1, 95.0, 99.0, "forward")
    trace = Trace.join(notes_of(note(0, 1, True, 100.0, 101.0), note(0, 1, False, 100.0, 101.0), spans=[span]))
    assert trace.spans == [Span(1, 0.0, 4.0, "forward")]
    assert (trace[0].start, trace.makespan, trace.label) == (5.0, 6.0, "test")


# -- what a trace tells --------------------------------------------------------

RING = [Message(rank, (rank + 1) % 3, 10, step, step + 1) for step in range(2) for rank in range(3)]


def test_a_trace_is_a_list_in_the_order_of_the_starts():
    trace = Trace(reversed(RING), size=3)
    assert list(trace) == RING
    assert isinstance(trace, list)


def test_a_trace_counts_bytes_and_time():
    trace = Trace([*RING, Message(0, 1, 5, 2, 4)], size=4)
    assert trace.bytes_sent == [25, 20, 20, 0]
    assert trace.bytes_received == [20, 25, 20, 0]
    assert trace.makespan == 4


def test_time_is_summed_by_rank_and_kind():
    spans = [Span(0, 0, 2), Span(0, 3, 4), Span(0, 2, 3, kind="wait"), Span(1, 0, 9)]
    trace = Trace(size=2, spans=spans)
    assert (trace.time(0, "compute"), trace.time(0, "wait"), trace.time(1, "wait")) == (3, 1, 0)


def test_an_empty_trace_takes_no_time():
    assert Trace(size=3).makespan == 0
    assert Trace(size=3).bytes_sent == [0, 0, 0]


def test_a_trace_prints_what_it_holds_and_where_it_comes_from():
    trace = Trace(RING, size=3, label="emulated link: α 5 ms, 100 MB/s")
    assert repr(trace) == "Trace of 3 ranks, 6 messages, 60 bytes (emulated link: α 5 ms, 100 MB/s)"


def test_a_message_cannot_be_changed():
    with pytest.raises(AttributeError):
        RING[0].nbytes = 7


def test_rounds_are_messages_one_after_the_other():
    assert Trace(RING, size=3).rounds == 2
    assert Trace(size=3).rounds == 0
    two_at_once = [Message(0, 1, 8, 0, 2), Message(2, 3, 8, 1, 3)]
    assert Trace(two_at_once, size=4).rounds == 1
    then_one = Message(1, 2, 8, 3, 5, send_posted=2, recv_posted=3)
    assert Trace([*two_at_once, then_one], size=4).rounds == 2


def test_what_was_asked_for_before_a_message_ended_does_not_come_after_it():
    out, coming_in = Message(0, 1, 8, 0, 2), Message(2, 0, 8, 5, 6, send_posted=5, recv_posted=0)
    assert Trace([out, coming_in], size=3).rounds == 1
    assert Trace([out, coming_in], size=3).critical_path == [coming_in]


def test_one_port_takes_one_message_at_a_time():
    messages = [Message(0, rank, 8, rank - 1, rank, send_posted=0, recv_posted=0) for rank in (1, 2, 3)]
    assert Trace(messages, size=4).rounds == 3
    assert Trace(messages, size=4).critical_path == messages


def test_the_critical_path_is_the_slowest_way_through():
    short, long = Message(0, 1, 1, 0, 1), Message(2, 3, 5, 0, 5)
    last = Message(1, 3, 1, 5, 6, send_posted=1, recv_posted=5)
    assert Trace([short, long, last], size=4).critical_path == [long, last]
    assert Trace(size=2).critical_path == []


# Messages of several lengths wait for one port: which goes first depends on the link, and so do the rounds of a trace.
MEET_IN_ANOTHER_ORDER = ("two_level_scatter_all_gather_broadcast", "node_leaders_all_to_all")


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
def test_rounds_are_the_makespan_at_alpha_one_and_the_path_has_no_gap(name):
    row = find(name)

    def blocks(tensor, dist):
        inputs = tensor.tensor_split(dist.get_world_size())
        row.program([torch.empty_like(block) for block in inputs], inputs, dist)

    program = blocks if row.collective == "all_to_all" else row.program
    for size in (8, 16):
        run = simulate(program, [torch.zeros(16 * size)] * size, Link(3.0, 0.25))
        alone = simulate(program, [torch.zeros(16 * size)] * size, Link(1.0, 0.0))
        assert alone.trace.rounds == alone.makespan
        if name not in MEET_IN_ANOTHER_ORDER:
            assert run.trace.rounds == alone.makespan
        path = run.trace.critical_path
        assert path[0].start == 0 and path[-1].end == run.makespan
        assert all(earlier.end == later.start for earlier, later in zip(path, path[1:]))


# -- live runs -----------------------------------------------------------------


def ring_step(dist):
    """Send right, receive from the left, with a computation under way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = torch.full((1000,), float(rank)), torch.zeros(2, 1000)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, y[1], (rank - 1) % size),
    ])
    with dist.computing("forward"):
        time.sleep(0.01)
    for work in works:
        work.wait()
    assert y[1].tolist() == [float((rank - 1) % size)] * 1000


def on_gloo(dist):
    live = traced(dist)
    ring_step(live)
    return live.trace()


def on_emulated_link(dist):
    live = traced(emulate(dist, Link(5e-3, 10e-9)))
    ring_step(live)
    return live.trace()


@pytest.mark.parametrize("program", [on_gloo, on_emulated_link])
def test_a_live_ring_step_is_noted_whole_on_every_rank(ranks, program):
    traces = ranks.call(program)
    trace = traces[0]
    assert all(list(other) == list(trace) for other in traces)
    assert sorted((each.src, each.dst, each.nbytes) for each in trace) == [(rank, (rank + 1) % 4, 4000) for rank in range(4)]
    assert all(each.end >= each.start >= max(each.send_posted, each.recv_posted) for each in trace)
    assert all(each.source == (0, 0) and each.target == (1, 4000) for each in trace)
    assert [trace.time(rank, "compute") >= 0.01 for rank in range(4)] == [True] * 4
    assert sorted({span.label for span in trace.spans if span.rank == 1}) == ["forward", "from rank 0", "to rank 2"]


def test_an_emulated_messages_length_is_the_links_to_the_last_digit(ranks):
    trace = ranks.call(on_emulated_link)[0]
    assert [each.end - each.start for each in trace] == pytest.approx([Link(5e-3, 10e-9).time(4000)] * 4)
    assert trace.label == "emulated link: α 5 ms, 100 MB/s"


def blocking_calls(dist):
    live = traced(dist)
    x = torch.zeros(3)
    if live.get_rank() == 0:
        time.sleep(0.05)
        live.send(x, dst=1, tag=3)
    if live.get_rank() == 1:
        assert live.recv(x, src=0, tag=3) == 0
    trace = live.trace()
    live.forget()
    return trace, live.notes


def test_blocking_calls_are_noted_with_their_wait(ranks):
    trace, notes = ranks.call(blocking_calls)[1]
    assert [(each.src, each.dst, each.nbytes, each.tag) for each in trace] == [(0, 1, 12, 3)]
    assert trace.time(1, "wait") >= 0.04
    assert not notes.messages and not notes.spans


def foreign_operation(dist):
    try:
        traced(dist).P2POp(dist.isend, torch.zeros(1), 1)
    except ValueError as problem:
        return str(problem)


def test_a_foreign_operation_is_refused(ranks):
    assert ranks.call(foreign_operation)[0].startswith("rank 0 gives P2POp another object's isend: give it isend or irecv")


def collectives_pass_through(dist):
    x = torch.ones(1)
    traced(dist).all_reduce(x)
    return x.item()


def test_everything_else_goes_straight_to_torch(ranks):
    assert ranks.call(collectives_pass_through) == [4.0] * 4


def sleeps(dist, rest):
    with dist.computing("sleeps"):
        time.sleep(rest.pop())


def idles(dist, rest):
    with dist.computing("idles"):
        pass


def shortest_of_three(dist):
    found = shortest(dist, [sleeps, idles], [1.0, 0.01, 0.5], tries=3)
    return {name: (trace.makespan, [span.label for span in trace.spans]) for name, trace in found.items()}


def test_the_shortest_run_of_each_program_is_kept_on_every_rank(ranks):
    found = ranks.call(shortest_of_three)
    assert all(other == found[0] for other in found)
    assert list(found[0]) == ["sleeps", "idles"]
    assert found[0]["idles"][1] == ["idles"] * 4
    assert 0.01 <= found[0]["sleeps"][0] < 0.5
