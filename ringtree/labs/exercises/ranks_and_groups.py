"""Lab of chapter 1, "Ranks and groups": a mean in each group of ranks, and neighbors in a row."""

import itertools

import torch

from ringtree.labs import limits
from ringtree.labs.exercise import Case, Level, Program
from ringtree.labs.inputs import drawn, easy
from ringtree.units import count_text

TITLE = "Ranks and groups"
CHAPTER = 1


# ---------------------------------------------------------------- a mean in each group


def group_mean_cases():
    for size, length, groups in [
        (2, 2, [[0, 1]]),
        (3, 1, [[0], [1, 2]]),
        (4, 3, [[0, 1], [2, 3]]),
        (4, 2, [[0, 2], [1, 3]]),
        (5, 3, [[0, 1, 4], [2, 3]]),
        (6, 4, [[1, 2, 5], [0, 4]]),
        (8, 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (4, 5, [[0, 3], [1, 2]]),
        (4, 3, [[0, 1, 3]]),
    ]:
        alone = sorted(set(range(size)) - set(itertools.chain(*groups)))
        says = f"with rank {alone[0]} alone in its group" if alone else ""
        rows = easy(size, length) if size == 2 else drawn(size, length)
        yield Case(tuple((row,) for row in rows), _means(groups), {"groups": groups}, says=says)


def _means(groups):
    def wanted(given):
        rows = [row for (row,) in given]
        mine = [next((each for each in groups if rank in each), [rank]) for rank in range(len(rows))]
        return [torch.stack([rows[member] for member in members]).mean(0) for members in mine]

    return wanted


def _one_all_reduce(case):
    """Of the largest group: the bytes that a ring moves through a port of its rank."""
    numbers, groups = case.given[0][0], case.options["groups"]
    return max(2 * (numbers.numel() - numbers.numel() // len(each)) for each in groups) * numbers.element_size()


GROUP_MEAN_LEVELS = (
    Level(
        "at the bound",
        (limits.port_bytes(_one_all_reduce), limits.rounds(lambda case: 2 * max(map(len, case.options["groups"])) - 2)),
        "2(g−1)/g·n bytes in a group of g ranks: an all-reduce takes no less (Patarasuk and Yuan 2009).",
    ),
)
GROUP_MEAN_HINTS = (
    "`new_group` is a collective of the world: every rank calls it for every group of the list, in the order of the list, "
    "and keeps the one that it is in.",
    "Inside `for members in groups:` call `dist.new_group(members)` first, and only then ask `if rank in members`. A rank "
    "that is in none keeps nothing, and calls no all_reduce.",
    "After the loop: `total = x.clone()`, `dist.all_reduce(total, group=mine)`, and divide by the members of the group, "
    "`dist.get_world_size(mine)`, not by those of the world.",
)


# ---------------------------------------------------------------- neighbors in a row

ROWS = (2, 1), (3, 2), (1, 3), (4, 3), (5, 2), (8, 1), (4, 4)  # ranks, numbers of each


def edges_cases():
    for size, length in ROWS:
        strips = easy(2, 1) if size == 2 else drawn(size, length, torch.float64 if size == 5 else torch.float32)
        yield Case(tuple((strip,) for strip in strips), _with_edges)


def _with_edges(given):
    world = torch.nn.functional.pad(torch.cat([strip for (strip,) in given]), (1, 1))
    length = len(given[0][0])
    return [world[rank * length : (rank + 1) * length + 2] for rank in range(len(given))]


def _one_number_a_side(run):
    """Complains unless every rank sent each neighbor one message, of one number, and nobody else any."""
    number = run.case.given[0][0].element_size()
    for rank in range(run.case.size):
        sent = [each for each in run.trace if each.src == rank]
        for each in sent:
            if abs(each.dst - rank) != 1:
                return f"the numbers are right, but rank {rank} sent rank {each.dst} a message: they are not neighbors"
            if each.nbytes != number:
                return f"the numbers are right, but rank {rank} sent rank {each.dst} {each.nbytes // number} numbers: one is enough"
        neighbors = [other for other in (rank - 1, rank + 1) if 0 <= other < run.case.size]
        for other in neighbors:
            if (count := sum(each.dst == other for each in sent)) != 1:
                return f"the numbers are right, but rank {rank} sent rank {other} {count_text(count, 'message')}: send one"
    return None


EDGES_LEVELS = (
    Level(
        "at the bound",
        (limits.rounds(lambda case: 2),),
        "A rank in the middle has two neighbors, and its one port sends one message at a time.",
    ),
)
EDGES_HINTS = (
    "Which neighbor does rank 0 not have? Which does the last rank not have? For a neighbor that is not there, put nothing "
    "into the list, and its place stays zero.",
    "A message goes into a tensor of its own memory, or into a piece of one: `wide[:1]` is the first place of `wide` and "
    "`wide[-1:]` the last. Both are pieces that you can receive into.",
    "Collect `dist.P2POp(dist.isend, x[-1:], rank + 1)` and `dist.P2POp(dist.irecv, wide[:1], rank - 1)`, then the two of the "
    "other direction, each below its own `if`. Every rank must list what goes right first. Hand the list to "
    "`batch_isend_irecv`, unless it is empty, and wait for all works.",
)


EXERCISES = {
    "group_mean": Program(group_mean_cases, GROUP_MEAN_HINTS, GROUP_MEAN_LEVELS, builtin=True, adds=False),
    "edges": Program(edges_cases, EDGES_HINTS, EDGES_LEVELS, also=_one_number_a_side, adds=False),
}
