"""Every technique of ringtree.parallel in every setting of a training: equal to one process, or refused with a sentence.

A technique is a `Way`: a model made ready for ranks, and the phases of a step. A setting is a cell: what it does to
the model, the optimizer or the loop. `train` runs both; `alone` is the one process that it is held against.
"""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ringtree.parallel import clipping, data_parallel, experts, pipeline, sharded, tensor_parallel
from ringtree.parallel import model as M
from ringtree.parallel.master_weights import MasterWeights

SYMBOLS, WIDTH, HEADS, LAYERS, CONTEXT, ROWS, STEPS = 11, 24, 6, 3, 12, 12, 3
SGD = partial(torch.optim.SGD, lr=0.3, momentum=0.9)


@dataclass(frozen=True)
class Cell:
    """A setting: what is other than in the chapters' loop."""

    tied: bool = False
    frozen: bool = False
    frozen_ends: bool = False  # the embedding too, so that a first stage has nothing to train
    skipped: bool = False  # rank 0 leaves out an adapter
    returns: type | None = None  # blocks return this
    parts: int = 1
    two_groups: bool = False
    max_norm: float | None = None
    zero_grad: bool | None = None  # set_to_none, before each step's backward passes
    masters: bool = False
    rows: int = 0  # as many as the ranks divide
    positions: int = CONTEXT
    again: bool | None = None  # activations again, use_reentrant
    looks: bool = False
    saved: bool = False


class Adapted(torch.nn.Module):
    """A block with an adapter behind it, that may be left out, and that returns what the cell says."""

    def __init__(self, block, returns, again):
        super().__init__()
        for name, module in block.named_children():
            self.add_module(name, module)
        self.adapter = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.skips, self.returns, self.again = False, returns, again

    def forward(self, x):
        if isinstance(x, (tuple, dict)):
            x = x[0] if isinstance(x, tuple) else x["x"]
        y = M.Block.forward(self, x)
        if not self.skips:
            y = y + self.adapter(y)
        return (y, None) if self.returns is tuple else {"x": y, "more": None} if self.returns is dict else y

    def __call__(self, x):
        if self.again is None or not torch.is_grad_enabled():
            return super().__call__(x)
        return checkpoint(super().__call__, x, use_reentrant=self.again)


class Head(torch.nn.LayerNorm):
    """The last norm, which takes what a block returns."""

    def forward(self, x):
        x = x[0] if isinstance(x, tuple) else x["x"] if isinstance(x, dict) else x
        return super().forward(x)


def net_of(cell: Cell, seed: int = 0, feed_forward=M.FeedForward):
    def make():
        net = M.GPT(SYMBOLS, LAYERS, WIDTH, HEADS, CONTEXT, feed_forward)
        net.blocks = torch.nn.ModuleList(Adapted(each, cell.returns, cell.again) for each in net.blocks)
        for number, block in enumerate(net.blocks):
            block.may_skip = number == 1
        norm = Head(WIDTH)
        norm.load_state_dict(net.norm.state_dict())
        net.norm = norm
        return net.to(torch.bfloat16 if cell.masters else torch.float64)

    net = M.seeded(make, seed)
    if cell.tied:
        net.token.weight = net.head.weight
    if cell.frozen:
        net.blocks[0].requires_grad_(False)
        net.blocks[1].attention.qkv.weight.requires_grad_(False)
    if cell.frozen_ends:
        for module in net.token, net.place, net.blocks[0], net.blocks[1].norm1:
            module.requires_grad_(False)
    return net


def batches(cell: Cell, ranks: int):
    dice = torch.Generator().manual_seed(3)
    rows = cell.rows or ROWS // ranks * ranks
    for _ in range(STEPS):
        yield torch.randint(SYMBOLS, (rows, cell.positions + 1), generator=dice)


def optimizer_of(cell: Cell):
    """From parameters, or pieces of them, to an optimizer."""

    def make(parameters):
        parameters = list(parameters)
        if not cell.two_groups:
            return SGD(parameters)
        matrices = [each for each in parameters if getattr(each, "of", each).dim() > 1]
        others = [each for each in parameters if getattr(each, "of", each).dim() <= 1]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}], lr=0.01)

    return partial(MasterWeights, make=make) if cell.masters else make


def skip(net, yes):
    for block in net.blocks:
        block.skips = yes and block.may_skip


def alone(cell: Cell, ranks: int, split: bool, feed_forward=M.FeedForward):
    """Losses of each step and after the last one, and norms, of one process. ranks, split: whose rows rank 0 skips."""
    net = net_of(cell, feed_forward=feed_forward)
    optimizer, losses, norms = optimizer_of(cell)(net.parameters()), [], []
    for batch in batches(cell, ranks):
        optimizer.zero_grad()
        total = 0.0
        for rank, rows in enumerate(batch.tensor_split(ranks) if split else [batch]):
            skip(net, cell.skipped and (rank == 0 or not split))
            loss = M.loss_of(net, rows) * (len(rows) / len(batch))
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), cell.max_norm or math.inf)))
        optimizer.step()
    skip(net, False)
    with torch.no_grad():
        return [*losses, M.loss_of(net, next(batches(replace(cell, rows=0), ranks))).item()], norms


class Way:
    """A technique in the phases of a step; by itself, data parallel by `average_each`."""

    split = True  # ranks see different rows
    one_has_it = False  # a block is on one rank alone
    feed_forward = M.FeedForward

    def __init__(self, dist, cell, group=None, seed=0):
        self.dist, self.cell, self.group = dist, cell, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.net = net_of(cell, seed, type(self).feed_forward)
        skip(self.net, cell.skipped and (self.rank == 0 or self.one_has_it))
        self.ready()

    def ready(self):
        self.optimizer = optimizer_of(self.cell)(self.net.parameters())

    def mine(self, batch):
        return batch.tensor_split(self.size)[self.rank] if self.split else batch

    def backward(self, rows, weight, last):
        """One backward pass; returns the loss's value, over this rank's rows."""
        loss = M.loss_of(self.net, rows) * weight
        loss.backward()
        return loss.item()

    def finish(self):
        data_parallel.average_each(self.net, self.dist, self.group)

    def gradients(self):
        return [([each.grad for each in self.net.parameters()], [])]

    def step(self):
        self.optimizer.step()

    def zero_grad(self, set_to_none):
        self.net.zero_grad(set_to_none)

    def look(self, rows):
        with torch.no_grad():
            return M.loss_of(self.net, rows).item()

    def whole(self):
        return nullcontext()

    def state(self):
        with self.whole():
            return copy.deepcopy((self.net.state_dict(), self.optimizer.state_dict()))

    def load(self, state):
        with self.whole():
            self.net.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


class Buckets(Way):
    def finish(self):
        data_parallel.average_buckets(self.net, self.dist, 4000, group=self.group)


class Overlapped(Way):
    def ready(self):
        super().ready()
        self.averaging = data_parallel.Overlapped(self.net, self.dist, 4000, group=self.group)

    def backward(self, rows, weight, last):
        self.averaging.on = last
        return super().backward(rows, weight, last)

    def finish(self):
        self.averaging.finish()


class ZeRO1(Way):
    form = sharded.ZeRO1

    def ready(self):
        net = self.net
        ends = [net.token, net.place, net.norm, net.head]
        units = (
            [ends, *([each] for each in net.blocks)]
            if self.cell.tied
            else [ends[:2], *([each] for each in net.blocks), ends[2:]]
        )
        self.shares = self.form(units, self.dist, optimizer_of(self.cell), group=self.group)
        self.optimizer = self.shares.optimizer

    def finish(self):
        self.shares.finish()

    def gradients(self):
        return [([piece.grad for flat in self.shares.flats for piece in flat.pieces], [self.group])]

    def step(self):
        self.shares.step()


class ZeRO2(ZeRO1):
    form = sharded.ZeRO2


class ZeRO3(ZeRO1):
    form = sharded.ZeRO3

    def whole(self):
        return self.shares.whole()


class Tensor(Way):
    split, sequence = False, False

    def ready(self):
        tensor_parallel.share(self.net, self.dist, self.group, self.sequence)
        super().ready()

    def finish(self):
        if self.cell.skipped:
            tensor_parallel.check(self.net, self.dist, self.group)
        if self.sequence:
            tensor_parallel.sum_of_parts(self.net, self.dist, self.group)

    def gradients(self):
        cut = {*tensor_parallel.cut(self.net)}
        return [
            ([each.grad for each in self.net.parameters() if each in cut], [self.group]),
            ([each.grad for each in self.net.parameters() if each not in cut], []),
        ]


class Sequence(Tensor):
    sequence = True


class Pipeline(Way):
    split, one_has_it = False, True

    def ready(self):
        whole = self.net
        self.net = pipeline.Stage(whole, self.rank, self.size)
        self.ends = self.cell.tied and [whole.head.weight] if self.rank in (0, self.size - 1) else []
        if self.cell.tied and self.rank == 0 and self.size > 1:
            self.net.token.weight = whole.token.weight
        super().ready()
        self.both = self.cell.tied and self.new_group()

    def new_group(self):
        """Of first and last rank: each is in one of as many groups as there are pipelines."""
        if self.group is None:
            return self.dist.new_group([0, self.size - 1])
        columns = self.dist.get_world_size() // self.size
        ends = [self.dist.new_group([each, each + (self.size - 1) * columns]) for each in range(columns)]
        return ends[self.dist.get_rank() % columns]

    def run(self, rounds, rows, weight):
        micro = rows.chunk(2)
        inputs, wanted = [each[:, :-1] for each in micro], [each[:, 1:].flatten() for each in micro]
        like = torch.empty(*inputs[0].shape, WIDTH, dtype=self.net_dtype())
        losses = pipeline.step(
            rounds,
            {self.rank: self.net},
            self.size,
            inputs,
            lambda y, i: F.cross_entropy(y.flatten(0, 1), wanted[i]) * weight,
            like,
            self.dist,
            group=self.group,
        )
        mean = torch.stack(losses).mean().double() if losses else torch.zeros((), dtype=torch.float64)
        self.dist.all_reduce(mean, group=self.group)
        return mean.item()

    def net_dtype(self):
        return next(self.net.parameters()).dtype

    def backward(self, rows, weight, last):
        return self.run(pipeline.one_f_one_b(self.rank, self.size, 2), rows, weight)

    def look(self, rows):
        rounds = pipeline.gpipe(self.rank, self.size, 2)
        with torch.no_grad():
            return self.run([each for each in rounds if each[0][1] == "F"], rows, 1.0)

    def finish(self):
        if self.cell.tied:
            pipeline.add_tied(self.ends, self.both, self.dist) if self.ends else None

    def gradients(self):
        second = {*self.ends} if self.cell.tied and self.rank and self.size > 1 else set()
        return [
            ([each.grad for each in self.net.parameters() if each not in second], [self.group]),
            ([each.grad for each in second], None),
        ]


class Experts(Way):
    feed_forward = staticmethod(partial(experts.Experts, count=6, best=2, make=M.FeedForward))

    def ready(self):
        experts.share_out(self.net, self.dist, self.group)
        super().ready()

    def finish(self):
        experts.average_gradients(self.net, self.dist, data=self.group)

    def gradients(self):
        own = {*experts.own(self.net)}
        return [
            ([each.grad for each in self.net.parameters() if each in own], [self.group]),
            ([each.grad for each in self.net.parameters() if each not in own], []),
        ]


WAYS = {
    "data_parallel.average_each": Way,
    "data_parallel.average_buckets": Buckets,
    "data_parallel.Overlapped": Overlapped,
    "sharded.ZeRO1": ZeRO1,
    "sharded.ZeRO2": ZeRO2,
    "sharded.ZeRO3": ZeRO3,
    "tensor_parallel": Tensor,
    "tensor_parallel, sequence": Sequence,
    "pipeline": Pipeline,
    "experts": Experts,
}

CELLS = {
    "as in the chapters": Cell(),
    "tied weights": Cell(tied=True),
    "frozen weights": Cell(frozen=True),
    "a frozen first stage": Cell(frozen_ends=True),
    "a parameter unused on one rank": Cell(skipped=True),
    "a module that returns a tuple": Cell(returns=tuple),
    "a module that returns a dict": Cell(returns=dict),
    "accumulation over 3 parts": Cell(parts=3),
    "accumulation over p parts": Cell(parts=0),
    "an optimizer with two groups": Cell(two_groups=True),
    "clipping": Cell(max_norm=0.1),
    "zero_grad(), to None": Cell(zero_grad=True),
    "zero_grad(), to zeros": Cell(zero_grad=False),
    "bf16 with fp32 masters": Cell(masters=True),
    "rows that p does not divide": Cell(rows=7),
    "positions that p does not divide": Cell(positions=11),
    "recomputation": Cell(again=False),
    "recomputation, reentrant": Cell(again=True),
    "evaluation between two steps": Cell(looks=True),
    "a state_dict out and in": Cell(saved=True),
    "tied, frozen and accumulated, with clipping": Cell(tied=True, frozen=True, parts=2, max_norm=0.1),
}


def train(dist, name: str, cell: Cell, across: int = 0):
    """What one process returns in `alone`, by this technique; or the error's type and text.

    across: on a mesh of two columns, that many ranks below each other are a group, and both groups train.
    """
    torch.set_num_threads(1)
    group = None
    if across:
        columns = [dist.new_group([2 * row + column for row in range(across)]) for column in range(2)]
        group = columns[dist.get_rank() % 2]
    try:
        return _train(dist, WAYS[name], cell, group)
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)


def _train(dist, form, cell, group):
    way = form(dist, cell, group)
    parts, losses, norms = cell.parts or way.size, [], []
    for number, batch in enumerate(batches(cell, way.size)):
        if cell.zero_grad is not None:
            way.zero_grad(cell.zero_grad)
        mine, total = way.mine(batch), 0.0
        pieces = mine.chunk(parts)
        for place, rows in enumerate(pieces):
            # Of all rows, times the ranks over which the mean is taken.
            weight = len(rows) / len(batch) * (way.size if way.split else 1)
            total += way.backward(rows, weight, place == len(pieces) - 1)
        if cell.looks:
            way.look(next(batches(cell, way.size)))
        way.finish()
        norms.append(float(clipping.clip(way.gradients(), cell.max_norm or math.inf, dist)))
        way.step()
        if cell.zero_grad is None:
            way.zero_grad(True)
        if cell.looks:
            way.look(next(batches(cell, way.size)))
        if cell.saved and number == 1:
            state, old = way.state(), way
            way = form(dist, cell, group, seed=5)
            way.load(state)
            del old
        total = torch.tensor(total, dtype=torch.float64)
        if way.split:
            dist.all_reduce(total, group=group)
            total /= way.size
        losses.append(total.item())
    skip(way.net, False)
    return [*losses, way.look(next(batches(replace(cell, rows=0), way.size)))], norms
