"""Attention with one fused projection, cut into equal row blocks for tensor parallelism."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step

HEADS, SIZE, WIDTH = 12, 2, 8


class Side(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, ahead):
        ctx.group, ctx.ahead, x = group, ahead, x.clone()
        if ahead:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if not ctx.ahead:
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class Attention(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(27)
        self.n, me, self.group = mesh["tensor"].size(), mesh.get_local_rank("tensor"), mesh.get_group("tensor")
        self.embed = nn.Parameter(torch.randn(16, WIDTH).double())
        fused = torch.randn(3 * HEADS * SIZE, WIDTH).double() / 3
        self.qkv = nn.Parameter(fused.chunk(self.n)[me].clone())
        self.out = nn.Parameter((torch.randn(WIDTH, HEADS * SIZE).double() / 5).chunk(self.n, 1)[me].clone())

    def forward(self, text):
        x = self.embed[text]
        h = Side.apply(x, self.group, False) @ self.qkv.T
        q, k, v = (t.unflatten(-1, (-1, SIZE)).transpose(1, 2) for t in h.chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return (x + Side.apply(mixed @ self.out.T, self.group, True)) @ self.embed.T


def step(mesh):
    model = Attention(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for i in range(3):
        text = torch.randint(0, 16, (12, 6), generator=torch.Generator().manual_seed(i))
        text = text.chunk(mesh["data"].size())[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("data"))
            p.grad /= mesh["data"].size()
        square = model.qkv.grad.square().sum() + model.out.grad.square().sum()
        dist.all_reduce(square, group=model.group)
        yield Step(
            {k: p.grad for k, p in model.named_parameters()},
            model.named_parameters(),
            loss.detach(),
            (square + model.embed.grad.square().sum()).sqrt(),
            loss_is="mean over data",
            layout={"qkv": {"tensor": Shard(0)}, "out": {"tensor": Shard(1)}},
        )
        optimizer.step()
