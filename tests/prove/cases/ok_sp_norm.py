"""Sequence parallelism whose replicated weights are summed by hooks, with a bias that is added to each piece."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


def whole(x, mesh):
    parts = [torch.empty_like(x) for _ in range(mesh["tensor"].size())]
    dist.all_gather(parts, x.contiguous(), group=mesh.get_group("tensor"))
    return torch.cat(parts, 1)


def piece(x, mesh):
    x = x.clone()
    dist.all_reduce(x, group=mesh.get_group("tensor"))
    return x.chunk(mesh["tensor"].size(), 1)[mesh.get_local_rank("tensor")].contiguous()


class Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mesh, there, back):
        ctx.mesh, ctx.back = mesh, back
        return there(x, mesh)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad, ctx.mesh), None, None, None


class Block(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.mesh, n, me = mesh, mesh["tensor"].size(), mesh.get_local_rank("tensor")
        self.scale, self.bias = nn.Parameter(torch.ones(6).double()), nn.Parameter(torch.zeros(6).double())
        self.up = nn.Parameter((torch.randn(12, 6).double() / 2).chunk(n, 0)[me].clone())
        self.down = nn.Parameter((torch.randn(6, 12).double() / 3).chunk(n, 1)[me].clone())
        for p in (self.scale, self.bias):  # they see this rank's piece only
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=mesh.get_group("tensor")))

    def forward(self, x):
        h = Move.apply(nn.functional.rms_norm(x, (6,), self.scale), self.mesh, whole, piece)
        return x + Move.apply(torch.relu(h @ self.up.T) @ self.down.T, self.mesh, piece, whole) + self.bias


def step(mesh):
    torch.manual_seed(85)
    n, me = mesh["tensor"].size(), mesh.get_local_rank("tensor")
    model = nn.Sequential(Block(mesh), Block(mesh))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        x = torch.randn(12, 12, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        own = x.chunk(n, 1)[me]
        optimizer.zero_grad()
        loss = (model(own) - own.roll(1, -1)).square().sum() / x.numel()  # this piece's part of the mean
        loss.backward()
        square = torch.zeros(2, dtype=torch.float64)
        for k, p in model.named_parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("data"))
            p.grad /= mesh["data"].size()
            square[int(k.endswith(("up", "down")))] += p.grad.square().sum()
        dist.all_reduce(square[1:], group=mesh.get_group("tensor"))
        loss = loss.detach().clone()
        dist.all_reduce(loss, group=mesh.get_group("tensor"))
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            loss,
            square.sum().sqrt(),
            loss_is="mean over data",
            layout={"*.up": {"tensor": Shard(0)}, "*.down": {"tensor": Shard(1)}},
        )
        optimizer.step()
