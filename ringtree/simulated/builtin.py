"""torch.distributed's collectives in the simulator, each as one algorithm of `ringtree.algorithms`.

The simulator has no collectives of its own: `call` runs `dist.all_reduce(tensor)` and its
like, with the arguments of `torch.distributed`, as the algorithm that `DEFAULTS` names.
"""

import torch
from torch.distributed import ReduceOp

from ringtree.algorithms import (
    dissemination_barrier,
    mst_broadcast,
    mst_gather,
    mst_reduce,
    mst_scatter,
    pairwise_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)  # fmt: skip

# What the simulator runs for each collective of torch.distributed.
DEFAULTS = {
    "broadcast": mst_broadcast,
    "reduce": mst_reduce,
    "all_reduce": ring_all_reduce,
    "scatter": mst_scatter,
    "gather": mst_gather,
    "all_gather": ring_all_gather,
    "all_gather_single": ring_all_gather,
    "all_gather_into_tensor": ring_all_gather,  # its older name
    "reduce_scatter": ring_reduce_scatter,
    "reduce_scatter_single": ring_reduce_scatter,
    "reduce_scatter_tensor": ring_reduce_scatter,  # its older name
    "all_to_all": pairwise_all_to_all,
    "all_to_all_single": pairwise_all_to_all,
    "barrier": dissemination_barrier,
}

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


def call(name, dist, *args, group=None, async_op=False, **kwargs):
    """Run the collective `name` of torch.distributed on `dist`, as DEFAULTS[name].

    The arguments are those of `torch.distributed.<name>`. A rank outside the group does
    nothing. Raises ValueError for async_op=True, which the simulator does not have.
    """
    if async_op:
        raise ValueError(
            f"{name}(async_op=True) cannot be simulated: leave async_op out, or overlap with isend and irecv of your own"
        )
    if dist.get_rank(group) >= 0:
        _ARGUMENTS[name](_Members(dist, group), DEFAULTS[name], *args, **kwargs)


class _Members:
    """The ranks of a group, numbered from 0, with messages apart from the program's own."""

    TAG = -1  # no program can use it: torch takes only tags from 0 on

    def __init__(self, dist, group):
        self.dist, self.group = dist, group
        self.batch_isend_irecv = dist.batch_isend_irecv

    def get_rank(self):
        return self.dist.get_rank(self.group)

    def get_world_size(self):
        return self.dist.get_world_size(self.group)

    def send(self, tensor, dst):
        self.dist.send(tensor, group=self.group, tag=self.TAG, group_dst=dst)

    def recv(self, tensor, src):
        self.dist.recv(tensor, group=self.group, tag=self.TAG, group_src=src)

    def isend(self, tensor, dst):
        return self.dist.isend(tensor, group=self.group, tag=self.TAG, group_dst=dst)

    def irecv(self, tensor, src):
        return self.dist.irecv(tensor, group=self.group, tag=self.TAG, group_src=src)

    def P2POp(self, op, tensor, peer):
        op = self.dist.isend if op == self.isend else self.dist.irecv
        return self.dist.P2POp(op, tensor, group=self.group, tag=self.TAG, group_peer=peer)

    def root(self, rank, group_rank):
        """The root's number in the group, from the one of two arguments that is given."""
        if group_rank is not None:
            return group_rank
        ranks = self.dist.get_process_group_ranks(self.group)
        if (rank or 0) not in ranks:
            raise ValueError(f"the root is rank {rank}, which is not in the group of ranks {ranks}: give one of them")
        return ranks.index(rank or 0)


# -- each collective's own arguments, as torch.distributed has them -------------


def _broadcast(dist, algorithm, tensor, src=None, group_src=None):
    algorithm(tensor.view(-1), dist, dist.root(src, group_src))


def _reduce(dist, algorithm, tensor, dst=None, op=ReduceOp.SUM, group_dst=None):
    root = dist.root(dst, group_dst)
    algorithm(tensor.view(-1), dist, root, OPERATIONS[op])
    if op == ReduceOp.AVG and dist.get_rank() == root:
        tensor.div_(dist.get_world_size())


def _all_reduce(dist, algorithm, tensor, op=ReduceOp.SUM):
    algorithm(tensor.view(-1), dist, OPERATIONS[op])
    if op == ReduceOp.AVG:
        tensor.div_(dist.get_world_size())


def _scatter(dist, algorithm, tensor, scatter_list=None, src=None, group_src=None):
    root, rank, size = dist.root(src, group_src), dist.get_rank(), dist.get_world_size()
    whole = tensor.new_empty(tensor.numel() * size)
    if rank == root:
        _fill(whole, scatter_list)
    algorithm(whole, dist, root)
    tensor.view(-1).copy_(whole.tensor_split(size)[rank])


def _gather(dist, algorithm, tensor, gather_list=None, dst=None, group_dst=None):
    root, rank = dist.root(dst, group_dst), dist.get_rank()
    whole = _with_my_shard(dist, tensor)
    algorithm(whole, dist, root)
    if rank == root:
        _empty(whole, gather_list)


def _all_gather(dist, algorithm, tensor_list, tensor):
    whole = _with_my_shard(dist, tensor)
    algorithm(whole, dist)
    _empty(whole, tensor_list)


def _all_gather_single(dist, algorithm, output_tensor, input_tensor):
    _all_gather(dist, algorithm, output_tensor.view(-1).tensor_split(dist.get_world_size()), input_tensor)


def _reduce_scatter(dist, algorithm, output, input_list, op=ReduceOp.SUM):
    whole = output.new_empty(sum(each.numel() for each in input_list))
    _fill(whole, input_list)
    algorithm(whole, dist, OPERATIONS[op])
    output.view(-1).copy_(whole.tensor_split(dist.get_world_size())[dist.get_rank()])
    if op == ReduceOp.AVG:
        output.div_(dist.get_world_size())


def _reduce_scatter_single(dist, algorithm, output, input, op=ReduceOp.SUM):
    _reduce_scatter(dist, algorithm, output, input.view(-1).tensor_split(dist.get_world_size()), op)


def _all_to_all(dist, algorithm, output_tensor_list, input_tensor_list):
    algorithm(output_tensor_list, input_tensor_list, dist)


def _all_to_all_single(dist, algorithm, output, input, output_split_sizes=None, input_split_sizes=None):
    size = dist.get_world_size()
    outputs = output.split(output_split_sizes) if output_split_sizes else output.tensor_split(size)
    inputs = input.split(input_split_sizes) if input_split_sizes else input.tensor_split(size)
    algorithm(outputs, inputs, dist)


def _barrier(dist, algorithm, device_ids=None):
    algorithm(torch.empty(0), dist)


def _fill(whole, parts):
    for place, part in zip(whole.split([part.numel() for part in parts]), parts):
        place.copy_(part.view(-1))


def _empty(whole, parts):
    for part, place in zip(parts, whole.split([part.numel() for part in parts])):
        part.view(-1).copy_(place)


def _with_my_shard(dist, tensor):
    size = dist.get_world_size()
    whole = tensor.new_empty(tensor.numel() * size)
    whole.tensor_split(size)[dist.get_rank()].copy_(tensor.view(-1))
    return whole


_ARGUMENTS = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "scatter": _scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "all_gather_into_tensor": _all_gather_single,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
}
