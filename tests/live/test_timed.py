"""`ringtree.timed`: one call for whatever is to be timed, on ranks and alone."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import time

import pytest
from helpers.processes import shared

import ringtree
from ringtree import measure
from ringtree.errors import UsageError
from ringtree.measure import timing


def naps(dist, seconds):
    """Rank r sleeps r + 1 times as long as rank 0."""
    return ringtree.timed(lambda: time.sleep(seconds * (dist.get_rank() + 1)), budget=0.2, warmup=1)


def test_the_slowest_rank_counts_and_every_rank_is_told_the_same():
    found = shared(4).call(naps, 0.01)
    assert len(set(found)) == 1
    assert 0.04 <= found[0].min <= found[0].low <= found[0].time <= found[0].high <= found[0].max
    assert found[0].calls >= timing.LEAST


def collective(dist):
    import torch

    x = torch.ones(1000)
    found = ringtree.timed(lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX), budget=0.1)
    return found, x.tolist() == [1.0] * 1000


def test_a_collective_is_timed_where_it_runs():
    (found, right), *others = shared(4).call(collective)
    assert right and found.time > 0 and all(each == (found, True) for each in others)


def late(dist):
    """When each rank came, each a tenth of a second after the one before, when its first call began, and how long that took."""

    def call():
        began.append(time.monotonic())

    began = []
    time.sleep(0.1 * dist.get_rank())
    came = time.monotonic()
    found = ringtree.timed(call, budget=0.05, warmup=0)
    return came, began[0], found.first


def test_ranks_meet_before_the_clock_starts():
    came, began, first = zip(*shared(4).call(late), strict=True)
    assert min(began) >= max(came), "nobody begins before the last has come"
    assert first[0] < max(came) - came[0], "waiting for who is late is not counted"


def in_a_group(dist):
    group = dist.new_group([1, 3])
    return ringtree.timed(lambda: time.sleep(0.002), budget=0.05, group=group).calls if dist.get_rank() in (1, 3) else None


def test_a_group_may_be_timed_alone():
    first, one, second, other = shared(4).call(in_a_group)
    assert first is None and second is None and one == other >= timing.LEAST


@pytest.fixture
def given(monkeypatch):
    """Times from a list, the last again and again."""

    def times(*seconds):
        left = list(seconds)
        monkeypatch.setattr(timing, "stopwatch", lambda run, device: (run(), left.pop(0) if len(left) > 1 else left[0])[1])

    return times


def test_alone_it_is_the_median_of_the_calls_after_the_first_and_the_warm_up(given):
    given(9.0, 8.0, 7.0, 1.0, 5.0, 2.0, 4.0, 3.0, 2.0, 6.0, 3.0)
    done = []
    found = ringtree.timed(lambda: done.append(1), warmup=2, budget=1e-9)
    assert (found.first, found.calls, len(done)) == (9.0, 6, 9)
    assert (found.time, found.min, found.max) == (2.5, 1.0, 5.0) and (found.low, found.high) == measure.median_interval([
        1,
        5,
        2,
        4,
        3,
        2,
    ])
    assert not found.stable, "the budget was spent"


def test_steady_times_are_believed_at_once_and_one_straggler_does_not_matter(given):
    given(1.0, 1.0, 1.0, *[1.0] * 4, 50.0, *[1.0] * 20)
    found = ringtree.timed(lambda: None, budget=100.0)
    assert found.stable and found.time == 1.0 and found.max == 50.0 and found.calls <= 12


def test_it_reads_as_a_sentence_and_travels():
    found = measure.Timing(4.8e-3, 4.1e-3, 5.5e-3, 4e-3, 6e-3, 9e-3, 12, True)
    assert str(found) == "4.8 ms (95 % sure: 4.1 ms to 5.5 ms, 12 calls)"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("call", "settings", "sentence"),
    [
        (3.0, {}, "timed got 3.0: give a function without arguments"),
        (print, {"warmup": -1}, "warmup=-1"),
        (print, {"budget": math.inf}, "budget=inf"),
        (print, {"stable": 0}, "stable=0"),
    ],
)
def test_what_cannot_be_timed_is_said_in_one_sentence(call, settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        ringtree.timed(call, **settings)


def test_what_a_call_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        ringtree.timed(lambda: 1 / 0)


def test_alone_nothing_of_torch_is_loaded():
    call = "ringtree.timed(lambda: sum(range(1000)), budget=0.01)"
    code = f"import sys, ringtree; print({call}.calls, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    calls, torch = done.stdout.split()
    assert int(calls) >= 6 and torch == "False"
