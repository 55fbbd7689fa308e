"""More grids for the lab "Grids"."""

import math

import torch

from ringtree.labs.exercise import Case, Question
from ringtree.labs.exercises import grids as lab
from ringtree.labs.inputs import drawn


def groups():
    for shape, along in [((3, 4), 0), ((4, 3, 2), 1), ((2, 2, 3, 2), 2), ((5, 1, 2), 0)]:
        says = f"a grid of {' × '.join(map(str, shape))}, along edge {along}"
        wanted = torch.arange(math.prod(shape)).view(shape).movedim(along, -1).reshape(-1, shape[along]).tolist()
        yield Question((shape, along), lambda answer, wanted=wanted: lab._wrong_groups(answer, wanted), says)


def groups_of():
    for layout in (2, 4, 2), (3, 2, 2), (1, 6, 2), (4, 3, 1):
        tensor, data, pipeline = layout
        cube = torch.arange(math.prod(layout)).view(pipeline, data, tensor)
        for rank in (1, math.prod(layout) - 2):
            p, d, t = rank // tensor // data, rank // tensor % data, rank % tensor
            lines = cube[p, d], cube[p, :, t], cube[:, d, t]
            wanted = {kind: each.tolist() for kind, each in zip(lab.KINDS, lines)}
            says = f"rank {rank} of {lab._asked(layout)}"
            yield Question((rank, *layout), lambda answer, wanted=wanted: lab._unlike(answer, wanted), says)


def halo():
    for rows, columns, high, wide in [(2, 4, 3, 2), (3, 3, 2, 4), (5, 1, 2, 2)]:
        tiles = drawn(rows * columns, high * wide)
        yield Case(tuple((tile.view(high, wide),) for tile in tiles), lab._bordered(rows, columns), {"columns": columns})


def grid_all_reduce():
    return [
        lab._case(drawn(size, length), "columns", columns) for size, columns, length in ((9, 3, 27), (10, 5, 13), (12, 4, 50))
    ]


def on_nodes():
    for size, count, length in [(9, 3, 14), (10, 2, 21), (12, 4, 7)]:
        yield lab._case(drawn(size, length), "ranks_per_node", count, machine=lab.nodes_of(count))


EXTRA = {"groups": groups, "groups_of": groups_of, "halo": halo, "grid_all_reduce": grid_all_reduce, "on_nodes": on_nodes}
