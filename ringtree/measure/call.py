"""What is to be measured: a call of torch.distributed or of a rank program, its type, operation and root, every argument checked.

Sizes are counted as nccl-tests counts them: the bytes of the full vector. For an all-gather that
is every rank's output, for a reduce-scatter every rank's input, for an all-to-all all blocks of
one rank. `count` is what a rank passes: the full vector's elements, or a shard's where there are
shards.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from ringtree.collectives import TABLE, Collective, call_names, find
from ringtree.errors import UsageError
from ringtree.operations import FLOATING, FP8, ITEMSIZE, LACKS, OPERATIONS, TYPES


@dataclass(frozen=True)
class Call:
    """What one call is, every argument checked.

    name: of the call of torch.distributed, or of the rank program. collective: its row of
    `ringtree.collectives`. program: the rank program, None for torch's own. form: how it takes its tensors,
    "one", "list" or "flat", as that table says. op: its name in nccl-tests, "none" where nothing is
    reduced. dtype: NCCL's name. root: -1 where there is none. in_place: whether the result replaces the
    input. options: further arguments of the program.
    """

    name: str
    collective: Collective
    program: Callable | None
    form: str
    op: str
    dtype: str
    root: int
    in_place: bool
    options: dict = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether it moves no data, as a barrier does: it has neither size nor type."""
        return self.collective.before == "nothing"

    def count(self, size: int, ranks: int) -> int:
        """Elements that a rank passes for `size` bytes of the full vector, rounded down to whole ones."""
        if self.empty:
            return 0
        least = self.size(1, ranks)
        if size < least:
            each = f" for each of {ranks} ranks" if self.collective.sharded and ranks > 1 else ""
            raise UsageError(
                f"{self.name}: {size} bytes are less than one {self.dtype}{each}; give sizes of {least} bytes or more"
            )
        return size // least

    def size(self, count: int, ranks: int) -> int:
        """The bytes of the full vector."""
        return count * ITEMSIZE[self.dtype] * (ranks if self.collective.sharded else 1)


def describe(what, of=None, op=None, dtype="float", root=0, in_place=None, ranks=1, backend=None, options=None) -> Call:
    """Check what a reader wants measured, and put it in order; the arguments are `measure`'s.

    Raises UsageError, with one sentence, on what cannot be.
    """
    name, collective, program = _named(what, of)
    op = _operation(op, collective, name, program, backend)
    dtype = _type(dtype, program, collective, backend)
    if op == "avg" and dtype not in FLOATING or op != "none" and OPERATIONS[op].bitwise and dtype in FLOATING:
        raise UsageError(f"op={op!r} does not go with {dtype}: averages need floats, bitwise operations need integers")
    if root != 0 and collective.root is None:
        raise UsageError(f"root={root!r} was given and {collective.name} has no root: leave it out")
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < ranks:
        raise UsageError(f"root={root!r} is not one of the {ranks} ranks: give a number from 0 to {ranks - 1}")
    _check_arguments(name, program, op, root, options or {})
    form = _form(name, collective, program)
    in_place = _in_place(in_place, name, collective, form)
    root = -1 if collective.root is None else root
    return Call(name, collective, program, form, op, dtype, root, in_place, dict(options or {}))


def _named(what, of):
    """(name, collective, program) of torch's own call, or of a rank program."""
    if isinstance(what, str) and (own := _torchs(what)):
        if of is not None and _collective(of) is not own[1]:
            raise UsageError(f"{what!r} is torch's own call, which is not {of}: leave of= out")
        return *own, None
    if not isinstance(what, str) and not callable(what):
        raise UsageError(f"measure got {what!r}: give the name of a collective, such as 'all_reduce', or a rank program")
    known = _algorithm(what)
    if known is not None:
        return known.name, _collective(known.collective if of is None else of), known.program
    if isinstance(what, str):
        raise UsageError(f"there is no collective called {what!r}: {_hint(what)}")
    name = getattr(what, "__name__", type(what).__name__)
    if of is None:
        raise UsageError(
            f"{name} is not one of ringtree's algorithms: say which collective it is, for instance of='all_reduce'"
        )
    return name, _collective(of), what


def _torchs(what):
    """(name, collective) of torch's own call, from its name or its collective's; None where it has no such call."""
    try:
        row = find(what)
    except UsageError:
        return None
    name = what.replace("-", "_")
    return name if name in row.calls else next(iter(row.calls)), row


def _collective(of):
    try:
        return find(of)
    except UsageError as error:
        raise UsageError(f"of={error}") from None


def _algorithm(what):
    """The row of `ringtree.theory`'s table for an algorithm of ours, or its name; else None."""
    from ringtree.theory.table import row_of

    return row_of(what)


def sendable(what):
    """An algorithm of ours by its name, all else as it is: functions reach other processes as copies, which nobody recognizes."""
    known = _algorithm(what)
    return what if known is None else known.name


def _hint(what):
    from ringtree.theory import ALGORITHMS

    near = difflib.get_close_matches(what.replace("-", "_"), [*call_names(), *(row.name for row in ALGORITHMS)], n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"give one of {', '.join(call_names())}, or a rank program"


def _operation(op, collective, name, program, backend):
    if op is None:
        return "sum" if collective.reduces else "none"
    given, op = op, str(getattr(op, "name", op)).lower()
    op = {"product": "prod", "average": "avg"}.get(op, op)
    if op not in OPERATIONS:
        raise UsageError(f"op={given!r} is not an operation: give one of {', '.join(OPERATIONS)}")
    if not collective.reduces:
        raise UsageError(f"op={given!r} was given and {collective.name} reduces nothing: leave it out")
    if program is None and op in LACKS.get(backend, ()):
        raise UsageError(
            f"{backend} has no {op} for {name}: take one of {', '.join(o for o in OPERATIONS if o not in LACKS[backend])}"
        )
    if program is not None and op == "avg":
        raise UsageError(
            f"{name} is a rank program, which takes a function of two tensors, and an average is not one: take op='sum'"
        )
    return op


def _type(dtype, program, collective, backend):
    name = str(dtype).removeprefix("torch.")
    found = next((nccl for nccl, torchs in (TYPES | FP8).items() if name in (nccl, torchs)), None)
    if found is None:
        raise UsageError(f"dtype={dtype!r} cannot be measured: give one of {', '.join(TYPES | FP8)}")
    if found in FP8 and program is None and backend == "gloo":
        raise UsageError(f"gloo has no {found}, which NCCL alone has: give one of {', '.join(TYPES)}")
    if found in FP8 and program is not None and collective.reduces:
        raise UsageError(
            f"PyTorch has no sum of two {found} tensors, which a rank program needs: give one of {', '.join(TYPES)}"
        )
    return found


def _form(name, collective, program):
    """A rank program takes one tensor, in place; lists of them where every rank has a block for every other."""
    if program is None:
        return collective.calls[name]
    return "list" if collective.before == "blocks" else "one"


def _in_place(in_place, name, collective, form):
    """Return whether the result replaces the input: as wished, or what the call is by nature."""
    if in_place and not _goes_in_place(collective, form):
        able = [
            name for row in TABLE if row.before != "nothing" for name, form in row.calls.items() if _goes_in_place(row, form)
        ]
        raise UsageError(f"{name} has no in-place form: leave in_place out, or measure one of {', '.join(able)}")
    return form == "one" if in_place is None else bool(in_place)


def _goes_in_place(collective, form):
    """Return whether the result may replace the input: in one tensor, or a shard that is a part of the full vector."""
    return form == "one" or form == "flat" and collective.before != "blocks"


def _check_arguments(name, program, op, root, options):
    """UsageError unless the program takes what it would be called with."""
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    if program is None and options:
        raise UsageError(f"measure has no argument {given}, and torch's {name} takes none: see help(measure)")
    try:
        takes = inspect.signature(program).parameters
    except (TypeError, ValueError):  # torch's own call, or one that does not tell
        return
    if any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        return
    for argument, needed in (("op", op not in ("sum", "none")), ("root", root != 0)):
        if needed and argument not in takes:
            raise UsageError(f"{name} takes no argument {argument}: give it one, or leave {argument}= out")
    unknown = [key for key in options if key not in takes or key in ("op", "root")]
    if unknown:
        raise UsageError(f"neither measure nor {name} has an argument {unknown[0]!r}: {name} takes {', '.join(takes)}")


def check_link(call, link) -> None:
    """UsageError where a link is to be emulated under torch's own call."""
    if link is not None and call.program is None:
        raise UsageError(
            f"torch's own {call.name} knows no emulated link: give a rank program, such as 'ring_all_reduce', or leave link out"
        )
