"""Note what moves on live ranks.

`traced(dist)` wraps live `torch.distributed` (or an emulated link) and notes every
point-to-point message. Each rank keeps its own notes; `Trace.join` makes one trace
of them:

    wire = traced(emulate(dist, Link(5e-3, 10e-9)))     # on every rank
    with wire.computing("forward"): ...
    wire.send(x, dst=1)
    trace = wire.trace()                               # or, in the notebook,
    trace = Trace.join(ranks.pull("wire.notes"))
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial

from ringtree import calls, computing
from ringtree.errors import UsageError
from ringtree.given import either, mapping, several, takes, whole
from ringtree.speaks import Speaks, tag_of
from ringtree.trace import Call, Note, Notes, Span, Trace

__all__ = ["Traced", "shortest", "traced"]

PROGRAMS = "rank programs, in a list or in a dict from names"


def traced(dist) -> Traced:
    """Wrap `torch.distributed`, or an emulated link, so that it notes every message and every collective. From then on
    the result also notes each `ringtree.compute` of this rank. A second `traced()` takes these spans over: the first
    notes none while the second is in use.

    Use the result in its place. Of a collective inside the backend the call is noted, and not
    its messages, since no Python call makes them; on an emulated link its messages are seen too.
    A barrier is not noted: it is what lines the ranks up before something is looked at.

    On an emulated link a message's start and end are the link's own. Otherwise they
    are what the host sees: it starts when both ranks have asked for it and ends when
    the receiver's `wait()` returns, which on a GPU is when the stream, not yet the
    data, has been dealt with.
    """
    made = Traced(dist)
    computing.noted_by(made)
    return made


@takes(programs=either(mapping(PROGRAMS), several(PROGRAMS, callable)), tries=whole(1))
def shortest(dist, programs, *arguments, tries: int = 5) -> dict[str, Trace]:
    """Run each program(dist, *arguments) a few times; every rank calls this.

    programs: functions, partials or callable objects; or a dict from a name to each.
    Returns the trace of each program's shortest run, by the program's name, on every
    rank. The programs take turns, so that a noisy moment meets them all alike.
    Raises UsageError where two programs have one name.
    """
    named = programs if isinstance(programs, Mapping) else _named(programs)
    best: dict[str, Trace] = {}
    for _ in range(tries):
        for name, program in named.items():
            noted = traced(dist)
            noted.barrier()
            program(noted, *arguments)
            trace = noted.trace()
            # every rank has the same trace, so every rank keeps the same one
            if name not in best or trace.makespan < best[name].makespan:
                best[name] = trace
    return best


def _named(programs) -> dict:
    named = {}
    for program in programs:
        inner = getattr(program, "func", program)  # a partial is called as its function is
        name = getattr(inner, "__name__", type(inner).__name__)
        if name in named:
            raise UsageError(f"shortest() was given two programs called {name!r}: give a dict from a name to each")
        named[name] = program
    return named


class Traced(Speaks):
    """Speaks like what it wraps, and notes; made by `traced`."""

    def __init__(self, dist):
        self._dist = dist
        self._start = dist._begin if isinstance(dist, Speaks) else partial(_start, dist)
        self._buffers = {}
        self.notes = Notes(dist.get_rank(), dist.get_world_size(), getattr(dist, "label", "as this machine's host saw it"))
        self._beside = _Beside(self) if hasattr(dist, "collective") else None

    def __getattr__(self, name):
        return getattr(self._dist, name)

    def __repr__(self) -> str:
        return f"<traced {self._dist!r}>"

    @contextmanager
    def computing(self, label: str = ""):
        """`with wire.computing("forward"): …` notes a span of computation."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.computed(start, time.monotonic(), label)

    def computed(self, start: float, end: float, label: str = "") -> None:
        """Note a span of computation, in seconds of the host's monotonic clock."""
        self.notes.spans.append(Span(self.notes.rank, start, end, label))

    def _begin(self, name, entries) -> list:
        """Start these messages.  NCCL returns one work for a whole batch, Gloo one for each message."""
        notes = [self._note(tensor, peer, tag_of(lane), sends) for sends, tensor, peer, lane in entries]
        works = self._start(name, entries)
        if len(works) == len(notes):
            return [_TracedWork(self, work, [note]) for work, note in zip(works, notes, strict=True)]
        return [_TracedWork(self, work, notes) for work in works]

    def _key(self, group):
        return self._dist._key(group) if isinstance(self._dist, Speaks) else group

    def _collective(self, function, args, kwargs):
        """Call a collective, and note that: when it was called, and when it had run as far as this rank can tell."""
        asked = calls.read(function, args, kwargs)
        ranks = tuple(self._dist.get_process_group_ranks(asked.group)) if self._dist.get_rank(asked.group) >= 0 else ()
        place, start = len(self.notes.calls), time.monotonic()
        if ranks:
            self.notes.calls.append(Call(self.notes.rank, function, ranks, asked.nbytes, start, start, None, asked.async_op))
        if self._beside is None:
            work = getattr(self._dist, function)(*args, **kwargs)
        else:
            work = self._dist.collective(function, args, kwargs, over=self._beside)
        if work is not None:
            return _TracedCollective(self, work, place)
        if ranks:
            self._called(place, start, time.monotonic(), start)
        return None

    def _called(self, place, start, end, waited_from):
        """A collective has run; the rank has waited for it from `waited_from` until now."""
        call = self.notes.calls[place]
        self.notes.calls[place] = call._replace(start=start, end=end)
        if self._beside is None or call.beside:  # else its messages' waits are noted
            self.notes.spans.append(Span(self.notes.rank, waited_from, time.monotonic(), call.operation, "wait"))

    def trace(self) -> Trace:
        """The trace of all ranks' notes, on every rank; every rank calls this."""
        everyone = [None] * self.notes.size
        self._dist.all_gather_object(everyone, self.notes)
        return Trace.join(everyone)

    def forget(self) -> None:
        """Begin again with no notes."""
        self.notes = Notes(self.notes.rank, self.notes.size, self.notes.label)

    def _note(self, tensor, peer, tag, sends) -> Note:
        rank = self.notes.rank
        src, dst = (rank, peer) if sends else (peer, rank)
        nbytes = tensor.numel() * tensor.element_size()
        note = Note(src, dst, nbytes, tag, sends, time.monotonic(), self._place(tensor))
        self.notes.messages.append(note)
        return note

    def _place(self, tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        # the storage is kept, for its address must not be used again during the run
        number, _ = self._buffers.setdefault(storage.data_ptr(), (len(self._buffers), storage))
        return number, tensor.storage_offset() * tensor.element_size()


def _start(dist, name, entries) -> list:
    """Start messages of torch.distributed itself."""
    messages = [
        (dist.isend if sends else dist.irecv, tensor, peer, *(lane if isinstance(lane, tuple) else (None, lane)))
        for sends, tensor, peer, lane in entries
    ]
    if name == "batch_isend_irecv":
        return dist.batch_isend_irecv([dist.P2POp(*message) for message in messages])
    return [function(*rest) for function, *rest in messages]


calls.give_collectives(Traced, Traced._collective, barrier=False)


class _Beside:
    """What a collective's algorithm sends its messages through: noted as the rank's own, but for its waits."""

    def __init__(self, owner: Traced):
        self._owner = weakref.proxy(owner)

    def _begin(self, name, entries):
        return [work.of_a_collective() for work in self._owner._begin(name, entries)]


class _TracedCollective:
    """A collective's work, whose end and whose wait are noted."""

    def __init__(self, owner: Traced, work, place: int):
        self._owner, self._work, self._place = owner, work, place

    def wait(self, *arguments):
        start = time.monotonic()
        result = self._work.wait(*arguments)
        call = self._owner.notes.calls[self._place]
        began, ended = (getattr(self._work, name, None) for name in ("start", "end"))
        self._owner._called(self._place, began or call.start, call.end or ended or time.monotonic(), start)
        return result

    def __getattr__(self, name):
        return getattr(self._work, name)


class _TracedWork:
    """A work whose wait is noted."""

    def __init__(self, owner: Traced, work, notes: list[Note]):
        self._owner, self._work, self._notes = owner, work, notes
        self._in_the_background = False

    def of_a_collective(self):
        """Mark this work as part of a collective: a wait in a background thread then does not count as the rank's."""
        self._in_the_background = True
        return self

    def wait(self, *arguments):
        notes = self._owner.notes
        start = time.monotonic()
        result = self._work.wait(*arguments)
        now = time.monotonic()
        for note in self._notes:
            if note.end is None:
                note.start = getattr(self._work, "start", None)
                note.end = getattr(self._work, "end", None) or now
        first = self._notes[0]
        label = f"to rank {first.dst}" if first.sends else f"from rank {first.src}"
        if not self._in_the_background or threading.current_thread() is threading.main_thread():
            notes.spans.append(Span(notes.rank, start, now, label, "wait"))
        return result

    def __getattr__(self, name):
        return getattr(self._work, name)
