"""Answers to the lab "Ranks and groups"."""

from . import with_a_barrier, writing_on_what_it_was_given

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
EDGES = """
def edges(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    wide, batch = x.new_zeros(len(x) + 2), []
    wide[1:-1] = x
    if rank + 1 < size:
        batch.append(dist.P2POp(dist.isend, x[-1:], rank + 1))
    if rank > 0:
        batch.append(dist.P2POp(dist.irecv, wide[:1], rank - 1))
        batch.append(dist.P2POp(dist.isend, x[:1], rank - 1))
    if rank + 1 < size:
        batch.append(dist.P2POp(dist.irecv, wide[-1:], rank + 1))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return wide
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
    "group_mean": {
        "all made before one is used": MEAN,
        "the list is taken apart": TAKEN_APART,
    },
    "edges": {
        "one direction after the other": """
def edges(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    def passed(number, step):
        got, batch = torch.zeros_like(number), []
        if 0 <= rank + step < size:
            batch.append(dist.P2POp(dist.isend, number, rank + step))
        if 0 <= rank - step < size:
            batch.append(dist.P2POp(dist.irecv, got, rank - step))
        for work in dist.batch_isend_irecv(batch) if batch else []:
            work.wait()
        return got
    return torch.cat([passed(x[-1:].clone(), 1), x, passed(x[:1].clone(), -1)])
""",
    },
}

WRONG = {
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
            r"with rank 3 alone in its group: rank . returned|rank . returned|rank . returned",
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
    "edges": {
        "writes on what it was given": (writing_on_what_it_was_given(EDGES, "edges"), "has changed what it was given"),
        "a ring": (
            EDGES
            .replace("rank + 1 < size", "size > 1")
            .replace("rank > 0", "size > 1")
            .replace("rank + 1)", "(rank + 1) % size)")
            .replace("rank - 1)", "(rank - 1) % size)"),
            "on 2 ranks",
        ),
        "left and right mixed up": (
            EDGES.replace("isend, x[-1:]", "isend, x[0:1]").replace("isend, x[:1]", "isend, x[-1:]"),
            "on 3 ranks, .*rank . returned",
        ),
        "past the end": (EDGES.replace("rank + 1 < size", "rank < size"), "rank"),
        "an empty list": (EDGES.replace(" if batch else ()", ""), "on 1 rank"),
        "nobody waits": (EDGES.replace("work.wait()", "pass"), "may not have arrived|never waited"),
        "only from the left": (
            EDGES.replace(", x[:1], rank - 1", ", x[:0], rank - 1").replace(", wide[-1:], rank + 1", ", wide[:0], rank + 1"),
            "rank 0 returned",
        ),
        "the whole strip": (
            EDGES
            .replace("x[-1:], rank", "x, rank")
            .replace("x[:1], rank", "x, rank")
            .replace("wide, batch = ", "low, high, wide, batch = torch.zeros_like(x), torch.zeros_like(x), ")
            .replace("irecv, wide[:1]", "irecv, low")
            .replace("irecv, wide[-1:]", "irecv, high")
            .replace("return wide", "wide[0], wide[-1] = low[-1], high[0]\n    return wide"),
            "on 3 ranks, .*rank 0 sent rank 1 2 numbers: one is enough",
        ),
        "one message more": (
            EDGES.replace(
                "    return wide",
                "    if rank == 0 and size > 1:\n        dist.send(x[:1], 1)\n    if rank == 1:\n        dist.recv(x[:1].clone(), 0)\n    return wide",
            ),
            "rank 0 sent rank 1 2 messages: send one",
        ),
        "to a stranger": (
            EDGES.replace(
                "    return wide",
                "    if rank == 0 and size > 2:\n        dist.send(x[:1], 2)\n    if rank == 2:\n        dist.recv(x[:1].clone(), 0)\n    return wide",
            ),
            "rank 0 sent rank 2 a message: they are not neighbors",
        ),
        "all send first": (
            """
def edges(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = torch.nn.functional.pad(x, (1, 1))
    for other, mine in ((rank + 1, x[-1:]), (rank - 1, x[:1])):
        if 0 <= other < size:
            dist.send(mine, other)
    for other, place in ((rank - 1, wide[:1]), (rank + 1, wide[-1:])):
        if 0 <= other < size:
            dist.recv(place, other)
    return wide
""",
            "on 2 ranks, .*they wait in a circle",
        ),
        "even ranks send first": (
            """
def edges(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = torch.nn.functional.pad(x, (1, 1))
    def swap(other, mine, place):
        if rank % 2:
            dist.recv(place, other)
            dist.send(mine, other)
        else:
            dist.send(mine, other)
            dist.recv(place, other)
    for turn in (0, 1):
        if rank % 2 == turn and rank + 1 < size:
            swap(rank + 1, x[-1:], wide[-1:])
        elif rank % 2 != turn and rank > 0:
            swap(rank - 1, x[:1], wide[:1])
    return wide
""",
            "Not yet at the bound: on 3 ranks, .* rounds, where 2 are enough",
        ),
        "from one end to the other": (
            """
def edges(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = torch.nn.functional.pad(x, (1, 1))
    if rank > 0:
        dist.recv(wide[:1], rank - 1)
        dist.send(x[:1], rank - 1)
    if rank + 1 < size:
        dist.send(x[-1:], rank + 1)
        dist.recv(wide[-1:], rank + 1)
    return wide
""",
            "Not yet at the bound: on 3 ranks, .*4 rounds, where 2 are enough",
        ),
        "in float32": (
            EDGES.replace("return wide", "return wide.float()"),
            "numbers of torch.float32 and was given torch.float64",
        ),
        "one too short": (EDGES.replace("return wide", "return wide[:-1]"), "returned a tensor of shape"),
        "built in": (
            "def edges(x, dist):\n    all = [torch.empty_like(x) for _ in range(dist.get_world_size())]\n    dist.all_gather(all, x)\n    return x",
            "it calls a collective of torch's",
        ),
    },
}
