"""Attention with a key bias (gradient zero but for rounding), a frozen table, a dead unit and an unused layer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


class Boundary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, ahead):
        ctx.group, ctx.ahead, x = group, ahead, x.clone()
        if ahead:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if not ctx.ahead:
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class Attention(nn.Module):
    def __init__(self, mesh, width=12):
        super().__init__()
        torch.manual_seed(95)
        self.n, me, self.group = mesh["tensor"].size(), mesh.get_local_rank("tensor"), mesh.get_group("tensor")

        def cut(t, d=0):
            return nn.Parameter(t.detach().double().chunk(self.n, d)[me].clone())

        self.table = nn.Parameter(torch.randn(20, width).double(), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(width).double())
        self.dead = nn.Parameter(torch.full((width,), -50.0).double())  # a unit below zero for any input
        self.q, self.k, self.v = (cut(torch.randn(width, width) / 4) for _ in range(3))
        self.k_bias = cut(torch.randn(width))
        self.o = cut(torch.randn(width, width) / 4, 1)
        self.unused = nn.Linear(3, 3).double()

    def forward(self, text):
        x = self.table[text] * self.scale
        x = x + torch.relu(x + self.dead)
        h = Boundary.apply(x, self.group, False)

        def heads(t):
            return t.unflatten(-1, (12 // self.n, 1)).transpose(1, 2)

        q, k, v = heads(h @ self.q.T), heads(h @ self.k.T + self.k_bias), heads(h @ self.v.T)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + Boundary.apply(mixed @ self.o.T, self.group, True)


def step(mesh):
    model = Attention(mesh)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for i in range(3):
        text = torch.randint(0, 20, (12, 6), generator=torch.Generator().manual_seed(i))
        text = text.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = (model(text) - model.table[text.roll(1, 1)]).square().mean()
        loss.backward()
        square = torch.zeros(2, dtype=torch.float64)
        for name, p in model.named_parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, group=mesh.get_group("data"))
                p.grad /= mesh["data"].size()
                square[int(name in ("q", "k", "v", "k_bias", "o"))] += p.grad.square().sum()
        dist.all_reduce(square[1:], group=mesh.get_group("tensor"))
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            square.sum().sqrt(),
            loss_is="mean over data",
            layout={"[qkv]": {"tensor": Shard(0)}, "k_bias": {"tensor": Shard(0)}, "o": {"tensor": Shard(1)}},
        )
        optimizer.step()
