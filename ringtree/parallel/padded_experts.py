"""Experts whose forward pass asks the GPU nothing: every expert gets a box of a fixed number of rows.

In `experts` the host reads how many rows go where, to make tensors of that size: it waits for the GPU
several times a layer, and the GPU then waits for the host. Here each rank sends every expert a box of
`room` rows, filled up with zeros, so that all sizes are known beforehand. The price is bytes: `factor`
times those of even routing, whatever the router picks. Method: Lepikhin et al. 2020 (capacity).

Over the ranks that share out the experts, an expert's parameters are varying, all others invariant; `dist`
is torch.distributed, or anything that speaks like it. Runs on torch 2.1 and later.
"""

import math

import torch


class Swap(torch.autograd.Function):
    """Equal parts to all ranks; in the backward pass their gradients go back the way they came."""

    @staticmethod
    def forward(ctx, rows, dist, group):
        ctx.way = dist, group
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows.contiguous(), group=group)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Swap.apply(gradient, *ctx.way), None, None


class PaddedExperts(torch.nn.Module):
    """A router and `count` experts, each make(width), of which each token goes to `best`.

    factor: an expert takes so many times an even share of a rank's choices, in order: all first choices, from
    the first token on, then all second ones. What does not fit is dropped, as in `experts.Experts` with the
    same factor; count / best keeps all.
    """

    def __init__(self, width, count, best, make, factor):
        super().__init__()
        self.count, self.best, self.factor = count, best, factor
        self.router = torch.nn.Linear(width, count, bias=False)
        self.experts = torch.nn.ModuleList(make(width) for _ in range(count))
        self.dist, self.group, self.size = None, None, 1

    def share_out(self, dist, group=None):
        """Keep this rank's part of the experts. Raises ValueError where the ranks do not divide them."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if self.count % size:
            raise ValueError(f"{self.count} experts for {size} ranks: give a multiple of {size}")
        here = self.count // size
        self.experts = self.experts[rank * here : (rank + 1) * here]
        self.dist, self.group, self.size = dist, group, size

    def forward(self, x):  # [batch, positions, width]
        tokens = x.flatten(0, -2)  # [tokens, width]
        weights, chosen = self.router(tokens).softmax(-1).topk(self.best)  # [tokens, best] each
        if self.best > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        room = math.ceil(self.factor * chosen.numel() / self.count)
        slots = self.slots(chosen.T.flatten(), room)  # [best · tokens]
        rows = tokens.repeat(self.best, 1)
        boxes = tokens.new_zeros(self.count * room + 1, tokens.shape[1]).index_add(0, slots, rows)
        done = self.on_ranks(boxes[:-1].unflatten(0, (self.count, room)))  # [experts, room, width]
        done = torch.cat([done.flatten(0, 1), done.new_zeros(1, tokens.shape[1])])[slots]
        done = done * weights.T.flatten().unsqueeze(1)
        return done.unflatten(0, (self.best, -1)).sum(0).view_as(x)

    def slots(self, chosen, room):
        """For each choice its place in the boxes; the place behind all of them where its expert has no room."""
        wanted = (chosen.unsqueeze(1) == torch.arange(self.count, device=chosen.device)).long()
        place = (wanted.cumsum(0) * wanted).sum(1) - 1  # 0 for the first that comes to an expert
        return torch.where(place < room, chosen * room + place, self.count * room)

    def on_ranks(self, boxes):  # [experts, room, width]
        """Dispatch, compute, combine."""
        if self.dist:
            boxes = Swap.apply(boxes, self.dist, self.group)  # from each rank, for each expert here
        parts = (
            boxes.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1, 2)
        )  # [here, ranks · room, width]
        done = torch.stack([expert(part) for expert, part in zip(self.experts, parts)])
        done = done.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        return Swap.apply(done, self.dist, self.group) if self.dist else done
