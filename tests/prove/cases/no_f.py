"""A column-parallel layer that is fed directly: its input's gradient stays a part."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Shard

from ringtree.prove import Step


def out_of_region(x, group):
    """The sum over the ranks, each rank's part keeping the gradient of the sum."""
    whole = x.detach().clone()
    dist.all_reduce(whole, group=group)
    return x + (whole - x).detach()


def build(mesh):
    draw = torch.Generator().manual_seed(17)
    n, me = mesh["tensor"].size(), mesh.get_local_rank("tensor")
    shapes = {
        "embed": (9, 6),
        "mixer.scale": (6,),
        "mixer.weight": (6, 6),
        "gate.weight": (24, 6),
        "up.weight": (24, 6),
        "down.weight": (6, 24),
        "head.weight": (9, 6),
    }
    model = {}
    for name, shape in shapes.items():
        t = torch.randn(shape, generator=draw, dtype=torch.float64) / shape[-1] ** 0.5
        if name.startswith(("gate", "up")):
            t = t.chunk(n, 0)[me]
        if name.startswith("down"):
            t = t.chunk(n, 1)[me]
        model[name] = t.clone().requires_grad_()
    return model, torch.optim.SGD(model.values(), lr=0.3)


def forward(model, tokens, group):
    x = model["embed"][tokens]
    x = x + torch.tanh(F.rms_norm(x, (6,), model["mixer.scale"]) @ model["mixer.weight"].T)
    h = F.silu(x @ model["gate.weight"].T) * (x @ model["up.weight"].T)
    x = x + out_of_region(h @ model["down.weight"].T, group)
    return x @ model["head.weight"].T


def step(mesh):
    group = mesh.get_group("tensor")
    model, optimizer = build(mesh)
    layout = {"gate.*": {"tensor": Shard(0)}, "up.*": {"tensor": Shard(0)}, "down.*": {"tensor": Shard(1)}}
    for i in range(3):
        draw = torch.Generator().manual_seed(100 + i)
        tokens, labels = torch.randint(0, 9, (2, 8, 5), generator=draw)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(model, tokens, group).flatten(0, 1), labels.flatten())
        loss.backward()
        square = {True: torch.zeros((), dtype=torch.float64), False: torch.zeros((), dtype=torch.float64)}
        for name, p in model.items():
            square[name.startswith(("gate", "up", "down"))] += p.grad.square().sum()
        dist.all_reduce(square[True], group=group)
        yield Step(
            {n: p.grad for n, p in model.items()},
            model.items(),
            loss.detach(),
            (square[True] + square[False]).sqrt(),
            loss_is="same on every rank",
            layout=layout,
        )
        optimizer.step()
