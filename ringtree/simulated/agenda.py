"""Which of many goes on next: the earliest, of those at one time the smallest; and what is done before time advances."""

import math
from heapq import heapify, heappop, heappush


class Agenda:
    """Which ranks can go on, and when: the earliest first, of those at one time the smallest first.

    Ranks mostly come in crowds that are ready at the same moment, so there is a list of
    ranks for each moment: quicker than a heap of ranks.

    pending: work that ranks have put aside until no rank can go on at this moment. settle: does all of it at once, empties
    the list, and may put ranks.
    """

    __slots__ = ("time", "moment", "ranks", "times", "later", "pending", "settle")

    def __init__(self):
        self.time = self.moment = -math.inf
        self.ranks = []  # who goes on at `time`, the smallest last
        self.times = []  # a heap of the later times
        self.later = {}  # by later time, the ranks in any order
        self.pending, self.settle = [], None

    def put(self, time, rank):
        if time <= self.time and self.ranks:
            self._put_back()
        ranks = self.later.get(time)
        if ranks is None:
            self.later[time] = [rank]
            heappush(self.times, time)
        else:
            ranks.append(rank)

    def _put_back(self):
        """Put the ranks of this moment back in line: a rank that came in may go before them."""
        self.later[self.time] = self.ranks
        heappush(self.times, self.time)
        self.time, self.ranks = -math.inf, []

    def pop(self):
        """The rank that goes on next; None if there is none."""
        ranks = self.ranks
        if not ranks:
            if self.pending and (not self.times or self.times[0] > self.moment):
                self.settle()
            if not self.times:
                return None
            self.time = self.moment = heappop(self.times)
            ranks = self.ranks = self.later.pop(self.time)
            ranks.sort(reverse=True)
        return ranks.pop()

    def put_and_pop(self, time, rank):
        """Put `rank`, then take the one that goes on next, which may be `rank` itself."""
        if not self.ranks or time <= self.time:
            if not self.before(time, rank) and not (self.pending and time > self.moment):
                if time > self.moment:
                    self.moment = time
                return rank
            self.put(time, rank)
            return self.pop()
        # As mostly: others go on now, and `rank` later. What put and pop do, without their calls.
        ranks = self.later.get(time)
        if ranks is None:
            self.later[time] = [rank]
            heappush(self.times, time)
        else:
            ranks.append(rank)
        return self.ranks.pop()

    def remove(self, time, rank):
        """`rank`, which was to go on at `time`, does not."""
        if time == self.time and rank in self.ranks:
            self.ranks.remove(rank)
            return
        self.later[time].remove(rank)
        if not self.later[time]:
            del self.later[time]
            self.times.remove(time)
            heapify(self.times)

    def before(self, time, rank):
        """Return whether another goes on before a rank that is ready at `time`."""
        if self.ranks:
            return self.time < time or (self.time == time and self.ranks[-1] < rank)
        if not self.times or self.times[0] > time:
            return False
        return self.times[0] < time or min(self.later[time]) < rank

    def __iter__(self):
        """(time, rank) of all, in any order."""
        yield from ((self.time, rank) for rank in self.ranks)
        yield from ((time, rank) for time, ranks in self.later.items() for rank in ranks)
