"""Ports carry one message at a time, and a message takes the first moment at which all of its ports are free."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ringtree.ports import book

# Whole seconds: sums are exact, and bookings meet end to end often.
moments, durations = st.integers(0, 40).map(float), st.integers(0, 6).map(float)
messages = st.tuples(st.sets(st.integers(0, 5), min_size=2, max_size=4), moments, durations)


def stands_in_the_way(taken, start, end):
    """A message that takes no time passes where nothing is under way."""
    return taken[0] <= start < taken[1] or start < taken[0] < min(end, taken[1])


def first_moment(booked, which, ready, duration):
    """By trying every moment: all times are whole, so the first moment is one too."""
    start = ready
    while any(stands_in_the_way(taken, start, start + duration) for port in which for taken in booked[port]):
        start += 1.0
    return start


def check(requests, memory):
    """Book one after the other; compare each start with what trying out every moment finds."""
    ports, booked = [[] for _ in range(6)], [[] for _ in range(6)]
    for which, ready, duration in requests:
        start = book([ports[port] for port in which], ready, duration, memory)
        assert start == first_moment(booked, which, ready, duration)
        for port in which:
            booked[port].append((start, start + duration))
    return ports, booked


@given(st.lists(messages, max_size=40))
def test_a_message_starts_at_the_first_moment_at_which_all_its_ports_are_free(requests):
    _, booked = check(requests, memory=1000.0)
    for port in booked:
        for (_, end), (start, _) in pairwise(sorted(each for each in port if each[1] > each[0])):
            assert end <= start


@given(st.lists(messages, max_size=40))
def test_what_is_forgotten_is_past(requests):
    requests.sort(key=lambda message: message[1])
    ports, _ = check(requests, memory=0.0)
    for port in ports:
        assert port == sorted(port)
        assert all(end <= start for (_, end), (start, _) in pairwise(port))


@given(st.lists(messages, max_size=40), st.randoms(use_true_random=False))
def test_a_message_may_be_ready_before_the_last_one_by_as_long_as_ports_remember(requests, chance):
    late = 7.0
    requests.sort(key=lambda message: message[1] + chance.random() * late)
    check(requests, memory=late)


def test_a_busy_port_and_one_used_for_long_keep_short_lists():
    port, other = [], []
    for _ in range(1000):
        book((port, other), 0.0, 0.3)
    assert len(port) == 1
    for moment in range(1000):
        book((port, other), 300.0 + moment, 0.5, memory=1.0)
    assert len(port) < 5


def test_a_message_takes_an_earlier_gap_that_fits_and_no_shorter_one():
    port, other = [], []
    assert book((port, other), 5.0, 1.0) == 5.0
    assert book((port, other), 0.0, 5.5) == 6.0
    assert book((port, other), 0.0, 5.0) == 0.0
    assert port == [(0.0, 11.5)]


def test_a_message_waits_for_each_of_its_ports():
    out, into, shared_out, shared_in = [], [], [(0.0, 2.0)], [(3.0, 4.0)]
    assert book((out, into, shared_out, shared_in), 1.0, 1.0) == 2.0
    assert book((out, into, shared_out, shared_in), 1.0, 1.0) == 4.0
    assert out == [(2.0, 3.0), (4.0, 5.0)]
