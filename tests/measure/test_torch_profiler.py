"""What torch.profiler saw of a rank, as a trace: what it computed, which collectives ran, and how long nothing hid them."""

from types import SimpleNamespace

import pytest
import torch
from helpers.processes import shared
from torch.autograd import DeviceType

from ringtree import draw
from ringtree.errors import UsageError
from ringtree.measure import torch_profiler

DIST = SimpleNamespace(get_rank=lambda: 1, get_world_size=lambda: 4)


def profile(*events):
    """A profiler that has noted these: (name, start, end) in microseconds, and whether on the GPU."""

    def event(name, start, end, device=DeviceType.CPU):
        time_range = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(name=name, time_range=time_range, device_type=device, is_user_annotation="::" not in name)

    return SimpleNamespace(events=lambda: [event(*each) for each in events])


STEP = (
    ("forward", 100, 110),
    ("aten::mm", 101, 109),
    ("backward", 110, 130),
    ("gloo:all_reduce", 120, 150),
    ("finish", 130, 152),
)


def spans_of(trace):
    return [(each.label, each.kind, round(each.start * 1e6), round(each.end * 1e6)) for each in trace.spans]


def test_marks_are_computing_or_waiting_and_collectives_run_beside():
    trace = torch_profiler.read(profile(*STEP), DIST, waits=["finish"])
    assert spans_of(trace) == [("forward", "compute", 0, 10), ("backward", "compute", 10, 30), ("finish", "wait", 30, 52)]
    assert trace.time(1, "compute") == pytest.approx(30e-6) and trace.exposed == pytest.approx([0, 22e-6, 0, 0])
    (call,) = trace.calls
    assert (call.rank, call.operation, call.group, call.beside) == (1, "all_reduce", (0, 1, 2, 3), True)
    assert (call.start, call.end) == pytest.approx((20e-6, 50e-6))
    assert trace.label == "rank 1, by torch.profiler"


def test_where_each_collective_stops_the_rank_it_waits_there_and_computes_between():
    events = ("forward", 0, 50), ("gloo:all_to_all", 10, 20), ("gloo:all_reduce", 20, 30), ("gloo:send", 31, 32)
    trace = torch_profiler.read(profile(*events), DIST, blocking=True)
    assert spans_of(trace) == [
        ("forward", "compute", 0, 10),
        ("all_to_all", "wait", 10, 20),
        ("all_reduce", "wait", 20, 30),
        ("forward", "compute", 30, 50),
    ]
    assert not any(call.beside for call in trace.calls) and len(trace.calls) == 2
    assert trace.time(1, "compute") + trace.exposed[1] == pytest.approx(trace.makespan)


def test_of_a_mark_within_a_mark_the_inner_one_counts():
    events = ("step", 0, 40), ("exchange", 10, 20), ("update", 25, 30), ("Optimizer.step#AdamW.step", 26, 29)
    trace = torch_profiler.read(profile(*events), DIST, waits=["exchange"])
    assert spans_of(trace) == [
        ("step", "compute", 0, 10),
        ("exchange", "wait", 10, 20),
        ("step", "compute", 20, 25),
        ("update", "compute", 25, 30),
        ("step", "compute", 30, 40),
    ]


def test_a_collective_that_outlasts_its_mark_leaves_nothing_of_it():
    events = ("forward", 0, 10), ("nccl:_all_gather_base", 5, 20), ("nccl:_all_gather_base", 5, 20, DeviceType.CUDA)
    trace = torch_profiler.read(profile(*events), DIST, blocking=True)
    assert spans_of(trace) == [("forward", "compute", 0, 5), ("all_gather", "wait", 5, 20)]
    assert [call.operation for call in trace.calls] == ["all_gather"]


def test_a_profile_without_a_mark_is_refused():
    with pytest.raises(UsageError, match="has no mark: put what a step does into `with torch.profiler.record_function"):
        torch_profiler.read(profile(("aten::mm", 0, 1), ("gloo:all_reduce", 1, 2)), DIST)


def two_ways(dist):
    """A step whose all-reduce runs beside its computing, and one that waits for it; on a rank."""

    def step(beside):
        x = torch.ones(300, 300)
        with torch.profiler.record_function("compute"):
            work = dist.all_reduce(x, async_op=beside)
            (x.clone() @ x.clone()).sum()
        with torch.profiler.record_function("finish"):
            if beside:
                work.wait()

    traces = []
    for beside in True, False:
        with torch.profiler.profile() as profiler:
            step(beside)
        traces.append(torch_profiler.read(profiler, dist, waits=["finish"], blocking=not beside))
    return traces


def test_what_torch_itself_notes_of_a_step_is_read():
    for rank, (beside, waiting) in enumerate(shared(2).call(two_ways)):
        assert {span.rank for span in beside.spans + waiting.spans} == {rank}
        assert [(span.label, span.kind) for span in beside.spans] == [("compute", "compute"), ("finish", "wait")]
        assert [(span.label, span.kind) for span in waiting.spans] == [
            ("compute", "compute"),
            ("all_reduce", "wait"),
            ("compute", "compute"),
            ("finish", "wait"),
        ]
        for trace in beside, waiting:
            (call,) = trace.calls
            assert call.operation == "all_reduce" and 0 < call.start < call.end < 10
            assert trace.spans[0].start == 0
            assert f"rank {rank}, by torch.profiler" in draw.timeline(trace, ranks=[rank]).svg
