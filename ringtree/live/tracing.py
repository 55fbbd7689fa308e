"""Note what moves on live ranks.

`traced(dist)` wraps live `torch.distributed` (or an emulated link) and notes every
point-to-point message.  Each rank keeps its own notes; `Trace.join` makes one trace
of them:

    link = traced(emulate(dist, Link(5e-3, 10e-9)))     # on every rank
    with link.computing("forward"): ...
    link.send(x, dst=1)
    trace = link.gather()                               # or, in the notebook,
    trace = Trace.join(ranks.pull("link.notes"))
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager

from ringtree.errors import UsageError
from ringtree.trace import Note, Notes, Span, Trace

__all__ = ["Traced", "shortest", "traced"]


def traced(dist) -> Traced:
    """Wrap `torch.distributed`, or an emulated link, so that it notes every message.

    Use the result in its place.  Messages sent by collectives inside the backend are
    not seen, since no Python call makes them.

    On an emulated link a message's start and end are the link's own.  Otherwise they
    are what the host sees: it starts when both ranks have asked for it and ends when
    the receiver's `wait()` returns, which on a GPU is when the stream, not yet the
    data, has been dealt with.
    """
    return Traced(dist)


def shortest(dist, programs, *arguments, tries: int = 5) -> dict[str, Trace]:
    """Run each program(dist, *arguments) a few times; every rank calls this.

    programs: functions, partials or callable objects; or a dict from a name to each.
    Returns the trace of each program's shortest run, by the program's name, on every
    rank.  The programs take turns, so that a noisy moment meets them all alike.
    Raises UsageError where two programs have one name.
    """
    named = programs if isinstance(programs, Mapping) else _named(programs)
    best: dict[str, Trace] = {}
    for _ in range(tries):
        for name, program in named.items():
            noted = traced(dist)
            noted.barrier()
            program(noted, *arguments)
            trace = noted.gather()
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


class Traced:
    """Speaks like what it wraps, and notes; made by `traced`."""

    def __init__(self, dist):
        self._dist = dist
        self._buffers = {}
        self.notes = Notes(
            dist.get_rank(), dist.get_world_size(), getattr(dist, "label", "as this machine's host saw it")
        )

    def __getattr__(self, name):
        return getattr(self._dist, name)

    def __repr__(self) -> str:
        return f"<traced {self._dist!r}>"

    @contextmanager
    def computing(self, label: str = ""):
        """`with link.computing("forward"): …` notes a span of computation."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.notes.spans.append(Span(self.notes.rank, start, time.monotonic(), label))

    def isend(self, tensor, dst, group=None, tag=0):
        note = self._note(tensor, dst, tag, sends=True)
        return _TracedWork(self, self._dist.isend(tensor, dst, group, tag), [note])

    def irecv(self, tensor, src=None, group=None, tag=0):
        note = self._note(tensor, src, tag, sends=False)
        return _TracedWork(self, self._dist.irecv(tensor, src, group, tag), [note])

    def send(self, tensor, dst, group=None, tag=0) -> None:
        self.isend(tensor, dst, group, tag).wait()

    def recv(self, tensor, src=None, group=None, tag=0) -> int:
        self.irecv(tensor, src, group, tag).wait()
        return src

    def P2POp(self, op, tensor, peer, group=None, tag=0):
        """An entry for `batch_isend_irecv`: `op` is this object's `isend` or `irecv`."""
        if op not in (self.isend, self.irecv):
            raise ValueError(f"P2POp was given {op!r}; give it the traced object's own isend or irecv.")
        return op == self.isend, tensor, peer, group, tag

    def batch_isend_irecv(self, operations) -> list:
        """Start all together.  NCCL returns one work for the whole batch, Gloo one for each."""
        notes = [self._note(tensor, peer, tag, sends) for sends, tensor, peer, _, tag in operations]
        works = self._dist.batch_isend_irecv(
            [
                self._dist.P2POp(self._dist.isend if sends else self._dist.irecv, tensor, peer, group, tag)
                for sends, tensor, peer, group, tag in operations
            ]
        )
        if len(works) == len(notes):
            return [_TracedWork(self, work, [note]) for work, note in zip(works, notes, strict=True)]
        return [_TracedWork(self, work, notes) for work in works]

    def gather(self) -> Trace:
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


class _TracedWork:
    """A work whose wait is noted."""

    def __init__(self, owner: Traced, work, notes: list[Note]):
        self._owner, self._work, self._notes = owner, work, notes

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
        notes.spans.append(Span(notes.rank, start, now, label, "wait"))
        return result

    def __getattr__(self, name):
        return getattr(self._work, name)
