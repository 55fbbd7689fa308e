"""Lab of chapter 14, "Groups": the groups of a grid, an all-reduce along its rows and columns, and one for nodes."""

import itertools

import torch

from ringtree.cost import Link, Machine
from ringtree.labs import limits
from ringtree.labs.comparing import is_whole
from ringtree.labs.exercise import Answer, Case, Level, Program, Question
from ringtree.labs.inputs import drawn, easy, sum_of_all

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
            return f"rank {rank} is in {count} groups, and every rank is in one"
    if strange := [rank for rank in ranks if not 0 <= rank < size]:
        return f"there is no rank {strange[0]}: the ranks are 0 to {size - 1}"
    found = {rank: group for group in answer for rank in group}
    for group in wanted:
        if list(found[group[0]]) != group:
            return f"rank {group[0]} is in the group {list(found[group[0]])}, and should be in {group}, in this order"
    if (order := [group[0] for group in answer]) != [group[0] for group in wanted]:
        return f"the groups begin with ranks {order}: sort them by their first rank, for every rank must make them in one order"
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


# ---------------------------------------------------------------- along rows, along columns


def _case(rows, option, count, **more):
    return Case(tuple((row,) for row in rows), sum_of_all, {option: count}, **more)


def grid_cases():
    yield _case(easy(2, 2), "columns", 2)
    yield _case(easy(2, 2), "columns", 1)
    sizes = [(3, 3, 4), (4, 2, 3), (6, 3, 12), (6, 2, 7), (1, 1, 2), (5, 1, 6), (8, 4, 64), (8, 2, 24), (4, 2, 0), (4, 2, 8)]
    for size, columns, length in sizes:
        yield _case(drawn(size, length), "columns", columns)
    yield _case(drawn(4, 6, torch.int64), "columns", 2)
    yield _case(drawn(4, 6, torch.float64), "columns", 4)


def along_the_grid(run):
    """Complains of a message that goes neither along a row nor along a column."""
    columns = run.case.options["columns"]
    for each in run.trace:
        if each.src // columns != each.dst // columns and each.src % columns != each.dst % columns:
            places = " to ".join(
                f"rank {rank} (row {rank // columns}, column {rank % columns})" for rank in (each.src, each.dst)
            )
            return f"the sum is right, but a message went from {places}: the two share neither row nor column"
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
    "all-reduce that shard along the column, whose ranks hold the same shard; then an all-gather along the row.",
)


# ---------------------------------------------------------------- on nodes

LARGE = 2**16


def nodes_of(count):
    return Machine(Link.of(2e-6, bandwidth=200e9), Link.of(5e-6, bandwidth=10e9), ranks_per_node=count, cards_per_node=count)


def node_cases():
    sizes = [(2, 2, 2), (2, 1, 3), (4, 2, 6), (6, 3, 9), (6, 2, 8), (3, 3, 5), (1, 1, 2), (8, 2, 13), (4, 2, 1), (4, 2, 16)]
    for size, count, length in sizes:
        rows = easy(size, length) if size == 2 else drawn(size, length)
        yield _case(rows, "ranks_per_node", count, machine=nodes_of(count))
    rows = [row.clone() for row in drawn(8, LARGE)]
    yield _case(rows, "ranks_per_node", 4, machine=nodes_of(4), says="2 nodes with a card for each rank")


ON_NODES = "on 2 nodes of 4 ranks"
NODE_LEVELS = (
    Level("within the target", (limits.seconds(ON_NODES, 0.5, "ring_all_reduce", 4 * LARGE),)),
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
    "grid_all_reduce": Program(grid_cases, GRID_HINTS, GRID_LEVELS, also=along_the_grid),
    "on_nodes": Program(node_cases, NODE_HINTS, NODE_LEVELS),
}
