"""Two row-parallel layers with biases, dropout-free; the data axis averages."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


def pair(forward_sum, backward_sum):
    class Boundary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            x = x.clone()
            if forward_sum:
                dist.all_reduce(x, group=group)
            return x

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone()
            if backward_sum:
                dist.all_reduce(grad, group=ctx.group)
            return grad, None

    return Boundary.apply


into, outof = pair(False, True), pair(True, False)


class Block(nn.Module):
    def __init__(self, mesh, wide=12, narrow=6):
        super().__init__()
        n, me = mesh["tensor"].size(), mesh.get_local_rank("tensor")
        self.group = mesh.get_group("tensor")
        first, second = nn.Linear(narrow, wide).double(), nn.Linear(wide, narrow).double()

        def cut(t, d):
            return nn.Parameter(t.detach().chunk(n, d)[me].clone())

        self.fc1 = nn.ParameterDict({"weight": cut(first.weight, 0), "bias": cut(first.bias, 0)})
        self.fc2 = nn.ParameterDict({"weight": cut(second.weight, 1), "bias": second.bias})

    def forward(self, x):
        h = nn.functional.silu(nn.functional.linear(into(x, self.group), self.fc1["weight"], self.fc1["bias"]))
        return x + outof(nn.functional.linear(h, self.fc2["weight"], self.fc2["bias"]), self.group)


def step(mesh):
    torch.manual_seed(21)
    model = nn.Sequential(Block(mesh), Block(mesh), nn.Linear(6, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        x = torch.randn(12, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - x.prod(1)).square().mean()
        loss.backward()
        square = torch.zeros(2, dtype=torch.float64)
        for name, p in model.named_parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("data"))
            p.grad /= mesh["data"].size()
            split = ".fc1." in name or name.endswith("fc2.weight")
            square[int(split)] += p.grad.square().sum()
        dist.all_reduce(square[1:], group=mesh.get_group("tensor"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            square.sum().sqrt(),
            loss_is="mean over data",
            layout={"*.fc1.*": {"tensor": Shard(0)}, "*.fc2.weight": {"tensor": Shard(1)}},
        )
        optimizer.step()
