"""Tensor parallel: every block's matrices are cut over the ranks, which work on the same tokens.

A column-parallel layer computes some of the outputs. A row-parallel one takes some of the inputs,
and what it computes is a part of every sum. One behind the other they need one sum over ranks
forward and one backward, by two conjugate functions. Method: Shoeybi et al., "Megatron-LM:
Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.

With `sequence` each rank also keeps only some of the positions between these layers, and each sum
becomes a reduce-scatter and an all-gather. Method: Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022.

`dist` is torch.distributed, or anything that speaks like it. Tensors: (batch, positions, width).
"""

import torch
from torch import nn
from torch.nn import functional as F


class Conjugate(torch.autograd.Function):
    """`forth` on the way forward, and `back` on the gradient."""

    @staticmethod
    def forward(ctx, x, forth, back):
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


class Ranks:
    """The ranks that share a model's matrices, and what they do with a tensor together."""

    def __init__(self, dist, group=None):
        self.dist, self.group = dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def same(self, x):
        """Each keeps what it has."""
        return x

    def summed(self, x):
        """The sum over ranks, on all of them."""
        x = x.clone(memory_format=torch.contiguous_format)
        self.dist.all_reduce(x, group=self.group)
        return x

    def part(self, x):
        """This rank's positions."""
        return x.chunk(self.size, 1)[self.rank]

    def gathered(self, x):
        """All positions, from the parts of all ranks."""
        parts = x.new_empty(self.size * len(x), *x.shape[1:])
        self.dist.all_gather_single(parts, x.contiguous(), group=self.group)
        return torch.cat(parts.chunk(self.size), 1)

    def scattered(self, x):
        """This rank's positions of the sum over ranks."""
        parts = torch.cat(x.chunk(self.size, 1))
        mine = torch.empty_like(parts[: len(x)])
        self.dist.reduce_scatter_single(mine, parts, group=self.group)
        return mine


class ColumnParallel(nn.Module):
    """A linear layer of which this rank computes some outputs, from the whole input.

    parts: how many equal parts the outputs have that are shared out each for itself, such as 3
    for queries, keys and values.
    """

    def __init__(self, linear, ranks, sequence=False, gather_twice=False, parts=1):
        super().__init__()
        self.ranks, self.sequence, self.gather_twice = ranks, sequence, gather_twice

        def mine(tensor):
            rows = tensor.detach().unflatten(0, (parts, ranks.size, -1))
            return nn.Parameter(rows[:, ranks.rank].flatten(0, 1).clone())

        self.weight = mine(linear.weight)
        self.bias = None if linear.bias is None else mine(linear.bias)

    def forward(self, x):
        ranks = self.ranks
        if self.gather_twice:
            y = GatherTwice.apply(x, self.weight, ranks)
            return y if self.bias is None else y + self.bias
        if self.sequence:
            x = Conjugate.apply(x, ranks.gathered, ranks.scattered)
        else:
            x = Conjugate.apply(x, ranks.same, ranks.summed)
        return F.linear(x, self.weight, self.bias)


class RowParallel(nn.Module):
    """A linear layer of which this rank takes some inputs; the ranks' outputs are added."""

    def __init__(self, linear, ranks, sequence=False):
        super().__init__()
        self.ranks, self.sequence = ranks, sequence
        mine = linear.weight.detach().chunk(ranks.size, 1)[ranks.rank]
        self.weight = nn.Parameter(mine.clone())
        self.bias = linear.bias  # whole, and added once, after the sum

    def forward(self, x):
        ranks, y = self.ranks, F.linear(x, self.weight)
        if self.sequence:
            y = Conjugate.apply(y, ranks.scattered, ranks.gathered)
        else:
            y = Conjugate.apply(y, ranks.summed, ranks.same)
        return y if self.bias is None else y + self.bias


class GatherTwice(torch.autograd.Function):
    """A column-parallel product that keeps this rank's positions, and gathers all a second time."""

    @staticmethod
    def forward(ctx, x, weight, ranks):
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        return F.linear(ranks.gathered(x), weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        whole = ctx.ranks.gathered(x)
        to_weight = gradient.flatten(0, 1).T @ whole.flatten(0, 1)
        return ctx.ranks.scattered(gradient @ weight), to_weight, None


def share(net, dist, group=None, sequence=False, gather_twice=False):
    """Leave this rank its share of the matrices and heads of all blocks.

    net: a GPT as in `model`, with the same weights on all ranks of the group. sequence: cut the
    positions between the matrices too; then call `sum_of_parts` after each backward pass.
    gather_twice: with `sequence`, keep no gathered positions for the backward pass. Returns net.
    Raises ValueError where the number of ranks does not divide that of heads.
    """
    ranks = Ranks(dist, group)
    for block in net.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        if attention.heads % ranks.size:
            raise ValueError(
                f"{attention.heads} heads cannot be shared by {ranks.size} ranks: "
                "give a number that divides the heads"
            )
        attention.heads //= ranks.size
        attention.qkv = ColumnParallel(attention.qkv, ranks, sequence, gather_twice, parts=3)
        attention.out = RowParallel(attention.out, ranks, sequence)
        feed_forward.up = ColumnParallel(feed_forward.up, ranks, sequence, gather_twice)
        feed_forward.down = RowParallel(feed_forward.down, ranks, sequence)
    if sequence:
        # embedding and head are whole on every rank: so are gradients there, and are not added
        def enter(_, inputs):
            return Conjugate.apply(*inputs, ranks.part, ranks.gathered)

        def leave(_, inputs):
            return Conjugate.apply(*inputs, ranks.gathered, ranks.part)

        net.blocks[0].register_forward_pre_hook(enter)
        net.head.register_forward_pre_hook(leave)
    return net


def sum_of_parts(net, dist, group=None):
    """In one all-reduce, sum the gradients that each rank has from its own positions alone.

    With `sequence` these are of the layer norms, and of the biases behind a sum.
    """
    norms = [module for module in net.modules() if isinstance(module, nn.LayerNorm)]
    rows = [module for module in net.modules() if isinstance(module, RowParallel)]
    parameters = [each for module in norms for each in module.parameters()]
    parameters += [module.bias for module in rows if module.bias is not None]
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat(gradients)
    dist.all_reduce(flat, group=group)
    for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients])):
        gradient.copy_(part)
