"""Answers to the lab "Reduce"."""

from . import idling

BLOCKS = '''
def ordered_reduce(x, dist, root, combine):
    """Blocks of 1, 2, 4, … ranks, counted from rank 0; who is the root's block's head is the root itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, width = x.clone(), 1
    def head(block):
        first = block * width
        return root if first <= root < first + width else first
    while width < size:
        block = rank // width
        other = block ^ 1
        if head(block) != rank:
            return mine
        if other * width < size:
            partner = head(other)
            keeps = rank == root or partner != root and rank < partner
            if not keeps:
                dist.send(mine, partner)
                return mine
            got = torch.empty_like(x)
            dist.recv(got, partner)
            mine = combine(mine, got) if block < other else combine(got, mine)
        width *= 2
    return mine
'''
CHAIN = """
def ordered_reduce(x, dist, root, combine):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, got = x.clone(), torch.empty_like(x)
    if rank > 0:
        dist.recv(got, rank - 1)
        mine = combine(got, mine)
    if rank + 1 < size:
        dist.send(mine, rank + 1)
    if root != size - 1:
        if rank == size - 1:
            dist.send(mine, root)
        if rank == root:
            dist.recv(mine, size - 1)
    return mine
"""
HALVES = '''
def long_reduce(x, dist, root):
    """In the root's own numbering, with a trail of what was kept and given away."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, place = x.clone(), (rank - root) % size
    def at(place):
        return (place + root) % size
    def batch(*entries):
        for work in dist.batch_isend_irecv([dist.P2POp(*entry) for entry in entries]):
            work.wait()
    parts, first, count = total.tensor_split(size), 0, size
    trail = []
    while count > 1:
        count //= 2
        lower = place < first + count
        keep, give = (first, first + count) if lower else (first + count, first)
        partner = at(place + count if lower else place - count)
        out = torch.cat(parts[give : give + count])
        got = torch.cat(parts[keep : keep + count])
        fresh = torch.empty_like(got)
        batch((dist.isend, out, partner), (dist.irecv, fresh, partner))
        for part, more in zip(parts[keep : keep + count], fresh.split([len(part) for part in parts[keep : keep + count]])):
            part += more
        trail.append((keep, give, count, partner, lower))
        first = keep
    for keep, give, count, partner, lower in reversed(trail):
        if not lower:
            batch((dist.isend, torch.cat(parts[keep : keep + count]), partner))
            break
        got = torch.cat(parts[give : give + count])
        batch((dist.irecv, got, partner))
        for part, more in zip(parts[give : give + count], got.split([len(part) for part in parts[give : give + count]])):
            part.copy_(more)
    return total / size
'''
RING = """
def long_reduce(x, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    chunks = total.tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank - step - 2) % size]
        got = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, chunks[(rank - step - 1) % size], (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]):
            work.wait()
        mine += got
    for other in range(size):
        if other != root and rank == other:
            dist.send(chunks[other], root)
        if other != root and rank == root:
            dist.recv(chunks[other], other)
    return total / size
"""
TREE = """
def long_reduce(x, dist, root):
    size = dist.get_world_size()
    place, total, got, far = (dist.get_rank() - root) % size, x.clone(), torch.empty_like(x), 1
    while far < size:
        if place % (2 * far) == far:
            dist.send(total, (place - far + root) % size)
            break
        if place % (2 * far) == 0 and place + far < size:
            dist.recv(got, (place + far + root) % size)
            total += got
        far *= 2
    return total
"""
UP = """
def add_up(x, dist):
    rank, size, total, got = dist.get_rank(), dist.get_world_size(), x.clone(), torch.empty_like(x)
    for below in (2 * rank + 2, 2 * rank + 1):
        if below < size:
            dist.recv(got, below)
            total += got
    if rank > 0:
        dist.send(total, (rank - 1) // 2)
    return total
"""
BUILT = "it calls a collective of torch's"
ITSELF = """
def ordered_reduce(x, dist, root, combine):
    rank = dist.get_rank()
    def value(first, end, head):
        if end - first == 1:
            return x.clone()
        middle = (first + end + 1) // 2
        left, right = (head, middle) if head < middle else (first, head)
        mine = value(first, middle, left) if rank < middle else value(middle, end, right)
        other = left + right - head
        if rank == other:
            dist.send(mine, head)
        if rank == head:
            got = torch.empty_like(x)
            dist.recv(got, other)
            mine = combine(mine, got) if head == left else combine(got, mine)
        return mine
    return value(0, dist.get_world_size(), root)
"""

SWAPPED = (
    BLOCKS.replace(
        "                dist.send(mine, partner)\n", "                both(mine, torch.empty_like(x), partner, dist)\n"
    ).replace("            dist.recv(got, partner)\n", "            both(mine, got, partner, dist)\n")
    + """
def both(out, got, partner, dist):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, partner), dist.P2POp(dist.irecv, got, partner)]):
        work.wait()
"""
)
RIGHT = {
    "add_up": {
        "both boxes at once": """
def add_up(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    boxes = {each: torch.zeros_like(x) for each in (2 * rank + 1, 2 * rank + 2) if each < size}
    for work in [dist.irecv(box, each) for each, box in boxes.items()]:
        work.wait()
    total = x + sum(boxes.values())
    if rank:
        dist.send(total, (rank + 1) // 2 - 1)
    return total
""",
    },
    "ordered_reduce": {
        "blocks that double": BLOCKS,
        "a function that calls itself": ITSELF,
    },
    "long_reduce": {"halves, counted from the root": HALVES},
}

WRONG = {
    "add_up": {
        "the deeper one first": (
            UP.replace("(2 * rank + 2, 2 * rank + 1)", "(2 * rank + 1, 2 * rank + 2)"),
            "Not yet at the bound: on 4 ranks, .* rounds, where",
        ),
        "all to rank 0": (
            "def add_up(x, dist):\n    total, got = x.clone(), torch.empty_like(x)\n    if dist.get_rank():\n        dist.send(x, 0)\n        return x\n    for other in range(1, dist.get_world_size()):\n        dist.recv(got, other)\n        total += got\n    return total",
            "on 4 ranks, .*rank 3 sent to rank 0, and above it is rank 1",
        ),
        "down again": (
            UP.replace(
                "    return total",
                "    for below in (2 * rank + 1, 2 * rank + 2):\n        if below < size:\n            dist.send(total, below)\n    if rank > 0:\n        dist.recv(total, (rank - 1) // 2)\n    return total",
            ),
            "rank|deadlock",
        ),
        "and down": (
            UP.replace(
                "    return total",
                "    if rank > 0:\n        dist.recv(total, (rank - 1) // 2)\n    for below in (2 * rank + 1, 2 * rank + 2):\n        if below < size:\n            dist.send(total, below)\n    return total",
            ),
            "rank 0 sent to rank 1, and nobody is above it",
        ),
        "told twice": (
            UP.replace("dist.recv(got, below)", "dist.recv(got, below)\n            dist.recv(got, below)").replace(
                "dist.send(total, (rank - 1) // 2)",
                "dist.send(total, (rank - 1) // 2)\n        dist.send(total, (rank - 1) // 2)",
            ),
            "Not yet at the bound: on 2 ranks",
        ),
        "received over its own": (
            UP.replace("dist.recv(got, below)\n            total += got", "dist.recv(total, below)"),
            "the part of rank 0 is missing",
        ),
        "tells before it hears": (
            UP.replace("    for below", "    if rank > 0:\n        dist.send(total, (rank - 1) // 2)\n    for below").replace(
                "            total += got\n    if rank > 0:\n        dist.send(total, (rank - 1) // 2)\n",
                "            total += got\n",
            ),
            "on 4 ranks, .*the part of rank 3 is missing",
        ),
        "an empty message while others are busy": (
            UP.replace(
                "    for below",
                "    if size == 8 and rank == 7:\n        dist.send(x[:0], 3)\n    if size == 8 and rank == 3:\n        dist.recv(x[:0], 7)\n    for below",
            ),
            "Not yet at the bound: on 8 ranks, .* 8 messages, where 7 are enough",
        ),
        "one below each": (UP.replace("(2 * rank + 2, 2 * rank + 1)", "(2 * rank + 1,)"), "on 3 ranks"),
        "off by one": (UP.replace("(rank - 1) // 2", "rank // 2"), "on . ranks"),
        "in place": (UP.replace("x.clone()", "x"), "rank 0 has changed what it was given"),
        "never waited for": (UP.replace("dist.send(", "dist.isend("), "wait"),
        "other numbers": (UP.replace("return total", "return total.float()"), "numbers of torch.float32 and was given torch"),
        "the built-in": ("def add_up(x, dist):\n    y = x.clone()\n    dist.reduce(y, dst=0)\n    return y", BUILT),
    },
    "ordered_reduce": {
        "partners swap": (SWAPPED, "Not yet at the bound: .* messages, where"),
        "a chain": (CHAIN, "Not yet at the bound: on . ranks"),
        "what comes first": (
            BLOCKS.replace("combine(mine, got) if block < other else combine(got, mine)", "combine(got, mine)"),
            "rank . returned",
        ),
        "mine first": (
            BLOCKS.replace("combine(mine, got) if block < other else combine(got, mine)", "combine(mine, got)"),
            "root=1.* rank . returned",
        ),
        "counted from the root": (
            TREE.replace("long_reduce(x, dist, root)", "ordered_reduce(x, dist, root, combine)").replace(
                "total += got", "total = combine(total, got)"
            ),
            "rank . returned",
        ),
        "only to root 0": (BLOCKS.replace("    rank, size", "    root = 0\n    rank, size"), "root=1.*rank . returned"),
        "right for powers of two": (BLOCKS.replace("        if other * width < size:", "        if True:"), "on 3 ranks.*"),
        "added": (
            BLOCKS.replace("combine(mine, got) if block < other else combine(got, mine)", "mine + got"),
            "rank . returned",
        ),
        "in place": (
            BLOCKS
            .replace("    mine, width = x.clone(), 1", "    mine, width = x, 1")
            .replace("mine = combine(mine, got)", "mine[:] = combine(mine, got)")
            .replace("mine = mine[:]", "mine[:]")
            .replace("            mine[:] = combine(mine, got) if", "            mine[:] = combine(mine, got) if"),
            "rank 0 has changed what it was given",
        ),
        "one rank forgotten": (BLOCKS.replace("while width < size:", "while 2 * width < size:"), "on 2 ranks.*rank . returned"),
        "in float32": (
            BLOCKS.replace("x.clone()", "x.float()").replace("empty_like(x)", "empty_like(mine)"),
            "numbers of torch.float32 and was given torch",
        ),
        "never waited for": (BLOCKS.replace("dist.send(mine, partner)", "dist.isend(mine, partner)"), "wait"),
        "received into what it sends": (BLOCKS.replace("combine(mine, got) if", "combine(got, got) if"), "rank . returned"),
        "the built-in": (
            "def ordered_reduce(x, dist, root, combine):\n    mine = x.clone()\n    dist.reduce(mine, dst=root)\n    return mine",
            BUILT,
        ),
        "all to the root": (
            "def ordered_reduce(x, dist, root, combine):\n    mine, size = x.clone(), dist.get_world_size()\n    if dist.get_rank() != root:\n        dist.send(mine, root)\n        return mine\n    all = [mine if r == root else torch.empty_like(x) for r in range(size)]\n    for r in range(size):\n        if r != root:\n            dist.recv(all[r], r)\n    out = all[0]\n    for each in all[1:]:\n        out = combine(out, each)\n    return out",
            "Not yet at the bound: on 4 ranks|Not yet at the bound: on 3 ranks",
        ),
    },
    "long_reduce": {
        "not divided": (
            HALVES.replace("total / size", "total"),
            r"on 2 ranks, .*rank 0 returned .* twice what it should be; there are 2 ranks",
        ),
        "two rounds too many": (idling(HALVES, "long_reduce", 2), "Not yet at the bound: .* on this link, where"),
        "the first work alone": (
            HALVES.replace("        for work in dist.batch", "        works = dist.batch").replace(
                "for entry in entries]):\n            work.wait()", "for entry in entries])\n        works[0].wait()"
            ),
            "on 4 ranks, .*run once more: rank . reads the buffer for a message",
        ),
        "the whole tensor up a tree": (
            TREE.replace("return total", "return total / size"),
            "Not yet within the target: on 8 ranks",
        ),
        "a ring, then one after the other": (RING, "Not yet within the target: on 8 ranks, .* on this link, where"),
        "only to root 0": (
            HALVES.replace("(rank - root) % size", "rank").replace("(place + root) % size", "place"),
            "rank . returned",
        ),
        "one halving alone": (HALVES.replace("while count > 1:", "while count == size:"), "on 4 ranks, .*rank . returned"),
        "partners counted from rank 0": (
            HALVES.replace("place + count if lower else place - count", "(place + count if lower else place - count) - root"),
            "root=1: .*deadlock|rank",
        ),
        "halves mixed up": (
            HALVES.replace("keep, give = (first, first + count) if lower", "keep, give = (first + count, first) if lower"),
            "rank . returned|bytes|deadlock",
        ),
        "not gathered": (HALVES.replace("reversed(trail)", "[]"), "rank . returned"),
        "gathered in the wrong order": (HALVES.replace("reversed(trail)", "trail"), "rank . returned|deadlock|bytes"),
        "in place": (HALVES.replace("total, place = x.clone()", "total, place = x"), "rank 0 has changed what it was given"),
        "added twice": (HALVES.replace("part += more", "part += 2 * more"), "counts 2 times"),
        "a missing wait": (HALVES.replace("            work.wait()", "            pass"), "may not have arrived|wait"),
        "right where p divides n": (
            HALVES.replace("total.tensor_split(size)", "total.split(len(total) // size or 1)"),
            "on . ranks",
        ),
        "another dtype": (HALVES.replace("x.clone()", "x.clone().float()"), "numbers of torch.float32 and was given torch"),
        "the built-in": (
            "def long_reduce(x, dist, root):\n    y = x.clone()\n    dist.reduce(y, dst=root)\n    return y / dist.get_world_size()",
            BUILT,
        ),
        "the book's": (
            "from ringtree.algorithms import rabenseifner_reduce\ndef long_reduce(x, dist, root):\n    y = x.clone()\n    rabenseifner_reduce(y, dist, root)\n    return y / dist.get_world_size()",
            BUILT,
        ),
        "state between calls": (
            HALVES.replace("def long", "kept = {}\ndef long").replace(
                "total, place = x.clone()",
                "total, place = kept.setdefault((dist.get_rank(), dist.get_world_size(), x.shape, x.dtype), x.clone())",
            ),
            "rank . returned",
        ),
    },
}
