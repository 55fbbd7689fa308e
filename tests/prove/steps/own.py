"""A small training step on a data × tensor mesh, and the same with one fault at a time: `wrong_NAME`."""

from functools import partial
from math import inf

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn import functional as F

from ringtree.prove import Step

ROWS, WORDS, WIDTH, WIDE, STEPS = 24, 12, 6, 24, 3


class Through(torch.autograd.Function):
    """Sum over a group forward, backward, or neither."""

    @staticmethod
    def forward(ctx, x, group, forth, back):
        ctx.group, ctx.back = group, back
        return summed(x, group) if forth else x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient, ctx.group) if ctx.back else gradient, None, None, None


def summed(x, group, op=dist.ReduceOp.SUM):
    x = x.clone()
    dist.all_reduce(x, op=op, group=group)
    return x


class Net(nn.Module):
    """Embedding, position, norm, a column- and a row-parallel layer, a router's auxiliary loss, and a head."""

    def __init__(self, mesh, fault):
        super().__init__()
        self.fault, self.group = fault, mesh.get_group("tensor")
        self.n, self.me = mesh["tensor"].size(), mesh.get_local_rank("tensor")
        torch.manual_seed(5 + (dist.get_rank() if fault == "seed_by_rank" else 0))
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        up, down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)
        self.router = nn.Linear(WIDTH, 4)
        self.head = nn.Linear(WIDTH, WORDS)
        place = 0 if fault == "bias_of_rank_0" else self.me
        self.up_weight = nn.Parameter(up.weight.detach().chunk(self.n)[self.me].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(self.n)[place].clone())
        self.down_weight = nn.Parameter(down.weight.detach().chunk(self.n, 1)[self.me].clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())
        self.to(torch.float64)

    def forward(self, text, mask):
        x = self.norm(self.embed(text))
        routed = self.router(x).softmax(-1)
        self.balance = (routed**2).sum(1).mean()
        if self.fault == "auxiliary_tensor_times":
            self.balance = Through.apply(self.balance, self.group, False, True)
        if self.fault == "auxiliary_summed_forward":
            self.balance = Through.apply(self.balance, self.group, True, False)
        h = Through.apply(x * mask, self.group, False, self.fault != "no_sum_at_entry")
        h = F.gelu(F.linear(h, self.up_weight, self.up_bias))
        y = F.linear(h, self.down_weight, self.down_bias if self.fault == "bias_each_rank" else None)
        y = Through.apply(y, self.group, True, self.fault == "summed_back_twice")
        return self.head(x + y + (0 if self.fault == "bias_each_rank" else self.down_bias))


CUT = {"up_*": {"tensor": Shard(0)}, "down_weight": {"tensor": Shard(1)}}


def batch(mesh, number, fault):
    """This rank's rows of a global batch, with the rows' dropout mask."""
    n, me = mesh["data"].size(), mesh.get_local_rank("data")
    draw = torch.Generator().manual_seed(number)
    text = torch.randint(0, WORDS, (ROWS,), generator=draw)
    mask = (torch.rand(ROWS, WIDTH, generator=draw) > 0.2).double()
    if fault == "dropout_alike":
        mask = mask[: ROWS // n].repeat(n, 1)
    if fault == "all_take_the_first_rows":
        me = 0
    return text.chunk(n)[me], mask.chunk(n)[me]


def averaged(model, mesh, fault):
    """Average all gradients over data."""
    group, n = mesh.get_group("data"), mesh["data"].size()
    for name, p in model.named_parameters():
        if fault == "one_hook_missing" and name == "head.bias":
            continue
        if fault == "to_the_first_only" and n > 1:
            dist.reduce(p.grad, dist.get_process_group_ranks(group)[0], group=group)
            p.grad /= n
            continue
        if fault == "reduced_in_bfloat16":
            p.grad = summed(p.grad.bfloat16(), group).double() / n
            continue
        if fault == "reduced_in_float32":
            p.grad = summed(p.grad.float(), group).double() / n
            continue
        p.grad = summed(p.grad, group, dist.ReduceOp.MAX if fault == "maximum" else dist.ReduceOp.SUM)
        p.grad /= dist.get_world_size() if fault == "divided_by_world" else n
        if fault == "averaged_twice":
            p.grad /= n
        if fault == "router_scaled" and "router" in name:
            p.grad *= mesh["tensor"].size()


def norm_of(model, mesh, fault):
    group = mesh.get_group("tensor")
    cut = [p.grad for name, p in model.named_parameters() if name in ("up_weight", "up_bias", "down_weight")]
    rest = [p.grad for name, p in model.named_parameters() if name not in ("up_weight", "up_bias", "down_weight")]
    cut, rest = (sum(each.square().sum() for each in some) for some in (cut, rest))
    if fault == "norm_of_own_part":
        return (cut + rest).sqrt()
    if fault == "norm_without_copies":
        return summed(cut, group).sqrt()
    if fault == "norms_added":
        return summed((cut + rest).sqrt(), group)
    return (summed(cut, group) + rest).sqrt()


def step(mesh, fault=None):
    model = Net(mesh, fault)
    rate = 0.1 * (mesh["data"].size() if fault == "rate_by_data" else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for number in range(STEPS):
        text, mask = batch(mesh, number, fault)
        if fault != "not_zeroed" or mesh["data"].size() == 1:
            model.zero_grad()
        logits = model(text, mask)
        loss = F.cross_entropy(logits, (text + 1) % WORDS, reduction="sum" if fault == "loss_summed" else "mean")
        if fault == "divided_by_all_rows":
            loss = loss * len(text) / ROWS
        loss = loss + 0.1 * model.balance
        loss.backward()
        averaged(model, mesh, fault)
        norm = norm_of(model, mesh, fault)
        told = loss.detach() * (mesh["data"].size() if fault == "loss_told_wrongly" else 1)
        gradients = {name: p.grad for name, p in model.named_parameters()}
        yield Step(gradients, model.named_parameters(), told, norm, loss_is="mean over data", layout=CUT)
        if fault == "clipped_by_own_norm":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        else:
            for p in model.parameters():
                p.grad *= 0.3
        if fault == "head_left_out" and mesh.size() > 1:
            optimizer.param_groups[0]["params"] = list(model.parameters())[:-2]
        optimizer.step()
        if fault == "noise_by_rank":
            torch.manual_seed(dist.get_rank())
            with torch.no_grad():
                model.head.weight += 1e-3 * torch.randn(WORDS, WIDTH)
        if fault == "weights_in_bfloat16" and mesh.size() > 1:
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(p.bfloat16())
        if fault == "not_finite" and mesh["tensor"].size() > 1:
            model.norm.weight.data[0] = inf


WRONG = {
    # fault: what the report has to say, and what it must not say
    "loss_summed": (
        "the loss holds only 1/data of one part.*each gradient of up_weight.* data times too small",
        "wherever tensor",
    ),
    "divided_by_all_rows": ("", "tensor >"),
    "seed_by_rank": ("before the first step", "times too"),
    "dropout_alike": ("the loss is wrong", "times too|missing"),
    "all_take_the_first_rows": ("the loss is wrong", "times too"),
    "auxiliary_tensor_times": (
        "each gradient of embed.weight.*holds one part tensor times.*each gradient of router.weight and router.bias is tensor times",
        "missing",
    ),
    "auxiliary_summed_forward": ("the loss holds one part tensor times", "each gradient"),
    "bias_of_rank_0": (
        "up_bias is wrong before the first step; the part on tensor 0 is right",
        "each gradient",
    ),
    "bias_each_rank": ("the loss is wrong", "times too"),
    "no_sum_at_entry": ("copies along tensor that differ; neither their sum nor their mean", "times too"),
    "summed_back_twice": ("tensor times too large|holds one part tensor times", "is missing"),
    "one_hook_missing": ("the gradient of head.bias has copies along data that differ; their mean over data is", "times too"),
    "to_the_first_only": ("right on data=0 only", "times too"),
    "reduced_in_bfloat16": ("bfloat16", "times too|sum over"),
    "reduced_in_float32": ("float32", "times too|sum over"),
    "maximum": ("is no multiple", "times too"),
    "divided_by_world": ("each gradient is tensor times too small .*×0.333333 on tensor=3", "data times"),
    "averaged_twice": ("data times too small", "tensor times"),
    "router_scaled": ("each gradient of router.weight and router.bias is tensor times too large", "is missing"),
    "norm_of_own_part": ("the norm .* each rank that of its own part", "gradient of .* is"),
    "norm_without_copies": ("the norm is that of the sharded gradients alone", "each gradient"),
    "norms_added": ("the norm is the sum over tensor of the ranks' own norms", "each gradient"),
    "rate_by_data": ("by a change that is data times too large", "each gradient"),
    "not_zeroed": ("each gradient is right but for 0.3 times the gradient of the step before", "times too"),
    "loss_told_wrongly": ("the loss is data times too large", "each gradient"),
    "clipped_by_own_norm": ("drift apart|moves in the optimizer|is moved by", "each gradient"),
    "noise_by_rank": (
        "the weight of head.weight has copies along .* that drift apart in the optimizer's step",
        "each gradient",
    ),
    "weights_in_bfloat16": ("only the digits of bfloat16 after the optimizer's step", "times too"),
    "head_left_out": ("each weight of head.weight and head.bias is not moved by the optimizer's step", "times too"),
    "not_finite": ("the weight of norm.weight is not finite after", "times too"),
}
right_norm_without_copies = step  # one process has to have the whole norm
for name in WRONG:
    globals()[f"wrong_{name}"] = partial(step, fault=name)
