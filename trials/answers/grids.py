"""Answers to the lab "Grids"."""

from . import idling, writing_on_what_it_was_given

STEPS = """
import math

def groups(shape, along):
    step, length = math.prod(shape[along + 1 :]), shape[along]
    firsts = [rank for rank in range(math.prod(shape)) if rank // step % length == 0]
    return [[first + step * place for place in range(length)] for first in firsts]
"""
RINGS = '''
def swap(dist, out, to, got, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()

def half_a_ring(chunks, members, dist, adding):
    """A reduce-scatter that ends with my own chunk, or an all-gather that begins with it."""
    at, size = members.index(dist.get_rank()), len(members)
    for step in range(size - 1):
        ahead = -1 if adding else 0
        mine = chunks[(at + ahead - step - 1) % size]
        got = torch.empty_like(mine)
        swap(dist, chunks[(at + ahead - step) % size], members[(at + 1) % size], got, members[at - 1])
        mine.copy_(mine + got if adding else got)

def ring(vector, members, dist):
    chunks = vector.tensor_split(len(members))
    half_a_ring(chunks, members, dist, True)
    half_a_ring(chunks, members, dist, False)

def three_steps(total, columns, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    row = [each for each in range(size) if each // columns == rank // columns]
    column = [each for each in range(size) if each % columns == rank % columns]
    shards = total.tensor_split(columns)
    half_a_ring(shards, row, dist, True)
    ring(shards[rank % columns], column, dist)
    half_a_ring(shards, row, dist, False)
    return total / size
'''
GRID = (
    RINGS
    + """
def grid_all_reduce(x, dist, columns):
    return three_steps(x.clone(), columns, dist)
"""
)
NODES = (
    RINGS
    + """
def on_nodes(x, dist, ranks_per_node):
    return three_steps(x.clone(), ranks_per_node, dist)
"""
)
TWICE = (
    RINGS
    + """
def grid_all_reduce(x, dist, columns):
    rank, size, total = dist.get_rank(), dist.get_world_size(), x.clone()
    ring(total, [each for each in range(size) if each // columns == rank // columns], dist)
    ring(total, [each for each in range(size) if each % columns == rank % columns], dist)
    return total / size
"""
)
ALL = (
    RINGS
    + """
def NAME(x, dist, OPTION):
    total = x.clone()
    ring(total, list(range(dist.get_world_size())), dist)
    return total / dist.get_world_size()
"""
)
ALL_GRID, ALL_NODES = (
    ALL.replace("NAME", "grid_all_reduce").replace("OPTION", "columns"),
    ALL.replace("NAME", "on_nodes").replace("OPTION", "ranks_per_node"),
)
STAR = (
    RINGS
    + '''
def gather(total, members, dist):
    """Every one sends all that it has to every other."""
    at, size, mine = members.index(dist.get_rank()), len(members), total.clone()
    for step in range(1, size):
        got = torch.empty_like(total)
        swap(dist, mine, members[(at + step) % size], got, members[at - step])
        total += got

def grid_all_reduce(x, dist, columns):
    rank, size, total = dist.get_rank(), dist.get_world_size(), x.clone()
    gather(total, list(range(rank // columns * columns, (rank // columns + 1) * columns)), dist)
    gather(total, list(range(rank % columns, size, columns)), dist)
    return total / size
'''
)
NODES_TWICE = TWICE.replace("grid_all_reduce", "on_nodes").replace("columns", "ranks_per_node")


def the_books(name, option):
    return f"from ringtree.algorithms import hierarchical_ring_all_reduce as mine\ndef {name}(x, dist, {option}):\n    y = x.clone()\n    mine(y, dist, ranks_per_node={option})\n    return y"


def built_in(name, option):
    return f"def {name}(x, dist, {option}):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y"


SEARCH = """
def groups_of(rank, tensor, data, pipeline):
    cube = torch.arange(tensor * data * pipeline).view(pipeline, data, tensor)
    p, d, t = (cube == rank).nonzero()[0].tolist()
    return {"tensor": cube[p, d].tolist(), "data": cube[p, :, t].tolist(), "pipeline": cube[:, d, t].tolist()}
"""
GROUP_STEPS = """
def groups_of(rank, tensor, data, pipeline):
    found, step = {}, 1
    for kind, extent in (("tensor", tensor), ("data", data), ("pipeline", pipeline)):
        at = rank // step % extent
        found[kind] = list(range(rank - at * step, rank - at * step + extent * step, step))
        step *= extent
    return found
"""
HALO = """
def halo(x, dist, columns):
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.nn.functional.pad(x, (1, 1, 1, 1))
    row, column = divmod(rank, columns)
    rows = size // columns
    def swap(down, across):
        to = (row + down, column + across)
        source = (row - down, column - across)
        edge = (x[-1] if down > 0 else x[0]) if down else (x[:, -1] if across > 0 else x[:, 0])
        edge, ops = edge.contiguous(), []
        got = torch.empty_like(edge)
        if 0 <= to[0] < rows and 0 <= to[1] < columns:
            ops.append(dist.P2POp(dist.isend, edge, to[0] * columns + to[1]))
        if 0 <= source[0] < rows and 0 <= source[1] < columns:
            ops.append(dist.P2POp(dist.irecv, got, source[0] * columns + source[1]))
        else:
            got = None
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        return got
    for down, across, place in ((0, 1, (slice(1, -1), 0)), (0, -1, (slice(1, -1), -1)), (1, 0, (0, slice(1, -1))), (-1, 0, (-1, slice(1, -1)))):
        got = swap(down, across)
        if got is not None:
            out[place] = got
    return out
"""
LIST = """
def halo(x, dist, columns):
    rank, batch, into = dist.get_rank(), [], []
    out, rows = torch.zeros(x.shape[0] + 2, x.shape[1] + 2, dtype=x.dtype, device=x.device), dist.get_world_size() // columns
    out[1:-1, 1:-1] = x
    def line(t, down, across):
        return t[-1 if down > 0 else 0] if down else t[:, -1 if across > 0 else 0]
    for down, across in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        row, column = divmod(rank, columns)
        if row + down in range(rows) and column + across in range(columns):
            batch.append(dist.P2POp(dist.isend, line(x, down, across).clone(memory_format=torch.contiguous_format), rank + down * columns + across))
        if row - down in range(rows) and column - across in range(columns):
            got = x.new_empty(x.shape[0 if across else 1])
            batch.append(dist.P2POp(dist.irecv, got, rank - down * columns - across))
            into.append((line(out[1:-1] if across else out[:, 1:-1], -down, -across), got))
    if batch:
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    for border, got in into:
        border.copy_(got)
    return out
"""

RIGHT = {
    "groups": {
        "by steps": STEPS,
        "as ranges": STEPS.replace(
            "[first + step * place for place in range(length)]", "range(first, first + step * length, step)"
        ),
    },
    "groups_of": {"a cube of rank numbers": SEARCH, "a step for each edge": GROUP_STEPS},
    "halo": {"from a list of places": LIST},
    "grid_all_reduce": {"half rings": GRID},
    "on_nodes": {"half rings": NODES},
}

WRONG = {
    "groups": {
        "fractions": (
            STEPS.replace("first + step * place", "float(first + step * place)"),
            "a group should hold ranks, whole numbers",
        ),
        "a rank too many": (
            STEPS.replace("for first in firsts]", "for first in firsts] + [[math.prod(shape)]]"),
            "there is no rank 4: the ranks are 0 to 3",
        ),
        "the first edge runs fastest": (
            STEPS.replace("shape[along + 1 :]", "shape[:along]"),
            "a grid of 2 × 2, along edge 1: rank 0 is in the group",
        ),
        "the edges counted from the end": (
            STEPS.replace("    step", "    along = len(shape) - 1 - along\n    step"),
            "rank 0 is in the group",
        ),
        "always neighbors": (
            "import math\ndef groups(shape, along):\n    n, k = math.prod(shape), shape[along]\n    return [list(range(i, i + k)) for i in range(0, n, k)]",
            "a grid of 2 × 2, along edge 0: rank 0 is in the group .0, 1., and should be in .0, 2.",
        ),
        "only the group of rank 0": (
            STEPS.replace("for first in firsts]", "for first in firsts[:1]]"),
            "is in 0 groups, and every rank should be in exactly one",
        ),
        "too many firsts": (STEPS.replace(" if rank // step % length == 0", ""), "is in 2 groups"),
        "in another order": (
            STEPS.replace("return [", "return [").replace("for first in firsts]", "for first in firsts[::-1]]"),
            "sort them by their first rank",
        ),
        "each group backwards": (STEPS.replace("range(length)", "reversed(range(length))"), "in this order"),
        "two edges exchanged": (
            "import math\ndef groups(shape, along):\n    return torch.arange(math.prod(shape)).view(shape).transpose(along, -1).reshape(-1, shape[along]).tolist()",
            r"2 × 2 × 2, along edge 0: the groups begin with ranks \[0, 2, 1, 3\]: sort them",
        ),
        "only two edges": (
            "def groups(shape, along):\n    rows, columns = shape if len(shape) == 2 else (1, shape[0])\n    found = [[r * columns + c for c in range(columns)] for r in range(rows)]\n"
            "    return found if along else [list(each) for each in zip(*found)]",
            r"a grid of 4, along edge 0: rank 0 is in the group \[0\]",
        ),
        "a tensor": (
            "import math\nimport torch\ndef groups(shape, along):\n    return torch.arange(math.prod(shape)).view(shape)",
            "it should return a list of groups",
        ),
        "a flat list": (
            "import math\ndef groups(shape, along):\n    return list(range(math.prod(shape)))",
            "it should return a list of groups",
        ),
        "nothing": ("def groups(shape, along):\n    pass", "it should return a list of groups"),
    },
    "groups_of": {
        "all groups": (SEARCH.replace("cube[p, d]", "cube[p]"), "it should be a list of whole numbers"),
        "a list": (
            "def groups_of(rank, tensor, data, pipeline):\n    return [[0, 1]]",
            "returned a list and should return a dict",
        ),
        "tensor edge twice": (GROUP_STEPS.replace("step *= extent", "step = tensor"), r'answer\["pipeline"\]'),
        "begins at the rank": (GROUP_STEPS.replace("at = rank // step % extent", "at = 0"), r"rank 1 of .*answer"),
        "pipeline numbered first": (
            GROUP_STEPS.replace(
                '(("tensor", tensor), ("data", data), ("pipeline", pipeline))',
                '(("pipeline", pipeline), ("data", data), ("tensor", tensor))',
            ),
            r"rank \d of tensor=2, data=2",
        ),
        "without the rank itself": (
            GROUP_STEPS.replace("    return found", "    return {k: [r for r in v if r != rank] for k, v in found.items()}"),
            r"is \[1\] and should be \[0, 1\]|is \[\] and should be \[0\]",
        ),
        "a tensor of ranks": (
            GROUP_STEPS.replace("list(range", "torch.arange(0) if 1 else list(range"),
            "it should be a list of whole numbers",
        ),
    },
    "halo": {
        "writes on what it was given": (writing_on_what_it_was_given(LIST, "halo"), "has changed what it was given"),
        "a torus": (
            HALO.replace(
                "to = (row + down, column + across)", "to = ((row + down) % rows, (column + across) % columns)"
            ).replace("source = (row - down, column - across)", "source = ((row - down) % rows, (column - across) % columns)"),
            "rank 0",
        ),
        "left and right mixed up": (
            HALO.replace("(x[:, -1] if across > 0 else x[:, 0])", "(x[:, 0] if across > 0 else x[:, -1])"),
            "rank . returned",
        ),
        "not in one piece": (HALO.replace("edge.contiguous()", "edge"), "contiguous"),
        "a step too far in a row": (
            HALO.replace("and 0 <= to[1] < columns", "").replace("and 0 <= source[1] < columns", ""),
            "wants to receive from rank -1|are not neighbors",
        ),
        "no waiting": (HALO.replace("work.wait()", "pass"), "may not have arrived|wait"),
        "only to the right and below": (
            HALO.replace("(0, -1, (slice(1, -1), -1)), ", "").replace(", (-1, 0, (-1, slice(1, -1)))", ""),
            "rank . returned",
        ),
        "edges in float32": (
            HALO.replace(
                "out = torch.nn.functional.pad(x, (1, 1, 1, 1))",
                "x = x.float()\n    out = torch.nn.functional.pad(x, (1, 1, 1, 1))",
            ),
            "numbers of torch.float32 and was given torch.float64",
        ),
        "one message more": (
            HALO.replace(
                "    def swap",
                "    if size > 1 and rank < 2:\n        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x[0].contiguous(), 1 - rank), dist.P2POp(dist.irecv, torch.empty_like(x[0].contiguous()), 1 - rank)]):\n            work.wait()\n    def swap",
            ),
            "rank 0 sent rank 1 2 messages: send one|are not neighbors",
        ),
        "corners too": (HALO.replace("    return out", "    out[0, 0] = out[0, 1]\n    return out"), "rank . returned"),
        "one direction after the other": (HALO, "Not yet at the bound: on 2 ranks, .*2 rounds, where 1 is enough"),
        "one rank at a time": (
            HALO
            .replace("ops.append(dist.P2POp(dist.isend, edge, to[0] * columns + to[1]))", "out_to = to[0] * columns + to[1]")
            .replace(
                "ops.append(dist.P2POp(dist.irecv, got, source[0] * columns + source[1]))",
                "dist.recv(got, source[0] * columns + source[1])",
            )
            .replace("        edge, ops =", "        out_to = None\n        edge, ops =")
            .replace(
                "        if ops:\n            for work in dist.batch_isend_irecv(ops):\n                work.wait()",
                "        if out_to is not None:\n            dist.send(edge, out_to)",
            ),
            "Not yet within the target: on . ranks, .* rounds, where 6 are enough",
        ),
        "built in": (
            "def halo(x, dist, columns):\n    all = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n    dist.all_gather(all, x)\n    return x",
            "it calls a collective of torch's",
        ),
        "all tiles round": (
            HALO.replace(
                "def halo",
                """def halo(x, dist, columns):
    rank, size = dist.get_rank(), dist.get_world_size()
    tiles = [torch.empty_like(x) for _ in range(size)]
    tiles[rank] = x
    for step in range(1, size):
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + step) % size), dist.P2POp(dist.irecv, tiles[rank - step], (rank - step) % size)]):
            work.wait()
    rows = size // columns
    world = torch.nn.functional.pad(torch.cat([torch.cat(tiles[r * columns : (r + 1) * columns], 1) for r in range(rows)]), (1, 1, 1, 1))
    h, w = x.shape
    top, left = rank // columns * h, rank % columns * w
    out = world[top : top + h + 2, left : left + w + 2].clone()
    out[:: h + 1, :: w + 1] = 0
    return out

def other""",
            ),
            r"rank 0 sent rank 1 \d+ numbers: its edge has \d",
        ),
        "an empty message over the corner": (
            HALO.replace(
                "    def swap",
                "    if rows == columns == 2:\n        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x.new_empty(0), 3 - rank), dist.P2POp(dist.irecv, x.new_empty(0), 3 - rank)]):\n            work.wait()\n    def swap",
            ),
            "ranks 0 and 3 are not neighbors on a grid of 2 columns, and there was a message between them",
        ),
    },
    "grid_all_reduce": {
        "a round too many": (
            idling(
                GRID,
                "grid_all_reduce",
                1,
                "options['columns'] > 1",
                "rank - rank % options['columns'] + (rank + 1) % options['columns']",
                "rank - rank % options['columns'] + (rank - 1) % options['columns']",
            ),
            "Not yet at the bound: .* rounds, where",
        ),
        "along the rows, then the columns, whole vectors": (STAR, "Not yet within the target: .*through the busier port"),
        "the sum": (GRID.replace("total / size", "total"), "everything is twice what it should be; there are 2 ranks"),
        "two whole rings": (TWICE, "Not yet at the bound: .*through the busier port"),
        "one ring through all": (ALL_GRID, "the mean is right, but a message went from rank 1 .row 0, column 1. to rank 2"),
        "rows alone": (
            TWICE.replace("    ring(total, [each for each in range(size) if each % columns == rank % columns], dist)\n", ""),
            "columns=1: .*the part of rank 1 is missing",
        ),
        "columns alone": (
            TWICE.replace("    ring(total, [each for each in range(size) if each // columns == rank // columns], dist)\n", ""),
            "columns=2: .*the part of rank 1 is missing",
        ),
        "rows and columns mixed up": (
            GRID.replace("ring(shards[rank % columns], column", "ring(shards[rank // columns % columns], column"),
            "rank . returned|which expects",
        ),
        "columns taken for rows": (
            TWICE.replace("    rank, size", "    columns = dist.get_world_size() // columns\n    rank, size"),
            "the mean is right, but a message went from rank",
        ),
        "the row's sum twice": (
            TWICE.replace(
                "    ring(total, [each for each in range(size) if each % columns",
                "    ring(total, [each for each in range(size) if each // columns == rank // columns], dist)\n    ring(total, [each for each in range(size) if each % columns",
            ),
            "everything is twice what it should be; there are 2 ranks",
        ),
        "only squares": (
            TWICE.replace(
                "rank, size, total",
                "assert columns * columns == dist.get_world_size() or dist.get_world_size() < 4\n    rank, size, total",
            ),
            "on 6 ranks, .*AssertionError",
        ),
        "a step too few": (GRID.replace("range(size - 1)", "range(size - 2)"), "the part of rank"),
        "right where it divides": (
            GRID.replace(
                "total.tensor_split(columns)",
                "[total[i * (len(total) // columns) : (i + 1) * (len(total) // columns)] for i in range(columns)]",
            ),
            "on 3 ranks, 4 numbers .*rank . returned",
        ),
        "in place": (GRID.replace("x.clone()", "x"), "rank 0 has changed what it was given"),
        "another dtype": (GRID.replace("x.clone()", "x.double()"), "numbers of torch.float64 and was given torch.float32"),
        "a missing wait": (GRID.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (built_in("grid_all_reduce", "columns"), "it calls a collective of torch's"),
        "the book's": (the_books("grid_all_reduce", "columns"), "it calls a collective of torch's"),
    },
    "on_nodes": {
        "the sum": (NODES.replace("total / size", "total"), "everything is twice what it should be; there are 2 ranks"),
        "one ring through all": (ALL_NODES, "Not yet within the target: on 8 ranks, .*on 2 nodes of 4 ranks"),
        "whole vectors between the nodes": (
            NODES_TWICE,
            "Not yet (within the target|at the bound): on 8 ranks, .*on 2 nodes of 4 ranks",
        ),
        "nodes of two, whatever they are": (
            NODES.replace("x.clone(), ranks_per_node", "x.clone(), 2 if dist.get_world_size() % 2 == 0 else 1"),
            "Not yet (within the target|at the bound): on 8 ranks",
        ),
        "another shard than the one that is summed": (
            NODES.replace("ring(shards[rank % columns]", "ring(shards[(rank + 1) % columns]"),
            "rank . returned|which expects",
        ),
        "not gathered": (
            NODES.replace("    half_a_ring(shards, row, dist, False)\n    return", "    return"),
            "on 2 ranks.*the part of rank . is missing",
        ),
        "never between the nodes": (NODES.replace("    ring(shards[rank % columns], column, dist)\n", ""), "the part of rank"),
        "the other nodes' first ranks alone": (
            NODES.replace(
                "    ring(shards[rank % columns], column, dist)\n",
                "    if rank % columns == 0:\n        ring(shards[0], column, dist)\n",
            ),
            "the part of rank|deadlock",
        ),
        "ranks dealt out one by one": (
            NODES
            .replace("each // columns == rank // columns", "each % columns == rank % columns", 1)
            .replace("if each % columns == rank % columns]\n    shards", "if each // columns == rank // columns]\n    shards")
            .replace("total.tensor_split(columns)", "total.tensor_split(len(row))")
            .replace("shards[rank % columns], column", "shards[rank // columns], column"),
            "Not yet at the bound: on 8 ranks",
        ),
        "in place": (NODES.replace("x.clone()", "x"), "rank 0 has changed what it was given"),
        "a missing wait": (NODES.replace("        work.wait()", "        pass"), "may not have arrived"),
        "right where it divides": (
            NODES.replace("total.tensor_split(columns)", "total.view(columns, -1)"),
            "RuntimeError: shape",
        ),
        "the built-in": (built_in("on_nodes", "ranks_per_node"), "it calls a collective of torch's"),
        "the book's": (the_books("on_nodes", "ranks_per_node"), "it calls a collective of torch's"),
    },
}
