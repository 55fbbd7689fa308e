"""Answers to the lab "Ranks and groups"."""

from . import with_a_barrier, writing_on_what_it_was_given

CUBE = """
def all_groups(tensor, data, pipeline):
    cube = torch.arange(tensor * data * pipeline).view(pipeline, data, tensor)
    return {
        "tensor": cube.reshape(-1, tensor).tolist(),
        "data": cube.permute(0, 2, 1).reshape(-1, data).tolist(),
        "pipeline": cube.permute(1, 2, 0).reshape(-1, pipeline).tolist(),
    }
"""
SEARCH = (
    CUBE
    + """
def groups_of(rank, tensor, data, pipeline):
    found = all_groups(tensor, data, pipeline)
    return {kind: next(group for group in groups if rank in group) for kind, groups in found.items()}
"""
)
STEPS = """
def groups_of(rank, tensor, data, pipeline):
    found, step = {}, 1
    for kind, extent in (("tensor", tensor), ("data", data), ("pipeline", pipeline)):
        at = rank // step % extent
        found[kind] = list(range(rank - at * step, rank - at * step + extent * step, step))
        step *= extent
    return found
"""
MEAN = """
def group_mean(x, dist, groups):
    made = [dist.new_group(members) for members in groups]
    for members, group in zip(groups, made):
        if dist.get_rank() in members:
            total = x.clone()
            dist.all_reduce(total, group=group)
            return total / len(members)
    return x.clone()
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
NUMPY = """
import numpy as np

def all_groups(tensor, data, pipeline):
    cube = np.arange(tensor * data * pipeline).reshape(pipeline, data, tensor)
    lines = {"tensor": cube, "data": cube.swapaxes(1, 2), "pipeline": cube.transpose(1, 2, 0)}
    return {kind: [list(row) for row in rows.reshape(-1, rows.shape[-1])] for kind, rows in lines.items()}
"""
TAKEN_APART = """
def group_mean(x, dist, groups):
    mean = x.clone()
    while groups:
        members = groups.pop(0)
        group = dist.new_group(members)
        if dist.get_rank() in members:
            dist.all_reduce(mean, group=group)
            mean /= len(members)
    return mean
"""

RIGHT = {
    "all_groups": {
        "a cube of rank numbers": CUBE,
        "NumPy's whole numbers": NUMPY,
    },
    "groups_of": {"searched among all": SEARCH, "a step for each edge": STEPS},
    "group_mean": {
        "all made before one is used": MEAN,
        "the list is taken apart": TAKEN_APART,
    },
    "halo": {"from a list of places": LIST},
}

WRONG = {
    "all_groups": {
        "ranks that descend": (
            CUBE.replace("cube.reshape(-1, tensor)", "cube.flip(2).reshape(-1, tensor)"),
            "ranks ascend in a group",
        ),
        "pipeline numbered first": (
            CUBE.replace(".view(pipeline, data, tensor)", ".view(tensor, data, pipeline).permute(2, 1, 0)"),
            r"tensor=2, data=2, pipeline=1: answer\[\"tensor\"\] is \[\[0, 2\]",
        ),
        "lines of another box": (
            CUBE.replace("cube.permute(0, 2, 1).reshape", "cube.reshape"),
            r'answer\["data"\] is \[\[0, 1\].* should be \[\[0, 2\]',
        ),
        "another order of groups": (
            CUBE.replace("cube.permute(1, 2, 0)", "cube.permute(2, 1, 0)"),
            "another order, and two ranks",
        ),
        "ranks of two groups": (
            CUBE.replace(
                "cube.reshape(-1, tensor).tolist()",
                "[[r, (r + 1) % (tensor * data * pipeline)][:tensor] for r in range(tensor * data * pipeline)]",
            ),
            "a rank is in two groups of one kind",
        ),
        "tensors, not lists": (
            CUBE.replace("reshape(-1, tensor).tolist()", "reshape(-1, tensor)"),
            "made of lists and whole numbers alone",
        ),
        "a list of groups": (
            "def all_groups(tensor, data, pipeline):\n    return [[0, 1]]",
            "returned a list and should return a dict",
        ),
        "nothing": ("def all_groups(tensor, data, pipeline):\n    pass", "returned a NoneType and should return a dict"),
        "for extents of 2": (
            CUBE.replace(".reshape(-1, data)", ".reshape(-1, 2)"),
            r"tensor=2, data=1, pipeline=1: answer\[\"data\"\] is \[\[0, 1\]\]",
        ),
    },
    "groups_of": {
        "all groups": (
            SEARCH.replace("next(group for group in groups if rank in group)", "groups"),
            r"is \[\[.* and should be \[",
        ),
        "tensor edge twice": (STEPS.replace("step *= extent", "step = tensor"), r'answer\["pipeline"\]'),
        "begins at the rank": (STEPS.replace("at = rank // step % extent", "at = 0"), r"rank 1 of .*answer"),
        "pipeline numbered first": (
            STEPS.replace(
                '(("tensor", tensor), ("data", data), ("pipeline", pipeline))',
                '(("pipeline", pipeline), ("data", data), ("tensor", tensor))',
            ),
            r"rank \d of tensor=2, data=2",
        ),
        "without the rank itself": (
            STEPS.replace("    return found", "    return {k: [r for r in v if r != rank] for k, v in found.items()}"),
            r"is \[1\] and should be \[0, 1\]|is \[\] and should be \[0\]",
        ),
        "a tensor of ranks": (
            STEPS.replace("list(range", "torch.arange(0) if 1 else list(range"),
            "made of lists and whole numbers",
        ),
    },
    "group_mean": {
        "the list of groups is emptied": (
            "def group_mean(x, dist, groups):\n    groups.clear()\n    return x.clone()",
            "on 2 ranks, .*rank 0 returned .* and should return",
        ),
        "nothing where nobody shares": (
            MEAN.replace("    return x.clone()", "    return None"),
            "rank 3 returned nothing and should return a tensor",
        ),
        "not waited for": (
            MEAN.replace("group=group)", "group=group, async_op=True)"),
            "reads a buffer of its all_reduce, which may still be running",
        ),
        "members only": (
            MEAN.replace(
                "[dist.new_group(members) for members in groups]",
                "[dist.new_group(members) if dist.get_rank() in members else None for members in groups]",
            ),
            r"on 3 ranks, .*rank 1 called new_group for \[\[1, 2\]\], and rank 0 for \[\[0\]\]: every rank must",
        ),
        "its own group first": (
            MEAN.replace(
                "made = [", "groups = sorted(groups, key=lambda members: dist.get_rank() not in members)\n    made = ["
            ),
            "rank 1 called new_group for .* and in the same order",
        ),
        "divided by the world": (
            MEAN.replace("/ len(members)", "/ dist.get_world_size()"),
            r"on [34] ranks.*is [12]/3 of what it should be; there are 3 ranks",
        ),
        "the sum": (
            MEAN.replace(" / len(members)", ""),
            r"on 2 ranks.*: everything is twice what it should be; there are 2 ranks",
        ),
        "over the world": (MEAN.replace(", group=group", ""), "on [34] ranks"),
        "in place": (MEAN.replace("total = x.clone()", "total = x"), "has changed what it was given"),
        "a barrier": (with_a_barrier(MEAN, "group_mean"), "Not yet at the bound: .*rounds, where"),
        "everything to everybody": (
            MEAN.replace(
                "            total = x.clone()\n            dist.all_reduce(total, group=group)\n            return total / len(members)\n    return x.clone()",
                "            mine = members\n        else:\n            continue\n    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n    dist.all_gather(rows, x)\n    return sum(rows[each] for each in mine) / len(mine)",
            ).replace("    for members, group", "    mine = [dist.get_rank()]\n    for members, group"),
            "Not yet at the bound: .*through the busier port",
        ),
        "zeros for a rank in no group": (
            MEAN.replace("return x.clone()", "return torch.zeros_like(x)"),
            r"with nobody to share with rank 3: rank . returned|rank . returned|rank . returned",
        ),
        "neighbors in pairs": (
            MEAN.replace("made = [", "groups = [[r, r + 1] for r in range(0, dist.get_world_size() - 1, 2)]\n    made = ["),
            "rank . returned|rank . returned",
        ),
        "state between calls": (
            MEAN.replace("def group_mean", "cache = {}\ndef group_mean").replace(
                "    for members, group in zip",
                "    x = cache.setdefault((dist.get_rank(), x.shape), x)\n    for members, group in zip",
            ),
            "rank . returned",
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
            "wants to receive from rank -1|are no neighbors",
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
            "rank 0 sent rank 1 2 messages: one was wanted|are no neighbors",
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
            "Not yet within the target: on . ranks, .* rounds, where 4 are enough",
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
}
