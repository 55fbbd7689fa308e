"""Lab of chapter 14, "Groups": groups and edges of a grid, an all-reduce along its rows and columns, and one for nodes."""

import itertools

import torch

from ringtree import theory
from ringtree.cost import Machine
from ringtree.errors import a_kind
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole, short
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, sum_of_all
from ringtree.units import count_text

TITLE = "Grids"
CHAPTER = 14


# ---------------------------------------------------------------- the groups of a grid


GRIDS = [  # lengths of the edges; along which; with which ranks the groups begin; the step from one rank to the next
    ((2, 2), 1, (0, 2), 1),
    ((2, 2), 0, (0, 1), 2),
    ((4,), 0, (0,), 1),
    ((2, 3), 0, (0, 1, 2), 3),
    ((2, 3), 1, (0, 3), 1),
    ((1,), 0, (0,), 1),
    ((2, 2, 2), 2, (0, 2, 4, 6), 1),
    ((2, 2, 2), 1, (0, 1, 4, 5), 2),
    ((2, 2, 2), 0, (0, 1, 2, 3), 4),
    ((2, 3, 4), 1, (0, 1, 2, 3, 12, 13, 14, 15), 4),
    ((3, 1, 2), 1, range(6), 2),
    ((2, 4, 1, 8), 3, range(0, 64, 8), 1),
]


def _wrong_groups(answer, wanted):
    size = sum(map(len, wanted))
    if not isinstance(answer, list | tuple) or not all(isinstance(group, list | tuple | range) and group for group in answer):
        return "it should return a list of groups, each a list of one rank or more"
    ranks = list(itertools.chain(*answer))
    if not all(map(is_whole, ranks)):
        return "a group should hold ranks, whole numbers"
    for rank in range(size):
        if (count := ranks.count(rank)) != 1:
            return f"rank {rank} is in {count} groups, and every rank should be in exactly one"
    if strange := [rank for rank in ranks if not 0 <= rank < size]:
        return f"there is no rank {strange[0]}: the ranks are 0 to {size - 1}"
    found = {rank: group for group in answer for rank in group}
    for group in wanted:
        if list(found[group[0]]) != group:
            return f"rank {group[0]} is in the group {list(found[group[0]])}, and should be in {group}, in this order"
    if (order := [group[0] for group in answer]) != [group[0] for group in wanted]:
        return f"the groups begin with ranks {order}: sort them by their first rank, because every rank must make them in one order"
    return None


def groups_questions():
    for shape, along, firsts, step in GRIDS:
        wanted = [list(range(first, first + step * shape[along], step)) for first in firsts]
        says = f"a grid of {' × '.join(map(str, shape))}, along edge {along}"
        yield Question((shape, along), lambda answer, wanted=wanted: _wrong_groups(answer, wanted), says)


GROUPS_HINTS = (
    "Two ranks are in one group along an edge if their places differ in that edge alone. How far apart are the numbers of "
    "two neighbors along the last edge? Along the one before it?",
    "The step along an edge is the product of all lengths after it: `step = math.prod(shape[along + 1:])`. A group is "
    "first, first + step, first + 2·step, … Which ranks are first?",
    "Rank r has the place `r // step % shape[along]` on this edge. The firsts are those with place 0. Or let torch do it: "
    "`torch.arange(math.prod(shape)).view(shape).movedim(along, -1).reshape(-1, shape[along]).tolist()`.",
)


# ---------------------------------------------------------------- the groups of one rank

KINDS = "tensor", "data", "pipeline"
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
    """Return what is wrong with a dict of groups, or None."""
    if not isinstance(answer, dict) or set(answer) != set(KINDS):
        given = f"a dict with the keys {list(answer)}" if isinstance(answer, dict) else f"{a_kind(answer)}"
        return f'it returned {given} and should return a dict with the keys "tensor", "data" and "pipeline".'
    for kind in KINDS:
        found = answer[kind]
        if not isinstance(found, list) or not all(map(is_whole, found)):
            return f'answer["{kind}"] is {short(found)}: it should be a list of whole numbers.'
        if found != wanted[kind]:
            return f'answer["{kind}"] is {short(found)} and should be {short(wanted[kind])}.'
    return None


def _asked(layout):
    return ", ".join(f"{kind}={extent}" for kind, extent in zip(KINDS, layout))


def groups_of_questions():
    for layout in LAYOUTS:
        size = torch.Size(layout).numel()
        for rank in sorted({0, size // 2, size - 1}):
            wanted = {kind: next(each for each in groups if rank in each) for kind, groups in _layout(layout).items()}
            says = f"rank {rank} of {_asked(layout)}"
            yield Question((rank, *layout), lambda answer, wanted=wanted: _unlike(answer, wanted), says)


GROUPS_OF_HINTS = (
    "You could list all groups and search them. But a rank can also compute its place, and from it the others of its groups: "
    "where is rank 5 in 2 × 2 × 2?",
    "rank, t = divmod(rank, tensor) gives the place along the tensor edge and what is left. Once more with data, and what is "
    "left then is the place along the pipeline.",
    "The tensor group begins at rank − t and goes on in steps of 1; the data group begins at rank − d·tensor, in steps of "
    "tensor; the pipeline group begins at rank − p·tensor·data, in steps of tensor·data.",
)


# ---------------------------------------------------------------- neighbors on a grid

TILES = (1, 2), (2, 1), (1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (3, 3), (1, 1), (4, 1), (2, 2)


def halo_cases():
    for number, (rows, columns) in enumerate(TILES):
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
                return f"the numbers are right, but rank {src} sent rank {dst} {count_text(count, 'message')}: send one"
    for each in run.trace:
        edge = high if abs(each.src - each.dst) == 1 and columns > 1 else wide
        if (
            numbers := each.nbytes // run.case.given[0][0].element_size()
        ) > edge + 2:  # an edge of the bordered tile has corners
            return f"the numbers are right, but rank {each.src} sent rank {each.dst} {numbers} numbers: its edge has {edge}"
    return None


HALO_LEVELS = (
    Level("within the target", (limits.rounds(lambda case: 6),)),
    Level(
        "at the bound",
        (limits.rounds(lambda case: _most_neighbors(case) + (_most_neighbors(case) > 2)),),
        "As many rounds as the rank in the middle has neighbors, because its one port sends one message at a time. With three or "
        "four neighbors it may take one more, because a rank at the edge is a message ahead of the others.",
    ),
)
HALO_HINTS = (
    "Row and column of a rank are divmod(rank, columns). Above is rank − columns, below rank + columns, left rank − 1, right "
    "rank + 1. Which of them does a rank at an edge of the grid not have?",
    "A column of a tensor does not lie in one piece of memory, and a message must: send x[:, 0].contiguous(), receive into a "
    "tensor of its own, and copy that into the border after the wait.",
    "Put all sends and receives into one list, for each neighbor that exists, and the list into one "
    "batch_isend_irecv. For few rounds let all ranks hand them over in the same order of directions: what goes right is received "
    "from the left.",
)


# ---------------------------------------------------------------- along rows, along columns


def _mean_of_all(given):
    return [each / len(given) for each in sum_of_all(given)]


def _case(rows, option, count, **more):
    return Case(tuple((row,) for row in rows), _mean_of_all, {option: count}, **more)


def grid_cases():
    yield _case(easy(2, 2), "columns", 2)
    yield _case(easy(2, 2), "columns", 1)
    sizes = [(3, 3, 4), (4, 2, 3), (6, 3, 12), (6, 2, 7), (1, 1, 2), (5, 1, 6), (8, 4, 64), (8, 2, 24), (4, 2, 0), (4, 2, 8)]
    for size, columns, length in sizes:
        yield _case(drawn(size, length), "columns", columns)
    yield _case(drawn(4, 6, torch.float64), "columns", 4)


def along_the_grid(run):
    """Complains of a message that goes neither along a row nor along a column."""
    columns = run.case.options["columns"]
    for each in run.trace:
        if each.src // columns != each.dst // columns and each.src % columns != each.dst % columns:
            places = " to ".join(
                f"rank {rank} (row {rank // columns}, column {rank % columns})" for rank in (each.src, each.dst)
            )
            return f"the mean is right, but a message went from {places}: the two share neither row nor column"
    return None


def _ring_bytes(numbers, size):
    """2(p−1) chunks, of the longest where p does not divide the vector."""
    return 2 * (size - 1) * -(-numbers.numel() // size) * numbers.element_size()


def two_rings(case):
    columns, numbers = case.options["columns"], case.given[0][0]
    return _ring_bytes(numbers, columns) + _ring_bytes(numbers, case.size // columns)


def one_ring(case):
    """The bound for p equal ranks; with shards of shards, each rounded up."""
    columns, numbers = case.options["columns"], case.given[0][0]
    shard = -(-numbers.numel() // columns)
    rows = case.size // columns
    return 2 * ((columns - 1) * shard + (rows - 1) * -(-shard // rows)) * numbers.element_size()


def _bytes(most):
    return limits.port_bytes(most)


def few_rounds(case):
    columns = case.options["columns"]
    return 2 * (columns - 1) + 2 * (case.size // columns - 1)


GRID_LEVELS = (
    Level("within the target", (_bytes(two_rings),)),
    Level(
        "at the bound",
        (_bytes(one_ring), limits.rounds(few_rounds)),
        "2(p−1)/p·n bytes, as a ring through all ranks (Patarasuk and Yuan 2009), in the rounds of a row and a column.",
    ),
)
GRID_HINTS = (
    "Write a ring for any list of ranks: `ring(vector, members, dist)`, in which your place is `members.index(rank)`. Your row "
    "and your column are two such lists.",
    "row = [rank // columns * columns + i for i in range(columns)], column = list(range(rank % columns, size, columns)). "
    "All-reduce round the row, and then the result round the column: within the target.",
    "At the bound the columns carry less: first a reduce-scatter along the row, so that you hold 1/columns of the row's sum; "
    "all-reduce that shard along the column, whose ranks hold the same shard; then an all-gather along the row. Divide at the end.",
)


# ---------------------------------------------------------------- on nodes

LARGE = 2**16


def nodes_of(count):
    return Machine(
        theory.nvlink(2e-6, bandwidth=200e9), theory.card(bandwidth=10e9), ranks_per_node=count, cards_per_node=count
    )


def node_cases():
    sizes = [(2, 2, 2), (2, 1, 3), (4, 2, 6), (6, 3, 9), (6, 2, 8), (3, 3, 5), (1, 1, 2), (8, 2, 13), (4, 2, 1), (4, 2, 16)]
    for size, count, length in sizes:
        rows = easy(size, length) if size == 2 else drawn(size, length)
        yield _case(rows, "ranks_per_node", count, machine=nodes_of(count))
    rows = [row.clone() for row in drawn(8, LARGE)]
    yield _case(rows, "ranks_per_node", 4, machine=nodes_of(4), says="2 nodes with a card for each rank")


ON_NODES = "on 2 nodes of 4 ranks"
NODE_LEVELS = (
    Level("within the target", (limits.seconds(ON_NODES, 0.5, "ring_all_reduce", 4 * LARGE, lambda case: {"cards": "one"}),)),
    Level(
        "at the bound",
        (limits.seconds(ON_NODES, 1.02, "hierarchical_ring_all_reduce", 4 * LARGE, lambda case: {"ranks_per_node": 4}),),
        "As fast as this book's ring of rings: every card carries its shard of the vector, and nothing twice.",
    ),
)
NODE_HINTS = (
    "The nodes are the rows of a grid, with `ranks_per_node` columns. What may cross between nodes, and how little of it is "
    "enough?",
    "Three steps: a reduce-scatter inside the node, after which the rank at place i holds the shard i of the node's sum; an "
    "all-reduce of that shard among the ranks at place i of all nodes; an all-gather inside the node.",
    "`inside = range(node * k, (node + 1) * k)` and `between = range(place, size, k)`, with k = ranks_per_node. A ring "
    "reduce-scatter over `inside` leaves shard place + 1 (or place, if you start one further back) complete; run the ring "
    "all-reduce over `between` on that very shard, as a view of the vector, so that the all-gather finds it in its place.",
)


EXERCISES = {
    "groups": Answer(groups_questions, GROUPS_HINTS),
    "groups_of": Answer(groups_of_questions, GROUPS_OF_HINTS),
    "halo": Program(halo_cases, HALO_HINTS, HALO_LEVELS, also=_one_message_a_side, adds=False, live=2),
    "grid_all_reduce": Program(grid_cases, GRID_HINTS, GRID_LEVELS, also=along_the_grid),
    "on_nodes": Program(node_cases, NODE_HINTS, NODE_LEVELS),
}
