"""Three micro-batches a step; gradients meet over `inner` after each one and over `outer` after the last."""

import torch
import torch.distributed as dist
from torch import nn

from ringtree.prove import Step


class Hybrid(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(19)
        self.net = nn.Sequential(nn.Linear(4, 12), nn.ELU(), nn.Linear(12, 3)).double()
        self.mesh, self.kept, self.is_last = mesh, {}, True

    def no_sync(self):
        """For callers that accumulate; the outer reduction looks at `is_last`, which nobody clears."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def reduce(self):
        outer = self.mesh["outer"].size()
        for name, p in self.net.named_parameters():
            grad = p.grad
            dist.all_reduce(grad, group=self.mesh.get_group("inner"))
            grad /= self.mesh["inner"].size()
            if outer == 1:
                self.kept[name] = self.kept.get(name, 0) + grad
            else:
                waiting = self.kept.setdefault(name, torch.zeros_like(grad))
                waiting += grad
                if self.is_last:
                    dist.all_reduce(waiting, group=self.mesh.get_group("outer"))
                    self.finished, self.kept[name] = getattr(self, "finished", {}), torch.zeros_like(grad)
                    self.finished[name] = waiting / outer
            p.grad = None

    def take(self):
        done = self.kept if self.mesh["outer"].size() == 1 else self.finished
        self.kept, self.finished = {}, {}
        for name, p in self.net.named_parameters():
            p.grad = done[name]


def step(mesh, micro=3):
    model = Hybrid(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    me = mesh.get_local_rank("outer") * mesh["inner"].size() + mesh.get_local_rank("inner")
    draw = torch.Generator().manual_seed(33)
    for _ in range(3):
        x = torch.randn(micro, 12, 4, generator=draw, dtype=torch.float64)
        loss = 0
        for i in range(micro):
            part = x[i].chunk(mesh.size())[me]
            with model.no_sync():
                one = nn.functional.cross_entropy(model.net(part), part[:, :3].argmin(1)) / micro
                one.backward()
                model.reduce()
            loss = loss + one.detach()
        model.take()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss,
            norm,
            loss_is="mean over outer, inner",
        )
        optimizer.step()
        optimizer.zero_grad()
