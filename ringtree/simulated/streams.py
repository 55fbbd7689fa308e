"""Collectives that run beside their rank, as on a stream of its own: in order within a group, at once between groups.

A collective with async_op=True is put at the end of its group's stream, and so is every later one of that group while
the stream is busy. A stream runs as a rank does, on the virtual clock, and passes its messages through its rank's ports.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

from ringtree.calls import Asked
from ringtree.simulated.clock import Rank
from ringtree.simulated.messages import NotedWork


@dataclass(slots=True)
class Inside:
    """A collective that a rank has called: what it asked for, of which ranks, and which call of the group it is, from 1 on."""

    asked: Asked
    ranks: tuple
    group: int
    count: int


class Stream(Rank):
    """Runs the collectives of one rank in one group, in the order of their calls."""

    __slots__ = ("owner", "works", "current")

    def __init__(self, owner, turn):
        super().__init__(owner.clock, owner.number, turn)
        self.owner = owner  # the rank beside which it runs
        self.works = deque()
        self.current = None  # the work that runs now
        self.in_flight = None if owner.in_flight is None else {}

    @property
    def busy(self):
        return self.current is not None or bool(self.works)

    def add(self, work):
        if not self.busy:
            self.now = max(self.now, work.posted)
            self.clock.agenda.put(self.now, self.turn)
        self.works.append(work)

    def run(self):
        """The stream's own greenlet: forever, since nobody knows which collective is the last."""
        while True:
            while self.works:
                work = self.current = self.works.popleft()
                self.now = max(self.now, work.posted)
                work.start, self.inside = self.now, work.inside
                work.run()
                self.current = self.inside = None
                self._done(work)
            self.clock.pause(self)

    def _done(self, work):
        self.clock.advance(self, self.now)  # it may have reduced: earlier ranks go first
        work.end = self.now
        rank = self.owner
        self.clock.notes.called(rank.number, work.asked, work.ranks, work.posted, work.start, work.end, work.beside)
        if rank.idle is not None:
            self.clock.wake(rank, work)
        elif rank.waiting is work:
            self.clock.agenda.put(max(work.end, rank.now), rank.turn)


class CollectiveWork(NotedWork):
    """A collective under way, as a call with async_op=True returns it."""

    __slots__ = ("stream", "inside", "run", "beside", "start")

    asked = property(lambda self: self.inside.asked)
    ranks = property(lambda self: self.inside.ranks)

    def __init__(self, stream, inside, run, place):
        self.stream, self.inside, self.run, self.place = stream, inside, run, place
        self.beside = inside.asked.async_op
        self.rank = stream.owner
        self.posted, self.start, self.end = self.rank.now, None, None
        if self.rank.in_flight is not None:
            self.rank.in_flight[self] = True
        stream.add(self)

    def touches(self):
        return self.asked.buffers()

    @property
    def label(self):
        return self.asked.function


class Streams:
    """Of one rank, the streams of its groups, made when they are first needed."""

    def __init__(self, rank):
        self.rank = rank
        self.by_group = {}

    def busy(self, group):
        stream = self.by_group.get(group)
        return stream is not None and stream.busy

    def of(self, group):
        stream = self.by_group.get(group)
        if stream is None:
            clock = self.rank.clock
            stream = self.by_group[group] = clock.add(partial(Stream, self.rank))
        return stream
