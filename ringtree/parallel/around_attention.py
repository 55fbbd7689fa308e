"""What stands around attention where the sequence is cut: heads, gathered keys, positions, loss.

`by_heads` trades positions for heads and back, by all-to-alls (Jacobs et al. 2023, "Ulysses").
`with_all_keys` gathers all keys and values (Grattafiori et al. 2024, Llama 3). Each takes the
attention that is to be computed then, as a function. `share` sets a model's attention and
positions, `loss_of` is a rank's part of the loss, `add_up` the sum of gradients.

`dist` is torch.distributed, or anything that speaks like it. Written for torch 2.13.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Trade(torch.autograd.Function):
    """Parts of x along one dimension to the ranks; what comes is joined along another. And back.

    sizes: of the parts that go, along `cut`; lengths: of those that come, along `join`.
    """

    @staticmethod
    def forward(ctx, x, cut, sizes, join, lengths, dist, group):
        ctx.way_back = join, lengths, cut, sizes, dist, group
        parts = x.split(sizes, cut)
        shape = list(parts[dist.get_rank(group)].shape)
        shapes = [[*shape[:join], length, *shape[join + 1 :]] for length in lengths]
        gets = [torch.Size(each).numel() for each in shapes]
        came, goes = x.new_empty(sum(gets)), torch.cat([each.flatten() for each in parts])
        sends = [each.numel() for each in parts]
        dist.all_to_all_single(came, goes, gets, sends, group=group)
        return torch.cat([each.view(as_) for each, as_ in zip(came.split(gets), shapes)], join)

    @staticmethod
    def backward(ctx, gradient):
        return Trade.apply(gradient, *ctx.way_back), *[None] * 6


def by_heads(attend, q, k, v, lengths, dist, group=None):
    """Return attention that each rank computes for some heads, at all positions of the group.

    q [batch, heads, tokens, width], k, v [batch, key heads, tokens, width]: all heads at this
    rank's positions. lengths: how many each rank of the group has. attend(q, k, v): computes it.
    """
    size = dist.get_world_size(group)
    for count, what in (q.shape[1], "heads"), (k.shape[1], "key heads"):
        if count % size:
            raise ValueError(f"{count} {what} cannot be shared by {size} ranks: give a divisor")

    def trade(x):
        return Trade.apply(x, 1, [x.shape[1] // size] * size, 2, lengths, dist, group)

    y = attend(trade(q), trade(k), trade(v))  # [batch, heads / size, all tokens, width]
    return Trade.apply(y, 2, lengths, 1, [y.shape[1]] * size, dist, group)


class Gather(torch.autograd.Function):
    """The ranks' parts along the last dimension but one; each part's gradient is a sum over ranks."""

    @staticmethod
    def forward(ctx, x, lengths, dist, group):
        ctx.of = lengths, dist, group
        room = x.new_empty(len(lengths) * len(x), *x.shape[1:-2], max(lengths), x.shape[-1])
        dist.all_gather_single(room, padded(x, max(lengths)), group=group)
        parts = zip(room.chunk(len(lengths)), lengths)
        return torch.cat([each[..., :length, :] for each, length in parts], -2)

    @staticmethod
    def backward(ctx, gradient):
        lengths, dist, group = ctx.of
        parts = [padded(each, max(lengths)) for each in gradient.split(lengths, -2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter_single(mine, torch.cat(parts), group=group)
        return mine[..., : lengths[dist.get_rank(group)], :], None, None, None


def padded(x, length):
    return F.pad(x, (0, 0, 0, length - x.shape[-2])).contiguous()


def with_all_keys(attend, q, k, v, lengths, dist, group=None):
    """Return the attention of this rank's queries to all keys of the group.

    Arguments as for `by_heads`. attend(q, k, v) gets the keys and values of all ranks, in order.
    """
    return attend(q, *Gather.apply(torch.stack([k, v]), lengths, dist, group))


class Attention(nn.Module):
    """A block's attention, with another way to compute it. attend(q, k, v)."""

    def __init__(self, whole, attend):
        super().__init__()
        self.heads, self.qkv, self.out, self.attend = whole.heads, whole.qkv, whole.out, attend

    def forward(self, x):  # [batch, tokens, width]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def share(net, attend, held):
    """Let the model work on this rank's positions alone, and return it.

    net: a GPT as in `model`. attend(q, k, v): attention over all ranks. held: [tokens] the
    positions of this rank, which the position embedding needs, and any rotary one.
    """
    for block in net.blocks:
        block.attention = Attention(block.attention, attend)
    net.place.register_forward_pre_hook(lambda _, given: held.to(given[0].device))
    return net


def loss_of(net, tokens, held):
    """Return this rank's part of the mean loss of all positions; the sum of the parts is the loss.

    tokens [rows, positions + 1], the same on every rank: a position's target may be elsewhere.
    """
    seen, targets = tokens[:, :-1][:, held], tokens[:, 1:][:, held]
    parts = F.cross_entropy(net(seen).flatten(0, 1), targets.flatten(), reduction="sum")
    return parts / tokens[:, 1:].numel()


def add_up(net, dist, group=None):
    """Sum the gradients over the ranks of the group, once, after the last backward pass.

    Each rank has the parts of its own positions. Ranks with other rows are a group of their own;
    their gradients are averaged, if each has the mean loss of its rows.
    """
    gradients = [each.grad for each in net.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat, group=group)
    for each, part in zip(gradients, flat.split([each.numel() for each in gradients])):
        each.copy_(part.view_as(each))
