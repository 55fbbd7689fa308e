"""What a rank program costs: exactly, in whole chunks, for any p and n; as the textbooks say; and at least.

    cost_of(ring_all_reduce, 8, 1 << 20, Link(10e-6, 1 / 450e9))
    Cost(rounds=14, sent=(1835008, …), received=(1835008, …), time=…, path_bytes=1835008)

One of our algorithms is counted by its schedule (`ringtree.theory.schedules`), any other rank program by running it in the
simulator. `ALGORITHMS` lists ours, and `lower_bound` says what no algorithm can beat.

The rules are the simulator's: a message arrives α + nβ after its start, which is when both of its ranks have
come to it and the ports are free, a rank goes on when all its messages of a step have arrived, and reducing takes γ a
byte. Of messages that a rank posts together the ports take one after the other, in the order of a moment (`ringtree.simulated`).
Where ranks share network cards, or wait for one of several messages, the simulator counts those too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from ringtree import collectives
from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.given import Kind, a, number, several, takes, whole
from ringtree.theory import laying
from ringtree.theory.schedules import lg
from ringtree.theory.stepping import time_of_steps
from ringtree.theory.table import find, row_of

__all__ = ["Bound", "Cost", "cost_of", "lower_bound", "textbook_time"]


@dataclass(frozen=True)
class Cost:
    """rounds: messages one after the other (the time at α = g = 1, β = γ = 0: the textbook's one port). sent, received: bytes
    by rank. time: from the first start to the last end, seconds. path_bytes: bytes one after the
    other (the time at β = 1, α = γ = 0), which is what the time of long vectors follows."""

    rounds: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    time: float
    path_bytes: int

    @property
    def busiest_port(self) -> int:
        """Bytes through the busier port, out or in, of the busiest rank: no more than `path_bytes`."""
        return max(*self.sent, *self.received)


@dataclass(frozen=True)
class Bound:
    """No algorithm can do with less: rounds; bytes that some rank sends or receives, and bytes
    that some rank reduces, both as a fraction of n."""

    rounds: int
    moved: float
    reduced: float = 0.0


OPTIONS = {
    "root": 0,
    "chunks": 8,
    "slices": 2,
    "latency": 4,
    "ranks_per_node": 8,
}  # for programs that give no default of their own


SIZES = Kind(
    "a whole number, 0 or more, or a list of them",
    lambda value: whole().holds(value) or several("", whole().holds).holds(value),
)


@overload
def cost_of(
    program, size: int, nbytes: int, machine, *, gamma: float = ..., itemsize: int = ..., cards: str | None = ..., **options
) -> Cost: ...


@overload
def cost_of(
    program,
    size: int,
    nbytes: Sequence[int],
    machine,
    *,
    gamma: float = ...,
    itemsize: int = ...,
    cards: str | None = ...,
    **options,
) -> list[Cost]: ...


@takes(size=whole(1), nbytes=SIZES, machine=a(Link, Machine, words="a Link or a Machine"), gamma=number(), itemsize=whole(1))
def cost_of(program, size, nbytes, machine, *, gamma=0.0, itemsize=4, cards=None, **options):
    """The exact cost of a rank program on `size` ranks.

    program: one of our algorithms, or its name; or a program of your own, called as program(tensor, dist), or as
    program(outputs, inputs, dist) where `dist` is its third parameter. nbytes: the full vector, a whole number of elements
    of `itemsize` bytes (for an all-to-all, all blocks of one rank, cut as `tensor_split` cuts); or a list of such numbers, and a list
    of costs comes back, for the price of a few where a program is run. machine: a Link or a
    Machine. options: root, chunks, slices, latency, ranks_per_node, for those of ours that have them; any, for your own.

    cards: on a machine whose nodes have several network cards, a ring, a chain or a pair of trees of ours is laid once through
    each card, with its part of the vector; "one" asks for a single one, which leaves and enters every node by one card.

    Your own program runs in the simulator, without contents where it does not look at them, else with zeros.
    Raises UsageError for sizes and options that cannot be, and whatever your program raises.
    """
    sizes = [nbytes] if whole().holds(nbytes) else [int(each) for each in nbytes]
    for each in sizes:
        if each % itemsize:
            raise UsageError(
                f"cost_of got {size} ranks and {each} bytes in elements of {itemsize}: give at least one rank, and whole elements"
            )
    costs = _costs(
        program, size, sizes, Machine(machine) if isinstance(machine, Link) else machine, gamma, itemsize, cards, options
    )
    return costs[0] if whole().holds(nbytes) else costs


def _costs(program, size, sizes, machine, gamma, itemsize, cards, options) -> list[Cost]:
    row = row_of(program)
    if row is None and callable(program):
        return _simulated(program, size, [each // itemsize for each in sizes], _dtype(itemsize), machine, gamma, options)
    row, given = row or find(program), options
    options = _all_options(row, size, given)
    if cards not in (None, "one"):
        raise UsageError(
            f'cost_of got cards={cards!r}: leave it out for a ring through each card, or give "one" for a single ring'
        )
    if is_run(row, machine):
        counts = [each // itemsize for each in sizes]
        return _simulated(_of_one_tensor(row), size, counts, _dtype(itemsize), machine, gamma, given)
    return [
        _counted(row, size, _steps(row, size, each, machine, itemsize, options, cards), machine, gamma, options)
        for each in sizes
    ]


def _counted(row, size, steps, machine, gamma, options) -> Cost:
    time = row.time or time_of_steps
    sent, received = [0] * size, [0] * size
    for messages, _ in steps:
        for src, dst, length in messages:
            sent[src] += length
            received[dst] += length
    rounds, path = (round(time(steps, size, Machine(link), 0.0, options)) for link in (Link(1.0, 0.0), Link(0.0, 1.0)))
    return Cost(rounds, tuple(sent), tuple(received), time(steps, size, machine, gamma, options), path)


def seconds_of(row, size, sizes, machine, gamma, itemsize, given) -> list[float]:
    """Return the times that `cost_of` gives for one of our algorithms, without its counts: a third of the work."""
    if is_run(row, machine):
        cases = [(nbytes // itemsize, machine, gamma) for nbytes in sizes]
        return [each.makespan for each in _swept(_of_one_tensor(row), size, _dtype(itemsize), cases, given)]
    options, time = _all_options(row, size, given), row.time or time_of_steps
    return [time(_steps(row, size, each, machine, itemsize, options), size, machine, gamma, options) for each in sizes]


def is_run(row, machine) -> bool:
    """Return whether it is simulated: where ranks wait for one of several messages, a schedule does not say which is next."""
    return not row.stepwise or bool(machine.cards_per_node and row.time)


def _steps(row, size, nbytes, machine, itemsize, options, cards=None) -> list:
    """Its schedule: once through each card where it is laid so."""
    if cards is None and is_laid(row, size, machine):
        return laying.steps_through_each_card(row, size, nbytes, itemsize, options, machine)
    return list(row.steps(size, nbytes, itemsize, options))


def is_laid(row, size, machine) -> bool:
    """Return whether it goes once through each card: on several nodes with several cards."""
    several = (machine.cards_per_node or 1) > 1 and size > machine.ranks_per_node
    return row.laid and row.stepwise and row.time is None and several


def _simulated(program, size, counts, dtype, machine, gamma, options) -> list[Cost]:
    """The same of somebody's own program, counted from runs."""
    units = []
    for link in Link(1.0, 0.0), Link(0.0, 1.0):
        alike = replace(machine, inside=link, between=machine.between and link)  # so that one run stands for all
        units.append((Machine(link) if machine.cards_per_node else alike, 0.0))
    cases = [(count, *each) for count in counts for each in ((machine, gamma), *units)]
    swept = _swept(program, size, dtype, cases, options)
    return [
        Cost(round(rounds.makespan), run.sent, run.received, run.makespan, round(path.makespan))
        for run, rounds, path in zip(swept[::3], swept[1::3], swept[2::3])
    ]


def _swept(program, size, dtype, cases, options):
    """Return what `sweep` finds, without contents where the program does not look at them."""
    import torch

    from ringtree.simulated.sketch import Sketch
    from ringtree.simulated.sweep import sweep

    def of(make):
        return sweep(
            lambda *given: program(*given, **options),
            lambda count: [_arguments(program, make(count, dtype=dtype), rank, size) for rank in range(size)],
            cases,
        )

    try:
        return of(Sketch)
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        # It looks at the contents; or it is wrong, and then with tensors it raises what its writer knows.
        return of(torch.zeros)


def _of_one_tensor(row):
    """One of our algorithms as `_simulated` calls it."""
    if collectives.find(row.collective).before == "blocks":
        return lambda outputs, inputs, dist, **options: row.program(outputs, inputs, dist, **options)
    return lambda tensor, dist, **options: row.program(tensor, dist, **options)


def _arguments(program, tensor, rank, size):
    """Return what a rank's program is given before `dist`: one tensor, or blocks to fill and blocks to send."""
    try:
        parameters = list(inspect.signature(program).parameters)
    except (TypeError, ValueError):  # one that does not tell
        parameters = []
    place = parameters.index("dist") if "dist" in parameters else 1
    if place not in (1, 2):
        raise UsageError(
            f"cost_of calls program(tensor, dist) or program(outputs, inputs, dist), and {getattr(program, '__name__', program)} "
            f"takes ({', '.join(parameters)}): give one of that form, or simulate() it with inputs of your own"
        )
    return (tensor,) if place == 1 else blocks(tensor, rank, size)


def blocks(tensor, rank, size):
    """(outputs, inputs) of an all-to-all: a block for each rank, and room for those that come, each as long as one's own."""
    inputs = list(tensor.tensor_split(size))
    return [inputs[rank].clone() for _ in range(size)], inputs


def _dtype(itemsize):
    import torch

    kinds = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64}
    if itemsize not in kinds:
        raise UsageError(f"cost_of got elements of {itemsize!r} bytes for a program of your own: give 1, 2, 4 or 8")
    return kinds[itemsize]


@takes(size=whole(1), nbytes=whole(0), link=a(Link, words="a Link"), gamma=number(), itemsize=whole(1))
def textbook_time(program, size, nbytes, link, *, gamma=0.0, itemsize=4, **options) -> float | None:
    """The textbook's time for this p and n, or None where its form does not hold exactly."""
    row, options = find(program), _all_options(find(program), size, options)
    if row.form is None or nbytes % itemsize or not row.holds(size, nbytes // itemsize, options):
        return None
    return row.form(size, nbytes, link, gamma, options)


@takes(size=whole(1))
def lower_bound(collective, size) -> Bound:
    """Return what a collective needs on `size` ranks at least, whatever the algorithm (Chan et al. 2007).

    collective: a name as `ringtree.collectives.find` reads it. With n the full vector, some rank sends or receives moved·n
    bytes. The bounds hold one by one: an algorithm that meets one may miss the other. For shards of one length.
    Raises UsageError, with the names there are, for what is not a collective, and for fewer than one rank.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"lower_bound got {size!r} ranks: give a whole number, 1 or more")
    row = collectives.find(collective)
    return Bound(lg(size), row.moved(size), row.reduced(size))


def _all_options(row, size, options):
    """All options, those that are not given with their defaults."""
    parameters = inspect.signature(row.program).parameters
    known = [name for name in OPTIONS if name in parameters]
    for name, value in options.items():
        if name not in known:
            has = " and ".join(f"{each}=" for each in known) or "none"
            raise UsageError(f"{row.name} has no option {name}: it has {has}, so leave {name}= out")
        most = size - 1 if name == "root" else math.inf
        least = 0 if name == "root" else 1
        if type(value) is not int or not least <= value <= most:
            wanted = f"a rank, 0 to {most}" if name == "root" else "a whole number, 1 or more"
            raise UsageError(f"{row.name} got {name}={value!r}: give {wanted}")
    own = {name: parameters[name].default for name in known if parameters[name].default is not inspect.Parameter.empty}
    return {**OPTIONS, **own, **options}
