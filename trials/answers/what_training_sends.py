"""Answers to the lab "What training sends"."""

from . import idling, writing_on_what_it_was_given

SENDS = '''
import math

def sends(model, layout, serving):
    """By lists of single calls."""
    passes = 1 if serving else 2
    sums = [layout.tokens * model.width * 2 for _ in range(layout.microbatches * passes * model.layers * 2)]
    gradients = 0 if serving or layout.data == 1 else model.parameters * 2 // layout.tensor
    tensor = (len(sums), sums[0]) if layout.tensor > 1 else (0, 0)
    return tensor, (-(-gradients // (25 * 1024 * 1024)), gradients)
'''
SPLIT = """
from collections import Counter

def split_of(model, calls):
    ranks, carried = len(calls[-1][0]), Counter()
    for group, nbytes in calls[:-2]:
        carried[group] += nbytes
    for group, nbytes in carried.items():
        tensor = ranks // len(group)
        if abs(nbytes - 2 * model.parameters / tensor) < 1e-3 * nbytes:
            return tensor, len(group)
    return ranks, 1
"""
GUESS = """
from collections import Counter

def split_of(model, calls):
    ranks, groups = len(calls[-1][0]), {}
    for group, nbytes in calls[:-2]:
        groups.setdefault(group, []).append(nbytes)
    for group, sizes in groups.items():
        if IS_DATA:
            return ranks // len(group), len(group)
    return ranks, 1
"""
BUCKETS = '''
import functools

def buckets(gradients, ranks, link):
    """From the end: what is still to go, by when the last has gone, is asked again and again and so kept."""
    sizes = [0]
    for nbytes, _ in gradients:
        sizes.append(sizes[-1] + nbytes)

    @functools.cache
    def gone(until):
        """(the earliest second at which the first `until` gradients have gone; the buckets' counts)."""
        if until == 0:
            return 0.0, ()
        ways = []
        for first in range(until):
            before, counts = gone(first)
            start = max(before, gradients[until - 1][1])
            takes = 2 * (ranks - 1) * link.time((sizes[until] - sizes[first]) / ranks)
            ways.append((start + takes, (*counts, until - first)))
        return min(ways)

    for until in range(len(gradients)):
        gone(until)
    return list(gone(len(gradients))[1])
'''
CAPPED = """
from ringtree.labs.exercises.what_training_sends import left_over

def up_to(limit, gradients):
    counts, size = [], 0
    for nbytes, _ in gradients:
        if counts and size + nbytes <= limit:
            counts[-1] += 1
            size += nbytes
        else:
            counts.append(1)
            size = nbytes
    return counts

def buckets(gradients, ranks, link):
    return min((up_to(2**k, gradients) for k in range(10, 30)), key=lambda counts: left_over(gradients, counts, ranks, link))
"""
ADD = """
def add_in_32(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = x.tensor_split(size)
    total = pieces[rank].float()
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        came = torch.empty_like(pieces[rank])
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, pieces[to], to), dist.P2POp(dist.irecv, came, source)]):
            work.wait()
        total += came
    result = torch.empty_like(x)
    pieces = result.tensor_split(size)
    pieces[rank].copy_(total)
    for step in range(size - 1):
        going, coming = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, going, (rank + 1) % size), dist.P2POp(dist.irecv, coming, (rank - 1) % size)]):
            work.wait()
    return result
"""
EVERYTHING = '''
def add_in_32(x, dist):
    """Everything to everybody."""
    got = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(got, x)
    return torch.stack(got).float().sum(0).to(x.dtype)
'''
IN_32 = "def add_in_32(x, dist):\n    y = x.float()\n    dist.all_reduce(y)\n    return y.to(x.dtype)\n"
IN_16 = "def add_in_32(x, dist):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y\n"

RIGHT = {
    "sends": {"one call after the other": SENDS},
    "split_of": {"with a Counter": SPLIT},
    "buckets": {"from the end": BUCKETS},
    "add_in_32": {"messages alone": ADD},
}

WRONG = {
    "sends": {
        "forwards alone": (
            SENDS.replace("1 if serving else 2", "1"),
            "says 24 calls by the tensor group of 2 ranks, and there are 48",
        ),
        "a server goes back too": (
            SENDS.replace("1 if serving else 2", "2"),
            "serving, .*says 320 calls by the tensor group of 8 ranks, and there are 160",
        ),
        "once a layer": (SENDS.replace("* model.layers * 2)", "* model.layers)"), "says 24 calls .* and there are 48"),
        "numbers of 4 bytes": (
            SENDS.replace("* 2 for", "* 4 for").replace("* 2 //", "* 4 //"),
            "says 8,388,608 bytes each by the tensor group of 2 ranks",
        ),
        "numbers for bytes": (SENDS.replace("* 2 for", "for"), "says 2,097,152 bytes each by the tensor group of 2 ranks"),
        "activations cut by the tensor group": (
            SENDS.replace("model.width * 2 for", "model.width * 2 // layout.tensor for"),
            "says 2,097,152 bytes each",
        ),
        "all gradients on each rank": (
            SENDS.replace(" // layout.tensor", ""),
            "says 16 calls by the data group of 2 ranks, and there are 8",
        ),
        "gradients of each microbatch": (
            SENDS.replace("2 // layout.tensor", "2 // layout.tensor * layout.microbatches"),
            "says 2,671 calls by the data group of 16 ranks",
        ),
        "no microbatches": (
            SENDS.replace("layout.microbatches * passes", "passes"),
            "says 320 calls by the tensor group of 8 ranks, and there are 1,280",
        ),
        "only full buckets": (
            SENDS.replace("-(-gradients // (25 * 1024 * 1024))", "gradients // (25 * 1024 * 1024)"),
            "says 15 calls by the data group of 2 ranks, and there are 16",
        ),
        "buckets of 25 MB": (
            SENDS.replace("25 * 1024 * 1024", "25 * 10**6"),
            "says 700 calls by the data group of 4 ranks, and there are 668",
        ),
        "a group of one sends too": (
            SENDS.replace(" if layout.tensor > 1 else (0, 0)", ""),
            "says 48 calls by the tensor group of 1 rank, and there are 0",
        ),
        "a replica alone sends gradients": (
            SENDS.replace("serving or layout.data == 1", "serving"),
            "says 8 calls by the data group of 1 rank, and there are 0",
        ),
        "a server has gradients": (
            SENDS.replace("serving or layout.data == 1", "layout.data == 1"),
            "serving, .*by the data group of 4 ranks, and there are 0",
        ),
        "bytes of a bucket": (
            SENDS.replace("(25 * 1024 * 1024)), gradients", "(25 * 1024 * 1024)), min(gradients, 25 * 1024 * 1024)"),
            "says 26,214,400 bytes in all by the data group",
        ),
        "fractions": (SENDS.replace("gradients // (", "gradients / ("), "return two pairs of whole numbers"),
        "a flat list": (SENDS.replace("return tensor, (", "return (*tensor, "), "return two pairs of whole numbers"),
    },
    "split_of": {
        "the first group is the tensor group": (
            "def split_of(model, calls):\n    first = len(calls[0][0])\n    return first, len(calls[-1][0]) // first",
            r"log 2, .*says tensor 2 × data 1\. The log has 381 MiB among 2 ranks",
        ),
        "the group of the loss is the data group": (
            "def split_of(model, calls):\n    return len(calls[0][0]), len(calls[-1][0])",
            "says tensor 2 × data 2, and there are 2 ranks",
        ),
        "neighbors are the tensor group": (
            GUESS.replace("IS_DATA", "group[1] - group[0] > 1"),
            r"log 2, .*says tensor 2 × data 1",
        ),
        "the smaller calls are gradients": (
            GUESS.replace("IS_DATA", "max(sizes) <= 25 * 2**20"),
            "log 1, .*says tensor 1 × data 2",
        ),
        "the larger calls are gradients": (
            GUESS.replace("IS_DATA", "max(sizes) == max(max(each) for each in groups.values()) and max(sizes) > 5e6"),
            "log 4, .*says tensor 1 × data 8",
        ),
        "equal calls are activations": (GUESS.replace("IS_DATA", "len(set(sizes)) > 1"), "log 5, .*says tensor 8 × data 1"),
        "calls by layers are activations": (
            GUESS.replace("IS_DATA", "len(sizes) % (4 * model.layers)"),
            "log 5, .*says tensor 8 × data 1",
        ),
        "25 MiB is a bucket": (GUESS.replace("IS_DATA", "25 * 2**20 in sizes"), "log 4, .*says tensor 1 × data 8"),
        "most bytes are activations": (
            GUESS.replace(
                "IS_DATA",
                "len(groups) > 1 and sum(sizes) < max(map(sum, groups.values())) or len(groups) == 1 and len(set(sizes)) > 1",
            ),
            "log 3, |log 5, |log 6, ",
        ),
        "all parameters on each rank": (SPLIT.replace(" / tensor) <", ") <"), "log 3, .*says tensor 8 × data 1"),
        "numbers of 4 bytes": (SPLIT.replace("2 * model", "4 * model"), "log 2, .*says tensor 2 × data 1"),
        "the other way round": (
            SPLIT.replace("return tensor, len(group)", "return len(group), tensor").replace(
                "return ranks, 1", "return 1, ranks"
            ),
            "log 1, .*says tensor 1 × data 2",
        ),
        "text": ("def split_of(model, calls):\n    return 'tensor 2', 'data 1'", "return two whole numbers"),
    },
    "buckets": {
        "one for all": (
            "def buckets(gradients, ranks, link):\n    return [len(gradients)]",
            "Not yet within the target: 4 even layers, .*with 1 bucket",
        ),
        "each alone": (
            "def buckets(gradients, ranks, link):\n    return [1] * len(gradients)",
            "Not yet within the target: .*with \\d+ buckets",
        ),
        "25 MiB": (
            CAPPED.replace("2**k, gradients) for k in range(10, 30)", "25 * 2**20, gradients) for _ in range(1)"),
            "Not yet within the target: 4 even layers",
        ),
        "one size, by factors of two": (CAPPED, "Not yet at the bound: convolutions, a quick one"),
        "equal counts": (
            "from ringtree.labs.exercises.what_training_sends import left_over\ndef buckets(gradients, ranks, link):\n    n = len(gradients)\n    ways = [[len(range(i, n, k)) for i in range(k)] for k in range(1, n + 1)]\n    return min(ways, key=lambda counts: left_over(gradients, counts, ranks, link))",
            "Not yet within the target: convolutions, a quick one",
        ),
        "as soon as the wire is free": (
            CAPPED.split("def up_to")[0]
            + """
def buckets(gradients, ranks, link):
    counts, done, first = [], 0.0, 0
    while first < len(gradients):
        last = first + 1
        while last < len(gradients) and gradients[last][1] <= max(done, gradients[first][1]):
            last += 1
        nbytes = sum(size for size, _ in gradients[first:last])
        done = max(done, gradients[last - 1][1]) + 2 * (ranks - 1) * link.time(nbytes / ranks)
        counts.append(last - first)
        first = last
    return counts
""",
            "Not yet (within the target|at the bound)",
        ),
        "the α forgotten": (
            BUCKETS.replace(
                "link.time((sizes[until] - sizes[first]) / ranks)", "link.beta * (sizes[until] - sizes[first]) / ranks"
            ),
            "Not yet",
        ),
        "the first layer first": (
            BUCKETS.replace("return list(gone(len(gradients))[1])", "return list(gone(len(gradients))[1])[::-1]"),
            "Not yet",
        ),
        "sizes for counts": (
            BUCKETS.replace("return list(gone(len(gradients))[1])", "return [2**20 * n for n in gone(len(gradients))[1]]"),
            "give each bucket one gradient or more, 4 in all",
        ),
        "the last left out": (
            BUCKETS.replace("return list(gone(len(gradients))[1])", "return list(gone(len(gradients))[1])[:-1]"),
            "give each bucket one gradient or more",
        ),
        "an empty bucket": (
            BUCKETS.replace("return list(gone(len(gradients))[1])", "return [0, *gone(len(gradients))[1]]"),
            "give each bucket one gradient or more",
        ),
        "the gradients themselves": (
            "def buckets(gradients, ranks, link):\n    return [gradients]",
            "return a list of whole numbers",
        ),
    },
    "add_in_32": {
        "in 16 bits": (IN_16, r"256 \+ 1 \+ 1: rank 0 returned \[256, 258\] and should return \[258, 258\]"),
        "all in 32 bits": (IN_32, "Not yet at the bound: on 2 ranks, .*through the busier port"),
        "everything to everybody": (EVERYTHING, "Not yet within the target: .*through the busier port"),
        "the way back in 32 bits": (
            ADD.replace("result = torch.empty_like(x)", "result = torch.empty_like(x, dtype=torch.float32)").replace(
                "    return result", "    return result.to(x.dtype)"
            ),
            "Not yet at the bound: .*through the busier port",
        ),
        "rounded after each": (
            ADD.replace("        total += came", "        total = (total + came).to(x.dtype).float()"),
            r"256 \+ 1 \+ 1: rank . returned",
        ),
        "added in 16 bits, at once": (
            EVERYTHING.replace(".float().sum(0).to(x.dtype)", ".sum(0)").replace(
                "torch.stack(got).sum(0)", "__import__('functools').reduce(torch.add, got)"
            ),
            r"256 \+ 1 \+ 1: rank . returned",
        ),
        "a float32": (
            ADD.replace("    return result", "    return result.float()"),
            "numbers of torch.float32 and was given torch.bfloat16",
        ),
        "always bfloat16": (
            ADD.replace("    rank, size", "    x = x.to(torch.bfloat16)\n    rank, size"),
            r"\(float16\) each: rank . returned numbers of torch.bfloat16",
        ),
        "the mean": (ADD.replace("    return result", "    return result / size"), "rank 0 returned"),
        "only where it divides": (
            ADD.replace("pieces = x.tensor_split(size)", "pieces = x.view(size, -1)", 1),
            "RuntimeError: shape",
        ),
        "a step too few": (ADD.replace("range(1, size)", "range(1, size - 1)"), "the part of rank"),
        "its own twice": (
            ADD
            .replace("range(1, size)", "range(size)")
            .replace("(rank + step)", "(rank + max(step, 1))")
            .replace("(rank - step) % size\n        came", "(rank - max(step, 1)) % size\n        came"),
            "counts 2 times|returned",
        ),
        "not gathered": (
            ADD.replace("    for step in range(size - 1):\n        going", "    for step in range(size - 2):\n        going"),
            "that memory was never written",
        ),
        "in place": (ADD.replace("torch.empty_like(x)\n    pieces", "x\n    pieces"), "rank 0 has changed what it was given"),
        "writes on what it was given": (writing_on_what_it_was_given(ADD, "add_in_32"), "has changed what it was given"),
        "a missing wait": (ADD.replace("            work.wait()", "            pass"), "may not have arrived"),
        "a round too many": (idling(ADD, "add_in_32", 1), "Not yet at the bound: on 2 ranks, .*rounds, where"),
        "only powers of two": (
            ADD.replace("(rank + step) % size, (rank - step) % size", "rank ^ step, rank ^ step"),
            "on 3 ranks",
        ),
        "remembers": (
            "KNOWN = {}\n"
            + ADD.replace("def add_in_32(", "def fresh(")
            + """
def add_in_32(x, dist):
    key = dist.get_rank(), dist.get_world_size(), len(x)
    if key not in KNOWN:
        KNOWN[key] = fresh(x, dist)
    return KNOWN[key]
""",
            "run once more: rank . knows what others were given and has received no byte",
        ),
        "everybody receives first": (
            ADD.replace(
                "        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, pieces[to], to), dist.P2POp(dist.irecv, came, source)]):\n            work.wait()",
                "        dist.recv(came, source)\n        dist.send(pieces[to], to)",
            ),
            "deadlock",
        ),
        "never ends": (ADD.replace("    return result", "    while True:\n        pass"), "had not ended|still|does it loop"),
    },
}
