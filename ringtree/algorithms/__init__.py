"""Every collective as short rank programs: one collective a file (those over nodes have
another, and the all-reduce has four), and each file can be read, or copied into a training script, alone.

    from ringtree.algorithms import ring_all_reduce
    ring_all_reduce(tensor, dist)       # dist: torch.distributed, or what speaks like it

All of them work for any number of ranks, any root and any length. Where a tensor is shorter
than there are ranks, some chunks are empty; an empty chunk is a message like any other, here
and on live ranks, and costs its α.
"""

from ringtree import late

try:
    from ringtree.algorithms.all_gather import (
        bruck_all_gather,
        direct_all_gather,
        multi_ring_all_gather,
        recursive_doubling_all_gather,
        ring_all_gather,
    )
    from ringtree.algorithms.all_gather_over_nodes import (
        node_leaders_all_gather,
        sliced_two_level_direct_all_gather,
        two_level_bruck_all_gather,
        two_level_direct_all_gather,
    )
    from ringtree.algorithms.all_reduce import (
        bruck_all_reduce,
        mst_all_reduce,
        one_shot_all_reduce,
        rabenseifner_all_reduce,
        recursive_doubling_all_reduce,
        ring_all_reduce,
        two_shot_all_reduce,
    )
    from ringtree.algorithms.all_reduce_in_slices import (
        sliced_bruck_all_reduce,
        sliced_halving_all_reduce,
        sliced_ring_all_reduce,
        sliced_two_level_two_shot_all_reduce,
    )
    from ringtree.algorithms.all_reduce_over_nodes import (
        hierarchical_ring_all_reduce,
        multi_ring_all_reduce,
        node_leader_all_reduce,
        two_level_doubling_all_reduce,
        two_level_halving_all_reduce,
        two_level_one_shot_all_reduce,
        two_level_two_shot_all_reduce,
    )
    from ringtree.algorithms.all_reduce_over_trees import (
        chain_tree_all_reduce,
        multi_tree_all_reduce,
        two_trees_all_reduce,
    )
    from ringtree.algorithms.all_to_all import (
        bruck_all_to_all,
        direct_all_to_all,
        pairwise_all_to_all,
    )
    from ringtree.algorithms.all_to_all_over_nodes import (
        node_leaders_all_to_all,
        two_level_direct_all_to_all,
    )
    from ringtree.algorithms.barrier import (
        dissemination_barrier,
    )
    from ringtree.algorithms.broadcast import (
        chain_broadcast,
        chain_broadcast_ahead,
        flat_broadcast,
        greedy_broadcast,
        mst_broadcast,
        scatter_all_gather_broadcast,
        scatter_bruck_broadcast,
    )
    from ringtree.algorithms.broadcast_over_nodes import (
        node_leaders_broadcast,
        two_level_chain_broadcast,
        two_level_scatter_all_gather_broadcast,
    )
    from ringtree.algorithms.gather import (
        direct_gather,
        flat_gather,
        mst_gather,
    )
    from ringtree.algorithms.gather_over_nodes import (
        node_leader_gather,
        two_level_direct_gather,
    )
    from ringtree.algorithms.reduce import (
        bruck_reduce,
        chain_reduce,
        chain_reduce_ahead,
        flat_reduce,
        greedy_reduce,
        mst_reduce,
        rabenseifner_reduce,
    )
    from ringtree.algorithms.reduce_over_nodes import (
        node_leaders_reduce,
        two_level_chain_reduce,
        two_level_reduce_scatter_gather_reduce,
    )
    from ringtree.algorithms.reduce_scatter import (
        bruck_reduce_scatter,
        direct_reduce_scatter,
        multi_ring_reduce_scatter,
        recursive_halving_reduce_scatter,
        ring_reduce_scatter,
    )
    from ringtree.algorithms.reduce_scatter_over_nodes import (
        node_leaders_reduce_scatter,
        sliced_two_level_direct_reduce_scatter,
        two_level_bruck_reduce_scatter,
        two_level_direct_reduce_scatter,
    )
    from ringtree.algorithms.scatter import (
        direct_scatter,
        flat_scatter,
        mst_scatter,
    )
    from ringtree.algorithms.scatter_over_nodes import (
        node_leader_scatter,
        two_level_direct_scatter,
    )
except ModuleNotFoundError as error:
    raise late.missing(__name__, error) from error

__all__ = [
    "bruck_all_gather",
    "bruck_all_reduce",
    "bruck_all_to_all",
    "bruck_reduce",
    "bruck_reduce_scatter",
    "chain_broadcast",
    "chain_broadcast_ahead",
    "chain_reduce",
    "chain_reduce_ahead",
    "chain_tree_all_reduce",
    "direct_all_gather",
    "direct_all_to_all",
    "direct_gather",
    "direct_reduce_scatter",
    "direct_scatter",
    "dissemination_barrier",
    "flat_broadcast",
    "flat_gather",
    "flat_reduce",
    "flat_scatter",
    "greedy_broadcast",
    "greedy_reduce",
    "hierarchical_ring_all_reduce",
    "mst_all_reduce",
    "mst_broadcast",
    "mst_gather",
    "mst_reduce",
    "mst_scatter",
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
    "one_shot_all_reduce",
    "pairwise_all_to_all",
    "rabenseifner_all_reduce",
    "rabenseifner_reduce",
    "recursive_doubling_all_gather",
    "recursive_doubling_all_reduce",
    "recursive_halving_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter_all_gather_broadcast",
    "scatter_bruck_broadcast",
    "sliced_bruck_all_reduce",
    "sliced_halving_all_reduce",
    "sliced_ring_all_reduce",
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
    "two_shot_all_reduce",
    "two_trees_all_reduce",
]
