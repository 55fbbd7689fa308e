"""The package's algorithms on any number of ranks: what each needs, and what it must give."""

from functools import reduce

import torch

from ringtree import collectives

WHOLE_NODES = [
    "hierarchical_ring_all_reduce",
    "multi_ring_all_gather",
    "multi_ring_all_reduce",
    "multi_ring_reduce_scatter",
    "multi_tree_all_reduce",
    "node_leader_all_reduce",
    "node_leader_gather",
    "node_leader_scatter",
    "node_leaders_all_gather",
    "node_leaders_all_to_all",
    "node_leaders_broadcast",
    "node_leaders_reduce",
    "node_leaders_reduce_scatter",
    "sliced_two_level_direct_all_gather",
    "sliced_two_level_direct_reduce_scatter",
    "sliced_two_level_two_shot_all_reduce",
    "two_level_bruck_all_gather",
    "two_level_bruck_reduce_scatter",
    "two_level_chain_broadcast",
    "two_level_chain_reduce",
    "two_level_direct_all_gather",
    "two_level_direct_all_to_all",
    "two_level_direct_gather",
    "two_level_direct_reduce_scatter",
    "two_level_direct_scatter",
    "two_level_doubling_all_reduce",
    "two_level_halving_all_reduce",
    "two_level_one_shot_all_reduce",
    "two_level_reduce_scatter_gather_reduce",
    "two_level_scatter_all_gather_broadcast",
    "two_level_two_shot_all_reduce",
]


def program_of(row, **options):
    """A rank program of one tensor: blocks of an all-to-all are cut from it."""

    def blocks(tensor, dist):
        size = dist.get_world_size()
        inputs = tensor.tensor_split(size)
        outputs = [torch.empty_like(inputs[dist.get_rank()]) for _ in range(size)]
        row.program(outputs, inputs, dist, **options)
        return outputs

    if row.collective == "all_to_all":
        return blocks
    return lambda tensor, dist: row.program(tensor, dist, **options)


def options_of(row, size, root=0, chunks=8):
    options = {"root": root} if collectives.find(row.collective).root else {}
    taken = row.program.__code__.co_varnames[: row.program.__code__.co_argcount]
    given = {"chunks": chunks, "slices": chunks % 3 + 1, "latency": chunks}
    options |= {name: value for name, value in given.items() if name in taken}
    if row.name == "chain_tree_all_reduce":
        options["ranks_per_node"] = 4
    if row.name == "two_trees_all_reduce":  # with one rank a node the schedule alone gives the cost
        options["ranks_per_node"] = 4 if size % 2 else 1
    if row.name in WHOLE_NODES:
        options["ranks_per_node"] = next(r for r in (4, 3, 2, 5, 7, 1) if size % r == 0)
    return options


def inputs_of(size, count, dtype=torch.int64):
    return [(torch.arange(count) * 7 % 5 + 2 * rank + 1).to(dtype) for rank in range(size)]


def shard(tensor, rank, size):
    return tensor.tensor_split(size)[rank]


def assert_definition(row, inputs, outputs, root=0, op=torch.add):
    """The outputs are what the table of collectives says (tests/ground/test_collectives.py holds that against torch's own)."""
    size, collective = len(inputs), collectives.find(row.collective)
    before = [list(each.tensor_split(size)) for each in inputs]
    if collective.before == "shard":
        before = [[blocks[rank]] for rank, blocks in enumerate(before)]
    for rank in range(size):
        wanted = collective.meaning(before, rank, root, lambda blocks: reduce(op, blocks))
        if wanted is not None and collective.after != "nothing":
            held = {"shard": lambda held: [shard(held, rank, size)], "whole": lambda held: [held], "blocks": list}
            output = torch.cat(held[collective.after](outputs[rank]))
            assert output.tolist() == torch.cat(wanted).tolist()
