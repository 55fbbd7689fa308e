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
import ctypes
import gc
import linecache
import math
import os
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush, heappushpop

import torch
from greenlet import getcurrent, greenlet
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ringtree.cost import Link, Machine
from ringtree.sketch import Sketch
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
    inputs: one entry a rank: a tensor (or `ringtree.sketch.Sketch`, for sizes without
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
    clock = _Clock(len(inputs), machine, trace)
    clock.watch = watch
    arguments = [_copied(entry if isinstance(entry, tuple) else (entry,)) for entry in inputs]
    with _Deadline(seconds) as deadline, _watching(clock, gamma, checked):
        clock.run(program, arguments, deadline)
    kept = None
    if trace:
        kept = Trace(clock.messages, size=clock.size, spans=clock.spans, label="simulated")
    return Simulation(clock.outputs, kept, max(clock.now), clock.count)


def _copied(value):
    if isinstance(value, tuple | list):
        return type(value)(_copied(each) for each in value)
    return value.clone() if hasattr(value, "clone") else value


# ---------------------------------------------------------------- messages


class _Work:
    """Half of a message, as isend and irecv return it."""

    __slots__ = ("clock", "rank", "peer", "sends", "tensor", "nbytes", "posted", "end", "waiter", "tag", "place")

    def __init__(self, clock, rank, peer, sends, tensor, tag, place):
        self.clock = clock
        self.rank = rank
        self.peer = peer
        self.sends = sends
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.posted = clock.now[rank]
        self.tag = tag
        self.place = place
        self.end = None
        self.waiter = False

    def wait(self, timeout=None):
        clock, rank = self.clock, self.rank
        began = clock.now[rank]
        if clock.watch is not None:
            clock.watch.before_wait(rank, began)
        if self.end is None:
            self.waiter = True
            clock.waiting[rank] = self
            clock.pause()
            clock.waiting[rank] = None
        if self.end > clock.now[rank]:
            clock.advance(rank, self.end)
        if clock.notes:
            clock.waited(self, began)
        return True

    def is_completed(self):
        clock, rank = self.clock, self.rank
        if self.end is None or self.end > clock.now[rank]:
            clock.look_again(rank, self)
        done = self.end is not None and self.end <= clock.now[rank]
        if done:
            clock.polled[rank].discard(self)
        if done and clock.in_flight is not None:
            clock.in_flight[rank].pop(self, None)
        return done


class _Clock:
    """Virtual time, ports, and the ranks that wait."""

    def __init__(self, size, machine, keep):
        self.size = size
        self.now = [0.0] * size
        self.ready = []  # (time, rank) of ranks that can go on
        self.waiting = [None] * size  # the work that each rank waits for
        self.unmatched = {}  # (src, dst, tag) to a queue of works of one kind
        self.messages = [] if keep else None
        self.spans = []
        self.buffers = [{} for _ in range(size)]
        self.count = 0
        self.notes = keep  # whether waits are noted: for a trace, or to guard buffers
        self.gamma = 0.0
        self.in_flight = None  # by rank, works whose buffers are guarded, in checked mode
        self.moving = False  # the simulator itself is copying a message
        self.watch = None
        self.outputs = [None] * size
        self.groups = [0] * size
        self.polled = [set() for _ in range(size)]  # works that a rank polls and that are not complete
        self.pollers = set()  # ranks that are ready only to poll again
        self.looks = [(None, 0)] * size  # how often a rank polled while nothing changed
        self.idle = set()  # ranks that polled so often that they now wait
        self.machine = machine
        self.only_link = machine.inside if machine.between is None else None
        self.ports_out = [_Port() for _ in range(size)]
        self.ports_in = [_Port() for _ in range(size)]
        self.shared_out = defaultdict(_Port)
        self.shared_in = defaultdict(_Port)

    # -- running

    def run(self, program, arguments, deadline):
        self.main = getcurrent()
        self.ranks = [greenlet(self._rank_body(program, rank, arguments[rank])) for rank in range(self.size)]
        self.switches = [each.switch for each in self.ranks]
        for start in self.switches:
            start()  # from here, since a greenlet goes on at the depth at which it was started
        self.ready = [(0.0, rank) for rank in range(self.size)]
        try:
            while self.ready:
                self.now_running = heappop(self.ready)[1]
                self.switches[self.now_running]()
        except _TimeIsUp:
            raise self._endless(deadline) from None
        if any(not each.dead for each in self.ranks):
            raise self._deadlock()
        self._nothing_left()

    def _rank_body(self, program, rank, arguments):
        def body():
            self.main.switch()
            try:
                output = program(*arguments, SimulatedDist(self, rank))
            except (ProgramError, _TimeIsUp):
                raise
            except Exception as error:
                error.add_note(f"raised on simulated rank {rank}")
                raise
            self.outputs[rank] = arguments[0] if output is None and arguments else output

        return body

    def pause(self):
        """The running rank waits: let the rank with the earliest clock go on."""
        if self.ready:
            self.now_running = heappop(self.ready)[1]
            self.switches[self.now_running]()
        else:
            self.main.switch()

    def advance(self, rank, time):
        """The running rank's clock moves to `time`; ranks that are earlier go first."""
        self.now[rank] = time
        ready = self.ready
        if ready and ready[0] < (time, rank):
            self.now_running = heappushpop(ready, (time, rank))[1]
            self.switches[self.now_running]()

    def waited(self, work, began):
        """A rank has waited for a work: note it in the trace, and let go of its buffer."""
        rank = work.rank
        if self.messages is not None and self.now[rank] > began:
            label = f"to rank {work.peer}" if work.sends else f"from rank {work.peer}"
            self.spans.append(Span(rank, began, self.now[rank], label, "wait"))
        if self.in_flight is not None:
            self.in_flight[rank].pop(work, None)

    def reduced(self, nbytes):
        """The running rank has reduced so many bytes."""
        rank, start = self.now_running, self.now[self.now_running]
        self.now[rank] = start + nbytes * self.gamma
        if self.messages is not None:
            self.spans.append(Span(rank, start, self.now[rank], "reduce"))

    def look_again(self, rank, work):
        """A poll found nothing: others go on, and the rank's clock moves to when that may have changed."""
        polled, now = self.polled[rank], self.now[rank]
        polled.add(work)
        moments = [each.end for each in polled if each.end is not None and each.end > now]
        moments += [time for time, other in self.ready if other not in self.pollers]
        if moments:
            self.now[rank] = max(now, min(moments))
            # Behind all that are ready at the same time, or it would poll for ever.
            heappush(self.ready, (math.nextafter(self.now[rank], math.inf), rank))
            self.pollers.add(rank)
            self.pause()
            self.pollers.discard(rank)
            return
        state, looks = self.looks[rank]
        if state != (self.count, len(self.unmatched)):
            looks = 0
        self.looks[rank] = (self.count, len(self.unmatched)), looks + 1
        if looks >= FRUITLESS_LOOKS:
            self.idle.add(rank)
            self.waiting[rank] = work
            self.pause()
            self.waiting[rank] = None
            self.now[rank] = max(now, min(each.end for each in polled if each.end is not None))

    # -- matching

    def post(self, work, channel):
        if self.gamma and self.ready and self.ready[0] < (self.now[work.rank], work.rank):
            self.advance(work.rank, self.now[work.rank])  # it has computed: earlier ranks post first
            work.posted = self.now[work.rank]
        queue = self.unmatched.pop(channel, None)
        if queue is None:
            self.unmatched[channel] = [work]
        elif queue[0].sends == work.sends:
            queue.append(work)
            self.unmatched[channel] = queue
        else:
            other = queue.pop(0)
            if queue:
                self.unmatched[channel] = queue
            if work.sends:
                self.match(work, other)
            else:
                self.match(other, work)

    def match(self, send, receive):
        src, dst = send.rank, receive.rank
        nbytes = send.nbytes
        if nbytes != receive.nbytes or send.tensor.dtype != receive.tensor.dtype:
            raise _mismatch(send, receive)
        link = self.only_link or self.machine.link(src, dst)
        start = send.posted if send.posted > receive.posted else receive.posted
        duration = link.alpha + nbytes * link.beta
        way_out, way_in = self.ports_out[src], self.ports_in[dst]
        shares = self.machine.shared and self.machine.shares(src, dst)
        if not shares and way_out.free <= start and way_in.free <= start:
            end = way_out.free = way_in.free = start + duration  # nothing to wait for: as most messages go
        else:
            ports = way_out, way_in
            if shares:
                ports += self.shared_out[self.machine.node(src)], self.shared_in[self.machine.node(dst)]
            start = _book(ports, start, duration)
            end = start + duration
        if self.watch is not None:
            self.watch.on_message(self.message(send, receive, start, end), send.tensor, receive.tensor)
        self.moving = True
        receive.tensor.copy_(send.tensor)
        self.moving = False
        self.count += 1
        if self.messages is not None:
            self.messages.append(self.message(send, receive, start, end))
        for work in (send, receive):
            work.end = end
            if work.waiter:
                work.waiter = False
                now = self.now[work.rank]
                heappush(self.ready, (end if end > now else now, work.rank))
            elif work.rank in self.idle:
                self.idle.discard(work.rank)
                heappush(self.ready, (max(end, self.now[work.rank]), work.rank))

    def message(self, send, receive, start, end):
        places = self.place(send.rank, send.tensor), self.place(receive.rank, receive.tensor)
        return Message(
            send.rank, receive.rank, send.nbytes, start, end, send.tag, send.posted, receive.posted, *places
        )

    def place(self, rank, tensor):
        """Where a message lies: the rank's buffers are numbered as they are first used; first byte."""
        buffers = self.buffers[rank]
        key, first = tensor.untyped_storage().data_ptr(), tensor.storage_offset() * tensor.element_size()
        number, _ = buffers.setdefault(key, (len(buffers), tensor))
        return number, first

    def guard(self, tensor, written):
        """In checked mode: complain where the running rank uses a buffer that is in flight."""
        rank = self.now_running
        for work in self.in_flight[rank]:
            if (written or not work.sends) and _overlap(tensor, work.tensor):
                where = describe_place(_steps(sys._getframe())[-1:])
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
        stuck = [rank for rank in range(self.size) if not self.ranks[rank].dead]
        waits = {rank: self.waiting[rank].peer for rank in stuck}
        lines = ["deadlock." if len(stuck) == self.size else f"deadlock: {name_ranks(stuck)} can never finish."]
        for rank in stuck:
            work = self.waiting[rank]
            done = "" if work.peer in waits else ", which has finished"
            place = describe_place(_steps(self.ranks[rank].gr_frame))
            lines.append(f"rank {rank} {message_wait(work.sends, work.peer, done)}  [{place}]")
        if circle := describe_circle(waits):
            lines.append(circle)
        return Deadlock("\n  ".join(lines), waits)

    def _nothing_left(self):
        for (src, dst, _), queue in sorted(self.unmatched.items(), key=lambda item: item[0][:2]):
            for work in queue:
                if work.sends:
                    raise ProgramError(
                        f"rank {src} sent {work.nbytes} bytes to rank {dst}, which never received them  [{_at(work)}]"
                    )
                raise ProgramError(f"rank {dst} asked for a message from rank {src}, which never sent it  [{_at(work)}]")

    def _endless(self, deadline):
        rank = self.now_running
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


def _overlap(one, other):
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    first, second = one.storage_offset() * one.element_size(), other.storage_offset() * other.element_size()
    return first < second + other.nbytes and second < first + one.nbytes


def _mismatch(send, receive):
    return ProgramError(
        f"rank {send.rank} sends {send.nbytes} bytes of {send.tensor.dtype} to rank {receive.rank}  [{_at(send)}], "
        f"which expects {receive.nbytes} bytes of {receive.tensor.dtype}  [{_at(receive)}]: give both tensors one "
        "size and dtype"
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


def _steps(frame):
    """The program's own frames, outermost first, as (function, line number, source)."""
    steps = []
    while frame:
        code = frame.f_code
        if code.co_filename != __file__ and os.sep + "torch" + os.sep not in code.co_filename:
            steps.append((code.co_name, frame.f_lineno, linecache.getline(code.co_filename, frame.f_lineno).strip()))
        frame = frame.f_back
    return steps[::-1]


# ---------------------------------------------------------------- torch.distributed, simulated


@dataclass(frozen=True)
class Group:
    """Some of the ranks, as `new_group` returns them."""

    ranks: tuple
    number: int


class P2POp:
    """One entry of a batch, as torch's: `P2POp(dist.isend, tensor, peer)`."""

    __slots__ = ("sends", "tensor", "peer", "tag")

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        self.sends = op.__name__ == "isend"
        self.tensor = tensor
        self.peer = peer if group_peer is None else _global(group, group_peer)
        self.tag = tag if group is None else (group.number, tag)


def _global(group, rank):
    return rank if group is None else group.ranks[rank]


class SimulatedDist:
    """Speaks like `torch.distributed`, on a virtual clock; made by `simulate`, one for each rank.

    Collectives run a named algorithm of `ringtree.algorithms`, so that their cost is known:
    see `ringtree.algorithms.DEFAULTS`.
    """

    ReduceOp = torch.distributed.ReduceOp
    P2POp = P2POp

    def __init__(self, clock, rank):
        self._clock = clock
        self._rank = rank

    def get_rank(self, group=None):
        if group is None:
            return self._rank
        return group.ranks.index(self._rank) if self._rank in group.ranks else -1

    def get_world_size(self, group=None):
        return self._clock.size if group is None else len(group.ranks)

    def get_global_rank(self, group, group_rank):
        return _global(group, group_rank)

    def get_process_group_ranks(self, group=None):
        return list(range(self._clock.size)) if group is None else list(group.ranks)

    def new_group(self, ranks=None, **_):
        """A group of these ranks. Every rank calls it, in the same order, as with torch."""
        number = self._clock.groups[self._rank] = self._clock.groups[self._rank] + 1
        return Group(tuple(sorted(range(self._clock.size) if ranks is None else ranks)), number)

    def isend(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        peer = dst if group_dst is None else _global(group, group_dst)
        return self._post(True, tensor, peer, tag if group is None else (group.number, tag), _caller())

    def irecv(self, tensor, src=None, group=None, tag=0, group_src=None):
        peer = src if group_src is None else _global(group, group_src)
        return self._post(False, tensor, peer, tag if group is None else (group.number, tag), _caller())

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        peer = dst if group_dst is None else _global(group, group_dst)
        self._post(True, tensor, peer, tag if group is None else (group.number, tag), _caller()).wait()

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None):
        peer = src if group_src is None else _global(group, group_src)
        self._post(False, tensor, peer, tag if group is None else (group.number, tag), _caller()).wait()
        return peer

    def batch_isend_irecv(self, operations):
        place, post = _caller(), self._post
        return [post(each.sends, each.tensor, each.peer, each.tag, place) for each in operations]

    def _post(self, sends, tensor, peer, tag, place):
        clock, rank = self._clock, self._rank
        if peer.__class__ is not int or not 0 <= peer < clock.size or peer == rank:
            raise self._wrong_peer(peer, sends)
        work = _Work(clock, rank, peer, sends, tensor, tag, place)
        if clock.in_flight is not None:
            clock.in_flight[rank][work] = True
        clock.post(work, (rank, peer, tag) if sends else (peer, rank, tag))
        return work

    def _wrong_peer(self, peer, sends):
        what = "itself" if peer == self._rank else f"rank {peer!r}"
        verb = "send to" if sends else "receive from"
        return ProgramError(
            f"rank {self._rank} wants to {verb} {what}: give another rank, from 0 to {self._clock.size - 1}  "
            f"[{describe_place(_steps(sys._getframe())[-1:])}]"
        )

    def __getattr__(self, name):
        from ringtree import algorithms

        if name in algorithms.DEFAULTS:
            return lambda *args, **kwargs: algorithms.call(name, self, *args, **kwargs)
        raise AttributeError(
            f"the simulator has no {name!r}: rank programs use get_rank, get_world_size, send, recv, isend, irecv, "
            f"P2POp, batch_isend_irecv, new_group and the collectives {', '.join(algorithms.DEFAULTS)}"
        )


# ---------------------------------------------------------------- deadline, γ, checked mode


class _TimeIsUp(BaseException):
    pass


class _Deadline:
    """Interrupts a program that does not end: raises _TimeIsUp where it runs."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.steps = None
        self._thread = threading.get_ident()

    def __enter__(self):
        self._timer = threading.Timer(self.seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _interrupt(self):
        self.steps = _steps(sys._current_frames()[self._thread])[-1:]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_TimeIsUp))

    def __exit__(self, *_):
        self._timer.cancel()


REDUCTIONS = {"add", "add_", "maximum", "minimum", "mul", "mul_", "bitwise_and", "bitwise_or", "bitwise_xor"}


class _Watch(TorchDispatchMode):
    """Sees each tensor operation: charges γ for reducing, and guards buffers that are in flight."""

    def __init__(self, clock, gamma):
        super().__init__()
        self.clock, self.gamma = clock, gamma

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        clock = self.clock
        if clock.in_flight is not None and not clock.moving and not function.is_view:
            self.guard(function, args, kwargs or {})
        result = function(*args, **(kwargs or {}))
        if self.gamma and function._schema.name.removeprefix("aten::") in REDUCTIONS:
            clock.reduced(result.nbytes)
        return result

    def guard(self, function, args, kwargs):
        writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in function._schema.arguments]
        names = {argument.name: write for argument, write in zip(function._schema.arguments, writes)}
        used = [*zip(args, writes), *((value, names.get(name, False)) for name, value in kwargs.items())]
        for value, written in used:
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor):
                    self.clock.guard(tensor, written)


class _Reads(TorchFunctionMode):
    """Sees what reads a tensor without an operation of its own."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.clock.guard(args[0], written=False)
        return function(*args, **(kwargs or {}))


class _Sketches(TorchFunctionMode):
    """Charges γ for reducing sketches, of which torch's dispatcher never hears."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Sketch) and function.__name__ in REDUCTIONS:
            self.clock.reduced(result.nbytes)
        return result


@contextlib.contextmanager
def _watching(clock, gamma, checked):
    with contextlib.ExitStack() as modes:
        # A run makes many objects and no circles of them: looking for circles less often saves a tenth.
        modes.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(100_000, 20, 20)
        clock.gamma = gamma
        if checked:
            clock.in_flight = [{} for _ in range(clock.size)]
            clock.notes = True
            modes.enter_context(_Reads(clock))
        if gamma:
            modes.enter_context(_Sketches(clock))
        if checked or gamma:
            modes.enter_context(_Watch(clock, gamma))
        yield
