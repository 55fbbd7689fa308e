"""Lab of chapter 1, "Ranks and groups": groups of a tensor × data × pipeline layout, a mean in each, neighbors on a grid."""

import itertools

import torch

from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy
from ringtree.units import count_text

TITLE = "Ranks and groups"
CHAPTER = 1
KINDS = "tensor", "data", "pipeline"


# ---------------------------------------------------------------- the groups of a layout

# Layouts: for each kind of group, with which ranks the groups begin, and the step from one rank of a group to the next.
LAYOUTS = {
    (2, 1, 1): ((range(0, 2, 2), 1), (range(2), 2), (range(2), 2)),
    (1, 2, 1): ((range(2), 1), (range(1), 1), (range(2), 2)),
    (1, 1, 2): ((range(2), 1), (range(2), 1), (range(1), 1)),
    (2, 2, 1): ((range(0, 4, 2), 1), (range(2), 2), (range(4), 4)),
    (2, 2, 2): ((range(0, 8, 2), 1), ((0, 1, 4, 5), 2), (range(4), 4)),
    (4, 2, 1): ((range(0, 8, 4), 1), (range(4), 4), (range(8), 8)),
    (2, 3, 4): ((range(0, 24, 2), 1), ((0, 1, 6, 7, 12, 13, 18, 19), 2), (range(6), 6)),
    (3, 1, 5): ((range(0, 15, 3), 1), (range(15), 3), (range(3), 3)),
    (1, 1, 1): ((range(1), 1), (range(1), 1), (range(1), 1)),
    (8, 4, 2): ((range(0, 64, 8), 1), ((*range(8), *range(32, 40)), 8), (range(32), 32)),
}


def _layout(layout):
    return {
        kind: [list(range(first, first + extent * step, step)) for first in firsts]
        for kind, extent, (firsts, step) in zip(KINDS, layout, LAYOUTS[layout])
    }


def _unlike(answer, wanted):
    """What is wrong with a dict of lists, or None."""
    if not isinstance(answer, dict) or set(answer) != set(KINDS):
        given = f"a dict with the keys {list(answer)}" if isinstance(answer, dict) else f"a {type(answer).__name__}"
        return f'it returned {given} and should return a dict with the keys "tensor", "data" and "pipeline".'
    for kind in KINDS:
        found = answer[kind]
        if not _whole_numbers(found):
            return f'answer["{kind}"] is {short(found)}: it should be made of lists and whole numbers alone.'
        if found != wanted[kind]:
            return f'answer["{kind}"] is {short(found)} and should be {short(wanted[kind])}{_why(found, wanted[kind])}.'
    return None


def _whole_numbers(value):
    return type(value) is list and all(is_whole(each) or _whole_numbers(each) for each in value)


def _why(found, wanted):
    if not all(isinstance(each, list) and _flat(each) for each in [*found, *wanted]):
        return ""
    if any(each != sorted(each) for each in found) and sorted(map(sorted, found)) == sorted(wanted):
        return ": ranks ascend in a group"
    if sorted(found) == sorted(wanted):
        return ": the right groups in another order, and two ranks with two orders wait for each other"
    numbers = list(itertools.chain(*found))
    if len(numbers) != len(set(numbers)):
        return ": a rank is in two groups of one kind"
    return ""


def _flat(value):
    return all(map(is_whole, value))


def _asked(layout):
    return ", ".join(f"{kind}={extent}" for kind, extent in zip(KINDS, layout))


def all_groups_questions():
    for layout in LAYOUTS:
        wanted = _layout(layout)
        yield Question(layout, lambda answer, wanted=wanted: _unlike(answer, wanted), _asked(layout))


ALL_GROUPS_HINTS = (
    "Write the ranks of a 2 × 2 × 2 job into a cube by hand: 0 and 1 along one edge (tensor), then 0 and 2 (data), then 0 and "
    "4 (pipeline). By how much does the number grow with each step along an edge?",
    "Rank = t + tensor·d + tensor·data·p, with t, d, p its place along each edge. A group is what you get when you run "
    "through one of the three and hold the other two.",
    "Tensor: [[rank(t, d, p) for t in range(tensor)] for p in range(pipeline) for d in range(data)]. Data: run through d "
    "inside, and p, then t outside. Pipeline: run through p inside, and d, then t outside.",
)


# ---------------------------------------------------------------- the groups of one rank


def groups_of_questions():
    for layout in LAYOUTS:
        size = torch.Size(layout).numel()
        for rank in sorted({0, size // 2, size - 1}):
            wanted = {kind: next(each for each in groups if rank in each) for kind, groups in _layout(layout).items()}
            says = f"rank {rank} of {_asked(layout)}"
            yield Question((rank, *layout), lambda answer, wanted=wanted: _unlike(answer, wanted), says)


GROUPS_OF_HINTS = (
    "You could search all_groups for the rank. But a rank can also compute its place, and from it the others of its groups: "
    "where is rank 5 in 2 × 2 × 2?",
    "rank, t = divmod(rank, tensor) gives the place along the tensor edge and what is left. Once more with data, and what is "
    "left then is the place along the pipeline.",
    "The tensor group begins at rank − t and goes on in steps of 1; the data group begins at rank − d·tensor, in steps of "
    "tensor; the pipeline group begins at rank − p·tensor·data, in steps of tensor·data.",
)


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
        says = f"with nobody to share with rank {alone[0]}" if alone else ""
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


# ---------------------------------------------------------------- neighbors on a grid

GRIDS = (1, 2), (2, 1), (1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (3, 3), (1, 1), (4, 1), (2, 2)


def halo_cases():
    for number, (rows, columns) in enumerate(GRIDS):
        high, wide = 2 + number % 2, 2 + number % 3
        tiles = drawn(rows * columns, high * wide, torch.float64 if number == 5 else torch.float32)
        given = tuple((tile.view(high, wide),) for tile in tiles)
        yield Case(given, _bordered(rows, columns), {"columns": columns}, says=f"{count_text(rows, 'row')} of the grid")


def _bordered(rows, columns):
    def wanted(given):
        high, wide = given[0][0].shape
        lines = [torch.cat([tile for (tile,) in given[row * columns : (row + 1) * columns]], 1) for row in range(rows)]
        world = torch.nn.functional.pad(torch.cat(lines), (1, 1, 1, 1))
        return [_one(world, rank // columns * high, rank % columns * wide, high, wide) for rank in range(len(given))]

    return wanted


def _one(world, top, left, high, wide):
    """A rank's tile with a border of one; the corners, which no neighbor of four knows, are zero."""
    tile = world[top : top + high + 2, left : left + wide + 2].clone()
    tile[:: high + 1, :: wide + 1] = 0
    return tile


def _most_neighbors(case):
    columns = case.options["columns"]
    rows = case.size // columns
    return min(rows - 1, 2) + min(columns - 1, 2)


def _one_message_a_side(run):
    columns, size = run.case.options["columns"], run.case.size
    high, wide = run.case.given[0][0].shape
    sides = {(rank, rank + 1) for rank in range(size - 1) if (rank + 1) % columns} | {
        (rank, rank + columns) for rank in range(size - columns)
    }
    sent = [(each.src, each.dst) for each in run.trace]
    for pair in sorted({tuple(sorted(each)) for each in sent} - sides):
        strangers = f"ranks {pair[0]} and {pair[1]} are not neighbors on a grid of {columns} columns"
        return f"{strangers}, and there was a message between them"
    for one, other in sorted(sides):
        for src, dst in ((one, other), (other, one)):
            if (count := sent.count((src, dst))) != 1:
                return f"the numbers are right, but rank {src} sent rank {dst} {count_text(count, 'message')}: one was wanted"
    for each in run.trace:
        edge = high if abs(each.src - each.dst) == 1 and columns > 1 else wide
        if (
            numbers := each.nbytes // run.case.given[0][0].element_size()
        ) > edge + 2:  # an edge of the bordered tile has corners
            return f"the numbers are right, but rank {each.src} sent rank {each.dst} {numbers} numbers: its edge has {edge}"
    return None


HALO_LEVELS = (
    Level("within the target", (limits.rounds(lambda case: 4),)),
    Level(
        "at the bound",
        (limits.rounds(_most_neighbors),),
        "As many rounds as the rank in the middle has neighbors: its one port sends one message at a time.",
    ),
)
HALO_HINTS = (
    "Row and column of a rank are divmod(rank, columns). Above is rank − columns, below rank + columns, left rank − 1, right "
    "rank + 1. Which of them does a rank at an edge of the grid not have?",
    "A column of a tensor does not lie in one piece of memory, and a message must: send x[:, 0].contiguous(), receive into a "
    "tensor of its own, and copy that into the border after the wait.",
    "Put all sends and receives into one list, for those neighbors that there are, and the list into one "
    "batch_isend_irecv. For few rounds let all ranks hand them over in the same order of directions: what goes right is received "
    "from the left.",
)


EXERCISES = {
    "all_groups": Answer(all_groups_questions, ALL_GROUPS_HINTS),
    "groups_of": Answer(groups_of_questions, GROUPS_OF_HINTS),
    "group_mean": Program(group_mean_cases, GROUP_MEAN_HINTS, GROUP_MEAN_LEVELS, builtin=True, adds=False),
    "halo": Program(halo_cases, HALO_HINTS, HALO_LEVELS, also=_one_message_a_side, adds=False, live=2),
}
