"""Virtual time: which rank goes on next, and when.

One greenlet a rank: each runs until it has to wait, and the rank with the earliest clock
goes on next, of those at one time the smallest, so the same input gives the same run, always.
Time never goes back: no rank asks for a message earlier than another has asked before it
(a rank that polls, by no more than the last digit of a float).
"""

import math
import sys
import threading
from functools import partial

import greenlet

from ringtree.simulated import faults
from ringtree.simulated.agenda import Agenda

FRUITLESS_LOOKS = 1000  # a rank that polls so often while nothing changes has nothing else to do


class Rank:
    """Where one rank stands, or a stream that runs beside it."""

    __slots__ = (
        "clock",
        "number",
        "turn",
        "now",
        "greenlet",
        "go_on",
        "output",
        "waiting",
        "inside",
        "called",
        "in_flight",
        "polled",
        "looks",
        "polls",
        "idle",
        "sending",
    )

    def __init__(self, clock, number, turn):
        self.clock = clock
        self.number = number
        self.turn = turn  # its number among all that take turns: its own, but for streams
        self.now = 0.0
        self.output = None
        self.waiting = None  # the work that it waits for, or waited for last
        self.inside = None  # the collective that it is in, where that holds the rank up
        self.called = None  # by group, how many collectives it has called
        self.in_flight = None  # in checked mode, a dict of the works whose buffers are guarded
        self.polled = set()  # works that it polls and that are not complete
        self.looks = 0  # how often it polled in vain since something changed
        self.polls = False  # whether it is ready only to poll again
        self.idle = None  # where it has polled so often that it now waits: until when, as far as known
        self.sending = []  # its sends that do not move yet, in the order in which they were asked for


class Clock:
    """Lets the ranks run, one at a time, in the order of their own clocks. ways: `greenlet`, or a `Threads`."""

    def __init__(self, size, notes, ways=greenlet):
        self.ways = ways
        self.ranks = [Rank(self, number, number) for number in range(size)]
        self.turns = [*self.ranks]  # ranks, and behind them the streams beside them
        self.agenda = Agenda()
        self.running = None  # the turn of who goes on now
        self.notes = notes
        self.unstarted = []
        self.home = threading.get_ident() if ways is greenlet else None  # where all ranks run; None: each has its thread
        self.refused = None  # the error of a program whose own threads have called the simulator
        self.hurry = None  # ends the run in a moment

    def run(self, bodies):
        """Run one function a rank until none can go on; those that still wait then have a `greenlet` that is not dead."""
        self.main = self.ways.getcurrent()
        for rank, body in zip(self.ranks, bodies, strict=True):
            rank.greenlet = self.ways.greenlet(self._from_here(body))
            rank.go_on = rank.greenlet.switch
            rank.go_on()
            self.agenda.put(rank.now, rank.turn)
        while True:
            if self.unstarted:
                self.unstarted.pop().go_on()
            elif (turn := self.agenda.pop()) is None:
                return
            else:
                self.running = turn
                self.turns[turn].go_on()

    def add(self, make):
        """One more takes turns, a stream: make(turn) is it, and runs from its first turn on."""
        stream = make(len(self.turns))
        self.turns.append(stream)
        stream.greenlet = self.ways.greenlet(stream.run, parent=self.main)
        stream.go_on = partial(self._start, stream)
        return stream

    def _start(self, stream):
        """A greenlet goes on at the depth at which it was started: so the main one starts it."""
        stream.go_on = stream.greenlet.switch
        self.unstarted.append(stream)
        self.main.switch()

    @property
    def streams(self):
        return self.turns[len(self.ranks) :]

    def _from_here(self, body):
        """A greenlet goes on at the depth at which it was started: so all are started, and come back, before the first runs."""

        def start():
            self.main.switch()
            body()

        return start

    def pause(self, rank):
        """`rank`, which is running, waits: let the rank that is next go on."""
        ranks = self.agenda.ranks
        turn = ranks.pop() if ranks else self.agenda.pop()  # mostly without its call
        try:
            if turn is None:
                self.main.switch()
            else:
                self.running = turn
                self.turns[turn].go_on()
        except greenlet.error:
            self.refuse_threads(rank)
            raise

    def advance(self, rank, time):
        """The running rank's clock moves to `time`; ranks that are earlier go first."""
        rank.now = time
        turn = self.agenda.put_and_pop(time, rank.turn)
        if turn != rank.turn:
            self.running = turn
            try:
                self.turns[turn].go_on()
            except greenlet.error:
                self.refuse_threads(rank)
                raise

    def refuse_threads(self, rank=None):
        """If the caller is a thread that the program has started, end it, and the run. rank: whose call it is, if known."""
        if self.home is None:
            if isinstance(threading.current_thread(), threading._DummyThread):
                return  # torch's own, while a rank waits in backward()
            home = self.ways.running()
        else:
            home = self.home
        if threading.get_ident() == home:
            return
        if self.refused is None:
            self.refused = faults.own_thread(rank and rank.number, sys._current_frames().get(home))
            self.hurry()
        raise SystemExit  # the one error that a thread may end with and Python prints nothing

    def compute(self, seconds, label):
        """The running rank has computed: its clock moves, and before it next asks for a message it has to `advance`."""
        rank = self.turns[self.running]
        self.notes.computed(rank.number, rank.now, seconds, label)
        rank.now += seconds

    def computing(self, seconds, label):
        """As `compute`, and ranks that are earlier go first."""
        self.compute(seconds, label)
        rank = self.turns[self.running]
        self.advance(rank, rank.now)

    # -- polling

    def look_again(self, rank, work):
        """A poll found nothing: others go on, and the rank's clock moves to when that may have changed."""
        polled, now = rank.polled, rank.now
        polled.add(work)
        if self.agenda.pending:  # what starts at this moment is not known before all have come to the end of it
            self.agenda.put(math.nextafter(self.agenda.moment, math.inf), rank.turn)
            rank.polls = True
            self.pause(rank)
            rank.polls = False
            if work.end is not None and work.end <= now:
                return
        moments = [each.end for each in polled if each.end is not None and each.end > now]
        moments += [time for time, other in self.agenda if not self.turns[other].polls]
        if moments:
            rank.now = max(now, min(moments))
            # Behind all that are ready at the same time, or it would poll forever.
            self.agenda.put(math.nextafter(rank.now, math.inf), rank.turn)
            rank.polls, rank.looks = True, 0
            self.pause(rank)
            rank.polls = False
            return
        rank.looks += 1
        if rank.looks > FRUITLESS_LOOKS:
            rank.waiting, rank.idle = work, math.inf
            self.pause(rank)
            rank.now, rank.waiting, rank.idle, rank.looks = rank.idle, None, None, 0

    def wake(self, rank, work):
        """`work` of an idle rank moves: the rank goes on when the first of all that it polls for has arrived."""
        if work in rank.polled and work.end < rank.idle:
            if rank.idle < math.inf:
                self.agenda.remove(rank.idle, rank.turn)
            rank.idle = max(work.end, rank.now)
            self.agenda.put(rank.idle, rank.turn)
