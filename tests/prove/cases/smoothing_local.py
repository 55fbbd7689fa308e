"""Cross entropy over a vocabulary split over `tensor`, with label smoothing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from ringtree.prove import Step


class SplitCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, smoothing, group):
        mine = logits.shape[-1]
        start = mine * dist.get_rank(group)
        top = logits.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = logits - top[..., None]
        total = shifted.exp().sum(-1)
        dist.all_reduce(total, group=group)
        log_p = shifted - total.log()[..., None]
        own = (target >= start) & (target < start + mine)
        at = torch.where(own, target - start, 0)
        picked = log_p.gather(-1, at[..., None]).squeeze(-1) * own
        dist.all_reduce(picked, group=group)
        ctx.save_for_backward(log_p.exp(), at, own)
        ctx.rest, ctx.words = smoothing, mine
        return -(1 - smoothing) * picked - smoothing * log_p.mean(-1)

    @staticmethod
    def backward(ctx, grad):
        p, at, own = ctx.saved_tensors
        wanted = torch.full_like(p, ctx.rest / ctx.words)
        wanted.scatter_add_(-1, at[..., None], (1 - ctx.rest) * own[..., None].to(p.dtype))
        return (p - wanted) * grad[..., None], None, None, None


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def step(mesh, words=24):
    torch.manual_seed(10)
    n, me, group = mesh["tensor"].size(), mesh.get_local_rank("tensor"), mesh.get_group("tensor")
    body = nn.Sequential(nn.Embedding(words, 6), nn.Linear(6, 6), nn.Tanh()).double()
    head = nn.Parameter(torch.randn(words, 6).double().chunk(n)[me].clone())
    optimizer = torch.optim.SGD([*body.parameters(), head], lr=0.3)
    for i in range(3):
        text, target = torch.randint(0, words, (2, 4, 5), generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        logits = Copy.apply(body(text), group) @ head.T
        loss = SplitCrossEntropy.apply(logits, target, 0.1, group).mean()
        loss.backward()
        square = head.grad.square().sum()
        dist.all_reduce(square, group=group)
        norm = (square + sum(p.grad.square().sum() for p in body.parameters())).sqrt()
        named = {**dict(body.named_parameters(prefix="body")), "head": head}
        yield Step(
            {k: p.grad for k, p in named.items()},
            named.items(),
            loss.detach(),
            norm,
            loss_is="same on every rank",
            layout={"head": {"tensor": Shard(0)}},
        )
        optimizer.step()
