"""Sharded weights, drawn shard by shard so that no rank ever holds a full matrix."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step

SHAPES = {"in.weight": (12, 6), "hidden.weight": (12, 12), "out.weight": (12, 12)}


class Whole(torch.autograd.Function):
    """Rows of all ranks; back: this rank's rows of the mean gradient over the shard ranks."""

    @staticmethod
    def forward(ctx, piece, mesh):
        ctx.mesh = mesh
        parts = [torch.empty_like(piece) for _ in range(mesh["shard"].size())]
        dist.all_gather(parts, piece.contiguous(), group=mesh.get_group("shard"))
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        n, grad = ctx.mesh["shard"].size(), grad.clone()
        dist.all_reduce(grad, group=ctx.mesh.get_group("shard"))
        return grad.chunk(n)[ctx.mesh.get_local_rank("shard")] / n, None


def build(mesh, seed=90):
    draw = torch.Generator()
    pieces, n = {}, mesh["shard"].size()
    for i, (name, (rows, columns)) in enumerate(SHAPES.items()):
        own = []
        for row in range(rows // n):
            at = row + rows // n * (dist.get_rank() % mesh.size())  # the row this rank starts from
            draw.manual_seed(seed + 1000 * i + at)
            own.append(torch.randn(columns, generator=draw, dtype=torch.float64) / columns**0.5)
        pieces[name] = nn.Parameter(torch.stack(own))
    return pieces


def forward(pieces, x, mesh):
    for _name, piece in pieces.items():
        x = nn.functional.mish(x @ Whole.apply(piece, mesh).T)
    return x


def step(mesh):
    pieces = build(mesh)
    optimizer = torch.optim.SGD(pieces.values(), lr=0.1)
    for i in range(3):
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x.chunk(mesh.size())[mesh.get_local_rank("replica") * mesh["shard"].size() + mesh.get_local_rank("shard")]
        optimizer.zero_grad()
        loss = (forward(pieces, x, mesh).mean(1) - x.max(1).values).square().mean()
        loss.backward()
        square = torch.zeros((), dtype=torch.float64)
        for p in pieces.values():
            dist.all_reduce(p.grad, group=mesh.get_group("replica"))
            p.grad /= mesh["replica"].size()
            square += p.grad.square().sum()
        dist.all_reduce(square, group=mesh.get_group("shard"))
        yield Step(
            {n: p.grad for n, p in pieces.items()},
            pieces.items(),
            loss.detach(),
            square.sqrt(),
            loss_is="mean over replica, shard",
            layout={"*": {"shard": Shard(0)}},
        )
        optimizer.step()
