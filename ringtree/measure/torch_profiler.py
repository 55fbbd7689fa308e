"""Read what torch.profiler saw of a rank as a `Trace`: computing, communicating, exposed.

with torch.profiler.profile() as profiler:
    with torch.profiler.record_function("forward"):      # a mark; the time of each is told apart
        ...
trace = torch_profiler.read(profiler, dist, waits=["finish"])
trace.time(rank, "compute"), trace.exposed[rank], trace.calls
"""

import os
from typing import NamedTuple

from ringtree.errors import UsageError
from ringtree.trace import Call, Span, Trace

BACKENDS = "gloo:", "nccl:"  # before the name of what such a library is at work on
MESSAGES = "send", "recv"

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler logs dated lines, which a page would show


class Event(NamedTuple):
    """Something with a name that a profiler noted, in seconds."""

    name: str
    start: float
    end: float


def read(profiler, dist, waits=(), blocking=False) -> Trace:
    """A trace of this rank alone, in seconds from the beginning of its first mark.

    profiler: a torch.profiler.profile that has ended. dist: torch.distributed, or what speaks like it.

    Marks, made by `record_function`, become spans of computing, those named in `waits` spans of waiting; of a mark within a
    mark the inner one counts. Collectives that Gloo or NCCL was at work on become `calls`, beside the rank. blocking: whether
    the rank stands still at each; then it waits there, and the mark around it is cut. A profile tells neither the bytes of a
    call nor its group: they are 0, and all ranks. On NCCL a call is as long as the host took to start it, not the GPU.

    Raises UsageError where there is no mark.
    """
    noted = [each for each in profiler.events() if each.device_type.name == "CPU"]
    noted = [Event(each.name, each.time_range.start * 1e-6, each.time_range.end * 1e-6) for each in noted if _is_told(each)]
    marks = [each for each in noted if not each.name.startswith(BACKENDS)]
    if not marks:
        raise UsageError("this profile has no mark: put what a step does into `with torch.profiler.record_function(name):`")
    rank, zero = dist.get_rank(), min(each.start for each in marks)
    marks = [_later(each, -zero) for each in marks]
    calls = [_later(each, -zero) for each in map(_collective, noted) if each]
    stops = [each for each in marks if each.name in waits] + (calls if blocking else [])
    spans = [Span(rank, each.start, each.end, each.name, "wait") for each in stops]
    for mark in marks:
        if mark not in stops:
            spans += [Span(rank, start, end, mark.name) for start, end in _between(marks + stops, mark)]
    everybody = tuple(range(dist.get_world_size()))
    return Trace(
        size=len(everybody),
        spans=sorted(spans, key=lambda span: span.start),
        calls=[Call(rank, name, everybody, 0, start, start, end, not blocking) for name, start, end in calls],
        label=f"rank {rank}, by torch.profiler",
    )


def _is_told(event):
    """Return whether it is a mark, but none of torch's own ("Optimizer.step#AdamW.step"), or what a backend is at work on."""
    return event.name.startswith(BACKENDS) or event.is_user_annotation and "#" not in event.name


def _later(event, seconds):
    return Event(event.name, event.start + seconds, event.end + seconds)


def _collective(event):
    """The collective of torch.distributed that a backend is at work on, under its name there; None for anything else."""
    name = event.name.partition(":")[2].strip("_").removesuffix("_base")
    return event._replace(name=name) if event.name.startswith(BACKENDS) and not name.startswith(MESSAGES) else None


def _between(events, mark):
    """Yield what of a mark lies before, between and behind those events that begin in it: (start, end) of each piece."""
    here = mark.start
    within = [each for each in events if each is not mark and mark.start <= each.start < mark.end]
    for each in sorted(within, key=lambda each: each.start):
        if each.start > here:
            yield here, each.start
        here = max(here, each.end)
    if here < mark.end:
        yield here, mark.end
