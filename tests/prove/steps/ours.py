"""The techniques of ringtree.parallel as they stand, and with a fault put into a copy of their file: `wrong_NAME`."""

import importlib
import inspect
import types
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard
from torch.nn import functional as F

from ringtree.parallel import model as M
from ringtree.prove import Flat, Step, flat_shards

SYMBOLS, LAYERS, WIDTH, HEADS, CONTEXT, ROWS, STEPS = 14, 2, 24, 12, 12, 24, 2
AXES = {}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def copy_of(name, *changes):
    """A file of ringtree.parallel with some of its text replaced."""
    whole = importlib.import_module(f"ringtree.parallel.{name}")
    source = inspect.getsource(whole)
    for old, new in changes:
        assert old in source, f"{name}.py has no {old!r} any more"
        source = source.replace(old, new)
    module = types.ModuleType(name)
    module.__package__ = whole.__package__ if "." in name else ""
    exec(compile(source, whole.__file__, "exec"), module.__dict__)
    return module


def gpt(**options):
    return M.seeded(lambda: M.GPT(SYMBOLS, options.pop("layers", LAYERS), WIDTH, HEADS, CONTEXT, **options)).double()


def batches(mesh, axis="data"):
    """This rank's rows of each global batch, or all of them on a mesh without this axis."""
    for number in range(STEPS):
        rows = torch.randint(0, SYMBOLS, (ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(number))
        yield rows.chunk(mesh[axis].size())[mesh.get_local_rank(axis)] if axis in mesh.mesh_dim_names else rows


def of(net, loss, **options):
    return Step({name: p.grad for name, p in net.named_parameters()}, net.named_parameters(), loss.detach(), **options)


def data_parallel(mesh, *changes, parts=1):
    technique, net = copy_of("data_parallel", *changes), gpt()
    averaging, optimizer = technique.Overlapped(net, dist, 20_000), SGD(net.parameters())
    for rows in batches(mesh):
        optimizer.zero_grad()
        told = 0
        for number, part in enumerate(rows.chunk(parts)):
            averaging.on = number == parts - 1
            loss = M.loss_of(net, part) / parts
            loss.backward()
            told = told + loss.detach()
        averaging.finish()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), torch.inf)
        yield of(net, told, norm=norm, loss_is="mean over data")
        optimizer.step()


def accumulated(mesh):
    yield from data_parallel(mesh, parts=2)


def thirds(parts):
    """Queries, keys and values of all ranks' parts, each of which is [q | k | v]."""
    return torch.cat([torch.cat(third) for third in zip(*(part.chunk(3) for part in parts))])


CUT = {
    "*.qkv.weight": {"tensor": thirds},
    "*.up.*": {"tensor": Shard(0)},
    "*.out.weight": {"tensor": Shard(1)},
    "*.down.weight": {"tensor": Shard(1)},
}


def tensor_parallel(mesh, *changes, sequence=True, times=1, parts=1):
    technique, net, group = copy_of("tensor_parallel", *changes), gpt(), mesh.get_group("tensor")
    technique.share(net, dist, group, sequence=sequence)
    optimizer = SGD(net.parameters())
    for rows in batches(mesh):
        optimizer.zero_grad()
        told = 0
        for number, part in enumerate(rows.chunk(parts)):
            loss = M.loss_of(net, part) / parts
            loss.backward()
            told = told + loss.detach()
            if sequence and number >= parts - times:
                technique.sum_of_parts(net, dist, group)
        yield of(net, told, layout=CUT)
        optimizer.step()


def without_sequence(mesh):
    yield from tensor_parallel(mesh, sequence=False)


class World:
    """torch.distributed for which every group is as large as the world."""

    def __getattr__(self, name):
        return getattr(dist, name)

    def get_world_size(self, group=None):
        return dist.get_world_size()


def sharded(mesh, *changes, stage=3, speaks=dist):
    two, three, net = copy_of("sharded.zero2", *changes), copy_of("sharded.zero3"), gpt()
    three.ShardedGradients = two.ShardedGradients
    names = {parameter: name for name, parameter in net.named_parameters()}
    units = [[net.token, net.place], *([block] for block in net.blocks), [net.norm, net.head]]
    share = (three.ZeRO3 if stage == 3 else two.ZeRO2)(units, speaks, SGD)
    n, me = mesh["data"].size(), mesh.get_local_rank("data")
    for rows in batches(mesh):
        loss = M.loss_of(net, rows)
        loss.backward()
        share.finish()
        gradients, parameters = {}, {}
        for flat in share.flats:
            named = [(names[parameter], parameter) for parameter in flat.parameters]
            gradient = torch.cat([piece.grad for piece in flat.pieces])
            gradient = F.pad(gradient, (0, len(flat.shard) - len(gradient)))
            gradients |= flat_shards(named, gradient, me, n)
            parameters |= flat_shards(named, flat.shard.detach(), me, n) if stage == 3 else dict(named)
        places = {"layout" if stage == 3 else "gradient_layout": {"*": {"data": Flat()}}}
        yield Step(gradients, parameters, loss.detach(), loss_is="mean over data", **places)
        share.step()


def zero_2(mesh):
    yield from sharded(mesh, stage=2)


def one_process(mesh, **options):
    """The same training without any technique."""
    net = gpt(**options)
    optimizer = SGD(net.parameters())
    for rows in batches(mesh, "none"):
        optimizer.zero_grad()
        loss = M.loss_of(net, rows)
        loss.backward()
        yield of(net, loss)
        optimizer.step()


four_layers = partial(one_process, layers=4)


def pipeline(mesh, *changes, tied=False, add=True):
    technique, n, me, _group = (
        copy_of("pipeline", *changes),
        mesh["pipe"].size(),
        mesh.get_local_rank("pipe"),
        mesh.get_group("pipe"),
    )
    net = gpt(layers=4)
    if tied:
        net.head.weight = net.token.weight
    stage = technique.Stage(net, me, n)
    names = {parameter: name for name, parameter in net.named_parameters()}
    rounds, optimizer = technique.one_f_one_b(me, n, 4), SGD(stage.parameters())
    ends = dist.new_group([0, n - 1]) if tied and n > 1 else None
    for rows in batches(mesh):
        optimizer.zero_grad()
        some = rows.chunk(4)
        wanted = [each[:, 1:].flatten() for each in some]
        like = torch.empty(len(some[0]), CONTEXT, WIDTH, dtype=torch.float64)
        losses = technique.step(
            rounds,
            {me: stage},
            n,
            [each[:, :-1] for each in some],
            lambda y, i: F.cross_entropy(y.flatten(0, 1), wanted[i]),
            like,
            dist,
        )
        if ends and me in (0, n - 1) and add:
            technique.add_tied([net.token.weight], ends, dist)
        held = {names[parameter]: parameter for parameter in stage.parameters()}
        yield Step({name: p.grad for name, p in held.items()}, held, torch.stack(losses).mean() if losses else None)
        optimizer.step()


def tied(mesh):
    yield from pipeline(mesh, tied=True)


def experts(mesh, *changes, times=1):
    technique, _n, _me, group = (
        copy_of("experts", *changes),
        mesh["expert"].size(),
        mesh.get_local_rank("expert"),
        mesh.get_group("expert"),
    )
    layer = partial(technique.Experts, count=12, best=2, make=M.FeedForward)
    net = gpt(feed_forward=layer)
    names = {parameter: name for name, parameter in net.named_parameters()}
    technique.share_out(net, dist, group)
    optimizer = SGD(net.parameters())
    for rows in batches(mesh, "expert"):
        optimizer.zero_grad()
        loss = M.loss_of(net, rows) + 0.01 * technique.balance_loss(net, dist)
        loss.backward()
        for p in net.parameters():  # an expert that no token came to
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for _ in range(times):
            technique.average_gradients(net, dist)
        held = {names[parameter]: parameter for parameter in net.parameters()}
        yield Step({name: p.grad for name, p in held.items()}, held, loss.detach(), loss_is="mean over expert")
        optimizer.step()


# right: function → its axes
RIGHT = {
    "data_parallel": "data",
    "accumulated": "data",
    "tensor_parallel": "tensor",
    "without_sequence": "tensor",
    "sharded": "data",
    "zero_2": "data",
    "pipeline": "pipe",
    "tied": "pipe",
    "experts": "expert",
}
# fault: the technique, what is wrong with it, and what the report has to say
WRONG = {
    "no_division": (data_parallel, [(".div_(size)", "")], {}, "each gradient is data times too large"),
    "twice_divided": (data_parallel, [(".div_(size)", ".div_(size).div_(size)")], {}, "each gradient is data times too small"),
    "no_bucket_for_the_first": (
        data_parallel,
        [
            (
                "buckets_of(trained(model), nbytes)\n        self.ready",
                "buckets_of(trained(model)[1:], nbytes)\n        self.ready",
            )
        ],
        {},
        "the gradient of token.weight has copies along data that differ; their mean over data is",
    ),
    "summed_at_each_part": (
        tensor_parallel,
        [("parameter.register_post_accumulate_grad_hook(net.summed.look)", "pass")],  # what would have said so
        {"times": 2, "parts": 2},
        "norm1.weight",
    ),
    "no_sum_of_parts": (
        tensor_parallel,
        [],
        {"times": 0},
        "each gradient of blocks.0.norm1.weight.* has copies along tensor that differ; their sum over tensor is right",
    ),
    "no_sum_at_entry": (
        tensor_parallel,
        [("x = Conjugate.apply(x, ranks.same, ranks.summed)", "pass")],
        {"sequence": False},
        "neither their sum nor their mean",
    ),
    "contiguous_qkv": (
        tensor_parallel,
        [("ranks, sequence, gather_twice, parts=3)", "ranks, sequence, gather_twice)")],
        {},
        "the rows of one process in another order before the first step",
    ),
    "no_division_of_shards": (sharded, [("part /= ", "part / ")], {}, "each gradient is data times too large"),
    "no_micro_batch_division": (
        pipeline,
        [("/ len(inputs)\n            losses", "\n            losses")],
        {},
        "each gradient is 4 times the right one on each of these meshes",
    ),
    "tied_not_added": (pipeline, [], {"tied": True, "add": False}, "token.weight has copies along pipe that differ .held by"),
    "experts_not_divided": (
        experts,
        [("each.grad /= dist.get_world_size(data)", "each.grad /= 1 if each in experts else dist.get_world_size(data)")],
        {},
        "experts.* is expert times too large",
    ),
    "averaged_again": (experts, [("model.averaged.begin(trained)", "pass")], {"times": 2}, "expert times too small"),
}
REFERENCE = {"zero_2": "one_process", "no_micro_batch_division": "four_layers", "pipeline": "four_layers"}
AXES |= RIGHT
for name, (technique, changes, options, _) in WRONG.items():
    AXES[name] = RIGHT[technique.__name__]

    def wrong(mesh, technique=technique, changes=changes, options=options):
        yield from technique(mesh, *changes, **options)

    globals()[f"wrong_{name}"] = wrong
