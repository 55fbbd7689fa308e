"""The timeline shows what a trace holds, and always says where its times come from."""

import importlib
import re

import pytest
import torch

from ringtree import Link, compute, simulate
from ringtree.algorithms import ring_all_reduce
from ringtree.draw import timeline
from ringtree.errors import UsageError
from ringtree.trace import Message, Span, Trace

timeline_module = importlib.import_module("ringtree.draw.timeline")
LABEL = "emulated link: α 20 ms, 100 MB/s"


def overlap(label=LABEL, late=0.0):
    return Trace(
        [Message(0, 1, 4000, 0.0, 0.02 + late), Message(1, 0, 4000, 0.0, 0.02)],
        size=2,
        spans=[
            Span(0, 0.0, 0.015, "forward"),
            Span(1, 0.0, 0.015, "forward"),
            Span(0, 0.015, 0.02, "from rank 1", "wait"),
            Span(1, 0.015, 0.02 + late, "from rank 0", "wait"),
        ],
        label=label,
    )


def text_of(picture) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", picture.svg))


def test_the_label_stands_on_the_picture():
    assert LABEL in text_of(timeline(overlap()))


def test_every_one_of_several_traces_carries_its_name_and_label():
    text = text_of(timeline({"before": overlap(), "after": overlap("another label")}))
    for expected in ("before", "after", LABEL, "another label", "rank 0", "rank 1", "forward", "computes", "waits for"):
        assert expected in text


def test_the_alternative_text_does_not_depend_on_the_times():
    assert repr(timeline(overlap())) == repr(timeline(overlap(late=0.003)))
    assert repr(timeline(overlap())) == (
        "Figure: Ranks over time. 2 ranks, 2 messages and 2 blocks of computation on an emulated link."
    )


def test_the_alternative_text_names_each_trace():
    alone = Trace([Message(0, 1, 8, 0.0, 1e-6)], size=1 + 1, label="as this machine's host saw it")
    assert repr(timeline({"alone": alone, "both": overlap()})) == (
        "Figure: Ranks over time. alone: 2 ranks, 1 message; "
        "both: 2 ranks, 2 messages and 2 blocks of computation on an emulated link."
    )


@pytest.mark.parametrize("seconds, unit", [(3.0, "time (s)"), (3e-3, "time (ms)"), (3e-6, "time (µs)"), (3e-8, "time (ns)")])
def test_the_axis_has_the_unit_that_suits_it(seconds, unit):
    assert unit in text_of(timeline(Trace([Message(0, 1, 8, 0.0, seconds)], size=2)))


def test_every_message_and_span_is_drawn():
    several = Trace([Message(0, rank, 8, rank, rank + 1) for rank in (1, 2, 3)], size=4, spans=[Span(0, 0, 1), Span(3, 0, 1)])
    fewer = Trace([Message(0, 1, 8, 1, 2)], size=4, spans=[Span(0, 0, 1)])
    assert timeline(several).svg.count("<path") > timeline(fewer).svg.count("<path")


def test_an_empty_trace_is_refused_by_name():
    with pytest.raises(UsageError, match=r"empty trace \(mine\): run something first"):
        timeline({"mine": Trace(size=4)})


def test_ranks_that_sit_out_can_be_left_out():
    trace = Trace([Message(0, 1, 8, 0, 1), Message(2, 3, 8, 0, 1)], size=4, spans=[Span(1, 0, 1), Span(3, 0, 1)])
    picture = timeline(trace, ranks=[2, 3])
    assert repr(picture) == "Figure: Ranks over time. 2 ranks, 1 message and 1 block of computation."
    assert "rank 3" in text_of(picture) and "rank 1" not in text_of(picture)


def test_a_wait_for_a_rank_that_is_not_drawn_is_one_for_its_message():
    run = simulate(ring_all_reduce, [torch.ones(4)] * 4, Link(1.0, 0.0))
    assert "waits for a message on its way" in text_of(timeline(run.trace, ranks=[0]))
    assert "not ready" not in text_of(timeline(run.trace, ranks=[0]))


def test_where_no_message_is_seen_a_wait_is_only_a_wait():
    said = text_of(timeline(Trace(size=1, spans=[Span(0, 0.0, 1.0), Span(0, 1.0, 2.0, "all_reduce", "wait")])))
    assert "waits" in said and "waits for" not in said


# -- collectives beside their rank ---------------------------------------------


def with_a_collective_beside(seconds):
    def program(dist):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        compute(seconds)
        work.wait()

    return simulate(program, [()] * 4, Link(1.0, 0.0)).trace  # six messages of 1 s


def test_a_collective_beside_its_rank_is_cut_where_the_rank_waits_for_it():
    assert timeline_module._beside(rows_of(with_a_collective_beside(4.0))) == [
        piece for rank in range(4) for piece in [(rank, 0.0, 4.0, False), (rank, 4.0, 6.0, True)]
    ]
    assert timeline_module._beside(rows_of(with_a_collective_beside(9.0))) == [(rank, 0.0, 6.0, False) for rank in range(4)]
    assert timeline_module._beside(rows_of(simulate(ring_all_reduce, [torch.ones(4)] * 4, Link(1.0, 0.0)).trace)) == []


def rows_of(trace):
    return timeline_module._among(trace, None)


def test_the_picture_says_what_is_hidden_and_what_is_exposed():
    both = timeline(with_a_collective_beside(4.0))
    svg = both._repr_html_()
    assert "hidden: a collective beside computing" in svg and "exposed: the rank waits for it" in svg
    assert "4 collective calls beside them" in repr(both)
    hidden = timeline(with_a_collective_beside(9.0))._repr_html_()
    assert "hidden: a collective beside computing" in hidden and "exposed" not in hidden
