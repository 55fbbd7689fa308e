"""Data parallelism that sends gradients in bfloat16 to save bandwidth."""

import torch
import torch.distributed as dist
from torch import nn

from ringtree.prove import Step


class Compressed:
    """Hooks that hand each finished gradient to the group, in a smaller type."""

    def __init__(self, model, group, wire):
        self.group, self.wire, self.n = group, wire, dist.get_world_size(group)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p):
        if self.n > 1:
            small = (p.grad / self.n).to(self.wire)
            dist.all_reduce(small, group=self.group)
            p.grad.copy_(small)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(44)
        self.first = nn.Conv1d(3, 8, 3, padding=1).double()
        self.second = nn.Conv1d(8, 8, 3, padding=1).double()
        self.last = nn.Linear(8, 5).double()

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.second(x))
        return self.last(x.mean(-1))


def step(mesh):
    model = Net()
    Compressed(model, mesh.get_group("data"), torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        draw = torch.Generator().manual_seed(200 + i)
        x = torch.randn(12, 3, 10, generator=draw, dtype=torch.float64)
        y = torch.randint(0, 5, (12,), generator=draw)
        x, y = (t.chunk(mesh["data"].size())[mesh.get_local_rank("data")] for t in (x, y))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            norm,
            loss_is="mean over data",
        )
        optimizer.step()
