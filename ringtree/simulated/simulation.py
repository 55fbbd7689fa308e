"""Run a rank program on all ranks in one process, on a virtual clock.

    run = simulate(ring_all_reduce, [torch.ones(8) * rank for rank in range(4)], Link(10e-6, 1 / 450e9))
    run.outputs[0], run.makespan, run.trace

A rank program is a function `f(tensors…, dist)` that uses what `torch.distributed`
offers. Here `dist` is a `SimulatedDist`: it moves the real tensors, charges α + nβ
for each message, and knows who waits for whom. The same function, unchanged, runs
on live ranks with `torch.distributed` itself.

The rules of the clock:
- a message is ready when both ranks have asked for it. It starts at the first moment from then on at which the sender's
  port out and the receiver's port in are both free for g + nβ, keeps both for so long, and arrives α + nβ after its start.
  `Link(alpha, beta)` has g = α, the textbook's one port; between nodes with network cards the ports are the cards';
- messages that are ready at the same moment get their ports by their place among their sender's sends that do not move yet,
  then by sender;
- a blocking send is a rendezvous: it returns when the message has arrived;
- computing takes no time, but for reducing, which takes γ a byte where γ is given, and for
  `ringtree.compute`, which takes the seconds that it is given;
- a collective is an algorithm of `ringtree.algorithms`, a ring of it once through each card of a node, and one with
  async_op=True runs beside its rank: in order within a group, through the same ports as all other messages.
"""

import contextlib
import gc
import threading
from dataclasses import dataclass

import greenlet
import torch

from ringtree import computing
from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.given import a, function, number, several, takes
from ringtree.simulated import faults, nccl_rules
from ringtree.simulated.clock import Clock
from ringtree.simulated.deadline import Deadline, TimeIsUp
from ringtree.simulated.dist import SimulatedDist, check_same_groups
from ringtree.simulated.faults import ProgramError
from ringtree.simulated.guard import Guard
from ringtree.simulated.messages import Messages
from ringtree.simulated.nccl_calls import NcclDist
from ringtree.simulated.network import Network
from ringtree.simulated.notes import Notes
from ringtree.simulated.threads import Threads
from ringtree.simulated.torch_modes import told_of_operations
from ringtree.trace import Trace


@dataclass(frozen=True)
class Simulation:
    """A simulated run: each rank's output, the trace (None if not kept), makespan in seconds, messages."""

    outputs: list
    trace: Trace | None
    makespan: float
    messages: int


@takes(
    program=function("a rank program, a function"),
    inputs=several("a list with an entry for each rank"),
    machine=a(Link, Machine, words="a Link or a Machine"),
    gamma=number(),
    seconds=number(above=True),
)
def simulate(
    program, inputs, machine, *, gamma=0.0, trace=True, checked=False, seconds=60.0, watch=None, rules="gloo", autograd=False
):
    """Run `program(*inputs[rank], dist)` on every rank of `machine`.

    program: a rank program. Its output is what it returns, or its first input where it
        returns nothing.
    inputs: one entry a rank: a tensor (or `ringtree.Sketch`, for sizes without
        contents), or a tuple of arguments. Tensors are copied first: yours stay as they are.
    machine: a `Link` between any two ranks, or a `Machine` with nodes.
    gamma: seconds that a rank takes to reduce one byte (slower to simulate).
    trace: whether to keep every message. Without it memory does not grow with the run.
    checked: also find a buffer that is changed while it is being sent, or used before what
        it receives has arrived, a message that is never waited for, and ranks that make other groups (slower).
    seconds: real time after which a program that does not end is stopped.
    watch: told as watch.before_wait(rank, now) when a rank is about to wait, and as
        watch.on_message(message, sent, received) just before the one tensor is copied into the other.
    rules: "nccl" also asks whether the program can end under NCCL's rules of pairing (`ringtree.simulated.nccl_rules`), with
        communicators made when first used and with all made at the start. Results and times stay those of "gloo".
    autograd: whether ranks call backward() (slower): each is a thread then, and nothing that moves brings a graph along.

    Returns a `Simulation`. Raises Deadlock; ProgramError for a message that is never
    received, for sizes or dtypes that differ, for a call that cannot be meant, and for what
    `checked` finds; and whatever the program itself raises, with a note that names the rank.
    """
    if rules not in ("gloo", "nccl"):
        raise UsageError(f'simulate got rules={rules!r}: give "gloo" or "nccl"')
    if not inputs:
        raise UsageError("simulate got no inputs: give one entry for each rank, at least one")
    machine = Machine(machine) if isinstance(machine, Link) else machine
    notes = Notes(len(inputs), trace, watch)
    return run(program, inputs, Network(machine, len(inputs)), notes, gamma, checked, seconds, rules, autograd)


def run(program, inputs, network, notes, gamma=0.0, checked=False, seconds=60.0, rules="gloo", autograd=False):
    """Return what `simulate` does. notes: who notes what happens, `Notes` or a `Tape`."""
    mode = torch.is_grad_enabled()
    ways = Threads(lambda: _conditions(clock, gamma, guard, issued, mode)) if autograd else greenlet
    clock = Clock(len(inputs), notes, ways)
    guard = Guard(clock) if checked else None
    messages = Messages(clock, network, notes, guard, late=gamma > 0, graphs=autograd)
    issued = [[] for _ in inputs] if rules == "nccl" else None
    dists = [NcclDist(rank, messages, issued[rank.number]) if issued else SimulatedDist(rank, messages) for rank in clock.ranks]
    bodies = [_body(program, dist, entry) for dist, entry in zip(dists, inputs)]
    with _refusing_threads(clock), contextlib.closing(ways) if autograd else contextlib.nullcontext(), _fewer_collections():
        with Deadline(seconds, autograd and ways.running) as deadline, computing.refusing(clock.refuse_threads):
            clock.hurry = deadline.hurry
            with _conditions(clock, gamma, guard, issued, mode):
                _run(clock, bodies, messages, deadline, rules)
    if guard is not None:
        guard.check_all_waited_for()
        check_same_groups(dists)
    if issued:
        nccl_rules.check(issued)
    return Simulation(
        [rank.output for rank in clock.ranks], notes.trace(), max(each.now for each in clock.turns), messages.count
    )


def _body(program, dist, entry):
    """Return what one rank runs."""
    rank = dist._rank
    arguments = _copied(entry if isinstance(entry, tuple) else (entry,))

    def body():
        try:
            output = program(*arguments, dist)
        except Exception as error:
            if refusal := faults.bad_call(rank.number, error):
                raise refusal from error
            _named(error, rank)
            raise
        rank.output = arguments[0] if output is None and arguments else output

    return body


def _named(error, rank):
    """Whatever the program raises is told with its rank."""
    if isinstance(error, AttributeError) and isinstance(error.obj, SimulatedDist):
        error.args = (faults.lacks(error.name),)
    if not isinstance(error, ProgramError):
        error.add_note(f"raised on simulated rank {rank.number}")


@contextlib.contextmanager
def _conditions(clock, gamma, guard, issued, mode):
    """Yield what torch keeps by thread, in a thread where ranks run. mode: whether gradients are noted."""
    told = told_of_operations(
        reduced=clock.notes.reduces(clock, gamma),
        used=guard and guard.used,
        read=issued and (lambda: issued[clock.turns[clock.running].number].append(("read", None))),
    )
    # A rank that is left inside torch.no_grad() would hand its mode to the next one, and in the end to the caller.
    with told, computing.inside(clock.computing), torch.set_grad_enabled(mode):
        yield


@contextlib.contextmanager
def _refusing_threads(clock):
    """A program whose own threads have called the simulator is told that, however its run ended."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        if clock.refused:
            raise clock.refused from None
        raise
    if clock.refused:
        raise clock.refused


def _run(clock, bodies, messages, deadline, rules):
    try:
        clock.run(bodies)
    except TimeIsUp:
        deadline.stop()
        if messages.differing:
            raise faults.differ(*messages.differing, clock.turns) from None
        raise faults.endless(clock.turns[clock.running].number, deadline) from None
    if messages.differing:
        raise faults.differ(*messages.differing, clock.turns)
    if any(not rank.greenlet.dead for rank in clock.ranks) or any(stream.busy for stream in clock.streams):
        raise faults.deadlock(clock.ranks, clock.streams, rules)
    messages.check_all_met()


def _copied(value):
    if isinstance(value, tuple | list):
        return type(value)(_copied(each) for each in value)
    return value.clone() if hasattr(value, "clone") else value


_runs = []  # a mark for each run that is under way: one inside the other, or side by side in threads
_before = None  # the collector's thresholds before the first of them
_runs_change = threading.Lock()


@contextlib.contextmanager
def _fewer_collections():
    """A run makes many objects and few circles of them: looking for circles costs up to a fifth of its time.

    So it is done less often, and not among the objects that were there before the first of the runs that are under way.
    (What is frozen already is not asked for: gc counts it one by one.)
    """
    global _before
    mark = object()
    with _runs_change:
        if not _runs:
            _before = gc.get_threshold()
            gc.set_threshold(200_000, 50, 50)
            gc.freeze()
        _runs.append(mark)
    try:
        yield
    finally:
        with _runs_change:
            _runs.remove(mark)
            if not _runs:
                gc.set_threshold(*_before)
                gc.unfreeze()
