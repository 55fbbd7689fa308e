"""A program that does not end is stopped, and one that only waits for a core is not."""

import os
import signal
import threading
import time

import pytest

from ringtree.simulated import deadline
from ringtree.simulated.deadline import PATIENCE, Deadline, TimeIsUp


def loop(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(100))


@pytest.fixture
def on_a_machine(monkeypatch):
    """A machine where so many seconds are spent in the queue for a core, by the second of real time."""

    def busy(share):
        began = time.monotonic()
        monkeypatch.setattr(deadline, "queued", lambda task: share * (time.monotonic() - began))

    return busy


def test_an_endless_program_is_stopped(on_a_machine):
    on_a_machine(0)
    began = time.monotonic()
    with pytest.raises(TimeIsUp), Deadline(0.2) as told:
        loop(60)
    assert time.monotonic() - began >= 0.2 and told.steps is not None


def test_what_waited_for_a_core_has_more_time(on_a_machine):
    on_a_machine(0.8)
    with Deadline(0.5):
        loop(1.2)  # of which it had a core for 0.24 s


def test_on_the_busiest_machine_too_an_endless_program_is_stopped(on_a_machine):
    on_a_machine(1)
    began = time.monotonic()
    with pytest.raises(TimeIsUp), Deadline(0.2):
        loop(60)
    assert time.monotonic() - began >= 0.9 * PATIENCE * 0.2


def test_a_block_that_has_ended_is_interrupted_no_more(on_a_machine):
    on_a_machine(0.9)
    for _ in range(5):
        with Deadline(0.1):
            loop(0.15)
    loop(0.5)


def test_the_system_tells_how_long_a_thread_has_waited():
    first = deadline.queued("thread-self")
    loop(0.05)
    assert 0 <= first <= deadline.queued("thread-self")
    assert deadline.queued("self/task/None") == 0


@pytest.fixture
def as_before():
    handler, threads = signal.getsignal(signal.SIGUSR2), threading.active_count()
    yield
    assert signal.getsignal(signal.SIGUSR2) == handler and not deadline._open
    time.sleep(0.1)
    assert threading.active_count() == threads


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_block_that_ends_just_when_its_time_is_up_has_ended(on_a_machine, monkeypatch, as_before, thread):
    on_a_machine(0)
    monkeypatch.setattr(deadline, "program_steps", lambda _: time.sleep(0.3) or [])  # so long nobody may stop the deadline
    ends, raised = [], []

    def ending():
        try:
            with Deadline(0.1):
                loop(0.2)
            ends.append(time.monotonic())
            loop(1.5)  # longer than until it would be told again
        except TimeIsUp as error:
            raised.append(error)

    if thread == "main":
        ending()
    else:
        other = threading.Thread(target=ending)
        other.start()
        other.join()
    assert ends and not raised


@pytest.mark.parametrize("name", ["start", "cancel"])
def test_a_deadline_that_begins_or_ends_is_not_interrupted_by_one_around_it(as_before, monkeypatch, name):
    was, inner = getattr(threading.Timer, name), []

    def slowly(timer):
        if outer._asks:  # it asks while the inner one begins, or ends
            inner.append(timer)
            os.kill(os.getpid(), signal.SIGUSR2)
        return was(timer)

    with pytest.raises(TimeIsUp), Deadline(0.1) as outer:
        outer._asks = True
        monkeypatch.setattr(threading.Timer, name, slowly)
        for _ in range(3):
            with Deadline(60):
                pass
        monkeypatch.undo()
        loop(60)
    assert len(inner) == 3


def test_who_interrupts_the_beginning_of_a_deadline_leaves_nothing(as_before, monkeypatch):
    def interrupted(timer):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Deadline(0.1):
        raise AssertionError("it has not begun")


def test_a_signal_that_no_deadline_has_sent_ends_nothing(as_before):
    with Deadline(60):
        os.kill(os.getpid(), signal.SIGUSR2)
        loop(0.05)


def test_where_the_next_thread_just_begins_it_is_waited_for(on_a_machine, as_before):
    on_a_machine(0)
    here, begins = threading.get_ident(), [None, None]
    with pytest.raises(TimeIsUp), Deadline(0.1, lambda: begins.pop() if begins else here):
        loop(60)
