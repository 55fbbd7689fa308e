"""Run a rank program on all ranks in one process, on a virtual clock.

    run = simulate(ring_all_reduce, [torch.ones(8) * rank for rank in range(4)], Link(10e-6, 1 / 450e9))
    run.outputs[0], run.makespan, run.trace

A rank program is a function `f(tensors…, dist)` that uses what `torch.distributed`
offers. Here `dist` is a `SimulatedDist`: it moves the real tensors, charges α + nβ
for each message, and knows who waits for whom. The same function, unchanged, runs
on live ranks with `torch.distributed` itself.

The rules of the clock (Hockney's α-β model, ranks with one port out and one in):
- a message takes α + nβ of the link between its two ranks;
- a rank sends one message at a time and receives one at a time, both at once;
- a message starts when both ranks have asked for it and the ports are free; one that
  fits into an earlier gap takes the gap;
- a blocking send is a rendezvous: it returns when the message has arrived;
- computing takes no time, but for reducing, which takes γ a byte where γ is given.

One greenlet a rank: each runs until it has to wait, and the rank with the earliest
clock runs next, so the same input gives the same trace, always.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import math
import sys
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import torch
from greenlet import getcurrent, greenlet

from ringtree.cost import Link, Machine
from ringtree.simulated import builtin
from ringtree.simulated.watching import Deadline, TimeIsUp, overlap, program_steps, watching
from ringtree.trace import Message, Span, Trace
from ringtree.waits import describe_circle, describe_place, message_wait, name_ranks

__all__ = ["Deadlock", "ProgramError", "Simulation", "simulate"]


FRUITLESS_LOOKS = 1000  # a rank that polls so often while nothing changes has nothing else to do


class ProgramError(Exception):
    """A rank program is wrong; the message names ranks and lines."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class Deadlock(ProgramError):
    """Ranks wait for what never comes. waits: from each waiting rank to the rank it waits for."""

    def __init__(self, text, waits):
        super().__init__(text)
        self.waits = waits


@dataclass(frozen=True)
class Simulation:
    """A simulated run: each rank's output, the trace (None if not kept), makespan in seconds, messages."""

    outputs: list
    trace: Trace | None
    makespan: float
    messages: int


def simulate(program, inputs, machine, *, gamma=0.0, trace=True, checked=False, seconds=60.0, watch=None):
    """Run `program(*inputs[rank], dist)` on every rank of `machine`.

    program: a rank program. Its output is what it returns, or its first input where it
        returns nothing.
    inputs: one entry a rank: a tensor (or `ringtree.Sketch`, for sizes without
        contents), or a tuple of arguments. Tensors are copied first: yours stay as they are.
    machine: a `Link` between any two ranks, or a `Machine` with nodes.
    gamma: seconds that a rank takes to reduce one byte (slower to simulate).
    trace: whether to keep every message. Without it memory does not grow with the run.
    checked: also find a buffer that is changed while it is being sent, or used before what
        it receives has arrived (slower).
    seconds: real time after which a program that does not end is stopped.
    watch: told as watch.before_wait(rank, now) when a rank is about to wait, and as
        watch.on_message(message, sent, received) just before the one tensor is copied into the other.

    Returns a `Simulation`. Raises Deadlock; ProgramError for a message that is never
    received, for sizes or dtypes that differ, and for what `checked` finds; and whatever
    the program itself raises, with a note that names the rank.
    """
    if not inputs:
        raise ValueError("simulate got no inputs: give one entry for each rank, at least one")
    machine = Machine(machine) if isinstance(machine, Link) else machine
    clock = _Clock(len(inputs), machine, gamma, trace, checked, watch)
    arguments = [_copied(entry if isinstance(entry, tuple) else (entry,)) for entry in inputs]
    tensors = watching(clock.reduced if gamma else None, clock.guard if checked else None)
    with Deadline(seconds) as deadline, _fewer_collections(), tensors:
        clock.run(program, arguments, deadline)
    kept = None
    if trace:
        kept = Trace(clock.messages, size=clock.size, spans=clock.spans, label="simulated")
    return Simulation([rank.output for rank in clock.ranks], kept, max(rank.now for rank in clock.ranks), clock.count)


def _copied(value):
    if isinstance(value, tuple | list):
        return type(value)(_copied(each) for each in value)
    return value.clone() if hasattr(value, "clone") else value


@contextlib.contextmanager
def _fewer_collections():
    """A run makes many objects and few circles of them: looking for circles costs up to a fifth of its time.

    So it is done less often, and not among the objects that were there before.
    """
    before, freezes = gc.get_threshold(), not gc.get_freeze_count()
    gc.set_threshold(200_000, 50, 50)
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()


# ---------------------------------------------------------------- ranks, messages, order


class _Rank:
    """Where one rank stands."""

    __slots__ = (
        "clock", "number", "now", "greenlet", "go_on", "output", "waiting", "port_out", "port_in", "buffers", "kept",
        "in_flight", "groups", "polled", "looks", "polls", "idle",
    )  # fmt: skip

    def __init__(self, clock, number):
        self.clock = clock
        self.number = number
        self.now = 0.0
        self.output = None
        self.waiting = None  # the work that it waits for
        self.port_out, self.port_in = _Port(), _Port()
        self.buffers = {}  # by address, their numbers
        self.kept = []  # tensors in them, since no address may be used again
        self.in_flight = None  # works whose buffers are guarded, in checked mode
        self.groups = 0
        self.polled = set()  # works that it polls and that are not complete
        self.looks = None, 0  # how often it polled while nothing changed
        self.polls = False  # whether it is ready only to poll again
        self.idle = False  # whether it polled so often that it now waits


class _Work:
    """Half of a message, as isend and irecv return it."""

    # Without __init__, whose call would take as long as all the rest: SimulatedDist._post fills it in.
    __slots__ = ("rank", "operation", "place", "posted", "end")

    # the operation is what P2POp makes
    sends = property(lambda self: self.operation[0])
    tensor = property(lambda self: self.operation[1])
    peer = property(lambda self: self.operation[2])
    tag = property(lambda self: self.operation[3])

    def wait(self, timeout=None):
        rank, end = self.rank, self.end
        if end is None:
            rank.waiting = self
            rank.clock.pause()
            end = self.end
            if end > rank.now:
                rank.now = end
        elif end > rank.now:
            rank.clock.advance(rank, end)
        return True

    def is_completed(self):
        rank = self.rank
        if self.end is None or self.end > rank.now:
            rank.clock.look_again(rank, self)
        done = self.end is not None and self.end <= rank.now
        if done:
            rank.polled.discard(self)
        if done and rank.in_flight is not None:
            rank.in_flight.pop(self, None)
        return done


class _NotedWork(_Work):
    """A work whose wait is noted: for a trace, to guard buffers, or because somebody watches."""

    __slots__ = ()

    def wait(self, timeout=None):
        rank = self.rank
        clock, began = rank.clock, rank.now
        if clock.watch is not None:
            clock.watch.before_wait(rank.number, began)
        _Work.wait(self)
        if rank.now > began and clock.messages is not None:
            sends, _, peer, _ = self.operation
            clock.spans.append(_span((rank.number, began, rank.now, clock.labels[sends][peer], "wait")))
        if rank.in_flight is not None:
            rank.in_flight.pop(self, None)
        return True


class Agenda:
    """Which ranks can go on, and when: the earliest first, of those at one time the smallest first.

    Ranks mostly come in crowds that are ready at the same moment, so there is a list of
    ranks for each moment: quicker than a heap of ranks.
    """

    __slots__ = ("time", "ranks", "times", "later")

    def __init__(self):
        self.time = -math.inf
        self.ranks = []  # who goes on at `time`, the smallest last
        self.times = []  # a heap of the later times
        self.later = {}  # by later time, the ranks in any order

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
        """What comes in is no later than those about to go on: it has to be sorted in among them."""
        self.later[self.time] = self.ranks
        heappush(self.times, self.time)
        self.time, self.ranks = -math.inf, []

    def pop(self):
        """The rank that goes on next; None if there is none."""
        ranks = self.ranks
        if not ranks:
            if not self.times:
                return None
            self.time = heappop(self.times)
            ranks = self.ranks = self.later.pop(self.time)
            ranks.sort(reverse=True)
        return ranks.pop()

    def before(self, time, rank):
        """Whether another goes on before a rank that is ready at `time`."""
        if self.ranks:
            return self.time < time or (self.time == time and self.ranks[-1] < rank)
        if not self.times or self.times[0] > time:
            return False
        return self.times[0] < time or min(self.later[time]) < rank

    def __iter__(self):
        """(time, rank) of all, in any order."""
        yield from ((self.time, rank) for rank in self.ranks)
        yield from ((time, rank) for time, ranks in self.later.items() for rank in ranks)


# NamedTuples made as plain tuples are: their own constructors take five times as long.
_message, _span = partial(tuple.__new__, Message), partial(tuple.__new__, Span)


class _Clock:
    """Virtual time: which rank goes on, and when each message starts and ends."""

    def __init__(self, size, machine, gamma, keep, checked, watch):
        self.size = size
        self.ranks = [_Rank(self, number) for number in range(size)]
        self.agenda = Agenda()
        self.running = None  # number of the rank that goes on now
        self.unmatched = {}  # by channel, the first of the works that wait for their other half
        self.queues = defaultdict(deque)  # by channel, the others, where there are more
        self.count = 0
        self.messages = [] if keep else None
        self.spans = []
        self.labels = [[f"{way} rank {rank}" for rank in range(size)] for way in ("from", "to")]
        self.work = _NotedWork if keep or checked or watch is not None else _Work
        self.tells = keep or watch is not None  # whether anybody wants to know of each message
        self.careful = checked or gamma > 0
        self.moving = False  # the simulator itself is copying a message
        self.watch = watch
        self.gamma = gamma
        self.machine = machine
        self.only_link = machine.inside if machine.between is None else None
        self.shared = machine.shared
        self.shared_out = defaultdict(_Port)
        self.shared_in = defaultdict(_Port)
        if checked:
            for rank in self.ranks:
                rank.in_flight = {}

    # -- running

    def run(self, program, arguments, deadline):
        self.main = getcurrent()
        for rank in self.ranks:
            rank.greenlet = greenlet(self._rank_body(program, rank, arguments[rank.number]))
            rank.go_on = rank.greenlet.switch
            rank.go_on()  # from here, since a greenlet goes on at the depth at which it was started
            self.agenda.put(rank.now, rank.number)
        try:
            while (number := self.agenda.pop()) is not None:
                self.running = number
                self.ranks[number].go_on()
        except TimeIsUp:
            raise self._endless(deadline) from None
        if any(not rank.greenlet.dead for rank in self.ranks):
            raise self._deadlock()
        self._nothing_left()

    def _rank_body(self, program, rank, arguments):
        def body():
            self.main.switch()
            try:
                output = program(*arguments, SimulatedDist(rank))
            except (ProgramError, TimeIsUp):
                raise
            except Exception as error:
                if isinstance(error, AttributeError) and isinstance(error.obj, SimulatedDist):
                    error.args = (_lacks(error.name),)
                error.add_note(f"raised on simulated rank {rank.number}")
                raise
            rank.output = arguments[0] if output is None and arguments else output

        return body

    def pause(self):
        """The running rank waits: let the rank that is next go on."""
        number = self.agenda.pop()
        if number is None:
            self.main.switch()
        else:
            self.running = number
            self.ranks[number].go_on()

    def advance(self, rank, time):
        """The running rank's clock moves to `time`; ranks that are earlier go first."""
        rank.now = time
        if self.agenda.before(time, rank.number):
            self.agenda.put(time, rank.number)
            self.pause()

    def reduced(self, nbytes):
        """The running rank has reduced so many bytes."""
        rank = self.ranks[self.running]
        start = rank.now
        rank.now = start + nbytes * self.gamma
        if self.messages is not None:
            self.spans.append(_span((rank.number, start, rank.now, "reduce", "compute")))

    def look_again(self, rank, work):
        """A poll found nothing: others go on, and the rank's clock moves to when that may have changed."""
        polled, now = rank.polled, rank.now
        polled.add(work)
        moments = [each.end for each in polled if each.end is not None and each.end > now]
        moments += [time for time, other in self.agenda if not self.ranks[other].polls]
        if moments:
            rank.now = max(now, min(moments))
            # Behind all that are ready at the same time, or it would poll for ever.
            self.agenda.put(math.nextafter(rank.now, math.inf), rank.number)
            rank.polls = True
            self.pause()
            rank.polls = False
            return
        before, looks = rank.looks
        state = self.count, len(self.unmatched)
        looks = looks if state == before else 0
        rank.looks = state, looks + 1
        if looks >= FRUITLESS_LOOKS:
            rank.waiting, rank.idle = work, True
            self.pause()
            rank.now = max(now, min((each.end for each in polled if each.end is not None), default=now))

    # -- messages

    def before_post(self, work):
        """With γ or in checked mode there is more to do before a rank asks for a message."""
        rank = work.rank
        if self.gamma:
            self.advance(rank, rank.now)  # it may have computed: earlier ranks go first
            work.posted = rank.now
        if rank.in_flight is not None:
            rank.in_flight[work] = True

    def meet(self, first, work, channel):
        """A work comes where `first` already waits: they are the halves of a message, or two of one kind."""
        sends = work.operation[0]
        if first.operation[0] is sends:
            self.queues[channel].append(work)
            return
        if self.queues and channel in self.queues:
            self.unmatched[channel] = self.queues[channel].popleft()
            if not self.queues[channel]:
                del self.queues[channel]
        else:
            del self.unmatched[channel]
        send, receive = (work, first) if sends else (first, work)
        self.move(send, receive)
        rank = first.rank
        if rank.waiting is first or rank.idle:
            rank.waiting, rank.idle = None, False
            self.agenda.put(first.end if first.end > rank.now else rank.now, rank.number)

    def move(self, send, receive):
        """Both halves of a message have been asked for: it moves as soon as the ports allow it."""
        source, target = send.operation[1], receive.operation[1]
        nbytes = source.nbytes
        if nbytes != target.nbytes or source.dtype is not target.dtype:
            raise _mismatch(send, receive)
        if not (source.is_contiguous() and target.is_contiguous()):
            raise _with_gaps(receive if source.is_contiguous() else send)
        link = self.only_link or self.machine.link(receive.peer, send.peer)
        duration = link.alpha + nbytes * link.beta
        start = send.posted
        if receive.posted > start:
            start = receive.posted
        way_out, way_in = send.rank.port_out, receive.rank.port_in
        if self.shared or way_out.free > start or way_in.free > start:
            start = _book(self.ports(send, receive), start, duration)
            end = start + duration
        else:  # nothing to wait for: as most messages go
            end = way_out.free = way_in.free = start + duration
        if self.tells:
            self.tell(send, receive, start, end)
        self.moving = True
        target.copy_(source)
        self.moving = False
        self.count += 1
        send.end = receive.end = end

    def ports(self, send, receive):
        """All that a message has to pass, one at a time."""
        src, dst = receive.peer, send.peer
        ports = send.rank.port_out, receive.rank.port_in
        if self.machine.shares(src, dst):
            ports += self.shared_out[self.machine.node(src)], self.shared_in[self.machine.node(dst)]
        return ports

    def tell(self, send, receive, start, end):
        """Note a message in the trace, and tell of it who watches."""
        _, source, dst, tag = send.operation
        _, target, src, _ = receive.operation
        places = _place(send.rank, source), _place(receive.rank, target)
        message = _message((src, dst, source.nbytes, start, end, tag, send.posted, receive.posted, *places))
        if self.watch is not None:
            self.watch.on_message(message, source, target)
        if self.messages is not None:
            self.messages.append(message)

    def guard(self, tensor, written):
        """In checked mode: complain where the running rank uses a buffer that is in flight."""
        if self.moving:
            return
        rank = self.running
        for work in self.ranks[rank].in_flight:
            if (written or not work.sends) and overlap(tensor, work.tensor):
                where = describe_place(program_steps(sys._getframe())[-1:])
                if work.sends:
                    raise ProgramError(
                        f"rank {rank} changes the buffer that it is sending to rank {work.peer}  [{where}]: "
                        f"wait() for the send first  [{_at(work)}]"
                    )
                raise ProgramError(
                    f"rank {rank} {'changes' if written else 'reads'} the buffer for a message from rank {work.peer} "
                    f"that may not have arrived  [{where}]: wait() for it first  [{_at(work)}]"
                )

    # -- what goes wrong

    def _deadlock(self):
        stuck = [rank.number for rank in self.ranks if not rank.greenlet.dead]
        waits = {rank: self.ranks[rank].waiting.peer for rank in stuck}
        lines = ["deadlock." if len(stuck) == self.size else f"deadlock: {name_ranks(stuck)} can never finish."]
        for rank in stuck:
            work = self.ranks[rank].waiting
            done = "" if work.peer in waits else ", which has finished"
            place = describe_place(program_steps(self.ranks[rank].greenlet.gr_frame))
            lines.append(f"rank {rank} {message_wait(work.sends, work.peer, done)}  [{place}]")
        if circle := describe_circle(waits):
            lines.append(circle)
        return Deadlock("\n  ".join(lines), waits)

    def _nothing_left(self):
        if self.unmatched:
            work = min(self.unmatched.values(), key=_channel)
            rank, peer = work.rank.number, work.peer
            if work.sends:
                raise ProgramError(
                    f"rank {rank} sent {work.tensor.nbytes} bytes to rank {peer}, which never received them  [{_at(work)}]"
                )
            raise ProgramError(f"rank {rank} asked for a message from rank {peer}, which never sent it  [{_at(work)}]")

    def _endless(self, deadline):
        rank = self.running
        place = describe_place(deadline.steps) if deadline.steps else "its program"
        return ProgramError(
            f"the program had not ended after {deadline.seconds:g} s of real time; rank {rank} was running  [{place}]"
        )


class _Port:
    """When one message at a time may pass: free from some moment on, and in gaps before it."""

    __slots__ = ("free", "gaps")

    def __init__(self):
        self.free = 0.0
        self.gaps = []


def _book(ports, earliest, duration):
    """Take all ports for `duration` at the first moment from `earliest` on; returns that moment."""
    start = earliest
    gaps = False
    for port in ports:
        if port.free > start:
            start = port.free
        if port.gaps:
            gaps = True
    if gaps and start > earliest:
        start = _first_fit(ports, earliest, duration)
    for port in ports:
        if start > port.free:
            if start > earliest:
                port.gaps.append((max(port.free, earliest), start))
            port.free = start + duration
        elif start == port.free:
            port.free = start + duration
        else:
            _fill(port, start, start + duration)
    return start


def _first_fit(ports, earliest, duration):
    """The first moment at which every port is free for `duration`."""
    candidates = sorted({earliest, *(port.free for port in ports), *(gap[0] for port in ports for gap in port.gaps)})
    for start in candidates:
        if start >= earliest and all(
            start >= port.free or any(begin <= start and start + duration <= end for begin, end in port.gaps)
            for port in ports
        ):
            return start
    raise AssertionError("the last moment at which a port gets free always fits")


def _fill(port, start, end):
    rest = []
    for gap in port.gaps:
        if gap[0] <= start and end <= gap[1]:
            rest += [(gap[0], start), (end, gap[1])]
        elif gap[1] > start:  # what lies before what is booked now is past
            rest.append(gap)
    port.gaps = [gap for gap in rest if gap[0] < gap[1]]


def _place(rank, tensor):
    """Where a message lies: a rank's buffers are numbered as they are first used; first byte."""
    first, buffers = tensor.storage_offset() * tensor.element_size(), rank.buffers
    storage = tensor.untyped_storage().data_ptr()
    number = buffers.get(storage)
    if number is None:
        number = buffers[storage] = len(buffers)
        rank.kept.append(tensor)
    return number, first


def _channel(work):
    """(sender, receiver) of a work."""
    return (work.rank.number, work.peer) if work.sends else (work.peer, work.rank.number)


def _mismatch(send, receive):
    return ProgramError(
        f"rank {send.rank.number} sends {send.tensor.nbytes} bytes of {send.tensor.dtype} to rank {send.peer}  [{_at(send)}], "
        f"which expects {receive.tensor.nbytes} bytes of {receive.tensor.dtype}  [{_at(receive)}]: give both tensors one "
        "size and dtype"
    )


def _with_gaps(work):
    way = f"sends rank {work.peer}" if work.sends else f"receives from rank {work.peer} into"
    return ProgramError(
        f"rank {work.rank.number} {way} a tensor with gaps in memory, which torch.distributed refuses  [{_at(work)}]: "
        "give a contiguous one (x.contiguous() makes a copy)"
    )


def _at(work):
    code, instruction = work.place
    # a line is worked out only where it is told: that takes longer than a message
    number = next(line for start, end, line in code.co_lines() if start <= instruction < end)
    return describe_place([(code.co_name, number, linecache.getline(code.co_filename, number).strip())])


def _caller():
    """Where the program called: its code and the instruction."""
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti


# ---------------------------------------------------------------- torch.distributed, simulated


@dataclass(frozen=True)
class Group:
    """Some of the ranks, as `new_group` returns them."""

    ranks: tuple
    number: int


def _global(group, rank):
    return rank if group is None else group.ranks[rank]


class SimulatedDist:
    """Speaks like `torch.distributed`, on a virtual clock; made by `simulate`, one for each rank.

    Collectives run a named algorithm of `ringtree.algorithms`, so that their cost is known:
    see `ringtree.simulated.builtin.DEFAULTS`.
    """

    __slots__ = ("_rank",)  # and no __getattr__, which would make every call of a method slower

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, rank):
        self._rank = rank

    def get_rank(self, group=None):
        rank = self._rank.number
        if group is None:
            return rank
        return group.ranks.index(rank) if rank in group.ranks else -1

    def get_world_size(self, group=None):
        return self._rank.clock.size if group is None else len(group.ranks)

    def get_global_rank(self, group, group_rank):
        return _global(group, group_rank)

    def get_process_group_ranks(self, group=None):
        return list(range(self._rank.clock.size)) if group is None else list(group.ranks)

    def new_group(self, ranks=None, **_):
        """A group of these ranks. Every rank calls it, in the same order, as with torch."""
        self._rank.groups += 1
        return Group(tuple(sorted(range(self._rank.clock.size) if ranks is None else ranks)), self._rank.groups)

    def isend(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        return self._post((self.P2POp(self.isend, tensor, dst, group, tag, group_dst),), _caller())[0]

    def irecv(self, tensor, src=None, group=None, tag=0, group_src=None):
        return self._post((self.P2POp(self.irecv, tensor, src, group, tag, group_src),), _caller())[0]

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        self._post((self.P2POp(self.isend, tensor, dst, group, tag, group_dst),), _caller())[0].wait()

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None):
        work = self._post((self.P2POp(self.irecv, tensor, src, group, tag, group_src),), _caller())[0]
        work.wait()
        return work.peer

    def P2POp(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        """An entry for `batch_isend_irecv`: `op` is `dist.isend` or `dist.irecv`."""
        try:
            sends = SENDS[op.__func__]
        except (AttributeError, KeyError, TypeError):
            raise self._misuse(f"gives P2POp {getattr(op, '__name__', repr(op))}: give it dist.isend or dist.irecv") from None
        peer = peer if group_peer is None else _global(group, group_peer)
        return sends, tensor, peer, tag if group is None else (group.number, tag)

    def batch_isend_irecv(self, operations):
        if not operations or type(operations) is not list:
            given = "an empty list" if operations == [] else f"a {type(operations).__name__}"
            raise self._misuse(f"gives batch_isend_irecv {given}: give it a list of one or more dist.P2POp")
        return self._post(operations, _caller())

    def _post(self, operations, place):
        """Ask for halves of messages: returns their works. Where the other half is there, the message moves."""
        rank = self._rank
        clock, number = rank.clock, rank.number
        size, unmatched, new_work = clock.size, clock.unmatched, clock.work
        works = []
        for operation in operations:
            try:
                sends, _, peer, tag = operation
            except (TypeError, ValueError):
                raise self._misuse(
                    f"gives batch_isend_irecv a list with a {type(operation).__name__}: give it a list of dist.P2POp"
                ) from None
            if type(peer) is not int or not 0 <= peer < size or peer == number:
                raise self._wrong_peer(peer, sends)
            work = new_work()
            work.rank = rank
            work.operation = operation
            work.place = place
            work.posted = rank.now
            work.end = None
            if clock.careful:
                clock.before_post(work)
            channel = number * size + peer if sends else peer * size + number
            if tag != 0:
                channel = channel, tag
            first = unmatched.setdefault(channel, work)
            if first is not work:
                clock.meet(first, work, channel)
            works.append(work)
        return works

    def _wrong_peer(self, peer, sends):
        rank, size = self._rank.number, self._rank.clock.size
        what = "itself" if peer == rank else f"rank {peer!r}"
        return self._misuse(
            f"wants to {'send to' if sends else 'receive from'} {what}: give another rank, from 0 to {size - 1}"
        )

    def _misuse(self, what):
        where = describe_place(program_steps(sys._getframe())[-1:])
        return ProgramError(f"rank {self._rank.number} {what}  [{where}]")


SENDS = {SimulatedDist.isend: True, SimulatedDist.irecv: False}

COLLECTIVES = (
    "broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "all_gather_single", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip


def _collective(name):
    def call(dist, *args, **kwargs):
        return builtin.call(name, dist, *args, **kwargs)

    return call


for _name in COLLECTIVES:
    setattr(SimulatedDist, _name, _collective(_name))


def _lacks(name):
    return (
        f"the simulator has no {name!r}: rank programs use get_rank, get_world_size, send, recv, isend, irecv, "
        f"P2POp, batch_isend_irecv, new_group and the collectives {', '.join(COLLECTIVES)}"
    )
