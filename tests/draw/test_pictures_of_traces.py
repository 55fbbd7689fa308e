"""Pictures of a run just made: ranks over time, bytes from whom to whom, times over sizes."""

import re

import numpy as np
import pytest
import torch

from ringtree import simulate
from ringtree.algorithms import mst_all_reduce, mst_broadcast, mst_reduce, ring_all_reduce
from ringtree.cost import Link
from ringtree.draw import curves, timeline, traffic
from ringtree.draw.costs import _crossovers
from ringtree.draw.timeline import _among, _told_apart
from ringtree.errors import UsageError
from ringtree.trace import Message, Trace

LINK = Link(10e-6, 1e-9)


def text_of(picture) -> list[str]:
    return re.findall(r">([^<>\s][^<>]*)</text>", picture.svg)


def trace_of(program, size, count=1000, **more):
    return simulate(program, [torch.ones(count) for _ in range(size)], LINK, **more).trace


# -- ranks over time


def test_waiting_for_a_rank_is_told_from_waiting_for_a_message_on_its_way():
    trace = _among(trace_of(mst_broadcast, 4), None)
    step = LINK.time(4000)
    spans = [(span.rank, span.kind, round(span.start / step, 6), round(span.end / step, 6)) for span in _told_apart(trace)]
    assert sorted(spans) == [
        (0, "move", 0, 1),
        (0, "move", 1, 2),
        (1, "move", 1, 2),
        (1, "wait", 0, 1),
        (2, "move", 0, 1),
        (2, "move", 1, 2),
        (3, "move", 1, 2),
        (3, "wait", 0, 1),
    ]


def test_nothing_of_a_wait_is_lost_or_counted_twice():
    trace = _among(trace_of(mst_reduce, 7, gamma=0.3e-9), None)
    for rank in range(7):
        parts = [span for span in _told_apart(trace) if span.rank == rank and span.kind != "compute"]
        assert sum(span.end - span.start for span in parts) == pytest.approx(trace.time(rank, "wait"))


def test_the_timeline_says_what_its_shades_mean():
    words = text_of(timeline(trace_of(mst_reduce, 6, gamma=0.5e-9)))
    for expected in ("simulated", "reduces", "waits for a message on its way", "waits for a rank that is not ready"):
        assert expected in words
    assert "waits for a rank that is not ready" not in text_of(timeline(trace_of(ring_all_reduce, 4)))


def test_a_timeline_of_many_ranks_stays_on_a_page():
    few, many = (timeline(trace_of(ring_all_reduce, size, trace=True)) for size in (4, 24))
    heights = [float(re.search(r'viewBox="0 0 \S+ (\S+)"', picture.svg)[1]) for picture in (few, many)]
    assert heights[0] < heights[1] < 800


# -- who sends how much to whom


def test_traffic_shows_the_bytes_of_each_pair_and_their_sums():
    trace = Trace([Message(0, 1, 1000, 0, 1), Message(0, 1, 500, 1, 2), Message(2, 0, 64, 0, 1)], size=3, label="simulated")
    picture = traffic(trace)
    assert repr(picture) == "Figure: Bytes from each rank to each other one: 3 ranks, 2 of 6 pairs in use."
    words = " ".join(text_of(picture))
    assert words.count("1.5") == 3 and words.count("64") == 3  # its pair, its sender's sum, its receiver's
    assert "simulated" in words


def test_traffic_of_a_ring_uses_one_pair_a_rank():
    assert repr(traffic(trace_of(ring_all_reduce, 8))).endswith("8 ranks, 8 of 56 pairs in use.")


def test_traffic_of_many_ranks_says_only_the_most():
    picture = traffic(trace_of(ring_all_reduce, 32, 32), ranks_per_node=8)
    assert "strongest colour: 248 B · simulated" in text_of(picture)
    assert len(picture.svg) < 60_000


@pytest.mark.parametrize("nbytes", [3, 48, 192, 1000])
def test_the_strongest_colour_of_traffic_can_be_drawn_for_any_bytes(nbytes):
    picture = traffic(Trace([Message(0, 1, nbytes, 0, 1)], size=13))
    assert any(words.startswith("strongest colour: ") for words in text_of(picture))


def test_traffic_without_messages_is_refused():
    with pytest.raises(UsageError, match="without messages: run something that sends first"):
        traffic(Trace(size=2))


# -- times over sizes


def ring_time(n, p=8):
    return 2 * (p - 1) * LINK.time(n / p)


def tree_time(n, p=8):
    return 6 * LINK.time(n)


def test_the_crossover_of_formulas_is_where_they_are_equal():
    grid = np.geomspace(64, 2**30, 400)
    times = {"ring": ring_time(grid), "tree": tree_time(grid)}
    ((size, time, name),) = _crossovers(times, grid)
    assert name == "ring"
    assert ring_time(size) == pytest.approx(tree_time(size), rel=1e-3)
    assert time == pytest.approx(tree_time(size), rel=1e-3)


def test_the_crossover_of_runs_is_between_them():
    sizes = [2**k for k in range(8, 21, 2)]
    runs = {
        name: (sizes, [simulate(program, [torch.ones(size // 4)] * 8, LINK, trace=False).makespan for size in sizes])
        for name, program in {"ring": ring_all_reduce, "tree": mst_all_reduce}.items()
    }
    words = text_of(curves(runs, label="simulated"))
    assert "simulated" in words
    (crossing,) = [each for each in words if each.startswith("ring from")]
    assert 16 < float(crossing.split()[2]) < 24 and crossing.endswith("KiB")  # they are equal at 18.8 KB


def test_a_cost_that_stands_aside_is_drawn_and_wins_nothing():
    race = {"steady": lambda n: 1e-5 + n * 1e-9, "quick": lambda n: 2e-6 + n * 2e-9}
    best = {"ideal": lambda n: 1e-6 + n * 1e-10}
    words = text_of(curves({**race, **best}, 100, 1e6, aside=("ideal",)))
    assert "ideal" in words
    assert [each for each in words if " from " in each] == ["steady from 7.8 KiB"]
    assert not [each for each in text_of(curves({**race, **best}, 100, 1e6)) if " from " in each]


def test_curves_that_never_cross_have_no_crossover():
    words = text_of(curves({"slow": lambda n: 2e-6 + n * 1e-9, "fast": lambda n: 1e-6 + n * 1e-9}))
    assert not [each for each in words if " from " in each]
    assert "slow" in words and "fast" in words


def test_a_curve_that_ends_is_no_crossover():
    short = ([100, 1000], [1e-6, 2e-6])
    words = text_of(curves({"short": short, "long": lambda n: 1e-5 + n * 1e-9}, 100, 1e6))
    assert not [each for each in words if " from " in each]


def test_curves_keep_one_stable_line():
    assert repr(curves({"ring": ring_time, "tree": tree_time})) == (
        "Figure: Time over message size, both axes logarithmic, and which is the fastest where: ring, tree."
    )


def test_curves_refuse_what_they_cannot_draw():
    with pytest.raises(UsageError, match="give at least one, and low below high"):
        curves({})
    with pytest.raises(UsageError, match="0 s or less for 'free'"):
        curves({"free": lambda n: 0.0})
    for cost in (([1, 2], [1]), [1, 2, 3], 7):
        with pytest.raises(UsageError, match="for 'odd': give a function from bytes to seconds, or sizes and as many times"):
            curves({"odd": cost})
