"""Answers to the lab "Broadcast"."""

TREE = '''
def tree_broadcast(x, dist, root):
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
FLAT = """
def tree_broadcast(x, dist, root):
    got = x.clone()
    if dist.get_rank() != root:
        dist.recv(got, root)
    else:
        for other in range(dist.get_world_size()):
            if other != root:
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
""" + TREE.replace("dist.send(got, (place", "swap(dist, got, torch.empty_like(got), (place").replace(
    "dist.recv(got, (place", "swap(dist, x, got, (place"
)
RIGHT = {
    "tree_broadcast": {"counted from the root": TREE},
    "best_chunks": {
        "a search": SEARCH,
        "NumPy's argmin": "import numpy as np\ndef best_chunks(nbytes, ranks, alpha, beta):\n    k = np.unique([*range(1, 2000), max(1, nbytes)])\n    k = k[k <= max(1, nbytes)]\n    return k[np.argmin((ranks - 2 + k) * (alpha + nbytes / k * beta))]",
    },
    "chain_broadcast": {"sends that are waited for at the end": CHAIN},
}

WRONG = {
    "tree_broadcast": {
        "partners swap": (SWAPS, "Not yet at the bound: on 2 ranks, .* 2 messages, where 1 (is|are) enough"),
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
            "def tree_broadcast(x, dist, root):\n    rank, size, got = dist.get_rank(), dist.get_world_size(), x.clone()\n    if rank != root:\n        dist.recv(got, (rank - 1) % size)\n    if (rank + 1) % size != root:\n        dist.send(got, (rank + 1) % size)\n    return got",
            "Not yet at the bound: on 4 ranks",
        ),
        "only from root 0": (
            TREE.replace("place = (dist.get_rank() - root) % size", "place, root = dist.get_rank(), 0"),
            "root=1: rank . returned",
        ),
        "right for powers of two": (TREE.replace(" and place + far < size", ""), "on 3 ranks, .*deadlock|on 3 ranks"),
        "off by one": (TREE.replace("far <= place < 2 * far", "far < place < 2 * far"), "deadlock|on 2 ranks"),
        "one half alone": (TREE.replace("while far < size", "while far < size // 2"), "on 2 ranks.*rank . returned"),
        "in place": (TREE.replace("got = x.clone()", "got = x"), "rank 1 has changed what it was given"),
        "never waited for": (TREE.replace("dist.send(", "dist.isend("), "wait"),
        "one message too many": (
            TREE.replace(
                "    return got", "    if dist.get_rank() == 0 and size > 1:\n        dist.isend(got, 1)\n    return got"
            ),
            "rank 0|received",
        ),
        "other numbers": (
            TREE.replace("    return got", "    return got.float()"),
            "numbers of torch.float32 and was given torch",
        ),
        "one element short": (TREE.replace("dist.send(got,", "dist.send(got[1:],"), "bytes"),
        "the built-in": (
            "def tree_broadcast(x, dist, root):\n    got = x.clone()\n    dist.broadcast(got, src=root)\n    return got",
            BUILT,
        ),
        "the book's": (
            "from ringtree.algorithms import mst_broadcast\ndef tree_broadcast(x, dist, root):\n    got = x.clone()\n    mst_broadcast(got, dist, root)\n    return got",
            BUILT,
        ),
        "state between calls": (
            TREE.replace("def tree", "kept = {}\ndef tree").replace(
                "    return got", "    return kept.setdefault((dist.get_rank(), size, root, x.shape, x.dtype), got)"
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
        "the tree": (TREE.replace("tree_broadcast", "chain_broadcast"), "Not yet within the target: on 8 ranks"),
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
            "on 3 ranks, .*rank 1 changes the buffer that it is sending to rank 2",
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
