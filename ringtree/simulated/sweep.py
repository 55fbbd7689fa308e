"""One rank program for many sizes and links at the price of a few runs.

    sweep(program, entries, [(count, machine, gamma), …])       # as many separate runs, to the last digit

Who sends what to whom, and in which order a rank asks for it, does not depend on the size, as long as the program goes no other
way for it; only when. So one run is enough to know all messages: it is made with sketches that carry the lengths of all sizes
(`lengths`), and a `Tape` notes what each rank asked for, waited for and reduced. Then all sizes and links are timed at once
(`_timed`), an array of them where the run had one time.

What a port does first can depend on the size. So the order that was noted is checked in each case, by the simulator's own rule:
at each port messages become ready one after the other, those at one moment in the order of their places. A case in which that
does not hold is run anew, and so is one in which a message takes no time, since more may then follow at its moment. The lengths
part where the program decides by them, each part with a run of its own. And every case is run by itself if the program polls,
computes, runs collectives beside its ranks, or raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringtree.simulated.lengths import Differ, Lengths, first
from ringtree.simulated.messages import Work
from ringtree.simulated.network import Network
from ringtree.simulated.notes import Notes
from ringtree.simulated.simulation import run, simulate
from ringtree.simulated.sketch import len_gives_lengths

MOST = 1 << 45  # elements of a vector whose bytes and sums are whole numbers as floats too
AT_ONCE = 4_000_000  # times that are held at once


@dataclass(frozen=True)
class Swept:
    """What one case took: makespan in seconds, bytes sent and received by rank."""

    makespan: float
    sent: tuple[int, ...]
    received: tuple[int, ...]


class Untimed(BaseException):
    """The program does what only a run of its own can time. Not an Exception, so that no program catches it."""


def sweep(program, entries, cases) -> list[Swept]:
    """Time `program` in many cases.

    entries: a function from the count of a vector's elements to the entry of each rank, as `simulate` takes them; sketches.
    cases: (count, machine, gamma) of each. The program must be one that does in every run what it does in one, by itself: it
    keeps nothing from one rank or run to another. Raises what it raises in a separate run.
    """
    found: dict[int, Swept] = {}
    groups = _alike(cases)
    while groups:
        group = groups.pop()
        some = [cases[number] for number in group]
        if len(group) > 1:
            try:
                timed, holds = _together(program, entries, some)
            except Differ as ways:
                groups += [[each for each, same in zip(group, ways.same) if same == way] for way in (True, False)]
                continue
            except (Exception, Untimed):
                timed, holds = [], [False] * len(group)
            found.update((number, each) for number, each, held in zip(group, timed, holds) if held)
            rest = [number for number, held in zip(group, holds) if not held]
            again = len(rest) * 2 <= len(group)  # else the rest has few orders in common
            groups += [rest] if rest and again else [[number] for number in rest]
        else:
            found[group[0]] = _alone(program, entries, *some[0])
    return [found[number] for number in range(len(cases))]


def _alike(cases) -> list[list[int]]:
    """The numbers of the cases in groups that one run can stand for, with the same ports and the same messages between nodes.

    The one that is run comes first: of middle length, since the shortest have orders of their own.
    """
    groups: dict[tuple, list[int]] = {}
    for number, (count, machine, _) in enumerate(cases):
        alone = number if count > MOST else None
        groups.setdefault((machine.ranks_per_node, machine.cards_per_node, alone), []).append(number)
    for group in groups.values():
        group.sort(key=lambda number: cases[number][0])
        group.insert(0, group.pop(len(group) // 2))
    return [*groups.values()]


def _alone(program, entries, count, machine, gamma):
    done = simulate(program, entries(count), machine, gamma=gamma)
    return Swept(done.makespan, tuple(done.trace.bytes_sent), tuple(done.trace.bytes_received))


def _together(program, entries, cases):
    """Return what each case took, and whether that is sure; of the first it is."""
    counts, machines, gammas = zip(*cases)
    given = entries(Lengths(np.array(counts)))
    tape = Tape(Network(machines[0], len(given)), len(cases), gammas)
    with len_gives_lengths():
        done = run(program, given, tape.network, tape, gammas[0])
    tape.check()
    makespans, holds = tape.timed(machines, np.array(gammas, dtype=float))
    makespans[0], holds[0] = done.makespan, True
    sent, received = tape.traffic()
    return [
        Swept(*each) for each in zip(makespans.tolist(), map(tuple, sent.T.tolist()), map(tuple, received.T.tolist()))
    ], holds


# -- what is noted of the run -------------------------------------------------------


class TapedWork(Work):
    """A half of a message. at: the moment at which its rank asked for it; order: its place among all sends of its rank; before:
    how many of these the rank had waited for by then, in one row from the first; message: its number, once it moves."""

    __slots__ = ("at", "order", "before", "message", "waited")

    def wait(self, timeout=None):
        Work.wait(self)
        self.waited = True
        self.rank.clock.notes.came[self.rank.number].append(self.message)
        return True

    def is_completed(self):
        raise Untimed


class Tape(Notes):
    """What a run does, without times. A moment of a rank is (the one before, messages that had to come, reduced bytes)."""

    work = TapedWork

    def __init__(self, network, cases, gammas):
        size = network.size
        super().__init__(size, keep=False, watch=None)
        self.network, self.cases, self.gammas = network, cases, gammas
        self.moments = [(0, (), None)]
        self.at = [0] * size  # by rank, its last moment
        self.came = [[] for _ in range(size)]  # by rank, what it has waited for since
        self.sends = [[] for _ in range(size)]
        self.waited_for = [0] * size
        self.booked = []  # (moment of the sender, of the receiver, src, dst, nbytes, order, before), as they were booked
        self.clock = None

    wanted = True

    def carry(self, src, dst, nbytes, ready):
        return self.network.carry(src, dst, first(nbytes), ready)

    def posted(self, work):
        rank = work.rank
        self.clock, number = rank.clock, rank.number
        work.at, work.waited = self._now(number), False
        if work.operation[0]:
            sends = self.sends[number]
            before = self.waited_for[number]
            while before < len(sends) and sends[before].waited:
                before += 1
            self.waited_for[number] = work.before = before
            work.order = len(sends)
            sends.append(work)

    def _now(self, rank, reduced=None):
        came = self.came[rank]
        if came or reduced is not None:
            self.moments.append((self.at[rank], tuple(came), reduced))
            self.at[rank] = len(self.moments) - 1
            came.clear()
        return self.at[rank]

    def moved(self, send, receive, start, end):
        send.message = receive.message = len(self.booked)
        self.booked.append((
            send.at,
            receive.at,
            send.rank.number,
            receive.rank.number,
            send.operation[1].nbytes,
            send.order,
            send.before,
        ))

    def computed(self, rank, start, seconds, label):
        raise Untimed

    def reduces(self, clock, gamma):
        def reduced(nbytes):
            rank = clock.turns[clock.running]
            self._now(rank.number, nbytes)
            rank.now += first(nbytes) * gamma

        return reduced if any(self.gammas) else None

    def check(self):
        """Raises Untimed where something ran beside the ranks: whether it does may depend on time."""
        if self.clock is not None and self.clock.streams:
            raise Untimed

    # -- and its times in many cases

    def traffic(self):
        """Bytes sent and received: by rank and case."""
        sent, received = np.zeros((2, self.network.size, self.cases), dtype=np.int64)
        lengths, which = self._lengths([message[4] for message in self.booked])
        for total, ranks in (
            (sent, [message[2] for message in self.booked]),
            (received, [message[3] for message in self.booked]),
        ):
            np.add.at(total, np.array(ranks, dtype=int), lengths[which])
        return sent, received

    def _lengths(self, given):
        """(an array of all that differ, by case; of each that is given, which of them it is)."""
        numbers, rows, which = {}, [], []
        for each in given:
            key = each.each.tobytes() if type(each) is Lengths else each
            if key not in numbers:
                numbers[key] = len(rows)
                rows.append(np.broadcast_to(each.each if type(each) is Lengths else each, self.cases))
            which.append(numbers[key])
        return np.array(rows, dtype=np.int64).reshape(len(rows), self.cases), np.array(which, dtype=int)

    def timed(self, machines, gammas):
        """(makespans, whether each holds) on so many machines."""
        last = [self._now(rank) for rank in range(self.network.size)]
        plan = _Plan(self)
        links = np.array([
            [(link.alpha, link.beta, link.gap) for link in (each.inside, each.between or each.inside)] for each in machines
        ])
        step = max(1, AT_ONCE // (len(self.booked) + len(self.moments)))
        parts = []
        for some in (slice(begin, begin + step) for begin in range(0, self.cases, step)):
            parts.append(plan.timed(links[some].transpose(2, 1, 0), gammas[some], some, last))
        return [np.concatenate(each) for each in zip(*parts)]


class _Plan:
    """A tape in the order in which its times can be found: level after level, all messages and moments of one at once."""

    def __init__(self, tape):
        network, self.tape = tape.network, tape
        columns = [*zip(*tape.booked)] or [()] * 7
        self.asked, self.meets, self.src, dst, _, self.order, self.before = (
            np.array(each, dtype=int) if number != 4 else None for number, each in enumerate(columns)
        )
        self.lengths, self.length = tape._lengths(columns[4])
        self.reduced, reduces = tape._lengths([0 if each[2] is None else each[2] for each in tape.moments])
        between = [network.machine.node(src) != network.machine.node(dst) for src, dst in zip(columns[2], columns[3])]
        self.between = np.array(between, dtype=int)
        ports = [network.ports(src, dst) for src, dst in zip(columns[2], columns[3])]
        self.out, self.into = np.array(ports, dtype=int).reshape(-1, 2).T
        self.ports = len(network.out)
        self.by_port = [self._sorted(ports) for ports in (self.out, self.into)]
        self._levels(reduces)

    def _sorted(self, ports):
        """(the port of each message, the messages port by port, where each port begins)."""
        row = np.argsort(ports, kind="stable")
        return ports, row, np.searchsorted(ports[row], np.arange(self.ports + 1))

    def _levels(self, reduces):
        tape, at_port = self.tape, [[0] * self.ports, [0] * self.ports]
        of_message, of_moment = [], [0]

        def moments(until):
            for before, came, _ in tape.moments[len(of_moment) : until]:
                of_moment.append(max([of_moment[before] + 1, *(of_message[each] for each in came)]))

        for asked, meets, out, into in zip(*(each.tolist() for each in (self.asked, self.meets, self.out, self.into))):
            moments(max(asked, meets) + 1)
            level = 1 + max(of_moment[asked], of_moment[meets], at_port[0][out], at_port[1][into])
            at_port[0][out] = at_port[1][into] = level
            of_message.append(level)
        moments(None)
        self.levels = []
        messages, parts = _by_level(of_message), _by_level(of_moment)
        for level in range(1, max(of_moment + of_message) + 1):
            now = parts.get(level, [])
            waits = [each for each in now if tape.moments[each][1]]
            came = [tape.moments[each][1] for each in waits]
            starts = np.cumsum([0, *map(len, came)])[:-1]
            reducing = np.array([each for each in now if tape.moments[each][2] is not None], dtype=int)
            self.levels.append((
                np.array(messages.get(level, []), dtype=int),
                np.array(now, dtype=int),
                np.array([tape.moments[each][0] for each in now], dtype=int),
                np.array(waits, dtype=int),
                np.array([each for some in came for each in some], dtype=int),
                starts,
                reducing,
                reduces[reducing],
            ))

    def timed(self, links, gammas, some, last):
        """(makespans, whether each holds). links: (alpha, beta, gap) by kind of link and case."""
        alpha, beta, gap = links
        lengths, reduced = self.lengths[:, some], self.reduced[:, some] * gammas
        cases = len(gammas)
        now = np.zeros((len(self.tape.moments), cases))
        ready, begin, until, end = np.zeros((4, len(self.src), cases))
        out_free, into_free, out_gap, into_gap, out_widest, into_widest = np.zeros((6, self.ports, cases))
        holds = np.ones(cases, dtype=bool)
        for messages, moments, before, waits, came, starts, reducing, which in self.levels:
            if messages.size:
                out, into, kind = self.out[messages], self.into[messages], self.between[messages]
                moving = lengths[self.length[messages]] * beta[kind]
                when = np.maximum(now[self.asked[messages]], now[self.meets[messages]])
                was_out, was_into = out_free[out], into_free[into]
                start = np.maximum(when, np.maximum(was_out, was_into))
                busy = gap[kind] + moving
                # Whether it may fit in before one that was booked earlier, in a gap of its port out or its port in.
                early = (when < out_gap[out]) & (busy <= out_widest[out]) | (when < into_gap[into]) & (
                    busy <= into_widest[into]
                )
                for row in np.flatnonzero(early.any(axis=1)):
                    some = early[row]
                    booked = self._earlier(messages[row])
                    start[row, some] = _first_fit(
                        begin[booked][:, some], until[booked][:, some], when[row, some], busy[row, some]
                    )
                free, arrival = start + busy, start + (alpha[kind] + moving)
                # one that takes no time keeps no port, and its ranks go on at the moment at which it was booked
                holds &= ((free > start) & (arrival > when)).all(axis=0)
                for gaps, widest, ports, was in (out_gap, out_widest, out, was_out), (into_gap, into_widest, into, was_into):
                    gaps[ports] = np.where(start > was, start, gaps[ports])
                    widest[ports] = np.maximum(widest[ports], (start - was) * (1 + 1e-9))  # rounding
                out_free[out], into_free[into] = np.maximum(was_out, free), np.maximum(was_into, free)
                ready[messages], begin[messages], until[messages], end[messages] = when, start, free, arrival
            if moments.size:
                now[moments] = now[before]
                if waits.size:
                    now[waits] = np.maximum(now[waits], np.maximum.reduceat(end[came], starts))
                if reducing.size:
                    now[reducing] += reduced[which]
        return now[last].max(axis=0), holds & self._in_order(ready)

    def _earlier(self, message):
        """Return what was booked before a message at its two ports."""
        found = []
        for ports, row, begins in self.by_port:
            port = ports[message]
            some = row[begins[port] : begins[port + 1]]
            found.append(some[: np.searchsorted(some, message)])
        return np.concatenate(found)

    def _in_order(self, ready):
        """In which cases every port takes its messages in the order of the tape."""
        wrong = np.zeros(ready.shape[1], dtype=bool)
        for ports, row, _ in self.by_port:
            one, other = row[:-1], row[1:]
            same = ports[one] == ports[other]
            one, other = one[same], other[same]
            wrong |= (ready[one] > ready[other]).any(axis=0)
            ties = ready[one] == ready[other]
            tied = ties.any(axis=1)
            for this, that, tie in zip(one[tied].tolist(), other[tied].tolist(), ties[tied]):
                wrong |= tie & self._later(this, that, ready)
        return ~wrong

    def _later(self, one, other, ready):
        """Whether, of two that are ready at one moment, `one` comes behind `other`: by place among the sends, then by sender."""
        if self.src[one] == self.src[other]:
            return self.order[one] > self.order[other]
        places = self._place(one, ready), self._place(other, ready)
        return (places[0] > places[1]) | ((places[0] == places[1]) & (self.src[one] > self.src[other]))

    def _place(self, message, ready):
        before, last = self.before[message], self.order[message]
        if before == last:
            return np.zeros(ready.shape[1], dtype=int)
        sends = self._sends[self.src[message]][before:last]
        return (ready[sends] >= ready[message]).sum(axis=0)

    @cached_property
    def _sends(self):
        """By rank, its sends in the order in which it asked for them."""
        by_rank = [[] for _ in self.tape.sends]
        for number in np.lexsort((self.order, self.src)).tolist():
            by_rank[self.src[number]].append(number)
        return [np.array(each, dtype=int) for each in by_rank]


def _first_fit(begin, until, ready, busy):
    """The first moment from `ready` on at which none of what was booked, from `begin` to `until`, is in the way for so long."""
    order = begin.argsort(axis=0)
    begin = np.take_along_axis(begin, order, axis=0)
    until = np.take_along_axis(until, order, axis=0)
    # Behind all that begin before each of them, and behind all.
    starts = np.maximum.accumulate(np.concatenate([ready[None], until]), axis=0)
    fits = np.concatenate([starts[:-1] + busy <= begin, np.ones((1, len(ready)), dtype=bool)])
    return np.take_along_axis(starts, fits.argmax(axis=0)[None], axis=0)[0]


def _by_level(levels):
    groups = {}
    for number, level in enumerate(levels):
        groups.setdefault(level, []).append(number)
    return groups
