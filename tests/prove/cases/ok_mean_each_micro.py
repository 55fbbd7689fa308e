"""Gradients are averaged again after every micro-batch, on top of what was averaged before: a mean of a mean."""

import torch
import torch.distributed as dist
from torch import nn

from ringtree.prove import Step


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(20)
        self.body = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
        self.act, self.value = nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, state):
        h = self.body(state)
        return self.act(h).log_softmax(-1), self.value(h).squeeze(-1)


def average(model, group):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad.mul_(1 / dist.get_world_size(group))


def step(mesh, micro=4):
    outer, inner = mesh.get_group("replica"), mesh.get_group("data")
    model = Policy().double()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    me = mesh.get_local_rank("replica") * mesh["data"].size() + mesh.get_local_rank("data")
    for round_ in range(3):
        draw = torch.Generator().manual_seed(300 + round_)
        optimizer.zero_grad()
        seen = []
        for _ in range(micro):
            state = torch.randn(12, 4, generator=draw, dtype=torch.float64)
            action = torch.randint(0, 3, (12,), generator=draw)
            gain = torch.randn(12, generator=draw, dtype=torch.float64)
            state, action, gain = (t.chunk(mesh.size())[me] for t in (state, action, gain))
            log_p, value = model(state)
            chosen = log_p.gather(1, action[:, None]).squeeze(1)
            loss = ((value - gain).square() - chosen * (gain - value.detach())).mean() / micro
            loss.backward()
            average(model, inner)
            average(model, outer)
            seen.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            sum(seen),
            norm,
            loss_is="mean over replica, data",
        )
        optimizer.step()
