"""Who holds what, and whose: follow every chunk of every rank through a run.

    followed = follow(ring_all_reduce, [torch.ones(8) for _ in range(4)], Link(10e-6, 1 / 450e9))
    followed.start[0][1]        # what rank 0 holds as its chunk 1 before the run
    followed.end[0][1]          # and after it: chunk 1 of rank 0, of rank 1, of rank 2, of rank 3

Nothing is told to it about the program. It is found out as one finds out which switch
belongs to which lamp: the program is simulated once for each chunk of each rank, with ones in
that chunk and zeros in every other. Where something else than zero turns up, in a message
or on a rank, that chunk has contributed. So it works for whatever moves, adds or averages
numbers or takes their maximum, and shows a mistake as it is: a chunk that was added twice
turns up as 2.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.given import a, function, optional, several, takes, whole
from ringtree.simulated.simulation import simulate
from ringtree.trace import Trace

__all__ = ["Followed", "follow"]

Content = tuple[tuple[int, int, int], ...]
"""What lies in a place: (rank, chunk, how often) for each chunk that is in it; () is nothing."""

MOST_RUNS = 1024


@dataclass(frozen=True)
class Followed:
    """What each rank held during a run.

    trace: the run. columns: (name, number of chunks) of what the ranks hold: the program's
    tensors, in the order of its arguments. A rank's chunks are numbered through, over all columns.
    start: by rank and chunk, the `Content` before the first message.
    sent: by message of the trace, the contents in it, in the order in which they lie in it.
    changes: by message, what it made of what the ranks hold: (rank, chunk, Content), in order.
    """

    trace: Trace
    columns: tuple[tuple[str, int], ...]
    start: tuple[tuple[Content, ...], ...]
    sent: tuple[tuple[Content, ...], ...]
    changes: tuple[tuple[tuple[int, int, Content], ...], ...]

    @property
    def end(self) -> tuple[tuple[Content, ...], ...]:
        """By rank and chunk, the content after the last message."""
        held = [list(chunks) for chunks in self.start]
        for changes in self.changes:
            for rank, chunk, content in changes:
                held[rank][chunk] = content
        return tuple(map(tuple, held))

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {count}" for name, count in self.columns)
        return f"Followed: {len(self.start)} ranks, {len(self.sent)} messages, chunks of {columns}"


@takes(
    program=function("a rank program, a function"),
    inputs=several("a list with an entry for each rank"),
    machine=a(Link, Machine, words="a Link or a Machine"),
    chunks=optional(whole(1)),
)
def follow(program, inputs: Sequence, machine: Link | Machine = Link(1.0, 0.0), *, chunks: int | None = None) -> Followed:  # noqa: B008
    """Find out what each rank holds, and whose it is, after every message of a rank program.

    program, inputs, machine: as for `ringtree.simulate`; the inputs tell only sizes
    and dtypes, and where no floating-point tensor is among them, tensors of whole numbers are
    followed. Take small ones: the program runs once for each chunk of each rank.
    chunks: into how many parts to cut each tensor (as `tensor_split` does). Left out, a
    tensor is cut where its messages begin and end, or into as many parts as there are ranks
    where none does; a tensor in a list is one chunk.

    What a rank had at first and neither sends nor keeps does not count: a buffer made for a
    result is empty until something comes, and so is one of zeros that never leaves its rank.

    Raises UsageError for a program whose messages depend on the numbers in its tensors (or
    multiplies them, or takes their minimum, which zeros would hide), and for more than 1,024 runs.
    """
    inputs = [entry if isinstance(entry, tuple) else (entry,) for entry in inputs]
    floating = any(tensor.is_floating_point() for entry in inputs for tensor, _ in _tensors(entry))
    plain = _Watch(len(inputs))
    run = simulate(plain.watched(program), inputs, machine, watch=plain)
    cells = [_cells(rank, entry, plain.cuts(), chunks, floating, len(inputs)) for rank, entry in enumerate(inputs)]
    columns = _columns(program, cells)
    if (runs := sum(map(len, cells))) > MOST_RUNS:
        raise UsageError(
            f"follow() would run the program {runs:,} times, once for each chunk of each rank: "
            f"give fewer ranks, or chunks= (at most {MOST_RUNS:,} in all)"
        )
    lit = [(rank, number) for rank in range(len(inputs)) for number in range(len(cells[rank]))]
    watches = [_Watch(len(inputs), cells, each) for each in lit]
    for watch in watches:
        simulate(watch.watched(program), inputs, machine, trace=False, watch=watch)
    start, sent, changes = _put_together(run.trace, cells, lit, [watch.events for watch in watches])
    zeros = _zeros(inputs, cells)
    start, changes = _without_what_never_counts(start, sent, changes, zeros)
    return Followed(run.trace, columns, *_frozen(start, sent, changes))


# -- the chunks ----------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """A chunk of a rank: of which tensor of its arguments, from which element to which."""

    argument: int
    tensor: int
    first: int
    last: int


def _tensors(entry):
    """The tensors among a rank's arguments, with (argument, whether it is one of a list)."""
    for argument, value in enumerate(entry):
        if isinstance(value, torch.Tensor):
            yield value, (argument, False)
        elif isinstance(value, tuple | list):
            yield from ((tensor, (argument, True)) for tensor in value if isinstance(tensor, torch.Tensor))


def _cells(rank, entry, cuts, chunks, floating, size) -> list[_Cell]:
    cells = []
    for index, (tensor, (argument, listed)) in enumerate(_tensors(entry)):
        if not tensor.numel() or tensor.is_floating_point() != floating:
            continue
        if not tensor.is_contiguous():
            raise UsageError(f"follow() was given a tensor on rank {rank} that lies scattered in memory: give x.contiguous()")
        here = _parts(tensor.numel(), chunks) if chunks else cuts.get((index, tensor.numel()))
        if not here:
            here = set() if listed else _parts(tensor.numel(), size)
        borders = sorted({0, tensor.numel(), *here})
        cells += [_Cell(argument, index, first, last) for first, last in zip(borders, borders[1:])]
    return cells


def _parts(count, parts) -> set[int]:
    whole, more = divmod(count, parts)
    return {part * whole + min(part, more) for part in range(parts)}


def _columns(program, cells):
    """(name, number of chunks) of each argument; every rank has the same, or the rank with most decides."""
    widest = max(cells, key=len, default=[])
    counts = Counter(cell.argument for cell in widest)
    if any(Counter(cell.argument for cell in each) - counts for each in cells):
        raise UsageError("follow() needs the same tensors on every rank, cut alike: give chunks=, or tensors of one size")
    names = _names(program)
    nameless = "tensor" if len(counts) == 1 else "argument {}"
    return tuple(
        (names[each] if each < len(names) else nameless.format(each + 1), count) for each, count in sorted(counts.items())
    )


def _names(program) -> list[str]:
    """What the program calls its arguments, as far as it names each: `*tensors` names none."""
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # a function of C has no signature to look at
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


# -- one run, watched ----------------------------------------------------------


class _Watch:
    """Notes what comes where during one simulated run, with ones in one chunk and zeros elsewhere."""

    def __init__(self, size, cells=None, lit=None):
        self.tensors = [None] * size
        self.lit_tensors = [()] * size  # by rank, the tensors that are followed, each with its chunks
        self.cells, self.lit = cells, lit
        self.touched = [set() for _ in range(size)]
        self.events = []

    def watched(self, program):
        def run(*arguments):
            rank = arguments[-1].get_rank()
            self.tensors[rank] = [tensor for tensor, _ in _tensors(arguments[:-1])]
            if self.cells is not None:
                self._light(rank)
            result = program(*arguments)
            if self.cells is not None:
                self._look(rank, float("inf"))
            return result

        return run

    def _light(self, rank):
        cells = self.cells[rank]
        places = {}
        for number, cell in enumerate(cells):
            places.setdefault(cell.tensor, []).append((number, cell.first))
        self.lit_tensors[rank] = [(self.tensors[rank][index].view(-1), where) for index, where in places.items()]
        for tensor, _ in self.lit_tensors[rank]:
            tensor.zero_()
        if self.lit[0] == rank:
            cell = cells[self.lit[1]]
            self.tensors[rank][cell.tensor].view(-1)[cell.first : cell.last] = 1

    def cuts(self) -> dict[tuple[int, int], set[int]]:
        """By tensor and its length, the elements at which messages of any rank begin and end."""
        cuts = {}
        for rank, touched in enumerate(self.touched):
            for index, element in touched:
                cuts.setdefault((index, self.tensors[rank][index].numel()), set()).add(element)
        return cuts

    # -- called by the simulator

    def before_wait(self, rank, now):
        if self.cells is not None:
            self._look(rank, now)

    def on_message(self, message, sent, received):
        if self.cells is None:
            self._touch(message.src, sent)
            self._touch(message.dst, received)
            return
        self._look(message.src, message.send_posted)
        self._look(message.dst, message.recv_posted)
        values = sent.reshape(-1).tolist()
        values = {place: value for place, value in enumerate(values) if value} if any(values) else {}
        arrived = [
            (number, cell.first - first)
            for tensor, first, last in self._places(message.dst, received)
            for number, cell in enumerate(self.cells[message.dst])
            if cell.tensor == tensor and first <= cell.first < last
        ]
        self.events.append((message, arrived, sent.numel(), values))

    def _places(self, rank, part):
        """The tensors of the rank in which `part` lies, and its first and last element there."""
        for index, tensor in enumerate(self.tensors[rank]):
            if tensor.untyped_storage().data_ptr() == part.untyped_storage().data_ptr():
                first = part.storage_offset() - tensor.storage_offset()
                yield index, first, first + part.numel()

    def _touch(self, rank, part):
        for index, first, last in self._places(rank, part):
            last = min(last, self.tensors[rank][index].numel())
            if 0 <= first < last:
                self.touched[rank] |= {(index, first), (index, last)}

    def _look(self, rank, now):
        held = {}
        for tensor, places in self.lit_tensors[rank]:
            values = tensor.tolist()
            if any(values):  # most are all zeros, which costs nothing more
                held.update((number, values[first]) for number, first in places if values[first])
        self.events.append((rank, now, held))


# -- all runs together ---------------------------------------------------------


def _put_together(trace, cells, lit, runs):
    """From what each run found, what each rank held at first, and what each message carried and changed."""
    place = {_key(message): index for index, message in enumerate(trace)}
    held = [[((rank, number, 1),) for number in range(len(each))] for rank, each in enumerate(cells)]
    start = [list(each) for each in held]
    sent = [()] * len(trace)
    changes = []  # (time, in which order found, message that caused it or -1, rank, chunk, content)
    over = [[] for _ in cells]  # by rank, (end, whether received, message) of its messages

    def change(time, cause, rank, number, content):
        if held[rank][number] != content:
            held[rank][number] = content
            changes.append((time, len(changes), cause, rank, number, content))

    if len({len(run) for run in runs}) > 1:
        raise _depends_on_numbers()
    for found in zip(*runs):
        if len({_shape(each) for each in found}) > 1:
            raise _depends_on_numbers()
        if isinstance(found[0][0], int):  # a rank looked at
            rank, now, _ = found[0]
            cause = max((each for each in over[rank] if each[0] <= now * (1 + 1e-12)), default=(0, 0, -1))[2]
            contents = _contents(len(cells[rank]), lit, [values for _, _, values in found])
            for number, content in enumerate(contents):
                change(now, cause, rank, number, content)
        else:
            message, arrived, count, _ = found[0]
            cause = place[_key(message)]
            contents = _contents(count, lit, [values for *_, values in found])
            sent[cause] = tuple(content for at, content in enumerate(contents) if not at or content != contents[at - 1])
            for number, at in arrived:
                change(message.end, cause, message.dst, number, contents[at])
            over[message.src].append((message.end, False, cause))
            over[message.dst].append((message.end, True, cause))
    by_message = [[] for _ in trace]
    for _, _, cause, rank, number, content in sorted(changes):
        if cause < 0:
            start[rank][number] = content
        else:
            by_message[cause].append((rank, number, content))
    return start, sent, by_message


def _key(message):
    # A rank sends one message at a time, so its start names it.
    return message.src, message.start, message.dst, message.tag, message.source


def _shape(event):
    return event[:2] if isinstance(event[0], int) else (_key(event[0]), event[2])


def _contents(count, lit, values) -> list[Content]:
    """Which lit chunks turned up in each of `count` places, and how often."""
    contents = [[] for _ in range(count)]
    for (rank, number), found in zip(lit, values):
        for at, value in found.items():
            times = int(value) if float(value).is_integer() and value > 0 else 1  # an average is a fraction
            contents[at].append((rank, number, times))
    return [tuple(content) for content in contents]


def _depends_on_numbers():
    return UsageError(
        "follow() was given a program whose messages depend on the numbers in its tensors: it replaces them by ones and "
        "zeros. Draw the trace of its own run instead."
    )


def _zeros(inputs, cells) -> set[tuple[int, int]]:
    """The chunks that the inputs give as zeros."""
    zeros = set()
    for rank, entry in enumerate(inputs):
        tensors = [tensor for tensor, _ in _tensors(entry)]
        for number, cell in enumerate(cells[rank]):
            if not tensors[cell.tensor].view(-1)[cell.first : cell.last].any():
                zeros.add((rank, number))
    return zeros


def _without_what_never_counts(start, sent, changes, zeros):
    """What a rank had at first, never sent and did not keep (or had as zeros) is nothing."""
    last = {(rank, number): content for rank, each in enumerate(start) for number, content in enumerate(each)}
    elsewhere = {origin[:2] for contents in sent for content in contents for origin in content}
    for rank, number, content in (each for changed in changes for each in changed):
        last[rank, number] = content
        elsewhere |= {origin[:2] for origin in content if origin[:2] != (rank, number)}
    nothing = {
        place
        for place, content in last.items()
        if place not in elsewhere and (place in zeros or place not in {origin[:2] for origin in content})
    }

    def without(content):
        return tuple(origin for origin in content if origin[:2] not in nothing)

    start = [[without(content) for content in each] for each in start]
    changes = [[(rank, number, without(content)) for rank, number, content in each] for each in changes]
    return start, changes


def _frozen(start, sent, changes):
    return tuple(map(tuple, start)), tuple(sent), tuple(map(tuple, changes))
