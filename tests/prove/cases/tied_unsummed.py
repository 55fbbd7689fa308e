"""A pipeline: the first stage embeds, the last stage reads out with the same table."""

import torch
import torch.distributed as dist
from torch import nn

from ringtree.prove import Step


class Stage:
    def __init__(self, mesh, vocabulary=15, width=6, layers=12):
        self.group, self.n, self.me = mesh.get_group("pipe"), mesh["pipe"].size(), mesh.get_local_rank("pipe")
        self.ranks = dist.get_process_group_ranks(self.group)
        draw = torch.Generator().manual_seed(23)
        table = torch.randn(vocabulary, width, generator=draw, dtype=torch.float64)
        blocks = [torch.randn(width, width, generator=draw, dtype=torch.float64) / 3 for _ in range(layers)]
        per = layers // self.n
        self.weights = {f"block.{i}": nn.Parameter(blocks[i]) for i in range(per * self.me, per * (self.me + 1))}
        if self.first or self.last:
            self.weights["embed"] = nn.Parameter(table)

    first, last = property(lambda self: self.me == 0), property(lambda self: self.me == self.n - 1)

    def run(self, text, labels):
        if self.first:
            x = self.weights["embed"][text]
        else:
            x = torch.empty(*text.shape, 6, dtype=torch.float64)
            dist.recv(x, self.ranks[self.me - 1])
            x.requires_grad_()
        y = x
        for name, w in self.weights.items():
            if name.startswith("block"):
                y = y + torch.tanh(y @ w)
        if self.last:
            loss = nn.functional.cross_entropy((y @ self.weights["embed"].T).flatten(0, 1), labels.flatten())
            loss.backward()
        else:
            dist.send(y.detach(), self.ranks[self.me + 1])
            grad = torch.empty_like(y)
            dist.recv(grad, self.ranks[self.me + 1])
            y.backward(grad)
            loss = torch.zeros((), dtype=torch.float64)
        if not self.first:
            dist.send(x.grad, self.ranks[self.me - 1])
        loss = loss.detach().clone()
        dist.broadcast(loss, self.ranks[-1], group=self.group)
        return loss


def step(mesh):
    stage = Stage(mesh)
    optimizer = torch.optim.Adam(stage.weights.values(), lr=1e-2)
    for i in range(3):
        text, labels = torch.randint(0, 15, (2, 6, 5), generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        loss = stage.run(text, labels)
        square = torch.zeros((), dtype=torch.float64)
        for name, p in stage.weights.items():
            if name != "embed" or stage.first:  # the table counts once
                square += p.grad.square().sum()
        dist.all_reduce(square, group=stage.group)
        yield Step(
            {n: p.grad for n, p in stage.weights.items()},
            stage.weights.items(),
            loss,
            square.sqrt(),
            loss_is="same on every rank",
        )
        optimizer.step()
