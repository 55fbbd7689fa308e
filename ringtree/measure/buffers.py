"""The buffers of one call on one rank, filled with numbers whose result is known, and how many elements of it came out wrong.

What a rank has before and must have after follows from the collective's row in `ringtree.collectives`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

from ringtree.measure.call import Call
from ringtree.operations import FP8, OPERATIONS, TYPES

PERIOD = 61  # numbers repeat after so many elements: a prime, so that shards of common lengths begin differently
SPOILED = 125  # where a result must come: no result has it while 120 ranks or fewer sum up
LARGEST_SUM = 120  # exact in every type, int8 and bfloat16 too, but for
LARGEST_SUM_OF_FP8 = 8  # of which f8e5m2 has every whole number up to here


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
    if call.empty:
        return _no_buffer(call, dist, device)
    have, result = _numbers(call, count, dist.get_rank(), dist.get_world_size(), device)
    buffers = _one_buffer if call.form == "one" else _two_buffers
    return buffers(call, have, result, count, dist, device)


def _no_buffer(call, dist, device):
    import torch

    token = torch.zeros(1, device=device)
    run = getattr(dist, call.name) if call.program is None else lambda: call.program(token, dist, **_arguments(call))
    return Prepared(run, lambda: None, lambda: 0, True)


def _one_buffer(call, have, result, count, dist, device):
    """The whole vector in one tensor: torch's calls that have it in place alone, and rank programs."""
    import torch

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = count * (ranks if call.collective.sharded else 1)
    begin = torch.full((whole,), SPOILED, dtype=_torch_type(call), device=device)
    mine = slice(rank * count, (rank + 1) * count)
    if have is not None:
        begin[slice(None) if len(have) == whole else mine] = have
    tensor = begin.clone()
    end = tensor if result is None or len(result) == whole else tensor[mine]
    called = partial(getattr(dist, call.name), tensor) if call.program is None else partial(call.program, tensor, dist)
    once = partial(called, **_arguments(call))
    run = once if call.in_place else lambda: (tensor.copy_(begin), once())
    same = not call.collective.reduces or call.op in ("min", "max", "band", "bor")
    return Prepared(run, lambda: tensor.copy_(begin), lambda: _differ(end, result, call, ranks), same or not call.in_place)


def _two_buffers(call, have, result, count, dist, device):
    """Input and output apart, or one within the other: torch's calls on shards, and programs on blocks."""
    import torch

    row, rank, ranks = call.collective, dist.get_rank(), dist.get_world_size()

    def empty(state, here):
        length = count if state == "shard" else count * ranks
        return torch.empty(length if here else 0, dtype=_torch_type(call), device=device)

    if call.in_place:
        whole = empty("whole", True)
        mine = whole[rank * count : (rank + 1) * count]
        source, target = (mine, whole) if row.before == "shard" else (whole, mine)
    else:
        source, target = empty(row.before, have is not None), empty(row.after, result is not None)

    def refresh():
        target.fill_(SPOILED)
        if have is not None:
            source.copy_(have)

    run = _call_on(call, dist, source, target, ranks)
    return Prepared(run, refresh, lambda: _differ(target, result, call, ranks), not (call.in_place and row.reduces))


def _call_on(call, dist, source, target, ranks):
    """One call with its tensors as torch orders them: output, input; with a root, the rank's own shard and the root's list."""
    row, arguments = call.collective, _arguments(call)

    def as_taken(tensor, state):
        if call.form == "flat" or state == "shard":
            return tensor
        return list(tensor.chunk(ranks)) if len(tensor) else None

    given, got = as_taken(source, row.before), as_taken(target, row.after)
    if call.program is not None:
        return lambda: call.program(got, given, dist, **arguments)
    builtin = getattr(dist, call.name)
    first, second = (given, got) if row.root is not None and row.before == "shard" else (got, given)
    return lambda: builtin(first, second, **arguments)


def _arguments(call):
    """The operation and the root, by the names that torch's call or the rank program has for them, and all options."""
    import torch

    if call.program is None:
        op = {"op": getattr(torch.distributed.ReduceOp, OPERATIONS[call.op].reduce_op)} if call.op != "none" else {}
        return op | ({call.collective.root: call.root} if call.root >= 0 else {})
    op = {"op": getattr(torch, OPERATIONS[call.op].function)} if call.op not in ("sum", "none") else {}
    return op | ({"root": call.root} if call.root > 0 else {}) | call.options


# -- the numbers -----------------------------------------------------------------


def _numbers(call, count, rank, ranks, device):
    """Return what this rank has before a call and must have after it; None where it has, or must have, nothing."""
    import torch

    def tiled(values, number):
        shift = 17 * number % PERIOD
        tile = torch.tensor([*values[shift:], *values[:shift]], dtype=_torch_type(call), device=device)
        return tile.repeat(-(-count // PERIOD))[:count]

    row, numbers = call.collective, list(range(PERIOD))
    before = [[((each,), number) for number in _blocks(row, each, ranks)] for each in range(ranks)]
    after = row.meaning(before, rank, call.root, _reduced_block)

    def joined(blocks):
        largest = LARGEST_SUM_OF_FP8 if call.dtype in FP8 else LARGEST_SUM
        values = {who: _reduced(call.op, who, ranks, largest) if row.reduces else numbers for who, _ in blocks}
        return torch.cat([tiled(values[who], number) for who, number in blocks])

    has = row.root != "src" or rank == call.root
    return joined(before[rank]) if has else None, None if after is None else joined(after)


def _reduced_block(blocks):
    """Return what several blocks reduce to, each given as (the ranks whose numbers are in it, which block it is)."""
    return tuple(rank for who, _ in blocks for rank in who), blocks[0][1]


def _blocks(row, rank, ranks):
    """The blocks of `count` elements that a rank has before a call, each by a number: blocks of different numbers differ."""
    if row.before == "blocks":
        return [rank * ranks + other for other in range(ranks)]
    if row.before == "shard":
        return [rank]
    return [*range(ranks)] if row.sharded else [0]


def _terms(op, rank, ranks, largest=LARGEST_SUM):
    """PERIOD whole numbers of a rank, small enough that what all ranks' reduce to is exact; sums are `largest` at most."""
    if op in ("sum", "avg"):
        spread = max(2, min(7, largest // ranks + 1))
        return [(j * (1 + rank % (spread - 1)) + rank) % spread if rank < largest else 0 for j in range(PERIOD)]
    if op == "prod":
        return [2 if rank < 6 and (j + rank) % 3 == 0 else 1 for j in range(PERIOD)]
    return [(j + 17 * rank) % PERIOD for j in range(PERIOD)]


def _reduced(op, who, ranks, largest=LARGEST_SUM):
    """Return what the terms of the ranks `who` reduce to."""
    together = OPERATIONS[op].together
    values = [reduce(together, terms) for terms in zip(*(_terms(op, rank, ranks, largest) for rank in who))]
    return [value / len(who) for value in values] if op == "avg" else values


def _differ(tensor, result, call, ranks):
    """Return how many elements are not the result: exactly, but for an average, which may miss by a rounding a rank."""
    import torch

    if result is None:
        return 0
    eps = torch.finfo(tensor.dtype).eps if call.op == "avg" else 0
    if call.dtype in FP8:
        tensor, result = tensor.float(), result.float()  # PyTorch calculates with no such numbers
    if call.op != "avg":
        return int((tensor != result).sum())
    allowed = ranks * eps * result.abs().clamp(min=1)
    return int((~((tensor - result).abs() <= allowed)).sum())


def _torch_type(call):
    import torch

    return getattr(torch, (TYPES | FP8)[call.dtype])
