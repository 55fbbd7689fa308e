"""Answers to the lab "Scatter and gather"."""

SHARES = '''
import heapq

def shares(samples, seconds):
    """The next sample goes to who would be ready with it first."""
    counts = [0] * len(seconds)
    ready = [(each, rank) for rank, each in enumerate(seconds)]
    heapq.heapify(ready)
    for _ in range(samples):
        at, rank = heapq.heappop(ready)
        counts[rank] += 1
        heapq.heappush(ready, (at + seconds[rank], rank))
    return counts
'''
BY_SPEED = """
def shares(samples, seconds):
    speed = [1 / each for each in seconds]
    counts = [int(samples * each / sum(speed)) for each in speed]
    left = samples - sum(counts)
    for rank in range(left):
        counts[rank] += 1
    return counts
"""
SCATTER = '''
def scatter_list(shards, dist, root):
    """A binomial tree, on places counted from the root."""
    rank, size = dist.get_rank(), dist.get_world_size()
    place, far = (rank - root) % size, 1
    while far < size:
        far *= 2
    def at(place):
        return (place + root) % size
    while far > 1:
        far //= 2
        if place % (2 * far) == 0 and place + far < size:
            to = range(place + far, min(place + 2 * far, size))
            dist.send(torch.cat([shards[at(each)] for each in to]), at(place + far))
        elif place % (2 * far) == far:
            to = range(place, min(place + far, size))
            got = torch.cat([shards[at(each)] for each in to])
            dist.recv(got, at(place - far))
            for each, part in zip(to, got.split([len(shards[at(each)]) for each in to])):
                shards[at(each)] = part
    return shards[rank]
'''
FLAT = """
def scatter_list(shards, dist, root):
    rank = dist.get_rank()
    if rank != root:
        got = shards[rank].clone()
        dist.recv(got, root)
        return got
    for other in range(dist.get_world_size()):
        if other != root:
            dist.send(shards[other], other)
    return shards[rank]
"""
WHOLE = """
def scatter_list(shards, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    place, whole, far = (rank - root) % size, torch.cat(shards), 1
    while far < size:
        if place < far and place + far < size:
            dist.send(whole, (place + far + root) % size)
        elif far <= place < 2 * far:
            dist.recv(whole, (place - far + root) % size)
        far *= 2
    return whole.split([len(each) for each in shards])[rank]
"""
GATHER = """
def gather_list(shards, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    place, far = (rank - root) % size, 1
    def at(place):
        return (place + root) % size
    while far < size:
        if place % (2 * far) == far:
            mine = [shards[at(each)] for each in range(place, min(place + far, size))]
            dist.send(torch.cat(mine), at(place - far))
            return None
        if place % (2 * far) == 0 and place + far < size:
            room = [shards[at(each)] for each in range(place + far, min(place + 2 * far, size))]
            got = torch.cat(room)
            dist.recv(got, at(place + far))
            for each, part in zip(room, got.split([len(each) for each in room])):
                each.copy_(part)
        far *= 2
    return shards
"""
FLAT_GATHER = """
def gather_list(shards, dist, root):
    rank = dist.get_rank()
    if rank != root:
        dist.send(shards[rank], root)
        return None
    for other in range(dist.get_world_size()):
        if other != root:
            dist.recv(shards[other], other)
    return shards
"""
ALL = '''
def gather_list(shards, dist, root):
    """Everything goes up the tree, also what is not yet known."""
    rank, size = dist.get_rank(), dist.get_world_size()
    place, far = (rank - root) % size, 1
    lengths = [len(each) for each in shards]
    while far < size:
        if place % (2 * far) == far:
            dist.send(torch.cat(shards), (place - far + root) % size)
            return None
        if place % (2 * far) == 0 and place + far < size:
            got = torch.cat(shards)
            dist.recv(got, (place + far + root) % size)
            parts = got.split(lengths)
            for each in range(place + far, min(place + 2 * far, size)):
                shards[(each + root) % size].copy_(parts[(each + root) % size])
        far *= 2
    return shards
'''
BUILT = "it calls a collective of torch's"

COLLECT = """
def collect(shard, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != root:
        dist.send(shard, root)
    else:
        whole = shard.new_empty(size * len(shard))
        places = whole.tensor_split(size)[::-1]
        for other in range(size):
            if other != root:
                dist.recv(places[other], other)
        places[root].copy_(shard)
        return whole
"""
ALL_AT_ONCE = """
def collect(shard, dist, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = {other: torch.empty_like(shard) for other in range(size) if other != root}
    if rank == root:
        works = [dist.irecv(row, other) for other, row in rows.items()]
    else:
        works = [dist.isend(shard, root)]
    for work in works:
        work.wait()
    rows[root] = shard
    return torch.cat([rows[other] for other in reversed(range(size))])
"""

RIGHT = {
    "collect": {"into one tensor": COLLECT, "all at once": ALL_AT_ONCE},
    "shares": {
        "one sample after the other": SHARES,
        "NumPy's whole numbers": "import numpy as np\ndef shares(samples, seconds):\n    counts = np.zeros(len(seconds), int)\n    for _ in range(samples):\n        counts[np.argmin((counts + 1) * np.array(seconds))] += 1\n    return list(counts)",
    },
    "scatter_list": {"counted from the root": SCATTER},
    "gather_list": {"counted from the root": GATHER},
}

WRONG = {
    "collect": {
        "rank 0 first": (COLLECT.replace("[::-1]", ""), "on 2 ranks, .*rank 0 returned"),
        "the numbers of a shard backwards too": (
            COLLECT.replace("return whole", "return torch.cat([each.flip(0) for each in places[::-1]])"),
            "on 3 ranks, .*rank 0 returned",
        ),
        "without the root's own": (
            COLLECT.replace("        places[root].copy_(shard)\n", ""),
            "nan: that memory was never written",
        ),
        "the root is rank 0": (
            COLLECT.replace("rank != root", "rank != 0").replace("dist.send(shard, root)", "dist.send(shard, 0)"),
            "on 2 ranks, .*root=1",
        ),
        "the first message for all": (
            COLLECT.replace("dist.recv(places[other], other)", "dist.recv(places[other], (root + 1) % size)"),
            "on 3 ranks, .*can never finish|on 3 ranks, .*never received",
        ),
        "the root sends to itself": (
            COLLECT.replace("if rank != root:", "if True:"),
            "wants to send to itself|rank 0 wants to",
        ),
        "the root receives from itself": (
            COLLECT.replace("            if other != root:\n    ", "").replace(
                "range(size):\n            dist", "range(size):\n            dist"
            ),
            "rank 0 wants to",
        ),
        "one rank sends twice": (
            COLLECT.replace("        dist.send(shard, root)", "        dist.send(shard, root)\n        dist.send(shard, root)"),
            "can never finish|never received",
        ),
        "the last rank keeps its shard": (
            COLLECT.replace("if rank != root:", "if rank != root and rank < size - 1:").replace("else:", "elif rank == root:"),
            "which has finished",
        ),
        "not waited for": (ALL_AT_ONCE.replace("        work.wait()", "        pass"), "may not have arrived|never waited"),
        "a list": (COLLECT.replace("return whole", "return list(places)"), "returned a list of .* and should return a tensor"),
        "nothing": (COLLECT.replace("        return whole", "        pass"), "returned nothing and should return a tensor"),
        "into a copy": (
            COLLECT.replace(
                "dist.recv(places[other], other)", "place = places[other].clone()\n                dist.recv(place, other)"
            ),
            r"`places\[other\].clone\(\)`  .*makes a copy",
        ),
        "the built-in": (
            "def collect(shard, dist, root):\n    rows = [torch.empty_like(shard) for _ in range(dist.get_world_size())]\n    dist.all_gather(rows, shard)\n    return torch.cat(rows[::-1])",
            "it calls a collective of torch's",
        ),
    },
    "shares": {
        "in another order": (
            SHARES.replace("    counts =", "    seconds.sort()\n    counts ="),
            "400 samples, .* rank 1 ends last",
        ),
        "ready now, not with the next": (
            SHARES.replace("(each, rank) for", "(0.0, rank) for"),
            "Not yet at the bound: 3 samples, 4, 4, 1, 4 s each",
        ),
        "all alike": (
            "def shares(samples, seconds):\n    return [len(part) for part in torch.arange(samples).tensor_split(len(seconds))]",
            "ends last, after .* are enough",
        ),
        "the slow ones get most": (
            SHARES.replace("(at + seconds[rank], rank)", "(at + 1 / seconds[rank], rank)").replace(
                "(each, rank) for", "(1 / each, rank) for"
            ),
            "ends last, after .* are enough",
        ),
        "rounded, and one is lost": (
            BY_SPEED.replace("    left = samples - sum(counts)\n    for rank in range(left):\n        counts[rank] += 1\n", ""),
            "samples, and there are",
        ),
        "the rest to the first": (BY_SPEED, "Not yet at the bound"),
        "the fastest does all": (
            "def shares(samples, seconds):\n    best = seconds.index(min(seconds))\n    return [samples * (rank == best) for rank in range(len(seconds))]",
            "ends last, after .* are enough",
        ),
        "fractions": (
            "def shares(samples, seconds):\n    speed = [1 / each for each in seconds]\n    return [samples * each / sum(speed) for each in speed]",
            "should return a list of .* whole numbers",
        ),
        "a number": ("def shares(samples, seconds):\n    return samples", "should return a list of .* whole numbers"),
        "nothing": ("def shares(samples, seconds):\n    pass", "should return a list of .* whole numbers"),
        "less than none": (
            "def shares(samples, seconds):\n    return [-1] + [samples + 1] + [0] * (len(seconds) - 2)",
            "give 0 or more|should return a list",
        ),
    },
    "scatter_list": {
        "flat": (FLAT, "Not yet within the target: on 4 ranks, .* 3 rounds, where 2 are enough"),
        "whole tensors instead of shards": (WHOLE, "Not yet at the bound: on 2 ranks, .* B through the busier port"),
        "only from root 0": (FLAT.replace("    rank = dist", "    root = 0\n    rank = dist"), "root=1.*: rank . returned"),
        "shards counted from the root": (
            SCATTER.replace("shards[at(each)]", "shards[each]"),
            "root=1.*rank . returned|bytes|IndexError",
        ),
        "right for powers of two": (
            SCATTER.replace("min(place + 2 * far, size)", "place + 2 * far").replace("min(place + far, size)", "place + far"),
            "on 3 ranks",
        ),
        "equal shards alone": (
            SCATTER.replace("got.split([len(shards[at(each)]) for each in to])", "got.tensor_split(len(to))"),
            "rank . returned|which expects .* bytes",
        ),
        "off by one in the half": (
            SCATTER.replace("range(place + far, min", "range(place + far + 1, min"),
            "bytes|list of tensors|rank",
        ),
        "each its own message": (
            SCATTER.replace(
                "dist.send(torch.cat([shards[at(each)] for each in to]), at(place + far))",
                "[dist.send(shards[at(each)], at(place + far)) for each in to]",
            ).replace(
                "dist.recv(got, at(place - far))",
                "[dist.recv(part, at(place - far)) for part in got.split([len(shards[at(each)]) for each in to])]",
            ),
            "Not yet within the target: on 3 ranks|Not yet within the target: on 4 ranks",
        ),
        "never waited for": (SCATTER.replace("dist.send(", "dist.isend("), "wait"),
        "the whole list": (
            FLAT.replace("return shards[rank]", "return shards"),
            "a list of 2 tensors and should return a tensor",
        ),
        "another dtype": (
            SCATTER.replace("return shards[rank]", "return shards[rank].float()"),
            "numbers of torch.float32 and was given torch",
        ),
        "one message too many": (FLAT.replace("        if other != root:", "        if True:"), "to itself|rank 0"),
        "the built-in": (
            "def scatter_list(shards, dist, root):\n    rank = dist.get_rank()\n    dist.scatter(shards[rank], shards if rank == root else None, src=root)\n    return shards[rank]",
            BUILT,
        ),
        "state between calls": (
            SCATTER.replace("def scatter", "kept = {}\ndef scatter").replace(
                "return shards[rank]",
                "return kept.setdefault((rank, root, tuple(map(len, shards)), shards[0].dtype), shards[rank])",
            ),
            "rank . returned",
        ),
    },
    "gather_list": {
        "a list in a message": (
            FLAT_GATHER.replace("dist.send(shards[rank], root)", "dist.send(shards, root)"),
            "rank 1 gives a message a list: give it one tensor",
        ),
        "in the order of coming": (
            FLAT_GATHER.replace(
                "    return shards\n",
                "    return [shards[root], *(each for other, each in enumerate(shards) if other != root)]\n",
            ),
            "root=1.*: rank 1 in place 0 of its list",
        ),
        "flat": (FLAT_GATHER, "Not yet within the target: on 4 ranks, .* 3 rounds, where 2 are enough"),
        "whole tensors instead of shards": (ALL, "Not yet at the bound: on 2 ranks, .* B through the busier port"),
        "only to root 0": (
            FLAT_GATHER.replace("    rank = dist", "    root = 0\n    rank = dist"),
            "root=1.*: rank 1 returned nothing and should return a list of 2 tensors",
        ),
        "in the order of the places": (
            GATHER.replace("return shards\n", "return [shards[at(each)] for each in range(size)]\n"),
            "root=1.*: rank 1 in place",
        ),
        "right for powers of two": (
            GATHER.replace("min(place + 2 * far, size)", "place + 2 * far").replace("min(place + far, size)", "place + far"),
            "on 3 ranks",
        ),
        "equal shards alone": (
            GATHER.replace("got.split([len(each) for each in room])", "got.tensor_split(len(room))"),
            "must match the size|rank . returned|RuntimeError",
        ),
        "only its own shard": (
            GATHER.replace("for each in range(place, min(place + far, size))]", "for each in [place]]"),
            "bytes",
        ),
        "each its own message": (
            GATHER.replace(
                "dist.send(torch.cat(mine), at(place - far))", "[dist.send(each, at(place - far)) for each in mine]"
            ).replace(
                "            dist.recv(got, at(place + far))\n",
                "            [dist.recv(each, at(place + far)) for each in room]\n            got = torch.cat(room)\n",
            ),
            "Not yet within the target: on . ranks",
        ),
        "never waited for": (GATHER.replace("dist.send(", "dist.isend("), "wait"),
        "read before it came": (GATHER.replace("dist.recv(got", "work = dist.irecv(got"), "may not have arrived"),
        "in one piece": (
            GATHER.replace("return shards\n", "return torch.cat(shards)\n"),
            "returned a tensor of shape .* and should return a list",
        ),
        "another dtype": (
            GATHER.replace("return shards\n", "return [each.float() for each in shards]\n"),
            "numbers of torch.float32 and was given torch",
        ),
        "the root's own forgotten": (
            FLAT_GATHER.replace("return shards\n", "return [each for other, each in enumerate(shards) if other != root]\n"),
            "returned 1 tensors and should return 2",
        ),
        "the built-in": (
            "def gather_list(shards, dist, root):\n    rank = dist.get_rank()\n    dist.gather(shards[rank], shards if rank == root else None, dst=root)\n    return shards",
            BUILT,
        ),
        "state between calls": (
            GATHER.replace("def gather", "kept = {}\ndef gather").replace(
                "return shards\n", "return kept.setdefault((rank, root, tuple(map(len, shards)), shards[0].dtype), shards)\n"
            ),
            "rank . in place 0 of its list returned",
        ),
    },
}
