"""`ringtree parallel TECHNIQUE --ranks 4`: train a small GPT by a technique, and print what a step costs.

It starts its ranks itself; under torchrun it joins. NCCL where each rank of a node has a GPU, else Gloo. The model is that
of the chapters, and grows by options; a mesh combines two techniques.
"""

import argparse
import math
import os
import resource
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ringtree import data
from ringtree.collectives import call_names
from ringtree.command import launching
from ringtree.parallel import data_parallel, experts, model, pipeline, sharded, tensor_parallel, uneven
from ringtree.parallel.master_weights import MasterWeights

BUCKET, MICROBATCHES = 400_000, 8

AXES = {
    "data_parallel": "data",
    "sharded": "data",
    "pipeline": "pipeline",
    "experts": "expert",
    "tensor_parallel": "tensor",
    "uneven": "data",
}
# What a mesh with both cannot do, and why.
REFUSED = {
    ("sharded", "pipeline"): "each micro-batch would gather a stage's shards again; take data_parallel beside a pipeline",
    ("sharded", "expert"): "ZeRO averages over the data axis alone, and what all ranks have needs the expert axis too",
    ("tensor", "expert"): "tensor_parallel cuts the matrices of a feed-forward, and a layer of experts has none of its own",
    ("uneven", "tensor"): "uneven shows data parallel alone",
    ("uneven", "pipeline"): "uneven shows data parallel alone",
    ("uneven", "expert"): "uneven shows data parallel alone",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass
class Settings:
    """What is trained, and how. rows: of a rank; tokens: of a row; parts: of a rank's rows, one after another."""

    technique: str
    steps: int = 20
    layers: int = 0
    width: int = 128
    heads: int = 4
    tokens: int = 32
    rows: int = 4
    parts: int = 0
    dtype: torch.dtype = torch.float32
    recompute: bool = False
    mesh: dict = field(default_factory=dict)


class Watched:
    """torch.distributed, and what was called in this step: {(axis, operation): [calls, bytes]}; `waited`, the host's seconds."""

    CALLS = {*call_names(), "batch_isend_irecv"}

    def __init__(self, names):
        self.names, self.calls, self.waited = names, {}, 0.0

    def __getattr__(self, name):
        call = getattr(dist, name)
        return partial(self._note, name, call) if name in self.CALLS else call

    def _note(self, name, call, *given, **named):
        begun = time.perf_counter()
        work = call(*given, **named)
        self.waited += time.perf_counter() - begun
        if name == "batch_isend_irecv":
            sent = [each for each in given[0] if each.op is dist.isend]
            group, nbytes = given[0][0].group, sum(each.tensor.nbytes for each in sent)
            self._add(group, "isend", len(sent), nbytes)
            return [Waited(self, each) for each in work]
        tensors = [each for each in given[:2] if isinstance(each, torch.Tensor)]
        self._add(named.get("group"), name, 1, max((each.nbytes for each in tensors), default=0))
        return Waited(self, work) if named.get("async_op") else work

    def _add(self, group, name, calls, nbytes):
        found = self.calls.setdefault((self.names.get(group, "all ranks"), name), [0, 0])
        found[0] += calls
        found[1] += nbytes


class Waited:
    """A Work whose wait is timed."""

    def __init__(self, watched, work):
        self._watched, self._work = watched, work

    def wait(self):
        begun = time.perf_counter()
        self._work.wait()
        self._watched.waited += time.perf_counter() - begun


class Trainer:
    """A model on this rank, and its steps."""

    def __init__(self, given: Settings, device):
        self.given, self.device = given, device
        mesh = given.mesh or {AXES[given.technique]: dist.get_world_size()}
        self.groups = groups_of(mesh)
        self.dist = Watched({group: axis for axis, group in self.groups.items()})
        self.place = {axis: dist.get_rank(group) for axis, group in self.groups.items()}
        self.size = {axis: mesh.get(axis, 1) for axis in ("data", "tensor", "pipeline", "expert")}
        tokens, symbols = model.tokens_of(data.prose())
        self.tokens = tokens
        layer = {}
        if "expert" in mesh:
            make = partial(experts.Experts, count=2 * mesh["expert"], best=2, make=model.FeedForward)
            layer = {"feed_forward": make}
        layers = given.layers or (8 if given.technique == "pipeline" else 4)
        net = model.seeded(lambda: model.GPT(len(symbols), layers, given.width, given.heads, given.tokens, **layer))
        self.net = net.to(device, given.dtype)
        self.cut()

    def cut(self):
        """Leave this rank its part of the model, and make what averages and steps."""
        given, net, groups = self.given, self.net, self.groups
        self.sequence = set(groups) == {"tensor"}
        if "tensor" in groups:
            tensor_parallel.share(net, self.dist, groups["tensor"], self.sequence)
        if "expert" in groups:
            experts.share_out(net, self.dist, groups["expert"])
        units = [[net.token, net.place], *([block] for block in net.blocks), [net.norm, net.head]]
        if given.recompute:
            net.blocks = torch.nn.ModuleList(Again(block) for block in net.blocks)
        if "pipeline" in groups:
            averaged = getattr(net, "averaged", None)
            self.net = net = pipeline.Stage(net, self.place["pipeline"], self.size["pipeline"])
            net.averaged = averaged
        make = partial(torch.optim.AdamW, lr=3e-3)
        if given.dtype == torch.bfloat16:
            make = partial(MasterWeights, make=make)
        self.share = self.averaging = None
        if given.technique == "sharded":
            self.share = sharded.ZeRO3(units, self.dist, make, group=groups["data"])
            return
        if "data" in groups and not {"pipeline", "expert"} & set(groups):
            data_parallel.same_start(net, self.dist, groups["data"])
            self.averaging = data_parallel.Overlapped(net, self.dist, BUCKET, group=groups["data"])
        self.optimizer = make(net.parameters())

    def rows(self):
        """The batches' rows in all: `rows` a rank, and as many as micro-batches and parts divide."""
        size = dist.get_world_size()
        seen = self.size["data"] * self.size["expert"]
        each = self.micro * seen if "pipeline" in self.groups else (self.given.parts or 1) * seen
        return -(-self.given.rows * size // each) * each

    @property
    def micro(self):
        return self.given.parts or MICROBATCHES

    def mine(self, batch):
        """This rank's rows: ranks of the data and expert axes have different ones."""
        for axis in "data", "expert":
            if axis in self.groups:
                batch = batch.chunk(self.size[axis])[self.place[axis]]
        return batch.to(self.device)

    def step(self, batch):
        """Returns the loss of all rows, on every rank."""
        rows = self.mine(batch)
        loss = self.through_pipeline(rows) if "pipeline" in self.groups else self.in_parts(rows)
        if "expert" in self.groups:
            same = self.groups.get("data")
            experts.average_gradients(self.net, self.dist, same, self.seeing_others())
        elif self.averaging:
            self.averaging.finish()
        elif "data" in self.groups and not self.share:
            data_parallel.average_buckets(self.net, self.dist, BUCKET, group=self.groups["data"])
        if self.sequence:
            tensor_parallel.sum_of_parts(self.net, self.dist, self.groups["tensor"])
        (self.share or self.optimizer).step()
        if not self.share:
            self.optimizer.zero_grad()
        for axis in "data", "expert":
            if axis in self.groups:
                dist.all_reduce(loss, group=self.groups[axis])
                loss /= self.size[axis]
        return loss.item()

    def seeing_others(self):
        """The ranks that see different rows: of both axes, where the mesh has no third."""
        return None if not {"pipeline", "tensor"} & set(self.groups) else self.groups["expert"]

    def in_parts(self, rows):
        total, parts = torch.zeros((), device=self.device, dtype=torch.float64), self.given.parts or 1
        for number, part in enumerate(rows.chunk(parts), 1):
            if self.averaging:
                self.averaging.on = number == parts
            loss = model.loss_of(self.net, part)
            more = 0.01 * experts.balance_loss(self.net, self.balance()) if "expert" in self.groups else 0
            ((loss + more) / parts).backward()
            total += loss.detach() / parts
        return total

    def balance(self):
        return self.dist if not {"pipeline", "tensor"} & set(self.groups) else None

    def through_pipeline(self, rows):
        stage, stages, group = self.place["pipeline"], self.size["pipeline"], self.groups["pipeline"]
        parts = rows.chunk(self.micro)
        inputs, wanted = [each[:, :-1] for each in parts], [each[:, 1:].flatten() for each in parts]
        like = torch.empty(*inputs[0].shape, self.given.width, device=self.device, dtype=self.given.dtype)
        rounds = pipeline.one_f_one_b(stage, stages, self.micro)

        def loss_of(y, i):
            return F.cross_entropy(y.flatten(0, 1), wanted[i])

        losses = pipeline.step(rounds, {stage: self.net}, stages, inputs, loss_of, like, self.dist, group=group)
        loss = torch.stack(losses).mean().double() if losses else torch.zeros((), device=self.device, dtype=torch.float64)
        dist.all_reduce(loss, group=group)
        return loss


class Again(torch.nn.Module):
    """A block whose activations are not kept, but computed again in the backward pass."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def groups_of(mesh):
    """This rank's group of each axis, the last axis of ranks next to each other."""
    mine, ranks = {}, torch.arange(dist.get_world_size()).reshape(*mesh.values())
    for place, axis in enumerate(mesh):
        for members in ranks.movedim(place, -1).reshape(-1, mesh[axis]).tolist():
            group = dist.new_group(members)
            if dist.get_rank() in members:
                mine[axis] = group
    return mine


def uneven_losses(given, device):
    """The loss of each step where the last rank has no rows in each third step, on rank 0 that of all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, symbols = model.tokens_of(data.prose())
    net = model.seeded(lambda: model.GPT(len(symbols))).to(device)
    parts = [batch.chunk(size)[rank].to(device) for batch in model.batches(tokens, given.steps, given.rows * size)]
    if rank == size - 1:
        parts[2::3] = [part[:0] for part in parts[2::3]]
    average = partial(data_parallel.average_buckets, net, dist, BUCKET)
    for loss in uneven.together(net, parts, model.loss_of, average, dist):
        mean = torch.tensor(loss, device=device)
        dist.reduce(mean, dst=0)
        yield mean.item() / size


def train(given: Settings, device, told=lambda trainer, seconds, rows: None):
    """Yield the loss of each step; afterwards told(trainer, median seconds of a step, rows of a step)."""
    if given.technique == "uneven":
        yield from uneven_losses(given, device)
        return
    trainer, seconds, rows = Trainer(given, device), [], 0
    for batch in model.batches(trainer.tokens, given.steps, trainer.rows(), given.tokens):
        trainer.dist.calls, trainer.dist.waited, rows = {}, 0.0, len(batch)
        begun = now(device)
        loss = trainer.step(batch)
        seconds.append(now(device) - begun)
        yield loss
    told(trainer, sorted(seconds)[len(seconds) // 2], rows)


def now(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(trainer, seconds, rows):
    """What the last step called, how fast steps were, and how much memory this rank took; on rank 0."""
    yield f"{rows * trainer.given.tokens / seconds:,.0f} tokens a second, {seconds * 1e3:.1f} ms a step (median)"
    for (axis, name), (calls, nbytes) in sorted(trainer.dist.calls.items()):
        yield f"a step, over {axis}: {name} {calls} times, {nbytes:,} bytes"
    if trainer.device.type == "cuda":
        yield f"most memory of rank 0: {torch.cuda.max_memory_allocated():,} bytes, of tensors on its GPU"
        yield "what part of communication was exposed: not measured on a GPU; --profile shows it"
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        yield f"most memory of rank 0: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit:,} bytes, of its process"
        yield f"exposed: rank 0 stood in calls and waits for {trainer.dist.waited / seconds:.0%} of its last step's time"


def main(arguments=None, prog="ringtree parallel"):
    """Run the command; returns its exit code."""
    parser = parser_of(prog)
    options = parser.parse_args(arguments)
    given, size = settings_of(options, parser)
    if "LOCAL_RANK" not in os.environ:
        return launching.under_torchrun(size, "ringtree.parallel", sys.argv[1:] if arguments is None else arguments)
    device = join()
    if given.mesh and math.prod(given.mesh.values()) != dist.get_world_size():
        parser.error(f"the mesh has {math.prod(given.mesh.values())} ranks, and {dist.get_world_size()} were started")
    first = dist.get_rank() == 0
    say = partial(print, flush=True) if first else lambda *_: None
    on = f" on {', '.join(f'{axis} {size}' for axis, size in given.mesh.items())}" if given.mesh else ""
    say(f"{given.technique}: {dist.get_world_size()} ranks{on}, {dist.get_backend()}")

    def tell(*measured):
        for line in report(*measured):
            say(line)

    with profiled(options.profile if first else None):
        for number, loss in enumerate(train(given, device, tell), 1):
            say(f"step {number:3}: loss {loss:.4f}")
    dist.destroy_process_group()
    return 0


def parser_of(prog):
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Train the chapters' small GPT on several ranks by a technique; rank 0 prints losses and what a step costs.",
        epilog="It starts its ranks itself; under torchrun, or python -m torch.distributed.run, it joins.",
        allow_abbrev=False,
    )
    parser.add_argument("technique", choices=AXES)
    parser.add_argument("--ranks", type=at_least_one, metavar="N", help="how many to start on this machine (4, or the mesh's)")
    parser.add_argument("--steps", type=at_least_one, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--layers", type=at_least_one, default=0, metavar="N", help="blocks of the model (4; of a pipeline 8)")
    parser.add_argument("--width", type=at_least_one, default=128, metavar="N", help="of the model (128)")
    parser.add_argument("--heads", type=at_least_one, default=4, metavar="N", help="of attention (4)")
    parser.add_argument("--tokens", type=at_least_one, default=32, metavar="N", help="of a row (32)")
    parser.add_argument("--rows", type=at_least_one, default=4, metavar="N", help="of a rank, rounded up to what divides (4)")
    parser.add_argument(
        "--parts",
        type=at_least_one,
        default=0,
        metavar="N",
        help="accumulate over so many (1); of a pipeline, micro-batches (8)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights; bfloat16 has float32 masters")
    parser.add_argument("--recompute", action="store_true", help="keep no activations of a block, compute them again")
    parser.add_argument(
        "--mesh", type=mesh_of, default={}, metavar="AXIS=N,…", help="as data=2,tensor=2; axes: data, tensor, pipeline, expert"
    )
    parser.add_argument("--profile", metavar="FILE", help="write rank 0's trace there, for chrome://tracing or Perfetto")
    return parser


def settings_of(options, parser):
    """The settings, and how many ranks; ends with one sentence where they do not go together."""
    mesh, technique = options.mesh, options.technique
    size = math.prod(mesh.values()) if mesh else options.ranks or 4
    if mesh and options.ranks not in (None, size):
        parser.error(f"the mesh has {size} ranks and --ranks says {options.ranks}: leave one out, or make them equal")
    if mesh and AXES[technique] not in mesh:
        parser.error(
            f"{technique} needs the axis {AXES[technique]}, and the mesh has {', '.join(mesh)}: add {AXES[technique]}=N"
        )
    for (one, other), reason in REFUSED.items():
        if other in mesh and (one == technique or one in mesh):
            parser.error(f"no {one} with {other}: {reason}")
    size_now = int(os.environ.get("WORLD_SIZE", size))
    across = mesh.get("tensor", size_now if technique == "tensor_parallel" else 1)
    if options.width % options.heads:
        parser.error(f"{options.heads} heads do not divide a width of {options.width}: give a multiple of {options.heads}")
    if options.heads % across:
        parser.error(f"{options.heads} heads cannot be shared by {across} ranks: give --heads a multiple of {across}")
    if technique == "tensor_parallel" and len(mesh) < 2 and options.tokens % across:
        parser.error(f"{options.tokens} tokens a row cannot be shared by {across} ranks: give --tokens a multiple of {across}")
    settings = Settings(
        **{
            name: getattr(options, name)
            for name in ("technique", "steps", "layers", "width", "heads", "tokens", "rows", "parts")
        },
        dtype=DTYPES[options.dtype],
        recompute=options.recompute,
        mesh=mesh,
    )
    return settings, size


def at_least_one(text):
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: give a whole number from 1 on")
    return value


def mesh_of(text):
    mesh = {}
    for part in text.split(","):
        axis, _, count = part.partition("=")
        if axis not in ("data", "tensor", "pipeline", "expert") or axis in mesh or not count.isdecimal() or int(count) < 1:
            raise argparse.ArgumentTypeError(
                f"{part!r} in {text!r}: give axis=ranks, parted by commas, as data=2,tensor=2, "
                "each of data, tensor, pipeline and expert once at most"
            )
        mesh[axis] = int(count)
    return mesh


class profiled:
    """Within it rank 0's work is noted, and written to a file at the end; nothing is where no file is named."""

    def __init__(self, path):
        self.path = path
        self.profiler = torch.profiler.profile() if path else None

    def __enter__(self):
        if self.profiler:
            self.profiler.__enter__()

    def __exit__(self, *error):
        if self.profiler:
            self.profiler.__exit__(*error)
            self.profiler.export_chrome_trace(self.path)


def join():
    """Become a rank; returns its device."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # ranks that share cores must not fight for them
        dist.init_process_group("gloo")
    return device
