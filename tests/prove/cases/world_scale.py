"""A tensor-parallel MLP; the summed gradients are scaled to a mean over the tokens at the end."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class MLP(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(11)
        self.group = mesh.get_group("tensor")
        tp, me = mesh["tensor"].size(), mesh.get_local_rank("tensor")
        self.embed = nn.Parameter(torch.randn(10, 6).double() / 2)
        self.up = nn.Parameter((torch.randn(24, 6).double() / 3).chunk(tp, 0)[me].clone())
        self.down = nn.Parameter((torch.randn(5, 24).double() / 5).chunk(tp, 1)[me].clone())

    def forward(self, tokens):
        h = Enter.apply(self.embed[tokens], self.group)
        return Leave.apply(nn.functional.gelu(h @ self.up.T) @ self.down.T, self.group)


def step(mesh):
    data = mesh.get_group("data")
    model = MLP(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    draw = torch.Generator().manual_seed(3)
    for _ in range(3):
        tokens = torch.randint(0, 10, (12, 4), generator=draw)
        labels = torch.randint(0, 5, (12, 4), generator=draw)
        mine = [t.chunk(mesh["data"].size())[mesh.get_local_rank("data")] for t in (tokens, labels)]
        optimizer.zero_grad()
        total = nn.functional.cross_entropy(model(mine[0]).flatten(0, 1), mine[1].flatten(), reduction="sum")
        total.backward()
        count = torch.tensor(float(mine[1].numel()), dtype=torch.float64)
        dist.all_reduce(count, group=data)
        for p in model.parameters():
            dist.all_reduce(p.grad, group=data)
            p.grad /= mesh["data"].size()  # what a data-parallel wrapper leaves
            p.grad *= dist.get_world_size() / count  # back to a mean over all tokens
        square = model.up.grad.square().sum() + model.down.grad.square().sum()
        dist.all_reduce(square, group=model.group)
        norm = (square + model.embed.grad.square().sum()).sqrt()
        loss = total.detach() / mine[1].numel()
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss,
            norm,
            loss_is="mean over data",
            layout={"up": {"tensor": Shard(0)}, "down": {"tensor": Shard(1)}},
        )
        optimizer.step()
