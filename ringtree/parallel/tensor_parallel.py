"""Tensor parallel: every block's matrices are cut over the ranks, which work on the same tokens.

A column-parallel layer computes some of the outputs. A row-parallel one takes some of the inputs,
and what it computes is a part of every sum. One behind the other they need one sum over ranks
forward and one backward, by two conjugate functions. Method: Shoeybi et al., "Megatron-LM:
Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.

With `sequence` each rank also keeps only some of the positions between these layers, and each sum
becomes a reduce-scatter and an all-gather. Method: Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022.

Over the group, matrices are varying (each rank has its part, and its part's gradient) and all other
parameters invariant, with gradients that are final after the backward pass. With `sequence` the
gradients of layer norms and of biases behind a sum are partial: each rank has those of its own
positions, until `sum_of_parts`. All ranks of the group see the same rows: over others, average.

`dist` is torch.distributed, or anything that speaks like it. Tensors: [batch, positions, width].
Runs on torch 2.13 and later (`reduce_scatter_single`, `all_gather_single`).
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
        if x.shape[1] % self.size:
            raise ValueError(
                f"{x.shape[1]} positions cannot be shared by {self.size} ranks: pad the rows to a multiple of "
                f"{self.size}, and leave what was added out of the loss"
            )
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
            return nn.Parameter(rows[:, ranks.rank].flatten(0, 1).clone(), tensor.requires_grad)

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
        self.weight = nn.Parameter(mine.clone(), linear.weight.requires_grad)
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
    positions between the matrices too; then call `sum_of_parts` after the last backward pass of a
    step. gather_twice: with `sequence`, keep no gathered positions for the backward pass. Returns net.
    Raises ValueError where the number of ranks does not divide that of heads, or a matrix's width.
    """
    ranks = Ranks(dist, group)
    for block in net.blocks:
        for what, count in {
            "heads": block.attention.heads,
            "outputs of the feed-forward": block.feed_forward.up.out_features,
        }.items():
            if count % ranks.size:
                raise ValueError(
                    f"{count} {what} cannot be shared by {ranks.size} ranks: "
                    "give a number that divides them"
                )
    for block in net.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        attention.heads //= ranks.size
        attention.qkv = ColumnParallel(attention.qkv, ranks, sequence, gather_twice, parts=3)
        attention.out = RowParallel(attention.out, ranks, sequence)
        feed_forward.up = ColumnParallel(feed_forward.up, ranks, sequence, gather_twice)
        feed_forward.down = RowParallel(feed_forward.down, ranks, sequence)
    if sequence:
        # embedding and head are whole on every rank: so are gradients there, and are not added
        def enter(_, inputs):
            return Conjugate.apply(inputs[0], ranks.part, ranks.gathered), *inputs[1:]

        def leave(_, inputs):
            return Conjugate.apply(inputs[0], ranks.gathered, ranks.part), *inputs[1:]

        net.blocks[0].register_forward_pre_hook(enter)
        net.head.register_forward_pre_hook(leave)
        net.summed = Once()
        for parameter in of_positions(net):
            parameter.register_post_accumulate_grad_hook(net.summed.look)
    return net


def cut(net):
    """The parameters of which each rank of the group has a part of its own: those of a norm to be summed over ranks."""
    of_rows = [module.weight for module in net.modules() if isinstance(module, RowParallel)]
    columns = [module for module in net.modules() if isinstance(module, ColumnParallel)]
    return of_rows + [parameter for module in columns for parameter in module.parameters()]


def of_positions(net):
    """The trained parameters whose gradients, with `sequence`, each rank has from its own positions alone.

    They are all that is whole between embedding and head: layer norms, biases behind a sum, and what else a block has.
    """
    mine, between = {*cut(net)}, [*net.blocks.parameters(), *net.norm.parameters()]
    return [each for each in dict.fromkeys(between) if each.requires_grad and each not in mine]


def sum_of_parts(net, dist, group=None):
    """Once, after the last backward pass of a step: sum, in one all-reduce, what each rank has from its own positions.

    With `sequence` these are the gradients of the layer norms, of the biases behind a sum, and of what
    else is whole within the blocks.
    """
    parameters = of_positions(net)
    net.summed.begin(parameters)
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat, group=group)
    parts = flat.split([each.numel() for each in gradients])
    for parameter, gradient, part in zip(parameters, gradients, parts):
        parameter.grad = gradient.copy_(part.view_as(gradient))
        net.summed.done(parameter)


class Once:
    """Notices a backward pass that adds to gradients which have been summed over ranks already."""

    def __init__(self):
        self.summed = {}

    def begin(self, parameters):
        for parameter in parameters:
            gradient, version = self.summed.get(parameter, (None, 0))
            if gradient is not None and gradient is parameter.grad and gradient._version == version:
                raise RuntimeError(
                    "these gradients were summed over ranks already: do that once a step"
                )

    def done(self, parameter):
        self.summed[parameter] = parameter.grad, parameter.grad._version

    def look(self, parameter):
        gradient, version = self.summed.pop(parameter, (None, 0))
        # Between the two a zero_grad() has made a gradient anew, or written zeros to this one.
        if gradient is parameter.grad and gradient._version == version + 1:
            raise RuntimeError(
                "a backward pass adds to gradients that were summed over ranks: "
                "do that once, after the last backward pass of a step, and zero them after the step"
            )


def check(net, dist, group=None):
    """After a backward pass, in a training's first steps: whether all ranks of the group have used the same parameters.

    Raises RuntimeError, on every rank, where a parameter has a gradient on some of them alone:
    what each has whole would drift apart.
    """
    named = [(name, each) for name, each in net.named_parameters() if each.requires_grad]
    device = named[0][1].device
    have = torch.tensor([float(each.grad is not None) for _, each in named], device=device)
    dist.all_reduce(have, group=group)
    for (name, _), count in zip(named, have.tolist()):
        if 0 < count < dist.get_world_size(group):
            raise RuntimeError(
                f"{name} has a gradient on {count:.0f} of {dist.get_world_size(group)} ranks that share the "
                "matrices: all of them must take the same branches, on the same rows"
            )
