"""What moved, when: messages, spans of computing and waiting, and traces of whole runs.

`traced(dist)` wraps live `torch.distributed` (or an emulated link) and notes every
point-to-point message.  Each rank keeps its own notes; `Trace.join` makes one trace
of them:

    link = traced(emulate(dist, Link(5e-3, 10e-9)))     # on every rank
    with link.computing("forward"): ...
    link.send(x, dst=1)
    trace = link.gather()                               # or, in the notebook,
    trace = Trace.join(ranks.pull("link.notes"))

Times are seconds; a joined trace begins at 0.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Message", "Span", "Note", "Notes", "Trace", "Traced", "shortest", "traced"]


class Message(NamedTuple):
    """One message from rank `src` to rank `dst`.

    start: when it began to move; end: when it had arrived.  send_posted and
    recv_posted: when either rank asked for it (None if not known), so that
    start - send_posted is how long the sender was kept waiting.
    source and target: where it lay and where it came to lie, as (buffer, first
    byte): a rank's buffers are numbered in the order in which it first used them.
    """

    src: int
    dst: int
    nbytes: int
    start: float
    end: float
    tag: int = 0
    send_posted: float | None = None
    recv_posted: float | None = None
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None


class Span(NamedTuple):
    """What a rank did from `start` to `end`: kind "compute" or "wait"."""

    rank: int
    start: float
    end: float
    label: str = ""
    kind: str = "compute"


@dataclass
class Note:
    """One rank's half of a message. start is None unless the link told it."""

    src: int
    dst: int
    nbytes: int
    tag: int
    sends: bool
    posted: float
    place: tuple[int, int]
    start: float | None = None
    end: float | None = None


@dataclass
class Notes:
    """All that one rank has noted, in the order of its calls."""

    rank: int
    size: int
    label: str
    messages: list[Note] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Trace(list):
    """The messages of one run, in the order in which they started.

    size: the number of ranks.  spans: what the ranks computed and how long they
    waited.  label: where the times come from; whoever shows them shows it too.
    """

    def __init__(
        self, messages: Iterable[Message] = (), *, size: int, spans: Iterable[Span] = (), label: str = ""
    ):
        super().__init__(sorted(messages, key=lambda message: (message.start, message.src, message.dst)))
        self.size, self.spans, self.label = size, list(spans), label

    @classmethod
    def join(cls, notes: Iterable[Notes]) -> Trace:
        """One trace from the notes of all ranks (of one host, whose clock they share).

        The k-th send from one rank to another with one tag belongs to the k-th receive.
        Raises ValueError where a half is missing or not complete.
        """
        notes = sorted(notes, key=lambda each: each.rank)
        if not notes or [each.rank for each in notes] != list(range(notes[0].size)):
            ranks = [each.rank for each in notes]
            raise ValueError(f"A trace needs the notes of every rank, once each; these are of ranks {ranks}.")
        messages = [_join(send, receive) for send, receive in _pairs(notes)]
        spans = [span for each in notes for span in each.spans]
        trace = cls(messages, size=notes[0].size, spans=spans, label=notes[0].label)
        return trace._from_zero()

    def _from_zero(self) -> Trace:
        posts = [when for each in self for when in (each.send_posted, each.recv_posted) if when is not None]
        first = min([each.start for each in [*self, *self.spans]] + posts, default=0.0)

        def shift(when):
            return None if when is None else when - first

        messages = [
            each._replace(
                start=shift(each.start),
                end=shift(each.end),
                send_posted=shift(each.send_posted),
                recv_posted=shift(each.recv_posted),
            )
            for each in self
        ]
        spans = [each._replace(start=shift(each.start), end=shift(each.end)) for each in self.spans]
        return Trace(messages, size=self.size, spans=spans, label=self.label)

    @property
    def makespan(self) -> float:
        """From the first moment noted to the last, in seconds."""
        times = [(each.start, each.end) for each in [*self, *self.spans]]
        if not times:
            return 0.0
        return max(end for _, end in times) - min(start for start, _ in times)

    @property
    def bytes_sent(self) -> list[int]:
        """Bytes sent by each rank."""
        return self._by_rank((each.src, each.nbytes) for each in self)

    @property
    def bytes_received(self) -> list[int]:
        """Bytes received by each rank."""
        return self._by_rank((each.dst, each.nbytes) for each in self)

    def _by_rank(self, amounts) -> list[int]:
        totals = [0] * self.size
        for rank, amount in amounts:
            totals[rank] += amount
        return totals

    @property
    def rounds(self) -> int:
        """How many messages come one after the other: the makespan at α = 1, β = γ = 0.

        A message comes after those that either rank had behind it when it asked for it, and
        after those that went before it through the sender's port out or the receiver's port in.
        In a program that posts a message while another is still under way, that can differ from
        a run at α = 1: simulate with `Link(1.0, 0.0)` to have that run's own makespan.
        """
        behind, port_out, port_in = ([0] * self.size for _ in range(3))
        events, number = [], {}
        for i, each in enumerate(self):
            posts = [each.start if when is None else when for when in (each.send_posted, each.recv_posted)]
            events += [(posts[0], 1, i, each.src), (posts[1], 1, i, each.dst), (each.start, 2, i, None)]
            # what ends at a moment is behind a rank that posts at that moment
            events.append((each.end, 0 if each.end > each.start else 3, i, None))
        for _, kind, i, rank in sorted(events, key=lambda event: event[:3]):
            src, dst = self[i].src, self[i].dst
            if kind == 1:
                number[i] = max(number.get(i, 0), behind[rank])
            elif kind == 2:
                number[i] = 1 + max(number[i], port_out[src], port_in[dst])
            else:
                behind[src], behind[dst] = max(behind[src], number[i]), max(behind[dst], number[i])
                port_out[src], port_in[dst] = max(port_out[src], number[i]), max(port_in[dst], number[i])
        return max(number.values(), default=0)

    @property
    def critical_path(self) -> list[Message]:
        """The messages that made the run as long as it is, in order: each had to wait for the one before.

        It ends with the message that ended last. Before each stands the one that ended last
        of those that it may have waited for: what either rank had behind it when it asked for
        the message, and what went through the same port before. Where two ended together, the
        first of them in the trace is taken.
        """
        by_rank = defaultdict(list)
        for i, each in enumerate(self):
            by_rank[each.src].append((i, each))
            by_rank[each.dst].append((i, each))
        path, here = [], max(enumerate(self), key=lambda pair: pair[1].end, default=None)
        while here:
            path.append(here[1])
            index, message = here
            before = [
                pair
                for pair in by_rank[message.src] + by_rank[message.dst]
                if pair[0] < index and _follows(message, pair[1])
            ]
            here = max(before, key=lambda pair: (pair[1].end, -pair[0]), default=None)
        return path[::-1]

    def time(self, rank: int, kind: str) -> float:
        """Seconds that `rank` spent in spans of one kind: "compute" or "wait"."""
        return sum(each.end - each.start for each in self.spans if (each.rank, each.kind) == (rank, kind))

    def __repr__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"Trace of {self.size} ranks, {len(self)} messages, {sum(self.bytes_sent)} bytes{label}"


def _follows(later: Message, earlier: Message) -> bool:
    """Whether `later` may have had to wait for `earlier`."""
    if earlier.end > later.start:
        return False
    ranks = earlier.src, earlier.dst
    return (
        earlier.src == later.src
        or earlier.dst == later.dst
        or (later.src in ranks and (later.send_posted is None or earlier.end <= later.send_posted))
        or (later.dst in ranks and (later.recv_posted is None or earlier.end <= later.recv_posted))
    )


def _pairs(notes: list[Notes]) -> Iterable[tuple[Note, Note]]:
    halves = defaultdict(lambda: ([], []))
    for each in notes:
        for note in each.messages:
            halves[note.src, note.dst, note.tag][0 if note.sends else 1].append(note)
    for (src, dst, tag), (sends, receives) in halves.items():
        if len(sends) != len(receives):
            raise ValueError(
                f"Rank {src} sent {len(sends)} messages to rank {dst} with tag {tag}, which received "
                f"{len(receives)}: a trace is joined when every message has arrived."
            )
        yield from zip(sends, receives, strict=True)


def _join(send: Note, receive: Note) -> Message:
    if receive.end is None:
        raise ValueError(
            f"Rank {receive.dst} has not waited for a message from rank {receive.src}: "
            "wait() for every message before the trace is joined."
        )
    start = receive.start if receive.start is not None else max(send.posted, receive.posted)
    return Message(
        send.src,
        send.dst,
        send.nbytes,
        start,
        receive.end,
        send.tag,
        send.posted,
        receive.posted,
        send.place,
        receive.place,
    )


# -- noting a live run ---------------------------------------------------------


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

    Returns the trace of each program's shortest run, by the program's name, on every
    rank.  The programs take turns, so that a noisy moment meets them all alike.
    """
    best: dict[str, Trace] = {}
    for _ in range(tries):
        for program in programs:
            noted = traced(dist)
            noted.barrier()
            program(noted, *arguments)
            trace, name = noted.gather(), program.__name__
            # every rank has the same trace, so every rank keeps the same one
            if name not in best or trace.makespan < best[name].makespan:
                best[name] = trace
    return best


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
