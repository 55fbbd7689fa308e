"""More layouts, groups and grids for the lab "Ranks and groups"."""

import torch

from ringtree.labs.exercise import Case, Question
from ringtree.labs.exercises import ranks_and_groups as lab
from ringtree.labs.inputs import drawn

LAYOUTS = (2, 4, 2), (3, 2, 2), (1, 6, 2), (4, 3, 1)


def _groups(tensor, data, pipeline):
    cube = torch.arange(tensor * data * pipeline).view(pipeline, data, tensor)
    lines = cube.flatten(0, 1), cube.transpose(1, 2).flatten(0, 1), cube.permute(1, 2, 0).flatten(0, 1)
    return {kind: each.tolist() for kind, each in zip(lab.KINDS, lines)}


def all_groups():
    for layout in LAYOUTS:
        wanted = _groups(*layout)
        yield Question(layout, lambda answer, wanted=wanted: lab._unlike(answer, wanted), lab._asked(layout))


def groups_of():
    for layout in LAYOUTS:
        for rank in (1, torch.Size(layout).numel() - 2):
            wanted = {kind: next(each for each in groups if rank in each) for kind, groups in _groups(*layout).items()}
            yield Question(
                (rank, *layout),
                lambda answer, wanted=wanted: lab._unlike(answer, wanted),
                f"rank {rank} of {lab._asked(layout)}",
            )


def group_mean():
    for size, length, groups in [(6, 3, [[0, 5], [1, 2, 3]]), (7, 2, [[6, 0], [2, 4], [1, 3, 5]])]:
        groups = [sorted(each) for each in groups]
        yield Case(tuple((row,) for row in drawn(size, length)), lab._means(groups), {"groups": groups})


def halo():
    for rows, columns, high, wide in [(2, 4, 3, 2), (3, 3, 2, 4), (5, 1, 2, 2)]:
        tiles = drawn(rows * columns, high * wide)
        yield Case(tuple((tile.view(high, wide),) for tile in tiles), lab._bordered(rows, columns), {"columns": columns})


EXTRA = {"all_groups": all_groups, "groups_of": groups_of, "group_mean": group_mean, "halo": halo}
