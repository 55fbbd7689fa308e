"""Data-parallel steps of which some leave a rank without rows, as `ringtree.parallel.uneven` does them."""

from dataclasses import replace

from ringtree.simulated.sketch import Sketch
from ringtree.simulated.sketches import data_parallel


def skipping(layers, dist, has_rows, **way):
    """A rank without rows skips the step. has_rows: by rank, for each step whether there are any.

    layers, way: of `data_parallel.step`.
    """
    for has in has_rows[dist.get_rank()]:
        if has:
            data_parallel.step(layers, dist, **way)
    dist.barrier()


def together(layers, dist, has_rows, **way):
    """A rank without rows computes nothing, and takes part. has_rows, layers, way: as above."""
    idle = [replace(layer, forward=0.0, backward=0.0) for layer in layers]
    for has in has_rows[dist.get_rank()]:
        dist.all_reduce(Sketch(1))
        data_parallel.step(layers if has else idle, dist, **way)
    dist.barrier()
