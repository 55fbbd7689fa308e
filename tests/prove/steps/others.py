"""Steps of other kinds: attention with few key heads, a cut vocabulary, a cut sequence, flat optimizers, uneven counts."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

from ringtree.prove import Step

WORDS, WIDTH, HEADS, LENGTH, ROWS, STEPS = 13, 12, 12, 12, 24, 3


class Through(torch.autograd.Function):
    """`forth` on the way forward, `back` on the gradient."""

    @staticmethod
    def forward(ctx, x, forth, back):
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


class Group:
    def __init__(self, mesh, axis):
        self.group, self.n, self.me = mesh.get_group(axis), mesh[axis].size(), mesh.get_local_rank(axis)

    def same(self, x):
        return x.view_as(x)

    def summed(self, x, op=dist.ReduceOp.SUM):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, op=op, group=self.group)
        return x

    def mine(self, x, dim=0):
        return x.chunk(self.n, dim)[self.me]

    def gathered(self, x, dim=1):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.n)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim)

    def scattered(self, x, dim=1):
        return self.mine(self.summed(x), dim).clone()


def seeded(*shape, seed, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(*shape, generator=draw, dtype=torch.float64) * scale)


def texts(number, rows=ROWS):
    return torch.randint(0, WORDS, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(number))


def told(weights, loss, layout=None, loss_is="same on every rank", norm=None):
    return Step({k: p.grad for k, p in weights.items()}, weights, loss.detach(), norm, loss_is, layout or {})


# --- a cut vocabulary and grouped queries, on data × tensor


def cut(t, n, me, dim=0):
    return nn.Parameter(t.detach().tensor_split(n, dim)[me].clone())


def vocabulary_loss(logits, wanted, tensor, start):
    """Cross entropy where each rank has the scores of some words, from number `start` on."""
    top = tensor.summed(logits.detach().amax(-1), dist.ReduceOp.MAX)
    total = Through.apply((logits - top[..., None]).exp().sum(-1), tensor.summed, tensor.same)
    own = (wanted >= start) & (wanted < start + logits.shape[-1])
    picked = (logits - top[..., None]).gather(-1, torch.where(own, wanted - start, 0)[..., None]).squeeze(-1) * own
    return total.log() - Through.apply(picked, tensor.summed, tensor.same)


def attention(mesh, fault=None, recompute=False):
    tensor, data = Group(mesh, "tensor"), Group(mesh, "data")
    split = partial(cut, n=tensor.n, me=tensor.me)
    size = WIDTH // HEADS
    weights = {
        "embed": seeded(WORDS, WIDTH, seed=1),
        "norm": nn.Parameter(torch.ones(WIDTH, dtype=torch.float64)),
        "q": split(seeded(WIDTH, WIDTH, seed=2, scale=0.3)),
        "k": seeded(size, WIDTH, seed=3, scale=0.3),  # one key head, which all ranks have
        "k_bias": nn.Parameter(torch.zeros(size, dtype=torch.float64)),  # its gradient is rounding
        "v": seeded(size, WIDTH, seed=4, scale=0.3),
        "o": split(seeded(WIDTH, WIDTH, seed=5, scale=0.3), dim=1),
        "head": split(seeded(WORDS, WIDTH, seed=6, scale=0.3)),
    }
    start = sum(len(part) for part in torch.empty(WORDS).tensor_split(tensor.n)[: tensor.me])
    if fault == "vocabulary_start":
        start = len(weights["head"]) * tensor.me
    if fault == "vocabulary_shift":
        start += tensor.me > 0
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-2, weight_decay=0.0)

    def block(x):
        h = Through.apply(F.rms_norm(x, (WIDTH,), weights["norm"]), tensor.same, tensor.summed)
        q = (h @ weights["q"].T).unflatten(-1, (-1, size)).transpose(1, 2)
        k, v = ((h @ weights[name].T + bias).unsqueeze(1) for name, bias in (("k", weights["k_bias"]), ("v", 0)))
        y = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        return x + Through.apply(y.transpose(1, 2).flatten(2) @ weights["o"].T, tensor.summed, tensor.same)

    for number in range(STEPS):
        text = data.mine(texts(number))
        optimizer.zero_grad()
        x = weights["embed"][text[:, :-1]]
        x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        logits = Through.apply(x, tensor.same, tensor.summed) @ weights["head"].T
        loss = vocabulary_loss(logits, text[:, 1:], tensor, start).mean()
        loss.backward()
        for name, p in weights.items():
            if name in ("k", "k_bias", "v") and not (fault == "key_head_unsummed" and name == "k"):
                p.grad = tensor.summed(p.grad)
            p.grad = data.summed(p.grad) / data.n
        layout = {"[qk]": {"tensor": Shard(0)}, "head": {"tensor": Shard(0)}, "o": {"tensor": Shard(1)}, "k": {}}
        yield told(weights, loss, layout, "mean over data")
        optimizer.step()


# --- a cut sequence, on data × sequence


def sequence(mesh, fault=None):
    seq, data = Group(mesh, "sequence"), Group(mesh, "data")
    weights = {
        "embed": seeded(WORDS, WIDTH, seed=1),
        "place": seeded(LENGTH, WIDTH, seed=2),
        "norm.weight": nn.Parameter(torch.ones(WIDTH, dtype=torch.float64)),
        "norm.bias": nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64)),
        "mix": seeded(LENGTH, LENGTH, seed=3, scale=0.3),
        "head": seeded(WORDS, WIDTH, seed=4, scale=0.3),
    }
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    for number in range(STEPS):
        text = data.mine(texts(number))
        optimizer.zero_grad()
        mine = seq.mine(text[:, :-1], 1)
        at = torch.arange(mine.shape[1]) + (0 if fault == "position_offset" else seq.me * mine.shape[1])
        x = F.layer_norm(weights["embed"][mine] + weights["place"][at], (WIDTH,), weights["norm.weight"], weights["norm.bias"])
        back = (lambda g: seq.mine(g, 1)) if fault == "gather_keeps_own" else seq.scattered
        whole = Through.apply(x, seq.gathered, back)
        rows = torch.arange(mine.shape[1]) + seq.me * mine.shape[1]
        y = torch.einsum("st,btw->bsw", weights["mix"][rows], whole)
        wanted = seq.mine(text[:, 1:], 1)
        if fault == "labels_shifted":  # each rank's labels are shifted within its own piece
            wanted = mine.roll(-1, 1)
        loss = F.cross_entropy((y @ weights["head"].T).flatten(0, 1), wanted.flatten(), reduction="sum")
        loss = loss / (len(text) * LENGTH)
        loss.backward()
        for name, p in weights.items():
            if not (fault == "norm_bias_unsummed" and name == "norm.bias"):
                p.grad = seq.summed(p.grad)
            p.grad = data.summed(p.grad) / data.n
        yield told(weights, loss, loss_is="mean over data; sum over sequence")
        optimizer.step()


# --- an optimizer of flat stretches, uneven counts, and a part of the model that a rank does not use, on data


def mlp():
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(LENGTH, 24), nn.Tanh(), nn.Linear(24, WORDS)).double()


def flat(mesh, fault=None):
    data, model = Group(mesh, "data"), mlp()
    vector = parameters_to_vector(model.parameters()).detach()
    padded = F.pad(vector, (0, -len(vector) % data.n))
    mine = nn.Parameter(data.mine(padded).clone())
    optimizer = torch.optim.Adam([mine], lr=1e-2)
    for number in range(STEPS):
        text = data.mine(texts(number))
        model.zero_grad()
        loss = F.cross_entropy(model(text[:, 1:].double()), text[:, 0])
        loss.backward()
        for p in model.parameters():
            p.grad = data.summed(p.grad) / data.n
        yield told(dict(model.named_parameters()), loss, loss_is="mean over data")
        whole = F.pad(parameters_to_vector([p.grad for p in model.parameters()]), (0, -len(vector) % data.n))
        before = mine.detach().clone()
        mine.grad = data.mine(whole).clone()
        if fault == "local_clip":
            nn.utils.clip_grad_norm_([mine], 0.01)
        else:
            mine.grad *= 0.01 / whole.norm()
        optimizer.step()
        parts = data.gathered(before if fault == "gathered_too_early" else mine.detach(), 0)
        if fault == "gathered_in_reverse":
            parts = torch.cat(parts.chunk(data.n)[::-1])
        vector_to_parameters(parts[: len(vector)], model.parameters())


def counted(mesh, fault=None, parts=3):
    """Accumulation over parts of unequal length, each weighted by its rows."""
    data, model = Group(mesh, "data"), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        text = data.mine(texts(number))
        optimizer.zero_grad()
        total = 0
        for part in text.tensor_split(parts) if fault != "last_part_short" else text.split(5):
            loss = F.cross_entropy(model(part[:, 1:].double()), part[:, 0])
            weight = len(part) / len(text) if fault != "last_part_short" else 1 / -(-len(text) // 5)
            (loss * weight).backward()
            total = total + loss.detach() * weight
        for p in model.parameters():
            p.grad = data.summed(p.grad) / data.n
        yield told(dict(model.named_parameters()), total, loss_is="mean over data")
        optimizer.step()


def sometimes(mesh, fault=None):
    """A branch that only rows with an even first word take; a rank may have none of them."""
    data = Group(mesh, "data")
    torch.manual_seed(9)
    model = nn.ModuleDict({"trunk": nn.Linear(LENGTH, WORDS), "branch": nn.Linear(LENGTH, WORDS)}).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        whole = texts(number, 12)
        text = data.mine(whole[whole[:, 0].argsort()])
        takes = text[:, 0] < 3
        optimizer.zero_grad()
        y = model["trunk"](text[:, 1:].double())
        if takes.any():
            y = y + torch.where(takes[:, None], model["branch"](text[:, 1:].double()), 0)
        loss = F.cross_entropy(y, text[:, 0])
        loss.backward()
        for name, p in model.named_parameters():
            if fault == "branch_left_local" and name.startswith("branch"):
                continue
            p.grad = data.summed(torch.zeros_like(p) if p.grad is None else p.grad) / data.n
        yield told(dict(model.named_parameters()), loss, loss_is="mean over data")
        optimizer.step()


def recomputed(mesh):
    return attention(mesh, recompute=True)


def single(mesh):
    """In float32."""
    data, model = Group(mesh, "data"), mlp().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        text = data.mine(texts(number))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text[:, 1:].float()), text[:, 0])
        loss.backward()
        for p in model.parameters():
            p.grad = data.summed(p.grad) / data.n
        yield told(dict(model.named_parameters()), loss, loss_is="mean over data")
        optimizer.step()


RIGHT = {
    "attention": "data,tensor",
    "recomputed": "data,tensor",
    "sequence": "data,sequence",
    "flat": "data",
    "counted": "data",
    "sometimes": "data",
    "single": "data",
}
WRONG = {
    "vocabulary_shift": (attention, "the loss is wrong"),
    "vocabulary_start": (
        attention,
        "on data=1 tensor=3, on data=1 tensor=4|wherever tensor > 1|the loss is wrong",
    ),
    "key_head_unsummed": (
        attention,
        "the gradient of k has copies along tensor that differ; their sum over tensor is right",
    ),
    "position_offset": (sequence, "the loss is wrong"),
    "labels_shifted": (sequence, "the loss is wrong"),
    "gather_keeps_own": (sequence, "no multiple of the right one"),
    "norm_bias_unsummed": (
        sequence,
        "the gradient of norm.bias has copies along sequence that differ; their sum over sequence is right",
    ),
    "local_clip": (flat, "is moved by the optimizer otherwise"),
    "gathered_too_early": (flat, "each weight is not moved by the optimizer's step"),
    "gathered_in_reverse": (flat, "is moved by the optimizer otherwise"),
    "last_part_short": (counted, "the loss is wrong"),
    "branch_left_local": (
        sometimes,
        "each gradient of branch.weight and branch.bias has copies along data that differ; their mean",
    ),
}
REFERENCE = {name: technique.__name__ for name, (technique, _) in WRONG.items()}
AXES = RIGHT | {name: RIGHT[technique] for name, technique in REFERENCE.items()}
for name, (technique, _) in WRONG.items():
    globals()[f"wrong_{name}"] = partial(technique, fault=name)
