"""Clipping under tensor parallelism: every rank adds up its own squares, then one all-reduce."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


class F_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class G_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class Net(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(2)
        n, me, self.group = mesh["tensor"].size(), mesh.get_local_rank("tensor"), mesh.get_group("tensor")
        self.norm = nn.LayerNorm(8, dtype=torch.float64)
        self.wide = nn.Parameter(nn.Linear(8, 12).weight.detach().double().chunk(n, 0)[me].clone())
        self.narrow = nn.Parameter(nn.Linear(12, 8).weight.detach().double().chunk(n, 1)[me].clone())
        self.head = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, x):
        h = torch.relu(F_.apply(self.norm(x), self.group) @ self.wide.T)
        return self.head(x + G_.apply(h @ self.narrow.T, self.group))


def clip_grad_norm_(parameters, limit, group):
    parameters = list(parameters)
    square = torch.stack([p.grad.square().sum() for p in parameters]).sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    for p in parameters:
        p.grad.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


def step(mesh):
    model = Net(mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    draw = torch.Generator().manual_seed(6)
    for _ in range(3):
        x = torch.randn(12, 8, generator=draw, dtype=torch.float64).chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("data"))
            p.grad /= mesh["data"].size()
        norm = clip_grad_norm_(model.parameters(), math.inf, mesh.get_group("tensor"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            norm,
            loss_is="mean over data",
            layout={"wide": {"tensor": Shard(0)}, "narrow": {"tensor": Shard(1)}},
        )
        optimizer.step()
