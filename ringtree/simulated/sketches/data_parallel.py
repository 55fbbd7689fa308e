"""A data-parallel step: forward, backward, all-reduces of the gradients; as `ringtree.parallel.data_parallel` does it."""

from ringtree.computing import compute
from ringtree.simulated.sketch import Sketch


def step(layers, dist, nbytes=None, overlapped=False, dtype=None):
    """One step of a rank. layers: a list of `Layer`s, from the first.

    nbytes: of a bucket; left out, every tensor has an all-reduce of its own, after the backward pass. overlapped: start a
    bucket's all-reduce as soon as its last gradient is there. dtype: in which gradients travel; left out, their own.
    """
    for layer in layers:
        compute(layer.forward, layer.name)
    buckets, under_way = buckets_of(layers, nbytes) if nbytes else [], []
    for number, layer in reversed([*enumerate(layers)]):
        compute(layer.backward, layer.name)
        while overlapped and buckets and buckets[0][0] == number:
            under_way.append(_send(buckets.pop(0)[1], layer.dtype, dist, dtype))
    if not nbytes:
        for layer in layers:
            for gradient in layer.sketches:
                dist.all_reduce(gradient)
    for _, count in buckets:
        _send(count, layers[0].dtype, dist, dtype).wait()
    for work in under_way:
        work.wait()


def _send(count, own, dist, dtype):
    return dist.all_reduce(Sketch(count, dtype or own), async_op=True)


def buckets_of(layers, nbytes) -> list[tuple[int, int]]:
    """By the hand form's rule, for each bucket: the layer whose gradients fill it, and how many elements it has."""
    buckets, room = [], 0
    for number, layer in reversed([*enumerate(layers)]):
        for gradient in reversed(layer.sketches):
            if not buckets or gradient.nbytes > room:
                buckets.append((number, 0))
                room = nbytes
            buckets[-1] = number, buckets[-1][1] + gradient.count
            room -= gradient.nbytes
    return buckets
