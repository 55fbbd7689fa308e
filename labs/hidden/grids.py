"""More grids for the lab "Grids"."""

import math

import torch

from ringtree.labs.exercise import Question
from ringtree.labs.exercises import grids as lab
from ringtree.labs.inputs import drawn


def groups():
    for shape, along in [((3, 4), 0), ((4, 3, 2), 1), ((2, 2, 3, 2), 2), ((5, 1, 2), 0)]:
        says = f"a grid of {' × '.join(map(str, shape))}, along edge {along}"
        wanted = torch.arange(math.prod(shape)).view(shape).movedim(along, -1).reshape(-1, shape[along]).tolist()
        yield Question((shape, along), lambda answer, wanted=wanted: lab._wrong_groups(answer, wanted), says)


def grid_all_reduce():
    return [
        lab._case(drawn(size, length), "columns", columns) for size, columns, length in ((9, 3, 27), (10, 5, 13), (12, 4, 50))
    ]


def on_nodes():
    for size, count, length in [(9, 3, 14), (10, 2, 21), (12, 4, 7)]:
        yield lab._case(drawn(size, length), "ranks_per_node", count, machine=lab.nodes_of(count))


EXTRA = {"groups": groups, "grid_all_reduce": grid_all_reduce, "on_nodes": on_nodes}
