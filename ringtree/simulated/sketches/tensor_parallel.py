"""A tensor-parallel step: as `ringtree.parallel.tensor_parallel` does it, alone or times data parallel."""

from dataclasses import replace

from ringtree.computing import compute
from ringtree.simulated.sketch import Sketch
from ringtree.simulated.sketches.data_parallel import buckets_of

WHOLE = 0, 1, 4, 5, 9  # of a block's tensors, those that no rank cuts: two layer norms, and the bias behind the last sum


def step(layers, numbers, dist, tensor=None, data=None, nbytes=0, sequence=False, gather_twice=False):
    """One step of a rank. layers: an embedding, blocks and a head, as `transformer` gives them for one rank alone.

    numbers: of the activations between layers, tokens × width. tensor: the group that shares the matrices of the blocks; left
    out, all ranks. sequence, gather_twice: as in the hand form. data: the group that averages gradients in buckets of
    `nbytes`, during the backward pass; left out, none. Embedding and head are whole on every rank.
    """
    size = dist.get_world_size(tensor)
    (*_, head), dtype = layers, layers[0].dtype
    whole, mine = Sketch(numbers, dtype), Sketch(numbers // size, dtype)
    buckets, under_way = buckets_of(shared_by(size, layers), nbytes) if data is not None else [], []

    def gather():
        dist.all_gather_single(whole, mine, group=tensor)

    def half(seconds, label, gathers):
        """Half of a block, either way: through two matrices, and then the sum over ranks."""
        for _ in range(gathers if sequence else 0):
            gather()
        compute(seconds / size, label)
        if sequence:
            dist.reduce_scatter_single(mine, whole, group=tensor)
        else:
            dist.all_reduce(whole, group=tensor)

    def ready(number):
        while buckets and buckets[0][0] == number:
            under_way.append(dist.all_reduce(Sketch(buckets.pop(0)[1], dtype), group=data, async_op=True))

    for block in layers[1:-1]:
        for label, seconds in _halves(block, block.forward):
            half(seconds, label, 1)
    if sequence:
        gather()
    compute(head.forward, head.name)
    compute(head.backward, head.name)
    ready(len(layers) - 1)
    for number, block in reversed([*enumerate(layers)][1:-1]):
        for label, seconds in reversed(_halves(block, block.backward)):
            half(seconds, label, 2 if gather_twice else 1)
        ready(number)
    if sequence:
        gather()
    ready(0)
    for work in under_way:
        work.wait()
    if sequence:
        dist.all_reduce(Sketch(in_parts(layers), dtype), group=tensor)


def _halves(block, seconds):
    """A block's attention and its feed-forward: a name, and its part of the seconds by the sizes of the tensors."""
    attention = seconds * sum(block.counts[:4]) / sum(block.counts)
    return ("attention", attention), ("feed-forward", seconds - attention)


def shared_by(size, layers):
    """The layers as each of `size` ranks holds them: of a block's matrices and inner biases a part, the rest whole."""
    embedding, *blocks, head = layers

    def share(block):
        return replace(block, counts=tuple(n if place in WHOLE else n // size for place, n in enumerate(block.counts)))

    return [embedding, *map(share, blocks), head]


def in_parts(layers):
    """Numbers of the gradients that `sequence` leaves in parts: of all layer norms, and of the bias behind each block's sum."""
    return sum(block.counts[place] for block in layers[1:-1] for place in WHOLE) + sum(layers[-1].counts[:2])
