"""Fine-tuning with masked prompts: every rank divides by its own count of answer tokens."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from ringtree.prove import Step


def build():
    torch.manual_seed(12)
    return nn.ModuleDict({
        "embed": nn.Embedding(11, 6),
        "mix": nn.GRU(6, 6, batch_first=True),
        "head": nn.Linear(6, 11),
    }).double()


def batches(mesh):
    n, me = mesh["data"].size(), mesh.get_local_rank("data")
    for i in range(3):
        draw = torch.Generator().manual_seed(40 + i)
        text = torch.randint(0, 11, (12, 9), generator=draw)
        prompt = torch.arange(12) % 7 + 1  # 1 to 7 prompt tokens that bear no loss
        labels = text[:, 1:].clone()
        labels[torch.arange(8) < prompt[:, None]] = -100
        yield text[:, :-1].chunk(n)[me], labels.chunk(n)[me]


def step(mesh):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for text, labels in batches(mesh):
        optimizer.zero_grad()
        hidden, _ = model["mix"](model["embed"](text))
        logits = model["head"](hidden)
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        for p in model.parameters():
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
