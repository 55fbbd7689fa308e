"""What moved, when: messages, spans of computing and waiting, and traces of whole runs.

A simulated run has its trace at once. On live ranks each rank keeps `Notes` of its own
(`ringtree.traced`), and `Trace.join` makes one trace of them.

Times are seconds; a joined trace begins at 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ringtree.errors import UsageError

__all__ = ["Call", "Message", "Note", "Notes", "Span", "Trace"]


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


class Call(NamedTuple):
    """One rank's call of a collective, `operation` of torch.distributed, among the ranks of `group`.

    nbytes: of the full vector, as this rank has it before or after; of all its blocks in an all-to-all. posted: when it
    was called. start, end: when it ran. beside: whether the rank went on meanwhile (async_op=True).
    """

    rank: int
    operation: str
    group: tuple[int, ...]
    nbytes: int
    posted: float
    start: float
    end: float
    beside: bool = False


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
    calls: list[Call] = field(default_factory=list)


class Trace(list):
    """The messages of one run, in the order in which they started.

    size: the number of ranks.  spans: what the ranks computed and how long they
    waited.  calls: the collectives that they called, by when they were called; a rank's are
    in the order of its calls.  label: where the times come from; whoever shows them shows it too.
    """

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        size: int,
        spans: Iterable[Span] = (),
        calls: Iterable[Call] = (),
        label: str = "",
    ):
        super().__init__(sorted(messages, key=lambda message: (message.start, message.src, message.dst)))
        self.size, self.spans, self.label = size, list(spans), label
        self.calls = sorted(calls, key=lambda call: call.posted)  # a sort that keeps the order of each rank's own

    @classmethod
    def join(cls, notes: Iterable[Notes]) -> Trace:
        """One trace from the notes of all ranks (of one host, whose clock they share).

        The k-th send from one rank to another with one tag belongs to the k-th receive.
        Raises UsageError where a half is missing or not complete.
        """
        notes = sorted(notes, key=lambda each: each.rank)
        if not notes or [each.rank for each in notes] != list(range(notes[0].size)):
            ranks = [each.rank for each in notes]
            raise UsageError(f"a trace was given the notes of ranks {ranks}: give those of every rank, once each")
        if unfinished := [call for each in notes for call in each.calls if call.end is None]:
            raise UsageError(
                f"rank {unfinished[0].rank} has not waited for its {unfinished[0].operation}: wait() for every collective before "
                "the trace is joined"
            )
        messages = [_join(send, receive) for send, receive in _pairs(notes)]
        spans = [span for each in notes for span in each.spans]
        calls = [call for each in notes for call in each.calls]
        trace = cls(messages, size=notes[0].size, spans=spans, calls=calls, label=notes[0].label)
        return trace._from_zero()

    def _from_zero(self) -> Trace:
        posts = [when for each in self for when in (each.send_posted, each.recv_posted) if when is not None]
        posts += [each.posted for each in self.calls]
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
        calls = [each._replace(posted=shift(each.posted), start=shift(each.start), end=shift(each.end)) for each in self.calls]
        return Trace(messages, size=self.size, spans=spans, calls=calls, label=self.label)

    @property
    def makespan(self) -> float:
        """From the first moment noted to the last, in seconds."""
        times = [(each.start, each.end) for each in [*self, *self.spans, *self.calls]]
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
        """Return how many messages come one after the other: the makespan at α = 1, β = γ = 0.

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
                pair for pair in by_rank[message.src] + by_rank[message.dst] if pair[0] < index and _follows(message, pair[1])
            ]
            here = max(before, key=lambda pair: (pair[1].end, -pair[0]), default=None)
        return path[::-1]

    def time(self, rank: int, kind: str) -> float:
        """Seconds that `rank` spent in spans of one kind: "compute" or "wait"."""
        return sum(each.end - each.start for each in self.spans if (each.rank, each.kind) == (rank, kind))

    @property
    def exposed(self) -> list[float]:
        """By rank, the seconds of communication that no computing hides: those in which the rank waits."""
        return [self.time(rank, "wait") for rank in range(self.size)]

    def __repr__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"Trace of {self.size} ranks, {len(self)} messages, {sum(self.bytes_sent)} bytes{label}"


def _follows(later: Message, earlier: Message) -> bool:
    """Return whether `later` may have had to wait for `earlier`."""
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
            raise UsageError(
                f"rank {src} sent {len(sends)} messages to rank {dst} with tag {tag}, which received "
                f"{len(receives)}: a trace is joined when every message has arrived"
            )
        yield from zip(sends, receives, strict=True)


def _join(send: Note, receive: Note) -> Message:
    if receive.end is None:
        raise UsageError(
            f"rank {receive.dst} has not waited for a message from rank {receive.src}: "
            "wait() for every message before the trace is joined"
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
