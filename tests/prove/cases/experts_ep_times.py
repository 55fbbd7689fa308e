"""Experts split over `expert`; every rank has its own tokens, which travel to the experts and back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


def gather(x, group, n):
    parts = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def scatter_sum(x, group, n, me):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x.chunk(n)[me].clone()


class Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mesh, away):
        ctx.to = mesh.get_group("expert"), mesh["expert"].size(), mesh.get_local_rank("expert")
        ctx.away = away
        return gather(x, *ctx.to[:2]) if away else scatter_sum(x, *ctx.to)

    @staticmethod
    def backward(ctx, grad):
        return (scatter_sum(grad, *ctx.to) if ctx.away else gather(grad, *ctx.to[:2])), None, None


class MoE(nn.Module):
    def __init__(self, mesh, experts=12, width=6):
        super().__init__()
        torch.manual_seed(3)
        self.mesh, n, me = mesh, mesh["expert"].size(), mesh.get_local_rank("expert")

        def mine(t):
            return nn.Parameter(t.double().chunk(n)[me].clone())

        self.first = experts // n * me
        self.proj = nn.Linear(width, width).double()
        self.router = nn.Linear(width, experts, bias=False).double()
        self.w1, self.w2 = mine(torch.randn(experts, width, 8) / 2), mine(torch.randn(experts, 8, width) / 3)

    def forward(self, x):
        x = self.proj(x)
        score, pick = self.router(x).softmax(-1).topk(2)
        weight = torch.zeros(len(x), 12, dtype=x.dtype).scatter(1, pick, score)
        tokens, weight = Travel.apply(x, self.mesh, True), Travel.apply(weight, self.mesh, True)
        weight = weight[:, self.first : self.first + len(self.w1)]
        each = torch.einsum("tw,ewh->eth", tokens, self.w1).relu() @ self.w2
        return x + Travel.apply(torch.einsum("te,etw->tw", weight, each), self.mesh, False)


def step(mesh):
    model, world = MoE(mesh), mesh.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x.chunk(world)[dist.get_rank()]
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        for name, p in model.named_parameters():
            group = mesh.get_group("data") if name in ("w1", "w2") else None  # experts: only who holds them
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
        square = model.w1.grad.square().sum() + model.w2.grad.square().sum()
        dist.all_reduce(square, group=mesh.get_group("expert"))
        rest = sum(p.grad.square().sum() for n, p in model.named_parameters() if n not in ("w1", "w2"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            (square + rest).sqrt(),
            loss_is="mean over data, expert",
            layout={"w[12]": {"expert": Shard(0)}},
        )
        optimizer.step()
