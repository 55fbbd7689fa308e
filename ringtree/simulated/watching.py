"""One run of a rank program, watched for `following`: what its messages bring, and what lies in which tensor when.

The tensors are the program's arguments and those of its own that matter to a reader: the one that it returns, and those from
which it sends. Its own are found among the variables of its functions, so they have its names.
"""

from __future__ import annotations

import dis
import os
import sys
from dataclasses import dataclass, field

import greenlet
import torch

from ringtree.errors import UsageError
from ringtree.speaks import of_a_collective

NOT_THEIRS = os.path.dirname(os.path.dirname(__file__)), torch.__path__[0]  # files whose variables are no program's
MOST_ROWS = 16  # of a matrix that is cut by its rows, where no message says how
MOST_ELEMENTS = 64  # of a tensor of the program's own that is followed element by element
NAMELESS = "returned"  # a tensor that a program returns and gives no name


# -- the chunks of the arguments -----------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A chunk of a rank: of which tensor of its arguments, from which element to which."""

    argument: int
    tensor: int
    first: int
    last: int


def tensors_of(entry):
    """The tensors among a rank's arguments, with (argument, whether it is one of a list)."""
    for argument, value in enumerate(entry):
        if isinstance(value, torch.Tensor):
            yield value, (argument, False)
        elif isinstance(value, tuple | list):
            yield from ((tensor, (argument, True)) for tensor in value if isinstance(tensor, torch.Tensor))


def cells_of(rank, entry, cuts, chunks, floating, size) -> list[Cell]:
    """The chunks of a rank's arguments. cuts: of `Watch.cuts`. chunks: into how many parts to cut each, or None."""
    cells = []
    for index, (tensor, (argument, listed)) in enumerate(tensors_of(entry)):
        if not tensor.numel() or tensor.is_floating_point() != floating:
            continue
        if not tensor.is_contiguous():
            raise UsageError(f"follow() was given a tensor on rank {rank} that lies scattered in memory: give x.contiguous()")
        rows = len(tensor) if tensor.dim() > 1 and len(tensor) <= MOST_ROWS else size
        borders = _borders(tensor.numel(), cuts, (index, tensor.numel()), listed, chunks, rows)
        cells += [Cell(argument, index, first, last) for first, last in zip(borders, borders[1:])]
    return cells


def _borders(count, cuts, name, listed, chunks, number) -> list[int]:
    here = parts(count, chunks) if chunks else cuts.get(name) or (set() if listed else cuts.get(count))
    if not here:
        here = set() if listed else parts(count, number)
    return sorted({0, count, *here})


def parts(count, parts) -> set[int]:
    whole, more = divmod(count, parts)
    return {part * whole + min(part, more) for part in range(parts)}


# -- the program's own tensors -------------------------------------------------


@dataclass(frozen=True)
class Own:
    """The tensors of the program's own that are followed: {variable: by rank, the numbers of elements of its tensors}.

    lists: the variables that are lists of tensors. columns: (name, number of chunks), once they are cut; places: by rank,
    (place, variable, number of the tensor in it, first element). single: the columns, by number, in which each element is a
    chunk, since they are as long as no argument.
    """

    lengths: dict = field(default_factory=dict)
    lists: frozenset = frozenset()
    columns: tuple = ()
    places: tuple = ()
    single: frozenset = frozenset()
    answer: str | None = None  # the variable that is returned

    def cut(self, first, cuts, chunks, size) -> Own:
        """The same with columns of chunks, whose places are numbered from `first` on."""
        columns, places, single = [], [[] for _ in range(size)], set()
        for name, by_rank in self.lengths.items():
            most = 0
            for rank, lengths in enumerate(by_rank):
                begins = []
                for index, count in enumerate(lengths):
                    if name not in self.lists and not chunks and count not in cuts and count <= MOST_ELEMENTS:
                        begins += [(index, begin) for begin in range(count)]
                        single.add(len(columns))
                    elif count:
                        borders = _borders(count, cuts, (name, index, count), name in self.lists, chunks, size)
                        begins += [(index, begin) for begin in borders[:-1]]
                places[rank] += [(first + at, name, *begin) for at, begin in enumerate(begins)]
                most = max(most, len(begins))
            if most:
                columns.append((name, most))
                first += most
        return Own(self.lengths, self.lists, tuple(columns), tuple(map(tuple, places)), frozenset(single), self.answer)


def _storage(tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _as_tensors(value) -> list:
    """A variable's tensors: itself, or those of a list of tensors alone; otherwise none."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple) and value and all(isinstance(each, torch.Tensor) for each in value):
        return list(value)
    return []


def _elements(variable) -> int:
    return sum(each.numel() for each in _as_tensors(variable))


def _returned_names(code) -> set[str]:
    """The variables that a function returns as they are."""
    found, before = set(), None
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_VALUE" and before is not None and before.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            found.add(before.argval)
        before = each
    return {name for name in found if isinstance(name, str)}


# -- one run, watched ----------------------------------------------------------


class Variables:
    """The variables of a program's functions on each rank, found by looking at where the rank is.

    own: the program's own tensors to look at. measuring: whether it is still to be found out which there are.
    """

    def __init__(self, size, own, measuring):
        self.tensors = [None] * size  # by rank, those among its arguments
        self.own, self.measuring = own or Own(), measuring
        self.homes = [None] * size  # by rank, the greenlet in which it runs
        self.variables = [{} for _ in range(size)]  # by rank, the program's own, as they were found last
        self.returned, self.results = [None] * size, [None] * size  # by rank, the name of its answer; the answer
        self.codes = [None] * size  # by rank, the outermost function of the program's own
        self.lengths = {}  # by variable and rank, the most elements of its tensors
        self.kinds, self.listed = {}, {}  # by variable, whether it holds fractions; whether it is a list

    def _find_variables(self, rank):
        """Look at the variables of the program's functions, where it is: the outermost function's come first."""
        home = self.homes[rank]
        if home is None or not self.measuring and self.own.places == ():
            return
        frame = sys._getframe() if home is greenlet.getcurrent() else home.gr_frame
        frames = []
        while frame is not None and frame.f_code is not _RUN:
            if not frame.f_code.co_filename.startswith(NOT_THEIRS):
                frames.append(frame)
            frame = frame.f_back
        found = {}
        for frame in reversed(frames):
            for name, value in frame.f_locals.items():
                if name not in found and _as_tensors(value):
                    # a list in the place of a loop's variable may change while it is looked at again
                    found[name] = list(value) if isinstance(value, list) else value
        if frames:
            self.codes[rank] = frames[-1].f_code
        self.variables[rank] |= found
        if self.measuring:
            for name, value in found.items():
                self._measure(rank, name, value)

    def _measure(self, rank, name, value):
        lengths = self.lengths.setdefault((name, rank), {})
        for index, tensor in enumerate(_as_tensors(value)):
            lengths[index] = max(lengths.get(index, 0), tensor.numel())
            self.kinds.setdefault(name, tensor.is_floating_point())
        self.listed.setdefault(name, not isinstance(value, torch.Tensor))

    def _note_returned(self, rank, result):
        """Under which name a rank knows what it returned, where that is no argument."""
        tensors = [each for each in _as_tensors(result) if each.numel()]
        self.results[rank] = result
        if self.own.answer:
            self.variables[rank][self.own.answer] = result
        given = {_storage(each) for each in self.tensors[rank] if each.numel()}
        if tensors and not {_storage(each) for each in tensors} <= given:
            self.returned[rank] = self._name_of(rank, result, tensors)

    def _name_of(self, rank, result, tensors):
        same = [name for name, value in self.variables[rank].items() if value is result]
        if same:
            return same[0]
        code = self.codes[rank]
        names = _returned_names(code) if code else set()
        if len(names) == 1:
            return names.pop()
        held = self._holding(rank, tensors[0])
        return held[0][0] if held and _elements(held[0][1]) == _elements(result) else NAMELESS

    def _holding(self, rank, part):
        """The variable in which `part` lies: of several the one with the most elements, and of these the outermost."""
        found = [
            (name, value)
            for name, value in self.variables[rank].items()
            if any(each.numel() and _storage(each) == _storage(part) for each in _as_tensors(value))
        ]
        return [max(found, key=lambda each: _elements(each[1]))] if found else []


class Watch(Variables):
    """Notes what comes where during one simulated run, with ones in one chunk and zeros elsewhere.

    lit: that chunk, as (rank, number); None for none. own: the program's own tensors to look at. Without cells it only finds
    out how the tensors are cut and which of the program's own there are.
    """

    zeros = True

    def __init__(self, size, cells=None, lit=None, own=None):
        super().__init__(size, own, measuring=cells is None)
        self.lit_tensors = [()] * size  # by rank, the arguments that are followed, each with its chunks
        self.cells, self.lit = cells, lit
        self.used = {}  # the variables from which messages are sent, in order
        self.touched = [set() for _ in range(size)]
        self.touched_own = set()
        self.events = []

    def watched(self, program):
        def run(*arguments):
            rank = arguments[-1].get_rank()
            self.homes[rank] = greenlet.getcurrent()
            self.tensors[rank] = [tensor for tensor, _ in tensors_of(arguments[:-1])]
            if self.cells is not None:
                self._light(rank)
            result = program(*arguments)
            self.homes[rank] = None
            self._note_returned(rank, result)
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
            if self.zeros:
                tensor.zero_()
        if self.lit is not None and self.lit[0] == rank:
            cell = cells[self.lit[1]]
            self.tensors[rank][cell.tensor].view(-1)[cell.first : cell.last] += 1

    # -- what the first run finds out

    def own_tensors(self, floating) -> Own:
        """The program's own that are to be followed: first what it returns, then those from which it sends."""
        sizes = range(len(self.tensors))
        if names := [each for each in self.returned if each]:
            answer = max(names, key=lambda name: (name != NAMELESS, names.count(name)))
            for rank in sizes:
                self.lengths.pop((answer, rank), None)
                self._measure(rank, answer, self.results[rank])
            self.used = {answer: True} | self.used
        names = list(self.used)
        lengths = {
            name: [[count for _, count in sorted(self.lengths.get((name, rank), {}).items())] for rank in sizes]
            for name in names
            if self.kinds.get(name) == floating
        }
        answer = answer if any(self.returned) else None
        return Own(lengths, frozenset(name for name in lengths if self.listed[name]), answer=answer)

    def cuts(self, own) -> dict:
        """Elements at which messages of any rank begin and end.

        By (tensor, its length) of the arguments; by (variable, number in its list, length) of the program's own; and by length,
        of all that are followed.
        """
        cuts = {}
        for rank, touched in enumerate(self.touched):
            for index, element in touched:
                count = self.tensors[rank][index].numel()
                cuts.setdefault((index, count), set()).add(element)
                cuts.setdefault(count, set()).add(element)
        for name, index, count, element in self.touched_own:
            if name in own.lengths:
                cuts.setdefault((name, index, count), set()).add(element)
                cuts.setdefault(count, set()).add(element)
        return cuts

    # -- called by the simulator

    def before_wait(self, rank, now):
        self._find_variables(rank)
        if self.cells is not None:
            self._look(rank, now)

    def on_message(self, message, sent, received):
        self._find_variables(message.src)
        self._find_variables(message.dst)
        if self.cells is None:
            self._touch(message.src, sent, not of_a_collective(message.tag))
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
        arrived += self._arrived_in_own(message.dst, received)
        self.events.append((message, arrived, sent.numel(), values))

    def _places(self, rank, part):
        """The tensors of the rank in which `part` lies, and its first and last element there."""
        for index, tensor in enumerate(self.tensors[rank]):
            if _storage(tensor) == _storage(part):
                first = part.storage_offset() - tensor.storage_offset()
                yield index, first, first + part.numel()

    def _arrived_in_own(self, rank, part):
        for place, name, index, begin in self.own.places[rank] if self.own.places else ():
            tensor = self._tensor(rank, name, index)
            if tensor is not None and tensor.is_contiguous() and _storage(tensor) == _storage(part):
                at = begin - (part.storage_offset() - tensor.storage_offset())
                if 0 <= at < part.numel():
                    yield place, at

    def _touch(self, rank, part, sends=False):
        if not part.numel():
            return
        theirs = False
        for index, first, last in self._places(rank, part):
            theirs = True
            last = min(last, self.tensors[rank][index].numel())
            if 0 <= first < last:
                self.touched[rank] |= {(index, first), (index, last)}
        if theirs:
            return
        for name, value in self._holding(rank, part):
            for index, tensor in enumerate(_as_tensors(value)):
                first = part.storage_offset() - tensor.storage_offset()
                last = first + part.numel()
                if _storage(tensor) == _storage(part) and 0 <= first < last <= tensor.numel() and tensor.is_contiguous():
                    count = tensor.numel()
                    self.touched_own |= {(name, index, count, first), (name, index, count, last)}
                    if sends:
                        self.used[name] = True

    def _tensor(self, rank, name, index):
        """A tensor of the program's own, as it is now; None where the variable has none, or an argument."""
        tensors = _as_tensors(self.variables[rank].get(name))
        if index >= len(tensors):
            return None
        final = self.homes[rank] is None and name == self.own.answer
        given = any(_storage(each) == _storage(tensors[index]) for each in self.tensors[rank])
        return tensors[index] if final or not given else None

    def _look(self, rank, now):
        held = {}
        for tensor, places in self.lit_tensors[rank]:
            values = tensor.tolist()
            if any(values):  # most are all zeros, which costs nothing more
                held.update((number, values[first]) for number, first in places if values[first])
        if self.own.places:
            seen = {}
            for place, name, index, first in self.own.places[rank]:
                if (name, index) not in seen:
                    tensor = self._tensor(rank, name, index)
                    seen[name, index] = None if tensor is None else tensor.detach().reshape(-1).tolist()
                values = seen[name, index]
                if values is not None and first < len(values) and values[first]:
                    held[place] = values[first]
        self.events.append((rank, now, held))


class Beside(Watch):
    """The same with the numbers given in the place of zeros."""

    zeros = False


_RUN = next(each for each in Watch.watched.__code__.co_consts if hasattr(each, "co_code"))
