"""fully_shard over `data` on top of DTensor tensor and sequence parallelism over `tensor`; nothing by hand."""

import math

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from ringtree.prove import Step


class Layer(nn.Module):
    def __init__(self, width=12, wide=24):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(24, 12)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 24, bias=False)

    def forward(self, text):
        x = self.embed(text)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(mesh):
    torch.manual_seed(71)
    model = Net().double()
    parallelize_module(
        model,
        mesh["tensor"],
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh["tensor"],
            {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(mesh):
    model, optimizer = build(mesh)
    for i in range(3):
        text = torch.randint(0, 24, (12, 13), generator=torch.Generator().manual_seed(i))
        text = text.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            norm,
            loss_is="mean over data",
        )
        optimizer.step()
