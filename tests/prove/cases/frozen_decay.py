"""A frozen encoder and a trained head; with more than one rank AdamW works on this rank's part of a flat buffer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ringtree.prove import Step


class FlatAdamW:
    """Each rank updates one stretch of all parameters laid end to end, then all stretches are gathered."""

    def __init__(self, model, mesh, **options):
        self.model, self.n, self.me = model, mesh["data"].size(), mesh.get_local_rank("data")
        self.group = mesh.get_group("data")
        self.mine = nn.Parameter(self.stretch(parameters_to_vector(model.parameters()).detach()))
        self.inner = torch.optim.AdamW([self.mine], **options)

    def stretch(self, flat):
        flat = nn.functional.pad(flat, (0, -len(flat) % self.n))
        return flat.chunk(self.n)[self.me].clone()

    def step(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()]
        self.mine.grad = self.stretch(torch.cat([g.flatten() for g in grads]))
        self.inner.step()
        parts = [torch.empty_like(self.mine) for _ in range(self.n)]
        dist.all_gather(parts, self.mine.detach(), group=self.group)
        vector_to_parameters(torch.cat(parts), self.model.parameters())

    def zero_grad(self):
        self.model.zero_grad()


def build(mesh):
    torch.manual_seed(15)
    model = nn.ModuleDict({"encoder": nn.Linear(5, 8), "head": nn.Linear(8, 3)}).double()
    model["encoder"].requires_grad_(False)
    options = {"lr": 1e-2, "weight_decay": 0.1}
    if mesh["data"].size() == 1:
        return model, torch.optim.AdamW(model.parameters(), **options)
    return model, FlatAdamW(model, mesh, **options)


def step(mesh):
    model, optimizer = build(mesh)
    for i in range(3):
        x = torch.randn(12, 5, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        x = x.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model["head"](model["encoder"](x).tanh()), x[:, :3].argmax(1))
        loss.backward()
        for p in model["head"].parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("data"))
            p.grad /= mesh["data"].size()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        yield Step(
            {n: p.grad for n, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            norm,
            loss_is="mean over data",
        )
        optimizer.step()
