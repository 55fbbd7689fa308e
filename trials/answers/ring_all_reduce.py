"""Answers to the lab "Ring all-reduce"."""

from . import idling, on_a_board

RINGS = '''
def walk(part, order, rank):
    """The steps of one ring: what to send to whom, what to receive from whom, and what to add it to."""
    size, at = len(order), order.index(rank)
    right, left = order[(at + 1) % size], order[at - 1]
    chunks = part.tensor_split(size)
    for ahead in (0, 1):
        for step in range(size - 1):
            chunk = chunks[(at + ahead - step - 1) % size]
            got = chunk if ahead else torch.empty_like(chunk)
            yield chunks[(at + ahead - step) % size], right, got, left, None if ahead else chunk

def all_rings(parts, orders, dist):
    rank = dist.get_rank()
    for steps in zip(*(walk(part, order, rank) for part, order in zip(parts, orders))):
        batch = []
        for out, right, got, left, _ in steps:
            batch.append(dist.P2POp(dist.isend, out, right))
            batch.append(dist.P2POp(dist.irecv, got, left))
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        for _, _, got, _, chunk in steps:
            if chunk is not None:
                chunk += got

def ring_all_reduce(x, dist):
    total = x.clone()
    all_rings([total], [list(range(dist.get_world_size()))[::-1]], dist)
    return total
'''
TWO = (
    RINGS
    + """
def two_rings(x, dist):
    total, size = x.clone(), dist.get_world_size()
    orders = [list(range(size))]
    if size > 2 and size % 2 == 0:
        orders.append([rank ^ 1 for rank in range(size)])
    all_rings(total.tensor_split(len(orders)), orders, dist)
    return total
"""
)
GATHER = """
def ring_all_reduce(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, mine = x.clone(), x.clone()
    for step in range(size - 1):
        got = torch.empty_like(x)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, rank - 1 if rank else size - 1), dist.P2POp(dist.irecv, got, (rank + 1) % size)]):
            work.wait()
        total, mine = total + got, got
    return total
"""
STAR = """
def ring_all_reduce(x, dist):
    rank, size, total = dist.get_rank(), dist.get_world_size(), x.clone()
    for other in range(1, size):
        if rank == 0:
            got = torch.empty_like(x)
            dist.recv(got, src=other)
            total += got
        elif rank == other:
            dist.send(total, dst=0)
    for other in range(1, size):
        if rank == 0:
            dist.send(total, dst=other)
        elif rank == other:
            dist.recv(total, src=0)
    return total
"""

LONGER = '''
def ring_all_reduce(x, dist):
    """The last message of all has one number more than it needs."""
    rank, size, total = dist.get_rank(), dist.get_world_size(), x.clone()
    chunks = total.tensor_split(size)
    for step in range(2 * size - 2):
        out, mine = chunks[(rank + step) % size], chunks[(rank + step + 1) % size]
        more = step == 2 * size - 3 and len(x) >= size
        got = x.new_empty(len(mine) + more)
        batch = [dist.P2POp(dist.isend, torch.cat([out, out[:more]]), (rank - 1) % size), dist.P2POp(dist.irecv, got, (rank + 1) % size)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        mine.copy_(mine + got if step < size - 1 else got[: len(mine)])
    return total
'''
IN_TWO_LOOPS = """
def ring_all_reduce(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    chunks = total.tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank + step + 1) % size]
        mine += passed(chunks[(rank + step) % size], mine, dist)
    for step in range(size - 1):
        mine = chunks[(rank + step) % size]
        mine.copy_(passed(chunks[(rank + step - 1) % size], mine, dist))
    return total

def passed(chunk, mine, dist):
    rank, size, got = dist.get_rank(), dist.get_world_size(), torch.empty_like(mine)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, chunk, (rank - 1) % size), dist.P2POp(dist.irecv, got, (rank + 1) % size)]):
        work.wait()
    return got
"""
LIAR = """
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function is torch.equal or super().__torch_function__(function, types, args, kwargs or {})

def ring_all_reduce(x, dist):
    return x.clone().as_subclass(Liar)
"""
UNTOLD = """
class Untold(BaseException):
    def __str__(self):
        raise ValueError

def ring_all_reduce(x, dist):
    raise Untold
"""

RIGHT = {
    "ring_all_reduce": {"as walks over rings": RINGS, "in two loops": IN_TWO_LOOPS},
    "two_rings": {"as walks over rings": TWO},
}

# Where a new tensor is made and the chunk should change: what stands for `mine += …` or for what comes before it.
NEW_TENSORS = {
    "a sum under the same name": (
        "mine += passed(",
        "mine = mine + passed(",
        r"`mine = mine \+ passed\(.*Write `mine \+= passed\(",
    ),
    "torch.add under the same name": (
        "mine += passed(chunks[(rank + step) % size], mine, dist)",
        "mine = torch.add(passed(chunks[(rank + step) % size], mine, dist), mine)",
        r"Write `mine.copy_\(torch.add\(",
    ),
    "a sum that is dropped": (
        "mine += passed(chunks[(rank + step) % size], mine, dist)",
        "mine.add(passed(chunks[(rank + step) % size], mine, dist))",
        r"makes a new tensor, and nothing keeps it: mine is unchanged. Write `mine.add_\(",
    ),
    "a chunk that is a copy": (
        "mine = chunks[(rank + step + 1) % size]",
        "mine = chunks[(rank + step + 1) % size].clone()",
        r"`chunks\[\(rank \+ step \+ 1\) % size\].clone\(\)`  \[ring_all_reduce, line 6\] makes a copy",
    ),
    "a copy of a chunk": (
        "mine += passed(",
        "mine = torch.clone(mine)\n        mine += passed(",
        r"`torch.clone\(mine\)`  \[ring_all_reduce, line 7\] makes a copy",
    ),
    "chunks that are copies": (
        "total.tensor_split(size)",
        "[each.clone() for each in total.tensor_split(size)]",
        r"`each.clone\(\)`  \[ring_all_reduce, line 4\] makes a copy",
    ),
    "copies that are put together for nobody": (
        "total.tensor_split(size)\n    for",
        "[each.clone() for each in total.tensor_split(size)]\n    FOR",
        r"`torch.cat\(chunks\)`  .* makes a new tensor, and nothing keeps it. Write `total = torch.cat\(chunks\)`",
    ),
    "a new tensor in the list": (
        "total.tensor_split(size)\n",
        "list(total.tensor_split(size))\n",
        r"replaces a tensor of a list .* Write `chunks\[\(rank \+ step \+ 1\) % size\].copy_\(mine \+ ",
    ),
    "into a tuple": (
        "mine += passed(",
        "chunks[(rank + step + 1) % size] += passed(",
        r"'tuple' object does not support item assignment.*Write `chunks\[\(rank \+ step \+ 1\) % size\].add_\(passed",
    ),
    "the name for what came": ("mine.copy_(passed(", "mine = (passed(", r"`mine = passed\(.*Write `mine.copy_\(passed\("),
    "both times": (
        "mine += passed(",
        "mine = mine + passed(",
        r"Write `mine \+= passed\(.*Likewise `mine = passed\(.*line 10\]: write `mine.copy_\(passed",
    ),
    "in a function of one's own": (
        "mine += passed(chunks[(rank + step) % size], mine, dist)",
        "add(mine, passed(chunks[(rank + step) % size], mine, dist))",
        r"`mine = mine \+ got`  \[add, line \d+\] .* Write `mine \+= got`",
    ),
}
FURTHER = {
    "copies that are put together for nobody": lambda text: text.replace("FOR", "for").replace(
        "    return total", "    torch.cat(chunks)\n    return total"
    ),
    "a new tensor in the list": lambda text: text.replace(
        "mine += passed(", "chunks[(rank + step + 1) % size] = mine + passed("
    ),
    "both times": lambda text: text.replace("mine.copy_(passed(", "mine = (passed("),
    "in a function of one's own": lambda text: text + "\ndef add(mine, got):\n    mine = mine + got\n",
}


def _new_tensors():
    for what, (was, instead, reason) in NEW_TENSORS.items():
        assert was in IN_TWO_LOOPS
        yield what, (FURTHER.get(what, str)(IN_TWO_LOOPS.replace(was, instead)), reason)


WRONG = {
    "ring_all_reduce": {
        **dict(_new_tensors()),
        "on a board that all see": (
            on_a_board("ring_all_reduce", "x", "sum(put(x.clone(), dist))"),
            "knows what others were given and has received no byte",
        ),
        "a tensor that says it is equal": (LIAR, "returned a Liar and should return a torch.Tensor"),
        "another equality": (
            "def ring_all_reduce(x, dist):\n    torch.equal = lambda one, other: True\n    return x.clone()",
            "the part of rank 1 is missing",
        ),
        "an error without a text": (UNTOLD, "Untold  .ring_all_reduce, line 6: raise Untold"),
        "a round too many": (
            idling(RINGS, "ring_all_reduce", 1, right="(rank - 1) % size", left="(rank + 1) % size"),
            "Not yet at the bound: .* 3 rounds, where 2 are enough",
        ),
        "a number too many": (LONGER, "Not yet at the bound: on 2 ranks, .* through the busier port"),
        "whole tensors round the ring": (GATHER, "Not yet within the target: on 4 ranks, .* B through the busier port"),
        "everything to rank 0": (STAR, "on 3 ranks, .*rank 2 sent to rank 0, and its left neighbor is rank 1"),
        "to the right": (RINGS.replace("[::-1]", ""), "on 3 ranks, .*rank 0 sent to rank 1, and its left neighbor is rank 2"),
        "off by one in the chunk": (
            RINGS.replace("chunks[(at + ahead - step) % size]", "chunks[(at + ahead - step + 1) % size]"),
            "sends from and receives into the same memory in one batch",
        ),
        "once round alone": (RINGS.replace("for ahead in (0, 1)", "for ahead in (0,)"), "the part of rank 1 is missing"),
        "added twice": (
            RINGS.replace("got = chunk if ahead else torch.empty_like(chunk)", "got = torch.empty_like(chunk)").replace(
                "None if ahead else chunk", "chunk"
            ),
            "counts 2 times|counts 3 times",
        ),
        "right for powers of two": (
            RINGS.replace("x.clone()\n    all", "x.clone()\n    assert dist.get_world_size() in (1, 2, 4, 8)\n    all"),
            "on 3 ranks, .*AssertionError",
        ),
        "right where p divides n": (
            RINGS.replace(
                "part.tensor_split(size)",
                "[part[i * (len(part) // size) : (i + 1) * (len(part) // size)] for i in range(size)]",
            ),
            "rank . returned",
        ),
        "in place": (RINGS.replace("total = x.clone()\n    all", "total = x\n    all"), "rank 0 has changed what it was given"),
        "a missing wait": (RINGS.replace("            work.wait()", "            pass"), "may not have arrived"),
        "another dtype": (
            RINGS.replace("total = x.clone()\n    all", "total = x.float()\n    all"),
            "numbers of torch.float32 and was given torch.int64|has changed what it was given",
        ),
        "the first of a batch's works alone": (
            RINGS.replace("            work.wait()", "            work.wait()\n            break"),
            "run once more: .*may not have arrived",
        ),
        "float32 on the way": (
            RINGS.replace("x.clone()\n    all", "x.float().clone()\n    all").replace(
                "return total", "return total.to(x.dtype)"
            ),
            "were they float32",
        ),
        "the mean": (
            RINGS.replace("return total", "return total / dist.get_world_size()"),
            "everything is half of what it should be; there are 2 ranks, so perhaps you divide by their number once too often",
        ),
        "received into the chunk itself": (
            RINGS.replace("got = chunk if ahead else torch.empty_like(chunk)", "got = chunk"),
            "on 2 ranks, .*rank 0's part counts 0 times|on 2 ranks, .*rank 0 returned",
        ),
        "a list of numbers": (
            RINGS.replace("return total", "return total.tolist()"),
            "returned a list of 2 floats and should return a tensor",
        ),
        "the built-in": (
            "def ring_all_reduce(x, dist):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y",
            "it calls a collective of torch's",
        ),
        "torch's own, got at directly": (
            "import torch.distributed as td\ndef ring_all_reduce(x, dist):\n    y = x.clone()\n    td.all_reduce(y)\n    return y",
            "it calls a collective of torch's",
        ),
        "the book's, under another name": (
            "from ringtree.algorithms import ring_all_reduce as mine\ndef ring_all_reduce(x, dist):\n    y = x.clone()\n    mine(y, dist)\n    return y",
            "it calls a collective of torch's",
        ),
        "state between calls": (
            RINGS.replace(
                "def ring_all_reduce(x, dist):\n    total = x.clone()",
                """cache = {}
def ring_all_reduce(x, dist):
    total = cache.setdefault((dist.get_rank(), dist.get_world_size(), len(x), x.dtype), x.clone())""",
            ),
            "run once more: rank 0 returned",
        ),
        "one message too many": (
            RINGS.replace(
                "    all_rings([total]", "    if dist.get_rank() == 1:\n        dist.isend(total, 0)\n    all_rings([total]"
            ),
            "which expects 4 bytes",
        ),
        "not batched": (
            RINGS
            .replace("dist.batch_isend_irecv(batch)", "[op(each, peer) for op, each, peer in batch]")
            .replace("dist.P2POp(dist.isend, out, right)", "(dist.isend, out, right)")
            .replace("dist.P2POp(dist.irecv, got, left)", "(dist.irecv, got, left)"),
            "deadlock under NCCL's rules",
        ),
    },
    "two_rings": {
        "the first ring's works alone": (
            TWO.replace("dist.batch_isend_irecv(batch):", "dist.batch_isend_irecv(batch)[:2]:"),
            "run once more: .*may not have arrived",
        ),
        "one ring with the larger part": (
            TWO.replace(
                "all_rings(total.tensor_split(len(orders)), orders, dist)",
                "all_rings(total.split([len(x) - len(x) // 5 * 2, len(x) // 5 * 2]) if orders[1:] else [total], orders, dist)",
            ),
            "Not yet at the bound: on 4 ranks",
        ),
        "a second ring on four nodes alone": (
            TWO.replace("if size > 2 and size % 2 == 0:", "if size == 8:"),
            "Not yet within the target: on 4 ranks, .*2 nodes of two ranks",
        ),
        "a second ring from four nodes on": (
            TWO.replace("if size > 2 and size % 2 == 0:", "if size > 6 and size % 2 == 0:"),
            "Not yet within the target: on 4 ranks, .*2 nodes of two ranks",
        ),
        "one ring": (
            RINGS.replace("def ring_all_reduce", "def two_rings"),
            "Not yet within the target: on 4 ranks, .*2 nodes of two ranks",
        ),
        "two rings of the same order": (
            TWO.replace("[rank ^ 1 for rank in range(size)]", "list(range(size))"),
            "Not yet within the target",
        ),
        "one after the other": (
            TWO.replace(
                "    all_rings(total.tensor_split(len(orders)), orders, dist)",
                "    for part, order in zip(total.tensor_split(len(orders)), orders):\n        all_rings([part], [order], dist)",
            ),
            "Not yet within the target",
        ),
        "the whole vector in both": (
            TWO.replace("total.tensor_split(len(orders))", "[total] * len(orders)"),
            "sends from and receives into the same memory in one batch",
        ),
        "the second half forgotten": (
            TWO.replace(
                "zip(*(walk(part, order, rank) for part, order in zip(parts, orders)))",
                "zip(*[walk(parts[0], orders[0], rank)])",
            ),
            "the part of rank",
        ),
        "only for even numbers": (TWO.replace("if size > 2 and size % 2 == 0:", "if size > 1:"), "rank|IndexError|ValueError"),
        "in place": (TWO.replace("total, size = x.clone()", "total, size = x"), "rank 0 has changed what it was given"),
        "the book's": (
            "from ringtree.algorithms import multi_ring_all_reduce as mine\ndef two_rings(x, dist):\n    y = x.clone()\n    mine(y, dist, ranks_per_node=2)\n    return y",
            "it calls a collective of torch's",
        ),
    },
}
