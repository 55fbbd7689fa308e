"""Answers to the lab "Broadcast"."""

from . import idling

ROOTED = '''
def chain_broadcast(x, dist, root):
    """A binomial tree, on ranks counted from the root."""
    size = dist.get_world_size()
    place = (dist.get_rank() - root) % size
    got = x.clone()
    far = 1
    while far < size:
        if place < far and place + far < size:
            dist.send(got, (place + far + root) % size)
        elif far <= place < 2 * far:
            dist.recv(got, (place - far + root) % size)
        far *= 2
    return got
'''
TREE = '''
def tree_broadcast(x, dist, members):
    """A binomial tree, on places in the list."""
    got = x.clone()
    if dist.get_rank() not in members:
        return got
    size, place, far = len(members), members.index(dist.get_rank()), 1
    while far < size:
        if place < far and place + far < size:
            dist.send(got, members[place + far])
        elif far <= place < 2 * far:
            dist.recv(got, members[place - far])
        far *= 2
    return got
'''
HALVES = """
def tree_broadcast(x, dist, members):
    got = x.clone()
    while dist.get_rank() in members and len(members) > 1:
        middle = (len(members) + 1) // 2
        near, far = members[:middle], members[middle:]
        if dist.get_rank() == near[0]:
            dist.send(got, far[0])
        elif dist.get_rank() == far[0]:
            dist.recv(got, near[0])
        members = near if dist.get_rank() in near else far
    return got
"""
DOWN = """
def hand_down(x, dist):
    rank, size, got = dist.get_rank(), dist.get_world_size(), x.clone()
    if rank > 0:
        dist.recv(got, (rank - 1) // 2)
    for below in (2 * rank + 1, 2 * rank + 2):
        if below < size:
            dist.send(got, below)
    return got
"""
FLAT = """
def tree_broadcast(x, dist, members):
    got = x.clone()
    if dist.get_rank() in members[1:]:
        dist.recv(got, members[0])
    elif dist.get_rank() in members:
        for other in members[1:]:
            dist.send(got, other)
    return got
"""
CHAIN = '''
def chain_broadcast(x, dist, root):
    """Receive, hand on, and wait for what was handed on at the end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    link_alpha, link_beta = 1e-6, 2e-10
    best = ((size - 2) * x.nbytes * link_beta / link_alpha) ** 0.5 if size > 2 else 1
    got, works = x.clone(), []
    for part in got.tensor_split(max(1, min(round(best), len(x)))):
        if rank != root:
            dist.recv(part, (rank - 1) % size)
        if (rank + 1) % size != root:
            works.append(dist.isend(part, (rank + 1) % size))
    for work in works:
        work.wait()
    return got
'''
STEPS = """
def chain_broadcast(x, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = 24
    got, left, right = x.clone(), (rank - 1) % size, (rank + 1) % size
    parts = got.tensor_split(chunks)
    for step in range(chunks + 1):
        batch = []
        if step > 0 and right != root:
            batch.append(dist.P2POp(dist.isend, parts[step - 1], right))
        if step < chunks and rank != root:
            batch.append(dist.P2POp(dist.irecv, parts[step], left))
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
    return got
"""
SEARCH = '''
def best_chunks(nbytes, ranks, alpha, beta):
    """Down the slope, in steps that get shorter."""
    def time(k):
        return (ranks - 2 + k) * (alpha + nbytes / k * beta)

    k, stride = 1, 1 << 40
    while stride:
        if k + stride <= nbytes and time(k + stride) < time(k + stride - 1):
            k += stride
        stride //= 2
    return k
'''
ROOT = """
import math

def best_chunks(nbytes, ranks, alpha, beta):
    if alpha == 0:
        return max(nbytes, 1) if ranks > 2 else 1
    return max(1, min(nbytes, round(math.sqrt((ranks - 2) * nbytes * beta / alpha))))
"""
BUILT = "it calls a collective of torch's"

SWAPS = """
def swap(dist, out, got, peer):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, got, peer)]):
        work.wait()
""" + TREE.replace("dist.send(got, ", "swap(dist, got, torch.empty_like(got), ").replace(
    "dist.recv(got, ", "swap(dist, x, got, "
)
RIGHT = {
    "hand_down": {
        "both sends under way at once": """
def hand_down(x, dist):
    rank, size, got = dist.get_rank(), dist.get_world_size(), x.clone()
    if rank:
        dist.recv(got, (rank + 1) // 2 - 1)
    for work in [dist.isend(got, each) for each in range(2 * rank + 1, min(2 * rank + 3, size))]:
        work.wait()
    return got
""",
    },
    "tree_broadcast": {"by doubling": TREE, "by halves": HALVES},
    "best_chunks": {
        "a search": SEARCH,
        "NumPy's argmin": "import numpy as np\ndef best_chunks(nbytes, ranks, alpha, beta):\n    k = np.unique([*range(1, 2000), max(1, nbytes)])\n    k = k[k <= max(1, nbytes)]\n    return k[np.argmin((ranks - 2 + k) * (alpha + nbytes / k * beta))]",
    },
    "chain_broadcast": {"sends that are waited for at the end": CHAIN},
}

WRONG = {
    "hand_down": {
        "right child first": (
            DOWN.replace("(2 * rank + 1, 2 * rank + 2)", "(2 * rank + 2, 2 * rank + 1)"),
            "Not yet at the bound: on 4 ranks, .* rounds, where",
        ),
        "from rank 0 to all": (
            "def hand_down(x, dist):\n    got = x.clone()\n    for other in range(1, dist.get_world_size()) if dist.get_rank() == 0 else ():\n        dist.send(got, other)\n    if dist.get_rank():\n        dist.recv(got, 0)\n    return got",
            "on 4 ranks, .*rank 3 heard from rank 0, and above it is rank 1",
        ),
        "round a ring": (
            DOWN.replace(
                "    return got",
                "    if size > 1:\n        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, got, (rank + 1) % size), dist.P2POp(dist.irecv, got.clone(), rank - 1 if rank else size - 1)]):\n            work.wait()\n    return got",
            ),
            "rank 0 heard from rank 1, and nobody is above it",
        ),
        "twice": (
            DOWN.replace(
                "dist.recv(got, (rank - 1) // 2)", "dist.recv(got, (rank - 1) // 2)\n        dist.recv(got, (rank - 1) // 2)"
            ).replace("dist.send(got, below)", "dist.send(got, below)\n            dist.send(got, below)"),
            "Not yet at the bound: on 2 ranks",
        ),
        "an empty message while others are busy": (
            DOWN.replace(
                "    return got",
                "    if size == 8 and rank == 3:\n        dist.send(x[:0], 7)\n    if size == 8 and rank == 7:\n        dist.recv(x[:0], 3)\n    return got",
            ),
            "Not yet at the bound: on 8 ranks, .* 8 messages, where 7 are enough",
        ),
        "one below each": (DOWN.replace(", 2 * rank + 2)", ",)"), "on 3 ranks"),
        "off by one": (DOWN.replace("(rank - 1) // 2", "rank // 2"), "on . ranks"),
        "past the end": (DOWN.replace("below < size", "below <= size"), "on . ranks?"),
        "x itself": (DOWN.replace("return got", "return x if rank == 0 else got"), "rank 0 returned its `x`"),
        "in place": (DOWN.replace("x.clone()", "x"), "rank 1 has changed what it was given"),
        "never waited for": (DOWN.replace("dist.send(", "dist.isend("), "wait"),
        "other numbers": (DOWN.replace("return got", "return got.float()"), "numbers of torch.float32 and was given torch"),
        "the built-in": (
            "def hand_down(x, dist):\n    got = x.clone()\n    dist.broadcast(got, src=0)\n    return got",
            BUILT,
        ),
        "idling": (idling(DOWN, "hand_down", 2), "rank 0 heard from rank|rank 1 heard from"),
    },
    "tree_broadcast": {
        "partners swap, in batches": (SWAPS, r"members=\[2, 0\]: deadlock under NCCL's rules, .*rank 1 has not come"),
        "one that has it tells another that has it": (
            TREE.replace(
                "        far *= 2\n",
                "        far *= 2\n    if size == 5 and place == 2:\n        dist.send(x[:0], members[3])\n    elif size == 5 and place == 3:\n        dist.recv(x[:0], members[2])\n",
            ),
            "Not yet at the bound: on 6 ranks, .* 5 messages, where 4 are enough",
        ),
        "x itself on the root": (
            TREE.replace("dist.send(got,", "dist.send(x if place == 0 else got,").replace(
                "return got", "return x if place == 0 else got"
            ),
            "the numbers are right, but rank 0 returned its `x`",
        ),
        "sent on before it came": (
            TREE.replace("dist.recv(got,", "work = dist.irecv(got,").replace(
                "        far *= 2\n", "        far *= 2\n    if place:\n        work.wait()\n"
            ),
            "on 4 ranks, .*rank . reads the buffer for a message from rank . that may not have arrived",
        ),
        "flat": (FLAT, "Not yet at the bound: on 3 ranks.*|Not yet at the bound: on 4 ranks, .* 3 rounds, where 2 are enough"),
        "a chain": (
            "def tree_broadcast(x, dist, members):\n    got, rank = x.clone(), dist.get_rank()\n    place = members.index(rank) if rank in members else len(members)\n    if 0 < place < len(members):\n        dist.recv(got, members[place - 1])\n    if place + 1 < len(members):\n        dist.send(got, members[place + 1])\n    return got",
            "Not yet at the bound: on 4 ranks",
        ),
        "always from rank 0": (
            TREE.replace("    got = x.clone()", "    got, members = x.clone(), sorted(members)"),
            r"members=\[1, 0\]: rank . returned",
        ),
        "among all": (
            TREE.replace(
                "    got = x.clone()",
                "    got, members = x.clone(), [*members, *(set(range(dist.get_world_size())) - {*members})]",
            ),
            r"members=\[2, 0\]: rank 1 returned",
        ),
        "right for powers of two": (TREE.replace(" and place + far < size", ""), "on 3 ranks, .*IndexError"),
        "off by one": (TREE.replace("far <= place < 2 * far", "far < place < 2 * far"), "deadlock|on 2 ranks"),
        "one half alone": (TREE.replace("while far < size", "while far < size // 2"), "on 2 ranks.*rank . returned"),
        "in place": (TREE.replace("got = x.clone()", "got = x"), "rank 1 has changed what it was given"),
        "never waited for": (TREE.replace("dist.send(", "dist.isend("), "wait"),
        "one message too many": (
            TREE.replace(
                "        far *= 2\n", "        far *= 2\n    if place == 0 and size > 1:\n        dist.isend(got, members[1])\n"
            ),
            "rank 0|received",
        ),
        "other numbers": (
            TREE.replace("    return got", "    return got.float()"),
            "numbers of torch.float32 and was given torch",
        ),
        "one element short": (TREE.replace("dist.send(got,", "dist.send(got[1:],"), "bytes"),
        "the built-in": (
            "def tree_broadcast(x, dist, members):\n    got = x.clone()\n    dist.broadcast(got, src=members[0])\n    return got",
            BUILT,
        ),
        "the book's": (
            "from ringtree.algorithms import mst_broadcast\ndef tree_broadcast(x, dist, members):\n    got = x.clone()\n    mst_broadcast(got, dist, members[0])\n    return got",
            BUILT,
        ),
        "state between calls": (
            TREE.replace("def tree", "kept = {}\ndef tree").replace(
                "far *= 2\n    return got",
                "far *= 2\n    return kept.setdefault((dist.get_rank(), size, str(members), x.shape, x.dtype), got)",
            ),
            "rank . returned",
        ),
    },
    "best_chunks": {
        "rounded up": (
            ROOT.replace("round(", "math.ceil("),
            "Not yet at the bound: 1.4 MiB on 4 ranks, .* with 4 chunks it takes 1.00.* times as long as with 3",
        ),
        "one chunk": ("def best_chunks(nbytes, ranks, alpha, beta):\n    return 1", "64 MiB on 32 ranks"),
        "as many as ranks": ("def best_chunks(nbytes, ranks, alpha, beta):\n    return ranks", "1 chunk|chunk"),
        "no root": (ROOT.replace("math.sqrt", ""), "times as long"),
        "α for β": (ROOT.replace("beta / alpha", "alpha / beta"), "times as long"),
        "p for p − 2": (ROOT.replace("(ranks - 2)", "ranks"), "on 2 ranks"),
        "a fraction": (ROOT.replace("round(", "("), "whole number"),
        "no least": (ROOT.replace("max(1, min(nbytes,", "max(0, min(nbytes,"), "on 2 ranks.*0 chunks|1 or more"),
        "more chunks than bytes": (ROOT.replace("min(nbytes, ", "min(10**9, "), "more chunks than bytes"),
        "no α": (
            ROOT.replace("    if alpha == 0:\n        return max(nbytes, 1) if ranks > 2 else 1\n", ""),
            "ZeroDivisionError",
        ),
        "rounded": (ROOT, "Not yet at the bound: 250 KiB on 4 ranks, .* with 1 chunk it takes 1.0.* times as long as with 2"),
        "nothing": (
            "def best_chunks(nbytes, ranks, alpha, beta):\n    pass",
            "returned nothing and should return a whole number",
        ),
    },
    "chain_broadcast": {
        "x itself on the root": (
            STEPS.replace("return got", "return x if rank == root else got"),
            "the numbers are right, but rank 0 returned its `x`",
        ),
        "the first work alone": (
            STEPS.replace(
                "        for work in dist.batch_isend_irecv(batch) if batch else ():\n            work.wait()",
                "        if batch:\n            dist.batch_isend_irecv(batch)[0].wait()",
            ),
            "on 3 ranks, .*run once more: rank 1 reads the buffer for a message from rank 0",
        ),
        "in one piece": (
            STEPS.replace("chunks = 24", "chunks = 1"),
            "Not yet within the target: on 8 ranks, .* on this link, where .* are enough",
        ),
        "the tree": (ROOTED, "Not yet within the target: on 8 ranks"),
        "a guess": (STEPS.replace("chunks = 24", "chunks = 8"), "Not yet at the bound: on 8 ranks, .* on this link, where"),
        "chunks by heart, for each number of ranks": (
            STEPS.replace("chunks = 24", "chunks = {4: 14, 8: 25}.get(size, 20)"),
            "Not yet at the bound: on 8 ranks, 32768 numbers .* on this link, where",
        ),
        "far too many": (
            STEPS.replace("chunks = 24", "chunks = min(100, len(x) or 1)"),
            "Not yet within the target: on 8 ranks",
        ),
        "only from root 0": (STEPS.replace("got, left", "root = 0\n    got, left"), "rank . returned"),
        "past the end": (STEPS.replace(" and right != root", ""), "deadlock|to itself|rank"),
        "off by one in the chunk": (
            STEPS.replace("parts[step - 1], right", "parts[step % chunks], right"),
            "rank . returned|bytes|may not have",
        ),
        "the last chunk forgotten": (
            STEPS.replace("range(chunks + 1)", "range(chunks)"),
            "deadlock|still wants|never|received",
        ),
        "in place": (STEPS.replace("x.clone()", "x"), "has changed what it was given"),
        "not waited for": (STEPS.replace("work.wait()", "pass"), "may not have arrived|wait"),
        "whole tensors instead of chunks": (
            STEPS.replace("parts[step - 1], right", "got, right").replace("parts[step], left", "got, left"),
            "on 3 ranks, .*rank 1 sends from and receives into the same memory in one batch",
        ),
        "whole numbers lost": (
            STEPS.replace("return got", "return got.float()"),
            "numbers of torch.float32 and was given torch",
        ),
        "equal chunks alone": (
            STEPS.replace("got.tensor_split(chunks)", "got.split(max(1, len(got) // chunks))"),
            "IndexError|rank . returned",
        ),
        "the built-in": (
            "def chain_broadcast(x, dist, root):\n    got = x.clone()\n    dist.broadcast(got, src=root)\n    return got",
            BUILT,
        ),
        "state between calls": (
            STEPS.replace("def chain", "kept = {}\ndef chain").replace(
                "    return got", "    return kept.setdefault((dist.get_rank(), size, root, x.shape, x.dtype), got)"
            ),
            "rank . returned",
        ),
    },
}
