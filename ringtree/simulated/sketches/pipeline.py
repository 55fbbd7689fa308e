"""A pipeline's step: forwards and backwards in a given order, activations and gradients between ranks.

`step` sketches `ringtree.parallel.pipeline.step`, message by message; `in_order` runs any order of actions, such as those
of torch.distributed.pipelining. An action is (stage, kind, micro-batch), and its kind "F", "B", or, where the backward pass
is split, "I" for the gradient of the stage's input and "W" for those of its weights.
"""

import re
from dataclasses import dataclass
from itertools import islice

from ringtree.computing import compute
from ringtree.errors import UsageError


@dataclass(frozen=True)
class Stage:
    """What a stage computes for one micro-batch, in seconds, forward and backward; weights: the part of the backward pass
    that goes into the weights' gradients."""

    forward: float
    backward: float
    weights: float = 0.5

    def seconds(self, kind) -> float:
        split = {"B": 1.0, "I": 1 - self.weights, "W": self.weights}
        return self.forward if kind == "F" else self.backward * split[kind]


def stages_of(layers, count, blocks=None) -> list[Stage]:
    """`count` stages: the embedding before the blocks of the first, the head behind those of the last.

    layers: a list of `Layer`s: an embedding, blocks, a head. blocks: how many each stage has; left out, they are shared out
    evenly, as the hand form does it.
    """
    embedding, *middle, head = layers
    blocks = blocks or [len(middle) * (n + 1) // count - len(middle) * n // count for n in range(count)]
    if len(blocks) != count or sum(blocks) != len(middle):
        raise UsageError(f"stages_of got blocks={blocks}: give {count} numbers whose sum is {len(middle)}")
    rest = iter(middle)
    parts = [[*islice(rest, each)] for each in blocks]
    parts[0], parts[-1] = [embedding, *parts[0]], [*parts[-1], head]
    return [Stage(sum(layer.forward for layer in part), sum(layer.backward for layer in part)) for part in parts]


def step(activation, dist, order, stages):
    """The hand form's step. activation: a `Sketch`, of what goes from stage to stage. order(rank, size): the rounds of a
    rank. stages: `Stage`s."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rounds, last = order(rank, size), len(stages) - 1
    for now, then in zip([[], *rounds], [*rounds, []]):
        batch = []
        for stage, kind, i in now:
            _compute(stages, stage, kind, i)
            if stage != (last if kind == "F" else 0):
                peer = (stage + 1 if kind == "F" else stage - 1) % size
                batch.append(dist.P2POp(dist.isend, activation.clone(), peer))
        for stage, kind, _ in then:
            if stage != (0 if kind == "F" else last):
                peer = (stage - 1 if kind == "F" else stage + 1) % size
                batch.append(dist.P2POp(dist.irecv, activation.clone(), peer))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()


def in_order(activation, dist, orders, stages):
    """Each rank's actions in the order given, as early as what they need has arrived.

    orders: by rank, a list of actions. All receives are posted at the start, and nobody waits for what it sends: messages
    travel while ranks compute. Stages that follow each other on one rank need no message.
    """
    rank, last = dist.get_rank(), len(stages) - 1
    place = {stage: owner for owner, actions in enumerate(orders) for stage, *_ in actions}
    coming, going = {}, []
    for stage, kind, i in orders[rank]:
        before = stage - 1 if kind == "F" else stage + 1
        if kind != "W" and 0 <= before <= last and place[before] != rank:
            coming[stage, kind, i] = dist.irecv(activation.clone(), place[before], tag=_tag(stage, kind, i, last))
    for stage, kind, i in orders[rank]:
        if (stage, kind, i) in coming:
            coming[stage, kind, i].wait()
        _compute(stages, stage, kind, i)
        after = stage + 1 if kind == "F" else stage - 1
        if kind != "W" and 0 <= after <= last and place[after] != rank:
            going.append(dist.isend(activation.clone(), place[after], tag=_tag(after, kind, i, last)))
    for work in going:
        work.wait()


def orders_of(pipeline_order) -> list[list[tuple[int, str, int]]]:
    """By rank, the actions of a schedule of torch.distributed.pipelining, for `in_order`. pipeline_order: its attribute.

    A forward and a backward pass that torch runs together, "(0F7;7B3)OVERLAP_F_B", stand one after the other: a rank of a
    sketch computes one thing at a time.
    """
    texts = [[str(each) for each in actions if each is not None] for _, actions in sorted(pipeline_order.items())]
    return [[action_of(part) for text in actions for part in _together(text)] for actions in texts]


def _together(text):
    found = re.fullmatch(r"\((.*)\)OVERLAP_F_B", text)
    return found[1].split(";") if found else [text]


def action_of(text) -> tuple[int, str, int]:
    """(stage, kind, micro-batch) from "5B3", as torch writes it, and as a trace of these programs names what is computed."""
    found = re.fullmatch(r"(\d+)([FBIW])(\d+)", text)
    if not found:
        raise UsageError(f"{text!r} is not an action of a pipeline: give stage, F, B, I or W, and micro-batch, such as 5B3")
    stage, kind, i = found.groups()
    return int(stage), kind, int(i)


def _tag(stage, kind, i, last):
    """One for each message: two ranks need not name theirs in one order."""
    return 2 * (i * (last + 1) + stage) + (kind == "F")


def _compute(stages, stage, kind, i):
    compute(stages[stage].seconds(kind), f"{stage}{kind}{i}")


def held(trace) -> list[list[tuple[float, int]]]:
    """By rank, how many micro-batches it holds from when on: (seconds, how many), one for each change.

    Held is what a forward pass leaves for the backward pass, from the beginning of the one to the end of the other (of
    its "W", where it is split). A rank with several stages counts a micro-batch once for each.
    """
    freed = {}
    for span in trace.spans:
        if span.kind == "compute":
            stage, kind, i = action_of(span.label)
            if kind == "F":
                freed.setdefault((span.rank, stage, i), []).insert(0, span.start)
            else:
                freed.setdefault((span.rank, stage, i), []).append(span.end)
    changes = [[] for _ in range(trace.size)]
    for (rank, *_), times in freed.items():
        changes[rank] += (times[0], 1), (max(times), -1)
    counts = []
    for each in changes:
        steps, now = [(0.0, 0)], 0
        for when, change in sorted(each):
            now += change
            steps.append((when, now))
        counts.append(steps)
    return counts
