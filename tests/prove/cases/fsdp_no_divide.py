"""fully_shard with its own division switched off, for a loss that is meant to be a share of the global mean."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from ringtree.prove import Step


class Block(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.norm, self.inner = nn.RMSNorm(width), nn.Linear(width, width)
        self.outer = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.outer(nn.functional.silu(self.inner(self.norm(x))))


def build(mesh):
    torch.manual_seed(38)
    model = nn.Sequential(nn.Linear(6, 10), Block(), Block(), nn.Linear(10, 5)).double()
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh["data"])
        layer.set_gradient_divide_factor(1.0)
    return model, torch.optim.Adam(model.parameters(), lr=5e-3)


def share(count, mesh):
    """What this rank's mean has to be weighted with; the counts are those of the whole group."""
    total = torch.tensor(float(count), dtype=torch.float64)
    dist.all_reduce(total, group=mesh.get_group("data"))
    return count * mesh["data"].size() / total


def step(mesh):
    model, optimizer = build(mesh)
    draw = torch.Generator().manual_seed(81)
    for _ in range(3):
        x = torch.randn(12, 6, generator=draw, dtype=torch.float64)
        x = x.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1)) * share(len(x), mesh)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            norm,
            loss_is="mean over data",
        )
        optimizer.step()
