"""A call of one of torch.distributed's collectives: its arguments checked as torch checks them, and run as an algorithm.

    asked = read("all_reduce", (x,), {"async_op": True})
    asked.refuse(rank, ranks)                   # what torch.distributed refuses whatever the backend, for its reason
    asked.run(ring_all_reduce, dist)            # the same result, by messages between ranks

What has no collectives of its own, the simulator and the emulated link, runs `dist.all_reduce(tensor)` and its like in
this way. The table of `ringtree.collectives` says what a rank has before and after, and torch's own functions say how
their arguments are called; so nothing here knows a collective by its name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from torch.distributed import ReduceOp

from ringtree import operations
from ringtree.collectives import Collective, call_names, find
from ringtree.errors import a_kind

__all__ = ["Asked", "OPERATIONS", "give_collectives", "read"]

OPERATIONS: dict = {getattr(ReduceOp, row.reduce_op): getattr(torch, row.function) for row in operations.OPERATIONS.values()}
BITWISE = {getattr(ReduceOp, row.reduce_op) for row in operations.OPERATIONS.values() if row.bitwise}
# What torch does with complex numbers; it refuses to order them or to take their bits.
FOR_COMPLEX = {ReduceOp.SUM, ReduceOp.AVG}


@dataclass(slots=True)
class Asked:
    """One call. row: of the table. form: of its arguments, as the table has it. names, tensors: what they are called in
    torch, in torch's order, and what was given. sizes: how to cut flat blocks. root, group_root: the two ways to name it."""

    function: str
    row: Collective
    form: str
    names: tuple[str, ...]
    tensors: tuple
    sizes: tuple
    group: object
    async_op: bool
    root: int | None
    group_root: int | None
    op: object

    @property
    def result(self) -> int:
        """Return which of the tensors gets the result: torch gives it first, but for what a root alone gets."""
        return 1 if self.row.root == "dst" and len(self.tensors) > 1 else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the full vector, as this rank has it before or after; of all its blocks in an all-to-all."""
        return max((sum(each.nbytes for each in _listed(tensor)) for tensor in self.tensors), default=0)

    def meets(self, other: Asked) -> bool:
        """Return whether two ranks' calls can be the same collective: its kind, root (once found) and operation."""
        return self.row is other.row and self.root == other.root and self.op == other.op

    def buffers(self):
        """(tensor, whether it is written) of all tensors that were given."""
        for place, given in enumerate(self.tensors):
            for tensor in _listed(given):
                yield tensor, place == self.result

    def refuse(self, rank: int, ranks) -> None:
        """Raise what torch.distributed raises, on any backend, for a call that cannot be meant; set `root` within the group.

        rank: mine in the group; ranks: the group's. Raises TypeError for anything but a tensor, ValueError for the rest.
        """
        if type(self.async_op) is not bool:
            raise TypeError(f"{self.function} was given async_op={_short(self.async_op)}: give True or False")
        for name, given in zip(self.names, self.tensors):
            self._refuse_type(name, given)
        given = [tensor for each in self.tensors for tensor in _listed(each)]
        if len({tensor.dtype for tensor in given}) > 1:
            raise ValueError(f"{self.function} was given tensors of several dtypes: give all one dtype")
        if self.row.reduces:
            self._refuse_operation(given)
        if self.row.root:
            self._find_root(ranks)
            self._refuse_list(rank)
        if gaps := [tensor for tensor in given if not tensor.is_contiguous()]:
            shape = tuple(gaps[0].shape)
            raise ValueError(
                f"{self.function} was given a tensor of shape {shape} with gaps in memory: give x.contiguous(), which makes a copy"
            )
        self._refuse_lengths(rank, len(ranks))

    def _refuse_type(self, name, given):
        if self.form == "list" and name.endswith("list"):
            optional = self.row.root and not given  # a rank that is not the root gives none
            if not optional and not (isinstance(given, list) and all(map(_is_tensor, given))):
                raise TypeError(f"{self.function} was given {name}={_short(given)}: give a list of tensors")
        elif not _is_tensor(given):
            raise TypeError(f"{self.function} was given {name}={_short(given)}: give a tensor")

    def _refuse_operation(self, given):
        if not isinstance(self.op, ReduceOp | ReduceOp.RedOpType) or self.op not in OPERATIONS:
            raise TypeError(
                f"{self.function} was given op={_short(self.op)}: give one of dist.ReduceOp, such as dist.ReduceOp.SUM"
            )
        if given[0].dtype.is_complex and self.op not in FOR_COMPLEX:
            raise ValueError(f"{self.function} does not support {self.op} on complex tensors: give SUM or AVG")
        if self.op in BITWISE and given[0].dtype.is_floating_point:
            raise ValueError(f"{self.function} cannot use {self.op} on {given[0].dtype}: give a tensor of whole numbers")

    def _find_root(self, ranks):
        name = self.row.root
        if self.root is not None and self.group_root is not None:
            raise ValueError(f"{self.function} was given {name}= and group_{name}=: give one of them")
        if self.root is None and self.group_root is None:
            if self.form != "list":  # scatter and gather take rank 0
                raise ValueError(
                    f"{self.function} was given no root: give {name}=, a rank, or group_{name}=, a rank of the group"
                )
            self.root = 0
        if self.group_root is not None:
            if not (type(self.group_root) is int and 0 <= self.group_root < len(ranks)):
                raise ValueError(f"{self.function} was given group_{name}={self.group_root!r}: give 0 to {len(ranks) - 1}")
            self.root = self.group_root
        elif self.root not in ranks:
            raise ValueError(
                f"the root is rank {self.root!r}, which is not in the group of ranks {list(ranks)}: give one of them"
            )
        else:
            self.root = list(ranks).index(self.root)

    def _refuse_list(self, rank):
        for name, given in zip(self.names, self.tensors):
            if name.endswith("list") and (rank == self.root) is not bool(given):
                what = "needs" if rank == self.root else "must not be given"
                raise ValueError(
                    f"{self.function}: rank {rank} of the group {what} {name}=, since the root is rank {self.root}"
                )

    def _refuse_lengths(self, rank, size):
        if self.form == "list":
            for name, given in zip(self.names, self.tensors):
                if name.endswith("list") and given and len(given) != size:
                    raise ValueError(
                        f"{self.function} was given {name} of {len(given)} tensors: give {size}, one for each rank"
                    )
            self._refuse_shards(rank)
        elif self.form == "flat" and self.row.before == "blocks":
            for name, given, cuts in zip(self.names, self.tensors, self.sizes):
                self._refuse_cuts(name, given, cuts, size)
            kept = [_blocks(given, cuts, size)[rank].numel() for given, cuts in zip(self.tensors, self.sizes)]
            if kept[0] != kept[1]:
                raise ValueError(
                    f"{self.function}: of {self.names[1]} this rank keeps {kept[1]} elements for itself, and {self.names[0]} has "
                    f"{kept[0]} for them: give both the same size"
                )
        elif self.form == "flat":
            whole, shard = sorted((each.numel() for each in self.tensors), reverse=True)
            expected = (self.tensors[0].numel(), self.tensors[1].numel()) == (
                (whole, shard) if self.row.after == "whole" else (shard, whole)
            )
            if whole != shard * size or not expected:
                raise ValueError(
                    f"{self.function} was given {self.names[0]} of {self.tensors[0].numel()} elements and {self.names[1]} of "
                    f"{self.tensors[1].numel()}: one must be {size} times the other, once for each rank"
                )

    def _refuse_shards(self, rank):
        """All shards have one size. NCCL takes lists of several sizes too, as one broadcast for each; Gloo does not."""
        if self.row.before == "blocks" or (self.row.root and rank != self.root):
            return
        shard, whole = sorted(self.tensors, key=lambda given: isinstance(given, list))
        other = next((each for each in whole if each.numel() != shard.numel()), None)
        if other is not None:
            raise ValueError(
                f"{self.function} was given a tensor of {shard.numel()} elements, and in the list one of {other.numel()}: give all the same size"
            )

    def _refuse_cuts(self, name, given, cuts, size):
        length = given.shape[0] if len(given.shape) else 0
        if cuts and (len(cuts) != size or sum(cuts) != length or min(cuts) < 0):
            raise ValueError(
                f"{self.function} was given {name} of length {length} and split sizes {list(cuts)}: give {size} whole numbers that "
                f"add up to {length}"
            )
        if not cuts and length % size:
            raise ValueError(
                f"{self.function} was given {name} of length {length} for {size} ranks: give a multiple, or split sizes"
            )

    # -- run ---------------------------------------------------------------------

    def run(self, algorithm, dist) -> None:
        """Run `algorithm`, which stands for this collective, on what was given. dist: speaks to the group's ranks."""
        root, op = self.root if self.row.root else None, self.op
        options: list = ([root] if self.row.root else []) + ([OPERATIONS[op]] if self.row.reduces else [])

        def run(*tensors):
            algorithm(*tensors, dist, *options)

        has_whole = root is None or root == dist.get_rank()  # with a root, the others have or get a shard, or nothing
        result = self._run(run, dist, has_whole)
        if op == ReduceOp.AVG and has_whole:
            result.div_(dist.get_world_size())

    def _run(self, run, dist, has_whole):
        """Run on the call's tensors, in torch's order; returns the tensor that was reduced, if one was.

        An algorithm takes the full vector as one flat tensor, with a rank's shard in its place, or blocks as two lists.
        """
        row, size = self.row, dist.get_world_size()
        first, second = (*self.tensors, None, None)[:2]
        if row.before == "nothing":
            run(torch.empty(0))
            return None
        if row.before == row.after == "whole":
            run(first.view(-1))
            return first
        if row.before == "blocks":
            flat = self.form == "flat"
            run(*(_blocks(each, cuts, size) for each, cuts in zip((first, second), self.sizes)) if flat else (first, second))
            return None
        # torch gives the result first, but for what a root alone gives or gets, which is last
        shard, whole = (first, second) if row.root or row.after == "shard" else (second, first)
        parts = [] if not has_whole else whole if self.form == "list" else whole.view(-1).tensor_split(size)
        if row.before == "whole":
            _to_shards(run, dist, parts, shard)
        else:
            _from_shards(run, dist, shard, parts)
        return shard


def read(function: str, args: tuple, kwargs: dict) -> Asked:
    """The call `function(*args, **kwargs)` of torch.distributed. Raises TypeError for arguments that torch's function does not take."""
    row, form = _known(function)
    defaults = _defaults(function, len(args), tuple(kwargs))
    given = {**defaults, **dict(zip(defaults, args)), **kwargs}
    group, async_op, op = given.pop("group"), given.pop("async_op"), given.pop("op", None)
    root, group_root = (given.pop(row.root), given.pop(f"group_{row.root}")) if row.root else (None, None)
    if row.before == "nothing":
        given = {}  # where and for how long a barrier waits
    names = tuple(given)
    return Asked(
        function,
        row,
        form,
        names[:2],
        tuple(given.values())[:2],
        tuple(given.values())[2:],
        group,
        async_op,
        root,
        group_root,
        op,
    )


def give_collectives(owner: type, call, barrier: bool = True) -> None:
    """Give a class torch's collectives as methods, each of which is call(self, function, args, kwargs).

    barrier: whether it gets that one too, which moves no data.
    """

    def method(function):
        def collective(self, *args, **kwargs):
            return call(self, function, args, kwargs)

        collective.__name__ = function
        return collective

    for function in call_names():
        if barrier or find(function).before != "nothing":
            setattr(owner, function, method(function))


@cache
def _known(function):
    row = find(function)
    return row, row.calls[function]


@cache
def _defaults(function, count, names):
    """The arguments of torch's function in its order, with their defaults, for a call with so many by place and these by name.

    Raises TypeError for a call that torch refuses. Worked out once for all calls alike: it takes longer than a message.
    """
    signature = inspect.signature(getattr(torch.distributed, function))
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None
    return {each.name: each.default for each in signature.parameters.values()}


def _is_tensor(given):
    return isinstance(given, torch.Tensor) or hasattr(type(given), "__torch_function__")  # a Sketch speaks like one


def _listed(given):
    return given if isinstance(given, list | tuple) else () if given is None else (given,)


def _short(given):
    text = repr(given)
    return text if len(text) <= 40 else a_kind(given)


# -- from a call's tensors to the algorithm's, and back --------------------------------


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
    """Return where the parts lie in the full vector."""
    return whole.split([part.numel() for part in parts]) if parts else []
