"""What can be measured: the collectives' names and sizes, their buffers, and what must come out.

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
from functools import reduce

from ringtree.errors import UsageError

# The calls of torch.distributed, and which collective each of them is.
BUILT_IN = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}
COLLECTIVES = tuple(dict.fromkeys(BUILT_IN.values()))
SHARDED = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ONE_BUFFER = ("all_reduce", "broadcast", "reduce")  # in torch, which has them in place alone
EITHER = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")

# NCCL's name of a type, which nccl-tests prints, and torch's where it is another.
TYPES = {
    "int8": "int8", "uint8": "uint8", "int32": "int32", "int64": "int64",
    "half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip
ITEMSIZE = {"int8": 1, "uint8": 1, "int32": 4, "int64": 8, "half": 2, "bfloat16": 2, "float": 4, "double": 8}
FLOATING = ("half", "bfloat16", "float", "double")

# An operation's name in nccl-tests, torch.distributed's, the function that a rank program takes, and Python's own.
OPERATIONS = {
    "sum": ("SUM", "add", lambda a, b: a + b),
    "prod": ("PRODUCT", "mul", lambda a, b: a * b),
    "min": ("MIN", "minimum", min),
    "max": ("MAX", "maximum", max),
    "avg": ("AVG", None, lambda a, b: a + b),
    "band": ("BAND", "bitwise_and", lambda a, b: a & b),
    "bor": ("BOR", "bitwise_or", lambda a, b: a | b),
    "bxor": ("BXOR", "bitwise_xor", lambda a, b: a ^ b),
}
LACKS = {"gloo": ("avg",), "nccl": ("band", "bor", "bxor")}


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: what a collective's size / time is multiplied by, to compare it with one link.

    2(p−1)/p for an all-reduce; (p−1)/p for all-gather, reduce-scatter, all-to-all, gather and scatter;
    1 for broadcast, reduce and a single message (`send_recv`); a barrier moves nothing. Source:
    nccl-tests, doc/PERFORMANCE.md, and its scatter.cu and gather.cu. Raises UsageError for
    a collective that is none of these, or without ranks.
    """
    name = str(collective).replace("-", "_")
    name = BUILT_IN.get(name, name)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"bus_factor got {ranks!r} ranks: give a whole number, 1 or more")
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if name in SHARDED:
        return (ranks - 1) / ranks
    if name in ("broadcast", "reduce", "send_recv", "barrier"):
        return 1.0
    raise UsageError(f"{collective!r} is no collective that has a bus bandwidth: give one of {', '.join(COLLECTIVES)}")


# -- what is to be called ------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What one call is, every argument checked.

    name: of the call of torch.distributed, or of the rank program. collective: one of COLLECTIVES. program: the
    rank program, None for torch's own. op: its name in nccl-tests, "none" where nothing is reduced.
    dtype: NCCL's name. root: -1 where there is none. in_place: whether the result replaces the
    input. options: further arguments of the program.
    """

    name: str
    collective: str
    program: Callable | None
    op: str
    dtype: str
    root: int
    in_place: bool
    options: dict = field(default_factory=dict)

    def count(self, size: int, ranks: int) -> int:
        """Elements that a rank passes for `size` bytes of the full vector, rounded down to whole ones."""
        if self.collective == "barrier":
            return 0
        parts = ranks if self.collective in SHARDED else 1
        count = size // (ITEMSIZE[self.dtype] * parts)
        if count == 0:
            each = f" for each of {ranks} ranks" if parts > 1 else ""
            raise UsageError(
                f"{self.name}: {size} bytes are less than one {self.dtype}{each}; "
                f"give sizes of {ITEMSIZE[self.dtype] * parts} bytes or more"
            )
        return count

    def size(self, count: int, ranks: int) -> int:
        """The bytes of the full vector."""
        return count * ITEMSIZE[self.dtype] * (ranks if self.collective in SHARDED else 1)


def describe(what, of=None, op=None, dtype="float", root=0, in_place=None, ranks=1, backend=None, options=None) -> Call:
    """Check what a reader wants measured, and put it in order; the arguments are `measure`'s.

    Raises UsageError, with one sentence, on what cannot be.
    """
    name, collective, program = _named(what, of)
    op = _operation(op, collective, name, program, backend)
    dtype = _type(dtype)
    if op == "avg" and dtype not in FLOATING or op[0] == "b" and dtype in FLOATING:
        raise UsageError(f"op={op!r} does not go with {dtype}: averages are of floats, bitwise operations of integers")
    if root != 0 and collective not in ROOTED:
        raise UsageError(f"root={root!r} was given and {collective} has no root: leave it out")
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < ranks:
        raise UsageError(f"root={root!r} is none of the {ranks} ranks: give a number from 0 to {ranks - 1}")
    _check_arguments(name, program, op, root, options or {})
    in_place = _place(in_place, name, collective, program)
    return Call(name, collective, program, op, dtype, root if collective in ROOTED else -1, in_place, dict(options or {}))


def _named(what, of):
    """(name, collective, program) of torch's own call, or of a rank program."""
    if isinstance(what, str):
        name = what.replace("-", "_")
        if name in BUILT_IN:
            if of is not None and BUILT_IN.get(str(of).replace("-", "_")) != BUILT_IN[name]:
                raise UsageError(f"{what!r} is torch's own call, which is no {of}: leave of= out")
            return name, BUILT_IN[name], None
        program = _ours(what)
        if program is None:
            near = difflib.get_close_matches(name, [*BUILT_IN, *_algorithms()], n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"give one of {', '.join(BUILT_IN)}, or a rank program"
            raise UsageError(f"there is no collective {what!r}: {hint}")
    elif callable(what):
        program = what
    else:
        raise UsageError(f"measure got {what!r}: give the name of a collective, such as 'all_reduce', or a rank program")
    name = getattr(program, "__name__", type(program).__name__)
    known = _algorithms().get(name)
    if of is None and known is not None and known.program is program:
        of = known.collective
    if of is None:
        raise UsageError(f"{name} is none of ringtree's algorithms: say which collective it is, for instance of='all_reduce'")
    collective = BUILT_IN.get(str(of).replace("-", "_"))
    if collective is None:
        raise UsageError(f"of={of!r} is no collective: give one of {', '.join(COLLECTIVES)}")
    return name, collective, program


def sendable(what):
    """An algorithm of ours by its name, all else as it is: functions reach other processes as copies, which look like nobody's."""
    known = _algorithms().get(getattr(what, "__name__", None))
    return known.name if known is not None and known.program is what else what


def _algorithms():
    from ringtree.theory.schedules import ALGORITHMS

    return {row.name: row for row in ALGORITHMS}


def _ours(name):
    row = _algorithms().get(name)
    return row and row.program


def _operation(op, collective, name, program, backend):
    if op is None:
        return "sum" if collective in REDUCING else "none"
    given, op = op, str(getattr(op, "name", op)).lower()
    op = {"product": "prod", "average": "avg"}.get(op, op)
    if op not in OPERATIONS:
        raise UsageError(f"op={given!r} is no operation: give one of {', '.join(OPERATIONS)}")
    if collective not in REDUCING:
        raise UsageError(f"op={given!r} was given and {collective} reduces nothing: leave it out")
    if program is None and op in LACKS.get(backend, ()):
        raise UsageError(
            f"{backend} has no {op} for {name}: take one of {', '.join(o for o in OPERATIONS if o not in LACKS[backend])}"
        )
    if program is not None and op == "avg":
        raise UsageError(
            f"{name} is a rank program, which takes a function of two tensors, and an average is none: take op='sum'"
        )
    return op


def _type(dtype):
    name = str(dtype).removeprefix("torch.")
    for nccl, torchs in TYPES.items():
        if name in (nccl, torchs):
            return nccl
    raise UsageError(f"dtype={dtype!r} cannot be measured: give one of {', '.join(TYPES)}")


def _place(in_place, name, collective, program):
    if program is not None and collective != "all_to_all" or collective in (*ONE_BUFFER, "barrier"):
        return in_place is None or bool(in_place)
    if in_place and (program is not None or name not in EITHER):
        raise UsageError(
            f"{name} has no form in place: leave in_place out, or measure one of {', '.join((*ONE_BUFFER, *EITHER))}"
        )
    return bool(in_place)


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


# -- buffers and results -------------------------------------------------------

PERIOD = 61  # numbers repeat after so many elements: a prime, so that shards of common lengths begin differently
SPOILED = 125  # where a result must come: no result has it while 120 ranks or fewer sum up
LARGEST_SUM = 120  # exact in every type, int8 and bfloat16 too


@dataclass
class Prepared:
    """One rank's part of a call, with its buffers.

    run(): one call. refresh(): inputs as at the beginning, outputs spoiled. wrong(): how many elements
    on this rank are not what they must be. repeatable: whether a second run finds the same inputs.
    """

    run: Callable[[], None]
    refresh: Callable[[], None]
    wrong: Callable[[], int]
    repeatable: bool


def prepare(call: Call, count: int, dist, device) -> Prepared:
    """The buffers of one call on this rank, on `device`; `dist` runs it (see `Call.count` for count)."""
    if call.collective == "barrier":
        return _barrier(call, dist, device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    have, result = _numbers(call, count, rank, ranks, device)
    if call.collective in ONE_BUFFER or call.program is not None and call.collective != "all_to_all":
        return _one_buffer(call, have, result, count, dist, device)
    return _two_buffers(call, have, result, count, dist, device)


def _barrier(call, dist, device):
    import torch

    token = torch.zeros(1, device=device)
    run = dist.barrier if call.program is None else lambda: call.program(token, dist, **call.options)
    return Prepared(run, lambda: None, lambda: 0, True)


def _one_buffer(call, have, result, count, dist, device):
    """The whole vector in one tensor: torch's all_reduce, broadcast and reduce, and rank programs."""
    import torch

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = count * (ranks if call.collective in SHARDED else 1)
    begin = torch.full((whole,), SPOILED, dtype=_torch_type(call), device=device)
    mine = slice(rank * count, (rank + 1) * count)
    if have is not None:
        begin[slice(None) if len(have) == whole else mine] = have
    tensor = begin.clone()
    end = tensor if result is None or len(result) == whole else tensor[mine]
    once = _once(call, dist, tensor)
    run = once if call.in_place else lambda: (tensor.copy_(begin), once())
    same = call.collective not in REDUCING or call.op in ("min", "max", "band", "bor")
    return Prepared(run, lambda: tensor.copy_(begin), lambda: _differ(end, result, call, ranks), same or not call.in_place)


def _once(call, dist, tensor):
    import torch

    arguments = {}
    if call.program is not None:
        if call.op not in ("sum", "none"):
            arguments["op"] = getattr(torch, OPERATIONS[call.op][1])
        if call.root > 0:
            arguments["root"] = call.root
        return lambda: call.program(tensor, dist, **arguments, **call.options)
    if call.op != "none":
        arguments["op"] = _reduce_op(call)
    if call.root >= 0:
        arguments["dst" if call.collective == "reduce" else "src"] = call.root
    builtin = getattr(dist, call.name)
    return lambda: builtin(tensor, **arguments)


def _two_buffers(call, have, result, count, dist, device):
    """Input and output apart: torch's calls on shards, and all-to-all programs."""
    import torch

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, mine = count * ranks, slice(rank * count, (rank + 1) * count)
    kind = _torch_type(call)
    gathers = call.collective in ("all_gather", "gather")
    at_root = call.root in (-1, rank)
    big_in = torch.empty(whole if not gathers and at_root else 0, dtype=kind, device=device)
    big_out = torch.empty(whole if (gathers and at_root) or call.collective == "all_to_all" else 0, dtype=kind, device=device)
    if call.in_place:
        small = (big_out if gathers else big_in)[mine]
    else:
        small = torch.empty(count, dtype=kind, device=device)
    source = small if gathers else big_in
    target = small if call.collective in ("reduce_scatter", "scatter") else big_out

    def refresh():
        target.fill_(SPOILED)
        if have is not None:
            source.copy_(have)

    run = _call_on(call, dist, source, target, ranks, at_root)
    repeatable = not (call.in_place and call.collective == "reduce_scatter")
    return Prepared(run, refresh, lambda: _differ(target, result, call, ranks), repeatable)


def _call_on(call, dist, source, target, ranks, at_root):
    inputs, outputs = list(source.chunk(ranks)), list(target.chunk(ranks))
    if call.program is not None:
        return lambda: call.program(outputs, inputs, dist, **call.options)
    builtin = getattr(dist, call.name)
    reducing = {"op": _reduce_op(call)} if call.op != "none" else {}
    match call.name:
        case "all_gather":
            return lambda: builtin(outputs, source)
        case "gather":
            return lambda: builtin(source, outputs if at_root else None, dst=call.root)
        case "scatter":
            return lambda: builtin(target, inputs if at_root else None, src=call.root)
        case "reduce_scatter":
            return lambda: builtin(target, inputs, **reducing)
        case "all_to_all":
            return lambda: builtin(outputs, inputs)
    return lambda: builtin(target, source, **reducing)


def _numbers(call, count, rank, ranks, device):
    """What this rank has before a call and must have after it; None where it has, or must have, nothing."""
    import torch

    def tiled(values, key=0, length=count):
        shift = 17 * key % PERIOD
        tile = torch.tensor([*values[shift:], *values[:shift]], dtype=_torch_type(call), device=device)
        return tile.repeat(-(-length // PERIOD))[:length]

    def shards(values, keys):
        return torch.cat([tiled(values, key) for key in keys])

    numbers, everyone = list(range(PERIOD)), range(ranks)
    at_root = call.root in (-1, rank)
    match call.collective:
        case "all_reduce" | "reduce":
            return tiled(_terms(call.op, rank, ranks)), tiled(_reduced(call.op, ranks)) if at_root else None
        case "reduce_scatter":
            return shards(_terms(call.op, rank, ranks), everyone), tiled(_reduced(call.op, ranks), rank)
        case "broadcast":
            return tiled(numbers) if at_root else None, tiled(numbers)
        case "all_gather" | "gather":
            return tiled(numbers, rank), shards(numbers, everyone) if at_root else None
        case "scatter":
            return shards(numbers, everyone) if at_root else None, tiled(numbers, rank)
        case "all_to_all":
            sent = shards(numbers, [rank * ranks + other for other in everyone])
            return sent, shards(numbers, [other * ranks + rank for other in everyone])


def _terms(op, rank, ranks):
    """PERIOD whole numbers of a rank, small enough that what all ranks' reduce to is exact in every type."""
    if op in ("sum", "avg"):
        spread = max(2, min(7, LARGEST_SUM // ranks + 1))
        return [(j * (1 + rank % (spread - 1)) + rank) % spread if rank < LARGEST_SUM else 0 for j in range(PERIOD)]
    if op == "prod":
        return [2 if rank < 6 and (j + rank) % 3 == 0 else 1 for j in range(PERIOD)]
    return [(j + 17 * rank) % PERIOD for j in range(PERIOD)]


def _reduced(op, ranks):
    together = OPERATIONS[op][2]
    values = [reduce(together, terms) for terms in zip(*(_terms(op, rank, ranks) for rank in range(ranks)))]
    return [value / ranks for value in values] if op == "avg" else values


def _differ(tensor, result, call, ranks):
    """How many elements are not the result: exactly, but for an average, which may miss by a rounding a rank."""
    import torch

    if result is None:
        return 0
    if call.op != "avg":
        return int((tensor != result).sum())
    allowed = ranks * torch.finfo(tensor.dtype).eps * result.abs().clamp(min=1)
    return int((~((tensor - result).abs() <= allowed)).sum())


def _torch_type(call):
    import torch

    return getattr(torch, TYPES[call.dtype])


def _reduce_op(call):
    import torch

    return getattr(torch.distributed.ReduceOp, OPERATIONS[call.op][0])
