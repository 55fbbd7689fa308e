"""Accumulation over micro-batches with unequal token counts; one division by all tokens of the step."""

import torch
import torch.distributed as dist
from torch import nn

from ringtree.prove import Step


def build():
    torch.manual_seed(13)
    return nn.Sequential(nn.Embedding(14, 6), nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 14)).double()


def global_batch(number):
    draw = torch.Generator().manual_seed(70 + number)
    text = torch.randint(0, 14, (24, 8), generator=draw)
    length = torch.randint(1, 8, (24,), generator=draw)
    labels = text.roll(-1, 1).masked_fill(torch.arange(8) >= length[:, None], -100)
    return text, labels


def step(mesh, micro=2):
    n, me, group = mesh["data"].size(), mesh.get_local_rank("data"), mesh.get_group("data")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(3):
        text, labels = (t.chunk(n)[me] for t in global_batch(number))
        tokens = (labels != -100).sum().double()
        dist.all_reduce(tokens, group=group)
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for part, wanted in zip(text.chunk(micro), labels.chunk(micro)):
            logits = model(part)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / tokens
            loss.backward()
            total += loss.detach()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        yield Step(
            {k: p.grad for k, p in model.named_parameters()}, model.named_parameters(), total, norm, loss_is="sum over data"
        )
        optimizer.step()
