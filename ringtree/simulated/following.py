"""Who holds what, and whose: follow every chunk of every rank through a run.

    followed = follow(ring_all_reduce, [torch.ones(8) for _ in range(4)], Link(10e-6, 1 / 450e9))
    followed.start[0][1]        # what rank 0 holds as its chunk 1 before the run
    followed.end[0][1]          # and after it: chunk 1 of rank 0, of rank 1, of rank 2, of rank 3

Nothing is told to it about the program. It is found out as one finds out which switch
belongs to which lamp: the program is simulated once with zeros everywhere, and once for each
chunk of each rank, with ones in that chunk and zeros in every other. Where the two differ, in a
message or on a rank, that chunk has contributed. So it works for programs that move, add or average
numbers or take their maximum, and shows a mistake as it is: a chunk that was added twice
turns up as 2. Where a message seems to carry nothing, since zeros hide a product, the program is
simulated once more for each chunk, with the numbers given and 1 added to those of the chunk.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.given import a, function, optional, several, takes, whole
from ringtree.simulated.simulation import simulate
from ringtree.simulated.torch_modes import unwritten_memory_shows
from ringtree.simulated.watching import Beside, Cell, Own, Watch, cells_of, tensors_of
from ringtree.trace import Message, Trace

__all__ = ["Followed", "follow"]

Content = tuple[tuple[int, int, int], ...]
"""What lies in a place: (rank, chunk, how often) for each chunk that is in it; () is nothing."""

MOST_RUNS = 1024


@dataclass(frozen=True)
class Followed:
    """What each rank held during a run.

    trace: the run. columns: (name, number of chunks) of what the ranks hold: the program's
    arguments in their order, then `own` tensors of its own under the names of its variables: the one
    that it returns, and those from which it sends. Where it has such, arguments that never change are
    left out. A rank's chunks are numbered through, over all columns.
    sources: (name, number of chunks) of all arguments: a `Content` numbers the chunks of these.
    start: by rank and chunk, the `Content` before the first message.
    sent: by message of the trace, the contents in it, in the order in which they lie in it.
    changes: by message, what it made of what the ranks hold: (rank, chunk, Content), in order.
    """

    trace: Trace
    columns: tuple[tuple[str, int], ...]
    start: tuple[tuple[Content, ...], ...]
    sent: tuple[tuple[Content, ...], ...]
    changes: tuple[tuple[tuple[int, int, Content], ...], ...]
    sources: tuple[tuple[str, int], ...] = ()
    own: int = 0

    def without(self, left_out: Callable[[Message], bool]) -> Followed:
        """Return the same run without some of its messages. What they changed counts as changed by the last message before them."""
        kept = [index for index, message in enumerate(self.trace) if not left_out(message)]
        trace = Trace([self.trace[index] for index in kept], size=self.trace.size, label=self.trace.label)
        start, changes = [list(chunks) for chunks in self.start], []
        for index, changed in enumerate(self.changes):
            if index in kept:
                changes.append(list(changed))
            elif changes:
                changes[-1] += changed
            else:
                for rank, chunk, content in changed:
                    start[rank][chunk] = content
        return replace(
            self,
            trace=trace,
            sent=tuple(self.sent[index] for index in kept),
            start=tuple(map(tuple, start)),
            changes=tuple(map(tuple, changes)),
        )

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
    tensor is cut where its messages begin and end, or where those of a tensor of its length do; where
    none does, a matrix is cut by its rows, and another tensor into as many parts as there are ranks; a
    tensor in a list is one chunk.

    What a rank had at first and neither sends nor adds to nor keeps does not count: a buffer made for a
    result is empty until something comes, and so is one of zeros that never leaves its rank.
    Numbers that the program makes itself, such as a count, are nobody's and do not show.

    Raises UsageError for a program whose messages depend on the numbers in its tensors, and for more than 1,024 runs.
    """
    inputs = [entry if isinstance(entry, tuple) else (entry,) for entry in inputs]
    floating = any(tensor.is_floating_point() for entry in inputs for tensor, _ in tensors_of(entry))
    plain = Watch(len(inputs))
    with unwritten_memory_shows():
        run = simulate(plain.watched(program), inputs, machine, watch=plain)
        own = plain.own_tensors(floating)
        cells = [cells_of(rank, entry, plain.cuts(own), chunks, floating, len(inputs)) for rank, entry in enumerate(inputs)]
        columns = _columns(program, cells)
        if (runs := sum(map(len, cells))) > MOST_RUNS:
            raise UsageError(
                f"follow() would run the program {runs:,} times, once for each chunk of each rank: "
                f"give fewer ranks, or chunks= (at most {MOST_RUNS:,} in all)"
            )
        own = own.cut(sum(count for _, count in columns), plain.cuts(own), chunks, len(inputs))
        held = start, sent, changes = _probed(program, inputs, machine, run.trace, cells, columns, own, Watch)
        if any(() in each for each in sent):  # zeros may have hidden what is multiplied
            with contextlib.suppress(Exception):  # on other numbers it may do anything
                held = max(held, _probed(program, inputs, machine, run.trace, cells, columns, own, Beside), key=_known)
    start, sent, changes = held
    hidden = _never_changing(columns, own, changes)
    start, changes = _without_what_never_counts(start, sent, changes, _zeros(inputs, cells), columns, hidden)
    start, changes, own_columns = _joined(start, changes, columns, own)
    start, changes = _without_places(start, changes, columns, hidden)
    shown = tuple(column for index, column in enumerate(columns) if index not in hidden)
    return Followed(run.trace, shown + own_columns, *_frozen(start, sent, changes), columns, len(own_columns))


def _probed(program, inputs, machine, trace, cells, columns, own, watch):
    """Return what each rank held at first, what each message carried and what it changed, by one run for each chunk of each rank."""
    lit = [(rank, number) for rank in range(len(inputs)) for number in range(len(cells[rank]))]
    watches = [watch(len(inputs), cells, each, own) for each in (None, *lit)]
    for each in watches:
        simulate(each.watched(program), inputs, machine, trace=False, watch=each)
    places = [_room(columns, own, len(each)) for each in cells]
    return _put_together(trace, cells, places, lit, _differences([each.events for each in watches], watch.zeros))


def _known(held) -> int:
    """In how many parts of messages something is known to lie."""
    _, sent, _ = held
    return sum(content != () for contents in sent for content in contents)


# -- the columns ---------------------------------------------------------------


def _columns(program, cells: list[list[Cell]]):
    """(name, number of chunks) of each argument; every rank has the same, or the rank with most decides."""
    widest = max(cells, key=len, default=[])
    counts = Counter(cell.argument for cell in widest)
    if any(Counter(cell.argument for cell in each) - counts for each in cells):
        raise UsageError("follow() needs the same tensors on every rank, cut alike: give chunks=, or tensors of the same size")
    names = _names(program)
    nameless = "tensor" if len(counts) == 1 else "argument {}"
    return tuple(
        (names[each] if each < len(names) else nameless.format(each + 1), count) for each, count in sorted(counts.items())
    )


def _names(program) -> list[str]:
    """Return what the program calls its arguments, as far as it names each: `*tensors` names none."""
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # a function of C has no signature to look at
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _room(columns, own: Own, arguments: int) -> int:
    """Return how many places a rank has: where the program has no tensors of its own, those of its arguments."""
    counts = [count for _, count in columns + own.columns]
    return sum(counts) if own.columns else arguments


def _never_changing(columns, own: Own, changes) -> set[int]:
    """The arguments, by number, whose places never change, where there is something else to look at."""
    if not own.columns:
        return set()
    changed = {place for each in changes for _, place, _ in each}
    return {index for index in range(len(columns)) if not changed & _places_of(columns, {index})}


# -- all runs together ---------------------------------------------------------


def _differences(runs, counted):
    """Yield what each run found beyond the first one, in which nothing is lit: its events with the differences of the values.

    counted: whether a difference says how often a chunk is there; otherwise each counts once.
    """
    if len({len(run) for run in runs}) > 1:
        raise _depends_on_numbers()
    for dark, *found in zip(*runs):
        if len({_shape(each) for each in (dark, *found)}) > 1:
            raise _depends_on_numbers()
        yield [(*each[:-1], _beyond(dark[-1], each[-1], counted)) for each in found]


def _beyond(dark: dict, values: dict, counted: bool) -> dict:
    """Of each place, by how much its value differs; memory that nobody has written to holds the same in both, or nan."""
    found = {}
    for place in values.keys() | dark.keys():
        by = values.get(place, 0) - dark.get(place, 0)
        if by and by == by:
            found[place] = by if counted else 1
    return found


def _put_together(trace, cells, places, lit, events):
    """From what the runs found, what each rank held at first, and what each message carried and changed."""
    place = {_key(message): index for index, message in enumerate(trace)}
    held = [
        [((rank, number, 1),) if number < len(each) else () for number in range(places[rank])]
        for rank, each in enumerate(cells)
    ]
    start = [list(each) for each in held]
    sent = [()] * len(trace)
    changes = []  # (time, in which order found, message that caused it or -1, rank, chunk, content)
    over = [[] for _ in cells]  # by rank, (end, whether received, message) of its messages

    def change(time, cause, rank, number, content):
        if held[rank][number] != content:
            held[rank][number] = content
            changes.append((time, len(changes), cause, rank, number, content))

    for found in events:
        if isinstance(found[0][0], int):  # a rank looked at
            rank, now, _ = found[0]
            cause = max((each for each in over[rank] if each[0] <= now * (1 + 1e-12)), default=(0, 0, -1))[2]
            contents = _contents(places[rank], lit, [values for _, _, values in found])
            for number, content in enumerate(contents):
                change(now, cause, rank, number, content)
        else:
            message, arrived, count, _ = found[0]
            cause = place.get(_key(message))
            if cause is None or trace[cause].nbytes != message.nbytes:
                raise _depends_on_numbers()
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
    """Return which lit chunks turned up in each of `count` places, and how often."""
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
        tensors = [tensor for tensor, _ in tensors_of(entry)]
        for number, cell in enumerate(cells[rank]):
            if not tensors[cell.tensor].view(-1)[cell.first : cell.last].any():
                zeros.add((rank, number))
    return zeros


def _without_what_never_counts(start, sent, changes, zeros, columns, hidden):
    """Drop what a rank had at first, never sent, never added to and did not keep (or had as zeros).

    A rank keeps what is in its tensors in the end, apart from the hidden ones. A copy in a tensor of the program's own says
    nothing by itself: where something else is written there later, it was only room.
    """
    arguments, unseen = sum(count for _, count in columns), _places_of(columns, hidden)
    last = {(rank, number): content for rank, each in enumerate(start) for number, content in enumerate(each)}
    had = {(rank, number) for rank, each in enumerate(start) for number, content in enumerate(each) if number < arguments}
    elsewhere = {origin[:2] for contents in sent for content in contents for origin in content}
    for rank, number, content in (each for changed in changes for each in changed):
        last[rank, number] = content
        if number < arguments:
            elsewhere |= {origin[:2] for origin in content if origin[:2] != (rank, number)}
        else:
            elsewhere |= {origin[:2] for origin in content if origin[0] != rank}
        if len(content) > 1:  # a sum, even one that is overwritten later: each of its parts was there
            elsewhere |= {origin[:2] for origin in content} - zeros
    for (_, number), content in last.items():
        if number >= arguments:
            elsewhere |= {origin[:2] for origin in content} - zeros
    nothing = {
        place
        for place in had
        if place not in elsewhere
        and (place in zeros or place[1] in unseen or place not in {origin[:2] for origin in last[place]})
    }

    def without(content):
        return tuple(origin for origin in content if origin[:2] not in nothing)

    start = [[without(content) for content in each] for each in start]
    changes = [[(rank, number, without(content)) for rank, number, content in each] for each in changes]
    return start, changes


def _places_of(columns, chosen) -> set[int]:
    """The places of the chosen columns, which are given by number."""
    places, first = set(), 0
    for index, (_, count) in enumerate(columns):
        places |= set(range(first, first + count)) if index in chosen else set()
        first += count
    return places


def _without_places(start, changes, columns, hidden):
    """The places of hidden columns left out, and the others numbered anew."""
    gone = _places_of(columns, hidden)
    start = [[content for place, content in enumerate(each) if place not in gone] for each in start]
    changes = [
        [(rank, place - sum(each < place for each in gone), content) for rank, place, content in each if place not in gone]
        for each in changes
    ]
    return start, changes


def _joined(start, changes, columns, own):
    """Neighboring elements in which the same lies on every rank, at all times, are one chunk: where the program's own were
    followed element by element. Returns also their columns."""
    first = sum(count for _, count in columns)
    new, shown = list(range(first)), []  # by place, its number among those that are kept, or None
    differs = set()
    for rank, each in enumerate(start):
        now = dict(enumerate(each))
        for changed in [(), *changes]:
            now.update((place, content) for other, place, content in changed if other == rank)
            differs |= {place for place in range(first + 1, len(each)) if now[place] != now[place - 1]}
    for index, (name, count) in enumerate(own.columns):
        kept = [place for place in range(first, first + count) if place == first or index not in own.single or place in differs]
        new += [
            len(new) - new.count(None) + kept.index(place) if place in kept else None for place in range(first, first + count)
        ]
        shown.append((name, len(kept)))
        first += count
    start = [[content for place, content in enumerate(each) if new[place] is not None] for each in start]
    changes = [[(rank, new[place], content) for rank, place, content in each if new[place] is not None] for each in changes]
    return start, changes, tuple(shown)


def _frozen(start, sent, changes):
    return tuple(map(tuple, start)), tuple(sent), tuple(map(tuple, changes))
