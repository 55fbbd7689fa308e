"""torch's own techniques, right and, as `wrong_NAME`, used wrongly."""

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ringtree.prove import Step

WORDS, WIDTH, ROWS, STEPS = 12, 12, 24, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        x = self.embed(text)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def built(**options):
    torch.manual_seed(3)
    return Net(**options).double()


def batches(mesh, *axes):
    n = me = 0
    n, me = 1, 0
    for axis in axes:
        n, me = n * mesh[axis].size(), me * mesh[axis].size() + mesh.get_local_rank(axis)
    for number in range(STEPS):
        text = torch.randint(0, WORDS, (ROWS, 12), generator=torch.Generator().manual_seed(number))
        yield text.chunk(n)[me]


def loss_of(logits, text):
    return F.cross_entropy(logits.flatten(0, 1), (text + 1).flatten() % WORDS)


def trained(mesh, model, axes, parts=1, sync=lambda last: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for text in batches(mesh, *axes):
        optimizer.zero_grad()
        told = 0
        for number, part in enumerate(text.chunk(parts)):
            sync(number == parts - 1)
            loss = loss_of(model(part), part) / parts
            loss.backward()
            told = told + loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
        gradients = {name: p.grad for name, p in model.named_parameters()}
        yield Step(gradients, model.named_parameters(), told, norm, f"mean over {', '.join(axes)}")
        optimizer.step()


def ddp(mesh, **options):
    model = DistributedDataParallel(built(), process_group=mesh.get_group("data"))
    yield from trained(mesh, model, ("data",), **options)


def ddp_accumulates(mesh):
    model = DistributedDataParallel(built(), process_group=mesh.get_group("data"))

    def sync(last):
        model.require_backward_grad_sync = last

    yield from trained(mesh, model, ("data",), parts=2, sync=sync)


def ddp_of_world(mesh):
    """DDP over all ranks where each tensor rank computes alike: a mean of equal values stays."""
    yield from trained(mesh, DistributedDataParallel(built()), ("data",))


def fsdp(mesh, axes=("data",), divide=None):
    model = built()
    for each in (*model.blocks, model):
        fully_shard(each, mesh=mesh[axes if len(axes) > 1 else axes[0]])
        if divide:
            each.set_gradient_divide_factor(divide)
    return trained(mesh, model, axes)


def hybrid(mesh):
    return fsdp(mesh, ("replica", "data"))


def dtensor(mesh, sequence=True):
    model = built()
    parallelize_module(
        model,
        mesh["tensor"],
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1) if sequence else Replicate()),
            "head": ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate()),
        },
    )
    for block in model.blocks:
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate()),
            "down": RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate()),
        }
        parallelize_module(block, mesh["tensor"], plan | ({"norm": SequenceParallel()} if sequence else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for text in batches(mesh):
        optimizer.zero_grad()
        loss = loss_of(model(text), text)
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        yield Step(gradients, model.named_parameters(), loss.detach())
        optimizer.step()


def dtensor_whole_sequence(mesh):
    return dtensor(mesh, sequence=False)


class Piece(nn.Module):
    def __init__(self, net, me, n):
        super().__init__()
        self.first, self.last = me == 0, me == n - 1
        here = range(len(net.blocks) * me // n, len(net.blocks) * (me + 1) // n)
        self.blocks = nn.ModuleDict({str(i): net.blocks[i] for i in here})
        if self.first:
            self.embed = net.embed
        if self.last:
            self.head = net.head

    def forward(self, x):
        x = self.embed(x) if self.first else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.last else x


def pipelined(mesh, scale=True):
    n, me = mesh["pipe"].size(), mesh.get_local_rank("pipe")
    piece = Piece(built(blocks=4), me, n)
    stage = pipelining.PipelineStage(piece, me, n, torch.device("cpu"), group=mesh.get_group("pipe"))
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of, scale_grads=scale)
    optimizer = torch.optim.AdamW(piece.parameters(), lr=1e-2)
    for text in batches(mesh):
        optimizer.zero_grad()
        losses = []
        schedule.step(*([text] if piece.first else []), **({"target": text, "losses": losses} if piece.last else {}))
        gradients = {name: p.grad for name, p in piece.named_parameters()}
        yield Step(gradients, piece.named_parameters(), torch.stack(losses).mean().detach() if losses else None)
        optimizer.step()


def one_process(mesh):
    """The pipeline's training without it."""
    return trained(mesh, built(blocks=4), ("pipe",))


RIGHT = {
    "ddp": "data",
    "ddp_accumulates": "data",
    "ddp_of_world": "data,tensor",
    "fsdp": "data",
    "hybrid": "replica,data",
    "dtensor": "tensor",
    "dtensor_whole_sequence": "tensor",
    "pipelined": "pipe",
}


def wrong_ddp_accumulates(mesh):
    """Gradients never meet: sync is off for the last part too."""
    model = DistributedDataParallel(built(), process_group=mesh.get_group("data"))
    model.require_backward_grad_sync = False
    yield from trained(mesh, model, ("data",), parts=2)


def wrong_fsdp_divides(mesh):
    return fsdp(mesh, divide=float(mesh.size() ** 2))


def wrong_pipeline_scale(mesh):
    """Gradients of four micro-batches are added, not averaged."""
    return pipelined(mesh, scale=False)


WRONG = {
    "ddp_accumulates": ("each gradient has copies along data that differ; their mean over data is right",),
    "fsdp_divides": ("each gradient is data times too small",),
    "pipeline_scale": ("each gradient is 4 times the right one",),
}
AXES = RIGHT | {"fsdp_divides": "data", "pipeline_scale": "pipe"}
REFERENCE = {"pipeline_scale": "one_process"}
