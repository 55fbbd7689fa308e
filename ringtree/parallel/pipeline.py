"""Pipeline: every rank has some layers; activations go on to the next rank, gradients come back.

A batch is cut into micro-batches, so that several ranks compute at once. What a rank does, in
which order, is a list of rounds, and a round is a list of actions (stage, "F" or "B",
micro-batch): forward or backward. Three such orders: `gpipe` (Huang et al. 2019), `one_f_one_b`
(Narayanan et al. 2019, 2021) and `interleaved` (Narayanan et al. 2021). `step` does what they say.

A rank's parameters are its own (varying over the group), and their gradients final after `step`:
those of the mean loss of the micro-batches, added to what is there. Where several groups see
different rows, average over these.

`dist` is torch.distributed, or anything that speaks like it. Runs on torch 2.1 and later.
"""

import torch
from torch import nn


def gpipe(rank, size, count):
    """All `count` micro-batches forward, then all backward."""
    return [[(rank, kind, i)] for kind in "FB" for i in range(count)]


def one_f_one_b(rank, size, count):
    """As many forwards as there are ranks behind, then one forward, one backward in turn."""
    ahead = min(size - 1 - rank, count)
    rounds = [[(rank, "F", i)] for i in range(ahead)]
    for i in range(count - ahead):
        rounds += [(rank, "F", ahead + i)], [(rank, "B", i)]
    return rounds + [[(rank, "B", i)] for i in range(count - ahead, count)]


def interleaved(rank, size, count, chunks=2):
    """1F1B with `chunks` stages a rank: rank r has stages r, r + size, r + 2·size, …

    Micro-batches come in groups of `size`, of which `count` is a multiple: a group passes
    all ranks once for each chunk. In the middle a round is a forward and a backward.
    """
    if count % size:
        raise ValueError(f"{count} micro-batches on {size} ranks: give a multiple of {size}")

    def nth(kind, n):
        chunk = n // size % chunks
        stage = rank + size * (chunk if kind == "F" else chunks - 1 - chunk)
        return stage, kind, n // (size * chunks) * size + n % size

    total = count * chunks
    ahead = min(2 * (size - 1 - rank) + (chunks - 1) * size, total)
    rounds = [[nth("F", n)] for n in range(ahead)]
    rounds += [[nth("F", ahead + n), nth("B", n)] for n in range(total - ahead)]
    return rounds + [[nth("B", n)] for n in range(total - ahead, total)]


class Stage(nn.Module):
    """Some of a GPT's blocks; the first stage has the embedding too, the last the head.

    model: with `token`, `place`, `blocks`, `norm` and `head`: the stage takes its parts.
    """

    def __init__(self, model, number, stages):
        super().__init__()
        if len(model.blocks) < stages:
            raise ValueError(
                f"{len(model.blocks)} blocks for {stages} stages: give a model with a block a stage at least"
            )
        first, end = (len(model.blocks) * n // stages for n in (number, number + 1))
        self.blocks = model.blocks[first:end]
        self.first, self.last = number == 0, number == stages - 1
        if self.first:
            self.token, self.place = model.token, model.place
        if self.last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        if self.first:
            places = torch.arange(x.shape[1], device=x.device)
            x = self.token(x) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def exchange(sends, receives, dist, group=None):
    """All of these messages at once. sends, receives: (tensor, rank of the job) each."""
    batch = [dist.P2POp(dist.isend, tensor, rank, group) for tensor, rank in sends]
    batch += [dist.P2POp(dist.irecv, tensor, rank, group) for tensor, rank in receives]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


def step(rounds, stages, count, inputs, loss_of, like, dist, held=None, group=None):
    """All micro-batches forward and backward; adds the mean loss's gradients to the parameters'.

    rounds: what this rank does. stages: its modules, by number, of `count` in all; stage s
    is on rank s mod p. inputs: the micro-batches, for the first stage. loss_of(output, i):
    of micro-batch i, for the last. like: a tensor with an activation's shape and dtype.
    held: a dict, in which what waits for its backward pass is kept, as (input, output) by
    (stage, micro-batch). group: the ranks of the pipeline; left out, all. Without grad
    (torch.no_grad) rounds of forwards alone evaluate. Returns the losses, in order, on the
    rank that has the last stage; no losses elsewhere. Raises ValueError where the rounds
    name other micro-batches than the inputs, or a stage returns what is not like `like`.
    """
    check(rounds, inputs)
    ranks = range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group)
    size, losses = len(ranks), []
    held, arrived = {} if held is None else held, {}

    def forward(stage, i):
        x = arrived.pop((stage, "F", i)).requires_grad_() if stage else inputs[i]
        y = stages[stage](x)
        if stage == count - 1:
            y = loss_of(y, i) / len(inputs)
            losses.append(y.detach() * len(inputs))
        else:
            check_like(y, like, stage, i)
        if torch.is_grad_enabled():
            held[stage, i] = x, y
        return [] if stage == count - 1 else [(y.detach(), ranks[(stage + 1) % size])]

    def backward(stage, i):
        x, y = held.pop((stage, i))
        gradient = None if stage == count - 1 else arrived.pop((stage, "B", i))
        if y.requires_grad:  # else all of this stage, the first, is frozen
            y.backward(gradient)
        if not stage:
            return []
        return [(torch.zeros_like(x) if x.grad is None else x.grad, ranks[(stage - 1) % size])]

    def receives(rounds):
        for stage, kind, i in rounds[0] if rounds else ():
            if stage != (0 if kind == "F" else count - 1):
                source = stage - 1 if kind == "F" else stage + 1
                arrived[stage, kind, i] = torch.empty_like(like)
                yield arrived[stage, kind, i], ranks[source % size]

    exchange([], receives(rounds), dist, group)
    for n, actions in enumerate(rounds, 1):
        sends = []
        for stage, kind, i in actions:
            sends += forward(stage, i) if kind == "F" else backward(stage, i)
        exchange(sends, receives(rounds[n:]), dist, group)
    return losses


def check(rounds, inputs):
    named = {i for actions in rounds for _, _, i in actions}
    shapes = [tuple(each.shape) for each in inputs]
    if named != set(range(len(inputs))):
        raise ValueError(
            f"the rounds name {len(named)} micro-batches and {len(inputs)} were given: make the rounds for "
            f"{len(inputs)}, or cut the batch into {len(named)} equal parts"
        )
    if len(set(shapes)) > 1:
        raise ValueError(
            f"micro-batches have shapes {', '.join(map(str, dict.fromkeys(shapes)))}: give equal ones, "
            f"from a batch whose rows are a multiple of {len(inputs)}"
        )


def check_like(y, like, stage, i):
    if not isinstance(y, torch.Tensor):
        raise ValueError(
            f"stage {stage} returned a {type(y).__name__}: one tensor travels between stages, so return that alone"
        )
    if (y.shape, y.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"stage {stage} made {tuple(y.shape)} of {y.dtype} from micro-batch {i}, and `like` says "
            f"{tuple(like.shape)} of {like.dtype}: the next stage would receive another number of bytes"
        )


def add_tied(weights, group, dist):
    """Once, after a step's last `step`: of a weight that first and last stage share, add the gradients of its two copies.

    weights: this rank's copies, none on a rank in between. group: of first and last rank.
    """
    for weight in weights:
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad, group=group)
