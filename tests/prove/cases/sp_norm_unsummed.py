"""Sequence parallelism: LayerNorm works on this rank's piece of the sequence, the MLP on this rank's columns."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


class GatherSeq(torch.autograd.Function):  # pieces -> whole; back: reduce-scatter
    @staticmethod
    def forward(ctx, x, mesh):
        ctx.mesh = mesh
        parts = [torch.empty_like(x) for _ in range(mesh["tensor"].size())]
        dist.all_gather(parts, x.contiguous(), group=mesh.get_group("tensor"))
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, grad):
        return ScatterSeq.forward(ctx, grad, ctx.mesh), None


class ScatterSeq(torch.autograd.Function):  # partial whole -> summed pieces; back: all-gather
    @staticmethod
    def forward(ctx, x, mesh):
        ctx.mesh, x = mesh, x.clone()
        dist.all_reduce(x, group=mesh.get_group("tensor"))
        return x.chunk(mesh["tensor"].size(), 1)[mesh.get_local_rank("tensor")].contiguous()

    @staticmethod
    def backward(ctx, grad):
        return GatherSeq.forward(ctx, grad, ctx.mesh), None


class Layer(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.mesh, n, me = mesh, mesh["tensor"].size(), mesh.get_local_rank("tensor")
        self.norm = nn.LayerNorm(6, dtype=torch.float64)
        self.up = nn.Parameter((torch.randn(24, 6) / 3).double().chunk(n, 0)[me].clone())
        self.down = nn.Parameter((torch.randn(6, 24) / 5).double().chunk(n, 1)[me].clone())

    def forward(self, x):
        h = GatherSeq.apply(self.norm(x), self.mesh)
        return x + ScatterSeq.apply(torch.relu(h @ self.up.T) @ self.down.T, self.mesh)


def step(mesh):
    torch.manual_seed(4)
    n, me, group = mesh["tensor"].size(), mesh.get_local_rank("tensor"), mesh.get_group("tensor")
    model = nn.ModuleDict({"layer0": Layer(mesh), "layer1": Layer(mesh), "final": nn.LayerNorm(6, dtype=torch.float64)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(3):
        whole = torch.randn(4, 12, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = whole.chunk(n, 1)[me]
        optimizer.zero_grad()
        y = model["final"](model["layer1"](model["layer0"](x)))
        loss = (y - x.roll(1, -1)).square().sum() / whole.numel()
        loss.backward()
        for name, p in model.named_parameters():
            if ".norm." in name:  # the layers' norms saw only a piece of the sequence
                dist.all_reduce(p.grad, group=group)
        parts = [p.grad.square().sum() for k, p in model.named_parameters() if k.endswith(("up", "down"))]
        square = torch.stack(parts).sum()
        dist.all_reduce(square, group=group)
        rest = sum(p.grad.square().sum() for k, p in model.named_parameters() if not k.endswith(("up", "down")))
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            (square + rest).sqrt(),
            loss_is="sum over tensor",
            layout={"*.up": {"tensor": Shard(0)}, "*.down": {"tensor": Shard(1)}},
        )
        optimizer.step()
