"""Answers to the lab "Tree all-reduce"."""

SWAP = """
def swap(dist, out, to, got, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()
"""
BRUCK = (
    SWAP
    + """
def halving_doubling(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    places = {away: total.tensor_split(size)[(rank + away) % size] for away in range(size)}
    powers = [2**i for i in range((size - 1).bit_length())]
    for adding in (True, False):
        for far in powers[::-1] if adding else powers:
            away = [each for each in range(size) if far <= each < 2 * far]
            near = [each - far for each in away]
            out, into, way = (away, near, far) if adding else (near, away, -far)
            got = x.new_empty(sum(len(places[each]) for each in into))
            swap(dist, torch.cat([places[each] for each in out]), (rank + way) % size, got, (rank - way) % size)
            for each, part in zip(into, got.split([len(places[each]) for each in into])):
                places[each].copy_(places[each] + part if adding else part)
    return total
"""
)
FOLDED = (
    SWAP
    + """
def alone(dist, way, tensor, peer):
    for work in dist.batch_isend_irecv([dist.P2POp(way, tensor, peer)]):
        work.wait()

def halving_doubling(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, got = x.clone(), torch.empty_like(x)
    power = 2 ** (size.bit_length() - 1)
    if rank >= power:
        alone(dist, dist.isend, total, rank - power)
        alone(dist, dist.irecv, total, rank - power)
        return total
    if rank + power < size:
        alone(dist, dist.irecv, got, rank + power)
        total += got
    mine, path, far = total, [], power // 2
    while far:
        first, second = mine.tensor_split(2)
        mine, theirs = (second, first) if rank & far else (first, second)
        swap(dist, theirs, rank ^ far, got[: len(mine)], rank ^ far)
        mine += got[: len(mine)]
        path.append((mine, theirs, rank ^ far))
        far //= 2
    for mine, theirs, partner in path[::-1]:
        swap(dist, mine, partner, theirs, partner)
    if rank + power < size:
        alone(dist, dist.isend, total, rank + power)
    return total
"""
)
WHOLE = (
    SWAP
    + """
def halving_doubling(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, mine = x.clone(), x.clone()
    for step in range(size - 1):
        got = torch.empty_like(x)
        swap(dist, mine, (rank + 1) % size, got, (rank - 1) % size)
        total, mine = total + got, got
    return total
"""
)
RING = (
    SWAP
    + """
def halving_doubling(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    chunks = total.tensor_split(size)
    for step in range(2 * size - 2):
        chunk, adding = chunks[(rank - step - 1) % size], step < size - 1
        got = torch.empty_like(chunk)
        swap(dist, chunks[(rank - step) % size], (rank + 1) % size, got, (rank - 1) % size)
        chunk.copy_(chunk + got if adding else got)
    return total
"""
)
UP_AND_DOWN = """
def tree_all_reduce(x, dist, parents):
    rank, total, got = dist.get_rank(), x.clone(), torch.empty_like(x)
    below = [other for other, parent in enumerate(parents) if parent == rank]
    for other in below:
        dist.recv(got, other)
        total += got
    if parents[rank] is not None:
        dist.send(total, parents[rank])
        dist.recv(total, parents[rank])
    for other in below:
        dist.send(total, other)
    return total
"""
HEAPS = """
def trees(size):
    a = [None] + [rank // 2 for rank in range(1, size)]
    b = [None] + [0 if size - rank == 1 else size - (size - rank) // 2 for rank in range(1, size)]
    return a, b
"""
INORDER = '''
def trees(size):
    """The places 1 to p − 1 in order, odd ones leaves; for an odd p tree B is the mirror, for an even p shifted by one."""
    def up(place):
        bit = place & -place
        higher = place - bit | 2 * bit
        return higher if higher < size else place - bit
    others = list(range(1, size))
    both = []
    for ranks in ([0, *others], [0, *(others[::-1] if size % 2 else others[1:] + others[:1])]):
        tree = [None] * size
        for place in others:
            tree[ranks[place]] = ranks[up(place)]
        both.append(tree)
    return both
'''
TREES = """
CHUNKS = 8

def batch(dist, operations):
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()

def two_trees(x, parents, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    pieces = [half.tensor_split(CHUNKS) for half in total.tensor_split(2)]

    def height(tree, r):
        return max([height(tree, c) + 1 for c in range(1, size) if parents[tree][c] == r], default=0)

    def depth(tree, r):
        return depth(tree, parents[tree][r]) + 1 if r else 0

    up = {(tree, c): height(tree, c) for tree in (0, 1) for c in range(1, size)}
    down = {(tree, c): depth(tree, c) - 1 for tree in (0, 1) for c in range(1, size)}
    for when, going_up in (up, True), (down, False):
        for step in range(CHUNKS + max(when.values(), default=0)):
            operations, sums = [], []
            for (tree, child), late in when.items():
                parent = parents[tree][child]
                if rank not in (child, parent) or not 0 <= step - late < CHUNKS:
                    continue
                piece = pieces[tree][step - late]
                if (rank == child) == going_up:
                    operations.append(dist.P2POp(dist.isend, piece, parent if going_up else child))
                else:
                    got = torch.empty_like(piece) if going_up else piece
                    operations.append(dist.P2POp(dist.irecv, got, child if going_up else parent))
                    if going_up:
                        sums.append((piece, got))
            batch(dist, operations)
            for piece, got in sums:
                piece += got
    return total
"""
PLAIN = """
def two_trees(x, parents, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    for tree, half in zip(parents, total.tensor_split(2)):
        below = [c for c in range(1, size) if tree[c] == rank]
        for child in below:
            got = torch.empty_like(half)
            dist.recv(got, child)
            half += got
        if rank:
            dist.send(half, tree[rank])
            dist.recv(half, tree[rank])
        for child in below:
            dist.send(half, child)
    return total
"""


def built_in(name, given="x"):
    return f"def {name}({given}, dist):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y"


def the_books(name, theirs, given="x"):
    return f"from ringtree.algorithms import {theirs} as mine\ndef {name}({given}, dist):\n    y = x.clone()\n    mine(y, dist)\n    return y"


DOUBLED = (
    FOLDED[: FOLDED.index("    mine, path, far")]
    + """    far = 1
    while far < power:
        swap(dist, total, rank ^ far, got, rank ^ far)
        total += got
        far *= 2
"""
    + FOLDED[FOLDED.rindex("    if rank + power < size:") :]
)
NUMPY = """
import numpy as np
def trees(size):
    rank = np.arange(1, size)
    return (None, *(rank // 2)), (None, *((size - (size - rank) // 2) % size))
"""

RIGHT = {
    "tree_all_reduce": {
        "children in any order": """
def tree_all_reduce(x, dist, parents):
    rank, above = dist.get_rank(), parents[dist.get_rank()]
    boxes = {other: torch.zeros_like(x) for other in range(len(parents)) if parents[other] == rank}
    for work in [dist.irecv(box, other) for other, box in boxes.items()]:
        work.wait()
    total = x + sum(boxes.values())
    if above is not None:
        dist.send(total.clone(), above)
        dist.recv(total, above)
    for work in [dist.isend(total, other) for other in boxes]:
        work.wait()
    return total
""",
    },
    "halving_doubling": {"one loop for both ways": BRUCK},
    "trees": {"heaps": HEAPS, "in order": INORDER, "with numpy": NUMPY},
    "two_trees": {"one loop for both ways": TREES},
}

WRONG = {
    "tree_all_reduce": {
        "all to the root": (
            """
def tree_all_reduce(x, dist, parents):
    rank, root, total, got = dist.get_rank(), parents.index(None), x.clone(), torch.empty_like(x)
    for other in range(len(parents)):
        if other != root and rank == root:
            dist.recv(got, other)
            total += got
        elif other == rank != root:
            dist.send(total, root)
    for other in range(len(parents)):
        if other != root and rank == root:
            dist.send(total, other)
        elif other == rank != root:
            dist.recv(total, root)
    return total
""",
            "on 4 ranks, .*rank 2 sent to rank 0, and neither hangs below the other",
        ),
        "the root is rank 0": (UP_AND_DOWN.replace("if parents[rank] is not None", "if rank > 0"), "on 2 ranks, .*None"),
        "up alone": (
            UP_AND_DOWN.replace(
                "        dist.recv(total, parents[rank])\n    for other in below:\n        dist.send(total, other)\n", ""
            ),
            "rank 1 returned",
        ),
        "one child": (UP_AND_DOWN.replace("if parent == rank]", "if parent == rank][:1]"), "on 3 ranks"),
        "down before up": (
            UP_AND_DOWN.replace("    for other in below:\n        dist.recv(got, other)\n        total += got\n", "").replace(
                "    return total",
                "    for other in below:\n        dist.recv(got, other)\n        total += got\n    return total",
            ),
            "on 2 ranks",
        ),
        "received over its own": (
            UP_AND_DOWN.replace("dist.recv(got, other)\n        total += got", "dist.recv(total, other)"),
            "the part of rank 0 is missing",
        ),
        "its own part alone": (
            UP_AND_DOWN.replace("dist.send(total, parents[rank])", "dist.send(x, parents[rank])"),
            "on 4 ranks, .*the part of ranks? .* missing",
        ),
        "told twice": (
            UP_AND_DOWN.replace(
                "        dist.recv(got, other)\n", "        dist.recv(got, other)\n        dist.recv(got, other)\n"
            ).replace("        dist.send(total, parents[rank])\n", "        dist.send(total, parents[rank])\n" * 2),
            "Not yet at the bound: on 2 ranks, .* 3 messages, where 2 are enough",
        ),
        "in place": (UP_AND_DOWN.replace("x.clone()", "x"), "rank 0 has changed what it was given"),
        "never waited for": (UP_AND_DOWN.replace("dist.send(", "dist.isend("), "wait"),
        "in float32": (UP_AND_DOWN.replace("x.clone()", "x.float()").replace("empty_like(x)", "empty_like(total)"), "float32"),
        "a ring": (
            """
def tree_all_reduce(x, dist, parents):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, mine = x.clone(), x.clone()
    for step in range(size - 1):
        got = torch.empty_like(x)
        batch = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        total, mine = total + got, got
    return total
""",
            "on 3 ranks, .*rank 1 sent to rank 2, and neither hangs below the other",
        ),
        "the built-in": (
            "def tree_all_reduce(x, dist, parents):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y",
            "it calls a collective of torch's",
        ),
    },
    "halving_doubling": {
        "whole vectors, folded": (DOUBLED, "Not yet within the target: on 8 ranks, .* through the busier port"),
        "ranks left over are folded in": (FOLDED, "Not yet at the bound: on 3 ranks, .*(rounds|port)"),
        "the ring": (RING, "Not yet within the target: on 8 ranks, .*14 rounds|Not yet within the target: .*rounds"),
        "whole tensors": (WHOLE, "Not yet within the target: on .*(rounds|port)"),
        "right for powers of two": (
            FOLDED.replace("    if rank >= power:", "    if False:").replace("rank + power < size", "False"),
            "on 3 ranks, .*rank . returned|on 3 ranks, .*rank 2 w",
        ),
        "the one left over gets nothing back": (
            FOLDED.replace("        alone(dist, dist.irecv, total, rank - power)\n", "").replace(
                "    if rank + power < size:\n        alone(dist, dist.isend, total, rank + power)\n", ""
            ),
            "on 3 ranks, .*rank . returned",
        ),
        "its part is added by nobody": (
            FOLDED.replace("        total += got\n    mine", "    mine"),
            "on 3 ranks, .*the part of rank 2 is missing",
        ),
        "once there and not back": (BRUCK.replace("(True, False)", "(True,)"), "on 2 ranks.* the part of rank"),
        "added on the way back": (
            BRUCK.replace("places[each] + part if adding else part", "places[each] + part"),
            "on 2 ranks.* counts 2 times|rank . returned",
        ),
        "the way back in the same order": (
            BRUCK.replace("powers[::-1] if adding else powers", "powers[::-1]"),
            "on 4 ranks.* rank . returned",
        ),
        "back in the same direction": (
            BRUCK.replace("(near, away, -far)", "(near, away, far)"),
            "on 3 ranks.* rank|which expects",
        ),
        "in place": (BRUCK.replace("total = x.clone()", "total = x"), "rank 0 has changed what it was given"),
        "another dtype": (
            BRUCK.replace("x.clone()", "x.double()").replace("x.new_empty", "total.new_empty"),
            "numbers of torch.float64 and was given torch.float32",
        ),
        "a missing wait": (BRUCK.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (built_in("halving_doubling"), "it calls a collective of torch's"),
        "the book's": (the_books("halving_doubling", "rabenseifner_all_reduce"), "it calls a collective of torch's"),
    },
    "trees": {
        "without the last rank": (
            HEAPS.replace("return a, b", "return a[:-1] or a, b"),
            "tree A has 1 entries, and should have one for each rank: 2",
        ),
        "counted from 1": (
            HEAPS.replace("return a, b", "return [None if parent is None else parent + 1 for parent in a], b"),
            "in tree A the way up from rank 1 never comes to rank 0",
        ),
        "above the root": (
            HEAPS.replace("return a, b", "return [None if parent is None else parent - 1 for parent in a], b"),
            "in tree A rank 1 has the parent -1: it should be a rank, 0 to 1",
        ),
        "the heap without its root's one child": (
            "def trees(size):\n    return [[None] + [(r - 1) // 2 for r in range(1, size)]] * 2",
            "rank . has children in both",
        ),
        "the root's parent is -1": (HEAPS.replace("[None]", "[-1]"), "rank 0 has the parent -1: it is the root"),
        "the same tree twice": (
            HEAPS.replace("return a, b", "return a, a"),
            "Not yet within the target: 3 ranks: rank 1 has children in both",
        ),
        "a star": ("def trees(size):\n    return [[None] + [0] * (size - 1)] * 2", "4 ranks: in tree A rank 0 has 3 children"),
        "two chains": (
            "def trees(size):\n    return [None, *range(size - 1)], [None] + [(r + 1) % size for r in range(1, size)]",
            "Not yet within the target: 4 ranks: rank 2 has children in both|rank . has children in both",
        ),
        "the children instead of the parents": (
            "def trees(size):\n    return [[[c for c in (2 * r, 2 * r + 1) if 0 < c < size and c != r] for r in range(size)]] * 2",
            "tree A rank 0 has the parent",
        ),
        "one tree alone": (HEAPS.replace("return a, b", "return a"), "it should return two lists"),
        "the root is its own parent": (HEAPS.replace("[None]", "[0]"), "tree A rank 0 has the parent 0"),
        "the mirror's root is the last rank": (
            "def trees(size):\n    a = [None] + [r // 2 for r in range(1, size)]\n    return a, a[::-1]",
            "tree B rank 0 has the parent|tree B rank 1 has the parent None",
        ),
        "deep trees": (
            """
def trees(size):
    half = (size - 1) // 2
    a = [None] + [rank - 1 if rank <= half else min(rank - half, half) for rank in range(1, size)]
    return a, [None] + [(size - a[size - rank]) % size for rank in range(1, size)]
""",
            "Not yet at the bound: .*steps from the root, where",
        ),
        "nothing": ("def trees(size):\n    pass", "it should return two lists"),
    },
    "two_trees": {
        "three chunks": (TREES.replace("CHUNKS = 8", "CHUNKS = 3"), "Not yet at the bound: on 7 ranks"),
        "both halves whole, one after the other": (PLAIN, "Not yet within the target: on 7 ranks"),
        "in chunks, but one message at a time": (
            TREES.replace("CHUNKS = 8", "CHUNKS = 4").replace(
                "            batch(dist, operations)",
                "            for operation in operations:\n                batch(dist, [operation])",
            ),
            "deadlock|Not yet within the target: on 7 ranks",
        ),
        "one chunk": (TREES.replace("CHUNKS = 8", "CHUNKS = 1"), "Not yet within the target: on 7 ranks"),
        "too many chunks": (TREES.replace("CHUNKS = 8", "CHUNKS = 32"), "Not yet (within the target|at the bound): on 7 ranks"),
        "trees of its own": (
            PLAIN.replace(
                "total = x.clone()",
                "total, parents = x.clone(), [[None] + [r // 2 for r in range(1, dist.get_world_size())]] * 2",
            ),
            "and should send 12 B: for each tree that joins",
        ),
        "the halves exchanged": (
            PLAIN.replace("total.tensor_split(2)", "total.tensor_split(2)[::-1]"),
            "on 4 ranks, 1 number .*sent 0 B to rank ., and should send 4 B",
        ),
        "everything over the first tree": (
            TREES.replace("total.tensor_split(2)", "(total, total[:0])"),
            "the sum is right, but rank . sent",
        ),
        "the whole over both trees": (
            TREES.replace("total.tensor_split(2)", "(total, total)"),
            "rank . returned|which expects|changes|may not",
        ),
        "a star": (
            """
def two_trees(x, parents, dist):
    rank, size, total = dist.get_rank(), dist.get_world_size(), x.clone()
    for other in range(1, size):
        got = torch.empty_like(x)
        if rank == 0:
            dist.recv(got, other)
            total += got
        elif rank == other:
            dist.send(total, 0)
    for other in range(1, size):
        if rank == 0:
            dist.send(total, other)
        elif rank == other:
            dist.recv(total, 0)
    return total
""",
            "the sum is right, but rank . sent",
        ),
        "received into what is summed": (
            TREES.replace("got = torch.empty_like(piece) if going_up else piece", "got = piece"),
            "the part of rank|rank . returned|counts|changes|two",
        ),
        "only up": (
            TREES.replace("for when, going_up in (up, True), (down, False):", "for when, going_up in ((up, True),):"),
            "rank . returned .* is missing",
        ),
        "heights from the first tree for both": (
            TREES.replace("height(tree, c) for tree in", "height(0, c) for tree in"),
            "the part of rank|rank . returned",
        ),
        "in place": (TREES.replace("total = x.clone()", "total = x"), "rank 0 has changed what it was given"),
        "a missing wait": (TREES.replace("        work.wait()", "        pass"), "may not have arrived"),
        "right for few chunks of equal length": (
            TREES.replace("half.tensor_split(CHUNKS)", "half.view(CHUNKS, -1)"),
            "RuntimeError: shape",
        ),
        "the built-in": (built_in("two_trees", "x, parents"), "it calls a collective of torch's"),
        "the book's": (the_books("two_trees", "two_trees_all_reduce", "x, parents"), "it calls a collective of torch's"),
    },
}
