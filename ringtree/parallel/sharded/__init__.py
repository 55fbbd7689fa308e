"""Sharded data parallel: every rank computes on a part of the batch, and keeps a part of what training needs.

    flat    a unit's parameters as one vector, which ranks share
    zero1   the optimizer's state is sharded
    zero2   gradients too
    zero3   parameters too

Method: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.

All ranks begin with the same weights. `units` are lists of modules, in the order of their use;
every parameter that is trained belongs to one, and one that several modules share to one unit.
Frozen parameters are left whole. `optimizer` is a function from pieces to an optimizer that
treats each number alone, as Adam does: a piece is a vector, this rank's part of a parameter,
which is `piece.of` (so that `piece.of.dim() > 1` tells what decays). `group`: the ranks that
share a unit, and see different rows; left out, all.

A shard's gradient is the mean over the group (and its replicas), summed over the backward passes
of a step, and final after `finish`. A parameter without a gradient on this rank counts as zeros.
`step` forgets gradients, so that nothing needs to be zeroed.

`dist` is torch.distributed, or anything that speaks like it. The folder can be taken away alone.
Runs on torch 2.13 and later (`reduce_scatter_single`, `all_gather_single`).
"""

from .flat import Flat, flats_of
from .zero1 import ZeRO1
from .zero2 import ShardedGradients, ZeRO2
from .zero3 import ZeRO3

__all__ = ["Flat", "ShardedGradients", "ZeRO1", "ZeRO2", "ZeRO3", "flats_of"]
