"""torch.distributed's collectives in the simulator, each as one algorithm of `ringtree.algorithms`.

The simulator has no collectives of its own: `call` runs `dist.all_reduce(tensor)` and its
like as the algorithm that the table of `ringtree.collectives` names. That table says too what
a rank has before and after, and torch's own functions say how their arguments are called; so
nothing here knows a collective by its name.
"""

import inspect
from functools import cache

import torch
from torch.distributed import ReduceOp

from ringtree import algorithms
from ringtree.collectives import find

OPERATIONS = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def algorithm_of(name):
    """What the simulator runs for a collective of `ringtree.collectives`, or for one of torch's functions for it."""
    return getattr(algorithms, find(name).algorithm)


def call(name, members_of, *args, **kwargs):
    """Run the collective `name` of torch.distributed, with its arguments, as `algorithm_of(name)`.

    members_of: gives what the algorithm talks to, the `Members` of a group. A rank outside the group does nothing.
    Raises ValueError for async_op=True, which the simulator does not have, and TypeError for arguments that torch's
    function does not take.
    """
    row, form, algorithm = _known(name)
    defaults = _defaults(name, len(args), tuple(kwargs))
    given = {**defaults, **dict(zip(defaults, args)), **kwargs}
    if given.pop("async_op"):
        raise ValueError(
            f"{name}(async_op=True) cannot be simulated: leave async_op out, or overlap with isend and irecv of your own"
        )
    dist = members_of(given.pop("group"))
    if dist.get_rank() < 0:
        return
    root = dist.root(given.pop(row.root), given.pop(f"group_{row.root}")) if row.root else None
    op = given.pop("op", None)
    options = ([root] if row.root else []) + ([OPERATIONS[op]] if row.reduces else [])

    def run(*tensors):
        algorithm(*tensors, dist, *options)

    has_whole = root is None or root == dist.get_rank()  # with a root, the others have or get a shard, or nothing
    result = _run(row, form, run, dist, has_whole, *given.values())
    if op == ReduceOp.AVG and has_whole:
        result.div_(dist.get_world_size())


@cache
def _known(name):
    """Of a function of torch.distributed: its row of the table, its form there, and its algorithm."""
    row = find(name)
    return row, row.calls[name], algorithm_of(name)


@cache
def _defaults(name, count, names):
    """The arguments of torch's function in its order, with their defaults, for a call with so many by place and these by name.

    Raises TypeError for a call that torch refuses. Worked out once for all calls alike: it takes longer than a message.
    """
    signature = inspect.signature(getattr(torch.distributed, name))
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    return {each.name: each.default for each in signature.parameters.values()}


# -- from a call's tensors to the algorithm's, and back --------------------------------


def _run(row, form, run, dist, has_whole, first=None, second=None, *sizes):
    """Run the algorithm on what a call was given, in torch's order; returns the tensor that was reduced, if one was.

    An algorithm takes the full vector as one flat tensor, with a rank's shard in its place, or blocks as two lists.
    """
    size = dist.get_world_size()
    if row.before == "nothing":
        run(torch.empty(0))
        return None
    if row.before == row.after == "whole":
        run(first.view(-1))
        return first
    if row.before == "blocks":
        flat = form == "flat"
        run(*(_blocks(each, cuts, size) for each, cuts in zip((first, second), sizes)) if flat else (first, second))
        return None
    # torch gives the result first, but for what a root alone gives or gets, which is last
    shard, whole = (first, second) if row.root or row.after == "shard" else (second, first)
    parts = [] if not has_whole else whole if form == "list" else whole.view(-1).tensor_split(size)
    if row.before == "whole":
        _to_shards(run, dist, parts, shard)
    else:
        _from_shards(run, dist, shard, parts)
    return shard


def _blocks(tensor, sizes, count):
    return tensor.split(sizes) if sizes else tensor.tensor_split(count)


def _to_shards(run, dist, parts, shard):
    """parts: the full vector, by rank; empty on a rank that does not have it. shard: where mine belongs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = shard.new_empty(sum(part.numel() for part in parts) if parts else shard.numel() * size)
    for place, part in zip(_places(whole, parts), parts):
        place.copy_(part.view(-1))
    run(whole)
    shard.view(-1).copy_(whole.tensor_split(size)[rank])


def _from_shards(run, dist, shard, parts):
    """shard: mine. parts: where the full vector belongs, by rank; empty on a rank that does not get it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = shard.new_empty(shard.numel() * size)
    whole.tensor_split(size)[rank].copy_(shard.view(-1))
    run(whole)
    for part, place in zip(parts, _places(whole, parts)):
        part.view(-1).copy_(place)


def _places(whole, parts):
    """Where the parts lie in the full vector."""
    return whole.split([part.numel() for part in parts]) if parts else []
