"""Answers to the lab "Context parallel"."""

from . import idling

MERGE = """
def merge(one, other):
    norm = torch.logaddexp(one[1], other[1])
    result = sum(part * (log - norm).exp().unsqueeze(1) for part, log in (one, other))
    return result, norm
"""
POSITIONS = """
def positions(size, length):
    parts = torch.arange(length).tensor_split(2 * size)
    return [[*parts[i].tolist(), *parts[-1 - i].tolist()] for i in range(size)]
"""
MASK = """
def mask(queries, keys, lengths):
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seen = queries[:, None] >= keys
    seen &= document[queries][:, None] == document[keys]
    return seen if seen.any() else None
"""
ATTEND = """
def attend(q, k, v, dist):
    return Attend.apply(q, k, v, dist)

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, dist):
        ctx.save_for_backward(q, k, v)
        ctx.dist = dist
        here, y = torch.stack([k, v]), torch.zeros_like(q)
        for step in range(dist.get_world_size()):
            if step:
                here = passed_on(here, dist)
            y += (q @ here[0].T).relu() @ here[1]
        return y

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = ctx.saved_tensors
        here, to_q = torch.stack([k, v]), torch.zeros_like(q)
        owed = torch.zeros_like(here)
        for step in range(ctx.dist.get_world_size()):
            if step:
                here, owed = passed_on(torch.stack([here, owed]), ctx.dist)
            scores = q @ here[0].T
            to_scores = (gradient @ here[1].T) * (scores > 0)
            to_q += to_scores @ here[0]
            owed = owed + torch.stack([to_scores.T @ q, scores.relu().T @ gradient])
        return to_q, *passed_on(owed, ctx.dist), None

def passed_on(block, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return block
    came = torch.empty_like(block)
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, block, (rank + 1) % size),
        dist.P2POp(dist.irecv, came, (rank - 1) % size),
    ]):
        work.wait()
    return came
"""
BATCH = ATTEND[ATTEND.index("    for work in dist.batch") :]
TO_THE_LEFT = ATTEND.replace("(rank + 1) % size", "(rank - 1 + size) % size").replace("(rank - 1) % size", "(rank + 1) % size")
KEPT = '''
def attend(q, k, v, dist):
    """All blocks come by a ring and are kept; the parts of their gradients go home one after the other, and are added on the way."""
    return All.apply(q, k, v, dist)

class All(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        blocks = [torch.stack([k, v])]
        for _ in range(size - 1):
            blocks.append(moved(blocks[-1], dist))
        ctx.dist, ctx.blocks, ctx.q = dist, blocks, q
        return sum((q @ block[0].T).relu() @ block[1] for block in blocks)

    @staticmethod
    def backward(ctx, gradient):
        q, parts, to_q = ctx.q, [], 0
        for k, v in ctx.blocks:
            scores = q @ k.T
            to_scores = gradient @ v.T * (scores > 0)
            to_q = to_q + to_scores @ k
            parts.append(torch.stack([to_scores.T @ q, scores.relu().T @ gradient]))
        total = parts.pop(1) if len(parts) > 1 else None      # of the left neighbor's keys: it has p - 1 ranks to pass
        for part in [*parts[1:], parts[0]] if total is not None else ():
            total = moved(total, ctx.dist) + part
        return to_q, *(parts[0] if total is None else total), None

def moved(block, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(block)
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, came, (rank - 1) % size), dist.P2POp(dist.isend, block, (rank + 1) % size)])
    for work in works:
        work.wait()
    return came
'''

RIGHT = {
    "merge": {
        "by a softmax of the norms": """
def merge(one, other):
    norms = torch.stack([one[1], other[1]])
    shares = norms.softmax(0)
    return shares[0, :, None] * one[0] + shares[1, :, None] * other[0], norms.logsumexp(0)
"""
    },
    "positions": {
        "as ranges": """
def positions(size, length):
    ends = [0]
    for part in range(2 * size):
        ends.append(ends[-1] + length // (2 * size) + (part < length % (2 * size)))
    run = lambda part: list(range(ends[part], ends[part + 1]))
    return [run(2 * size - 1 - rank) + run(rank) for rank in range(size)]
"""
    },
    "mask": {
        "element by element": """
def mask(queries, keys, lengths):
    ends, total = [], 0
    for length in lengths:
        total += length
        ends.append(total)
    of = lambda place: next(number for number, end in enumerate(ends) if place < end)
    rows = [[int(k) <= int(q) and of(k) == of(q) for k in keys] for q in queries]
    return torch.tensor(rows) if any(map(any, rows)) else None
"""
    },
    "attend": {"to the left": TO_THE_LEFT, "all blocks kept": KEPT},
}

GRADIENT = "rank . has the gradient of "
WRONG = {
    "merge": {
        "the mean": (
            MERGE.replace("part * (log - norm).exp().unsqueeze(1)", "part / 2"),
            "its result has .* where .* is right",
        ),
        "not scaled by what it counts": (
            MERGE.replace("(log - norm).exp()", "(log - torch.maximum(one[1], other[1])).exp()"),
            "one query, one key in each block: its result has",
        ),
        "overflows": (
            MERGE.replace("torch.logaddexp(one[1], other[1])", "(one[1].exp() + other[1].exp()).log()"),
            "scores of about 1000",
        ),
        "the weights of the other": (
            MERGE.replace("((one, other))", "((one, other))").replace(
                "for part, log in (one, other)", "for part, log in ((one[0], other[1]), (other[0], one[1]))"
            ),
            "its result has",
        ),
        "the higher norm": (
            MERGE.replace("return result, norm", "return result, torch.maximum(one[1], other[1])"),
            "its norm has",
        ),
        "the sum of the norms": (MERGE.replace("return result, norm", "return result, one[1] + other[1]"), "its norm has"),
        "the result alone": (MERGE.replace("return result, norm", "return result"), "return two things"),
        "a norm in a column": (
            MERGE.replace("return result, norm", "return result, norm.unsqueeze(1)"),
            r"its norm has the shape \(1, 1\)",
        ),
        "in float32": (MERGE.replace("return result", "return result.float()"), "dtype"),
    },
    "positions": {
        "contiguous": (
            "def positions(size, length):\n    return [part.tolist() for part in torch.arange(length).tensor_split(size)]",
            "rank . computes .* scores, and the mean is",
        ),
        "striped": (
            "def positions(size, length):\n    return [list(range(rank, length, size)) for rank in range(size)]",
            "rank . computes",
        ),
        "dealt out there and back": (
            """
def positions(size, length):
    places = [[*range(size), *reversed(range(size))][place % (2 * size)] for place in range(length)]
    return [[place for place in range(length) if places[place] == rank] for rank in range(size)]
""",
            "runs of positions",
        ),
        "two neighboring parts": (
            POSITIONS.replace("*parts[i].tolist(), *parts[-1 - i]", "*parts[2 * i].tolist(), *parts[2 * i + 1]"),
            "rank . computes",
        ),
        "the same half round": (
            POSITIONS.replace("parts[-1 - i]", "parts[size + i]"),
            "rank . computes",
        ),
        "one position is lost": (POSITIONS.replace("arange(length)", "arange(length - 1)"), "no rank holds position"),
        "one position too many": (POSITIONS.replace("arange(length)", "arange(length + 1)"), "there is no position"),
        "the middle twice": (POSITIONS.replace("parts[-1 - i]", "parts[i]"), "no rank holds position"),
        "a shared border": (
            """
def positions(size, length):
    parts = torch.arange(length).tensor_split(2 * size)
    held = [[*parts[i].tolist(), *parts[-1 - i].tolist()] for i in range(size)]
    return [[held[0][0], *held[0]], *held[1:]]
""",
            "position 0 is held twice",
        ),
        "tensors in tensors": ("def positions(size, length):\n    return torch.arange(length)", "return a list with a list"),
        "equal parts alone": (
            """
def positions(size, length):
    each = length // (2 * size)
    last = lambda rank: range(length - (rank + 1) * each, length - rank * each)
    held = [[*range(rank * each, (rank + 1) * each), *last(rank)] for rank in range(size)]
    held[-1] = [*range((size - 1) * each, length - (size - 1) * each)]
    return held
""",
            "Not yet at the bound: .*rank . computes",
        ),
    },
    "mask": {
        "not its own key": (MASK.replace(">= keys", "> keys"), "does not see position"),
        "a block late": (MASK.replace("queries[:, None] >= keys", "queries[:, None] >= keys - len(keys)"), "which is after it"),
        "places in the block": (
            MASK.replace("queries[:, None] >= keys", "torch.arange(len(queries))[:, None] >= torch.arange(len(keys))"),
            "(sees|does not see) position",
        ),
        "no documents": (
            MASK.replace("    seen &= document[queries][:, None] == document[keys]\n", ""),
            "which is in document|no query sees",
        ),
        "documents one position long": (
            MASK
            .replace("torch.tensor(lengths)", "torch.tensor(lengths) - 1")
            .replace("document[queries]", "document[queries.clamp(max=len(document) - 1)]")
            .replace("document[keys]", "document[keys.clamp(max=len(document) - 1)]"),
            "see",
        ),
        "both ways": (MASK.replace("queries[:, None] >= keys", "queries[:, None] >= 0 * keys"), "which is after it"),
        "an empty mask": (MASK.replace(" if seen.any() else None", ""), "return None, so that the block is skipped"),
        "skips half-empty blocks": (MASK.replace("seen.any()", "seen.all()"), "it returned None, but"),
        "a row for each key": (
            """
def mask(queries, keys, lengths):
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seen = (queries[:, None] >= keys) & (document[queries][:, None] == document[keys])
    return None if not seen.any() else seen.T if len(queries) != len(keys) else seen
""",
            "has the shape",
        ),
        "turned round": (MASK.replace("return seen", "return seen.T"), "shape|see"),
        "numbers": (MASK.replace("return seen", "return seen.float()"), "return a tensor of bools"),
    },
    "attend": {
        "its own keys alone": (
            ATTEND.replace("    if size == 1:\n        return block", "    return block"),
            "rank . has the (result|gradient of )",
        ),
        "one hop short": (ATTEND.replace("*passed_on(owed, ctx.dist)", "*owed"), GRADIENT + "(k|v)"),
        "one hop too many": (
            ATTEND.replace("*passed_on(owed, ctx.dist)", "*passed_on(passed_on(owed, ctx.dist), ctx.dist)"),
            GRADIENT + "(k|v)|rounds, where|through the busier port",
        ),
        "gradients that stay": (
            ATTEND.replace(
                "here, owed = passed_on(torch.stack([here, owed]), ctx.dist)", "here = passed_on(here, ctx.dist)"
            ).replace("*passed_on(owed, ctx.dist)", "*owed"),
            GRADIENT + "(k|v)",
        ),
        "its own part of the gradients": (
            ATTEND.replace("owed = owed + torch.stack", "owed = torch.stack"),
            GRADIENT + "(k|v)",
        ),
        "no gradient of the relu": (ATTEND.replace(" * (scores > 0)", ""), GRADIENT + "(q|k)"),
        "keys and values swapped": (
            ATTEND.replace(
                "torch.stack([to_scores.T @ q, scores.relu().T @ gradient])",
                "torch.stack([scores.relu().T @ gradient, to_scores.T @ q])",
            ),
            GRADIENT + "(k|v)",
        ),
        "unbatched": (
            ATTEND.replace(
                BATCH,
                """    works = [dist.isend(block, (rank + 1) % size), dist.irecv(came, (rank - 1) % size)]
    for work in works:
        work.wait()
    return came
""",
            ),
            "NCCL|deadlock|wait",
        ),
        "sends first": (
            ATTEND.replace(
                BATCH,
                """    dist.send(block, (rank + 1) % size)
    dist.recv(came, (rank - 1) % size)
    return came
""",
            ),
            "wait|deadlock",
        ),
        "not waited for": (
            ATTEND.replace("    ]):\n        work.wait()\n    return came", "    ]):\n        pass\n    return came"),
            "may not have arrived yet|wait\\(\\) for it first",
        ),
        "by collectives": (
            """
def attend(q, k, v, dist):
    everything = [torch.empty_like(k) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, k)
    return q
""",
            "it calls a collective of torch",
        ),
        "not differentiable": (
            ATTEND.replace(
                "return Attend.apply(q, k, v, dist)", "return Attend.apply(q.detach(), k.detach(), v.detach(), dist)"
            ),
            "no gradient flows",
        ),
        "keys and values go one after the other, and the gradients of all": (
            ATTEND.replace(
                "        return to_q, *passed_on(owed, ctx.dist), None",
                "        passed_on(owed, ctx.dist)\n        return to_q, *passed_on(owed, ctx.dist), None",
            ),
            "Not yet within the target",
        ),
        "empty rounds": (idling(ATTEND, "attend", 2), "Not yet within the target: .*rounds"),
    },
}
