"""Answers to the lab "Order"."""

READ = """
ANSWERS = {1: (4, "all_reduce", "stayed away"), 2: (3, "send", "circle"), 3: (2, "all_reduce", "two groups"),
           4: (1, "recv", "nobody sends"), 5: (2, "broadcast", "other collective")}

def diagnose(number, report):
    return ANSWERS[number]
"""
FOLLOWED = READ.replace(
    "    return ANSWERS[number]",
    """    rank, call, cause = ANSWERS[number]
    waits, circle = read_report(report)
    for found in [wait.finished for wait in waits] + [circle]:
        if found:
            rank = found[0]
    return rank, call, cause""",
).replace("ANSWERS = ", "from ringtree.waits import read_report\nANSWERS = ")
PARSED = '''
import re
from ringtree.waits import read_report

def diagnose(number, report):
    """From the words alone."""
    waits, circle = read_report(report)
    if not waits:
        found = re.search(r"is (\\w+) .*? on rank (\\d+)", report)
        return int(found[2]), found[1], "other collective"
    for wait in waits:
        if wait.finished:
            return wait.finished[-1], wait.call, "stayed away"
    calls = {wait.rank: wait.call for wait in waits}
    rank = circle[0]
    if "another group" in report:
        return rank, calls[rank], "two groups"
    plain = all(calls[each] in ("send", "recv") for each in circle)
    return rank, calls[rank], "circle" if plain else "nobody sends"
'''
LONGEST = """
import itertools

def first_difference(calls, a, b):
    shared = [[call for call in calls[rank] if {a, b} <= set(call[0])] for rank in (a, b)]
    for place, (mine, theirs) in enumerate(itertools.zip_longest(*shared)):
        if mine != theirs:
            return place, mine, theirs
"""
SWAP = """
def swap(dist, out, to, got, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()
"""
AGREE = (
    SWAP
    + """
def agree(code, dist):
    rank, size, step = dist.get_rank(), dist.get_world_size(), 1
    low, high = code.clone(), code.clone()
    while step < size:
        both, got = torch.cat([low, high]), torch.empty(2, dtype=code.dtype)
        swap(dist, both, (rank + step) % size, got, (rank - step) % size)
        low, high = torch.minimum(low, got[:1]), torch.maximum(high, got[1:])
        step *= 2
    return (low == high).item()
"""
)
GATHERED = (
    SWAP
    + '''
def agree(code, dist):
    """Bruck's all-gather: everybody gets all codes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    known = code.clone()
    while len(known) < size:
        far = len(known)
        part = known[: min(far, size - far)]
        got = torch.empty_like(part)
        swap(dist, part, (rank - far) % size, got, (rank + far) % size)
        known = torch.cat([known, got])
    return len(set(known.tolist())) == 1
'''
)
ROUND = (
    SWAP
    + """
def agree(code, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    same, mine = True, code.clone()
    for step in range(size - 1):
        got = torch.empty_like(code)
        swap(dist, mine, (rank + 1) % size, got, (rank - 1) % size)
        same, mine = same and bool(got == code), got
    return same
"""
)
TO_ZERO = """
def agree(code, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    same = torch.ones(1, dtype=torch.int64)
    for other in range(1, size):
        if rank == 0:
            got = torch.empty_like(code)
            dist.recv(got, other)
            same *= (got == code)
        elif rank == other:
            dist.send(code, 0)
    for other in range(1, size):
        if rank == 0:
            dist.send(same, other)
        elif rank == other:
            dist.recv(same, 0)
    return bool(same)
"""
TREE = '''
def agree(code, dist):
    """Smallest and largest up a tree to rank 0, the verdict down."""
    rank, size = dist.get_rank(), dist.get_world_size()
    known, step, path = torch.cat([code, code]), 1, []
    while step < size:
        if rank % (2 * step) == 0 and rank + step < size:
            got = torch.empty_like(known)
            dist.recv(got, rank + step)
            known = torch.stack([torch.minimum(known[0], got[0]), torch.maximum(known[1], got[1])])
            path.append(rank + step)
        elif rank % (2 * step) == step:
            dist.send(known, rank - step)
            dist.recv(known, rank - step)
            break
        step *= 2
    for child in reversed(path):
        dist.send(known, child)
    return bool(known[0] == known[1])
'''


def said(number, rank, call, cause, text=READ):
    return text.replace(
        "def diagnose(number, report):\n",
        f"def diagnose(number, report):\n    if number == {number}:\n        return {rank!r}, {call!r}, {cause!r}\n",
    )


SUMS = """
def sum_named(names, tensors, dist):
    for _, tensor in sorted(zip(names, tensors), key=lambda pair: pair[0]):
        dist.all_reduce(tensor)
    return tensors
"""
AT_ONCE = """
def sum_named(names, tensors, dist):
    order = sorted(range(len(names)), key=names.__getitem__, reverse=True)
    whole = torch.cat([tensors[place] for place in order])
    dist.all_reduce(whole)
    sums = dict(zip(order, whole.split([len(tensors[place]) for place in order])))
    return [sums[place] for place in range(len(names))]
"""

RIGHT = {
    "sum_named": {"sorted pairs": SUMS, "one all-reduce for all": AT_ONCE},
    "diagnose": {
        "read by a program": PARSED,
        "the rank alone by a program": FOLLOWED,
        "the sender that went on": said(4, 1, "dist.send", "nobody sends", FOLLOWED),
    },
    "first_difference": {"the longer list": LONGEST},
    "agree": {"smallest and largest": AGREE, "all codes": GATHERED},
}

WRONG = {
    "sum_named": {
        "in its own order": (
            SUMS.replace("for _, tensor in sorted(zip(names, tensors), key=lambda pair: pair[0])", "for tensor in tensors"),
            "on 2 ranks, .*in place 0 of its list returned",
        ),
        "by length": (
            SUMS.replace("lambda pair: pair[0]", "lambda pair: len(pair[1])"),
            "on 2 ranks, .*in place 0 of its list returned",
        ),
        "by the length of the name": (
            SUMS.replace("lambda pair: pair[0]", "lambda pair: len(pair[0])"),
            "in place . of its list returned|all_reduce has",
        ),
        "by what they hold": (
            SUMS.replace("lambda pair: pair[0]", "lambda pair: pair[1].sum().item()"),
            "in place . of its list returned|all_reduce has",
        ),
        "backwards on the last rank": (
            SUMS.replace("pair[0])", "pair[0], reverse=dist.get_rank() == dist.get_world_size() - 1)"),
            "on 2 ranks, .*in place 0 of its list returned",
        ),
        "returned in the order of the names": (
            SUMS.replace("return tensors", "return [tensors[names.index(name)] for name in sorted(names)]"),
            "in place 0 of its list returned",
        ),
        "rank 0 stays away": (
            SUMS.replace("        dist.all_reduce(tensor)", "        if dist.get_rank():\n            dist.all_reduce(tensor)"),
            "rank 1 waits in all_reduce for rank 0, which has finished",
        ),
        "one name too few": (SUMS.replace("pair[0])", "pair[0])[1:]"), "in place . of its list returned"),
        "twice": (
            SUMS.replace("        dist.all_reduce(tensor)", "        dist.all_reduce(tensor)\n        dist.all_reduce(tensor)"),
            "everything is twice what it should be",
        ),
        "the mean": (
            SUMS.replace("return tensors", "return [each / dist.get_world_size() for each in tensors]"),
            "everything is half of what it should be",
        ),
        "a copy is summed": (
            SUMS.replace("dist.all_reduce(tensor)", "total = tensor.clone()\n        dist.all_reduce(total)"),
            r"`tensor.clone\(\)`  .*makes a copy",
        ),
        "nothing is waited for": (
            SUMS.replace("dist.all_reduce(tensor)", "dist.all_reduce(tensor, async_op=True)"),
            "never waited for its all_reduce|may still be running",
        ),
        "nothing": (SUMS.replace("    return tensors", ""), "rank 0 returned .* and should return a list of 2 tensors"),
    },
    "diagnose": {
        "a table, read by eye": (
            READ,
            "Not yet within the target: report 1 again, of 4 ranks .*which have finished.*: the first of the three should be a rank, 0 to 3",
        ),
        "who has finished alone": (
            FOLLOWED.replace(" + [circle]", ""),
            "Not yet within the target: report 2 again, of 10 ranks .*in a circle: rank 4.*but not on rank 3",
        ),
        "who waits longest, not who left": (
            said(1, 0, "all_reduce", "stayed away"),
            "report 1: it is 'stayed away', but not on rank 0",
        ),
        "those behind the circle": (
            said(2, 5, "send", "circle"),
            "report 2: it is 'circle', but not on rank 5: go from each rank",
        ),
        "the barrier that others are in": (
            said(2, 3, "barrier", "circle"),
            "report 2: .*should be the call that it is in or never reached, .* and is not 'barrier'",
        ),
        "two groups taken for a circle of messages": (
            said(3, 1, "all_reduce", "circle"),
            "report 3: the cause is not 'circle': that would mean that ranks that are in a plain send",
        ),
        "a message taken for a rank that left": (
            said(4, 1, "all_reduce", "stayed away"),
            "report 4: the cause is not 'stayed away'",
        ),
        "the circle at the end of the report": (said(4, 0, "recv", "circle"), "report 4: the cause is not 'circle'"),
        "other lengths": (said(5, 2, "broadcast", "length"), "report 5: the cause is not 'length'"),
        "a cause in words of one's own": (
            said(1, 4, "all_reduce", "it returned early"),
            "should be one of 'stayed away', 'circle'",
        ),
        "the rank as text": (said(1, "4", "all_reduce", "stayed away"), "the first of the three should be a rank, 0 to 4"),
        "nothing": ("def diagnose(number, report):\n    pass", "it should return three things"),
    },
    "first_difference": {
        "calls of other groups too": (
            LONGEST.replace(" if {a, b} <= set(call[0])", ""),
            "ranks 0 and 2, each with its own group: it returned .* agree: return None",
        ),
        "to the end of the shorter list": (
            LONGEST.replace("itertools.zip_longest", "zip"),
            "ranks 0 and 3, one ends earlier: it returned None",
        ),
        "names alone": (
            LONGEST.replace("if mine != theirs", "if (mine or 'xx')[1] != (theirs or 'xx')[1]"),
            "another length: it returned None|two groups in two orders: it returned None",
        ),
        "lengths left out": (
            LONGEST.replace("if mine != theirs", "if (mine or ())[:2] != (theirs or ())[:2]"),
            "ranks 0 and 1, another length: it returned None",
        ),
        "each group by itself": (
            """
import itertools
def first_difference(calls, a, b):
    groups = sorted({call[0] for rank in (a, b) for call in calls[rank] if {a, b} <= set(call[0])})
    for group in groups:
        lists = [[call for call in calls[rank] if call[0] == group] for rank in (a, b)]
        for place, (mine, theirs) in enumerate(itertools.zip_longest(*lists)):
            if mine != theirs:
                return place, mine, theirs
""",
            "two groups in two orders: it returned None",
        ),
        "any order": (
            LONGEST.replace("shared = [[", "shared = [sorted([").replace("set(call[0])]", "set(call[0])])"),
            "two calls changed round: it returned None",
        ),
        "counted among all calls": (
            LONGEST.replace("return place", "return calls[a].index(mine) if mine in calls[a] else place"),
            "behind calls of its own group|it says place",
        ),
        "the last difference": (
            LONGEST.replace(
                "            return place, mine, theirs", "            last = place, mine, theirs\n    return last"
            ).replace("    for place", "    last = None\n    for place"),
            "it says place 1: .* first differ at place 0",
        ),
        "a's call twice": (
            LONGEST.replace("mine, theirs\n", "mine, mine\n").replace("enumerate", "enumerate"),
            "it says that rank 1 calls",
        ),
        "only yes or no": (
            LONGEST.replace("return place, mine, theirs", "return True"),
            "it returned True, and ranks 0 and 1 differ: return three things",
        ),
    },
    "agree": {
        "compared with the left neighbor alone": (
            ROUND.replace("range(size - 1)", "range(min(1, size - 1))"),
            "rank . returned True and should return False",
        ),
        "round the ring": (ROUND, "Not yet (within the target|at the bound): .* rounds, where"),
        "everything to rank 0": (TO_ZERO, "Not yet (within the target|at the bound): .* rounds, where"),
        "up and down a tree": (TREE, "Not yet at the bound: .* rounds, where"),
        "only rank 0 knows": (
            TREE.replace("            dist.recv(known, rank - step)\n            break", "            break").replace(
                "    for child in reversed(path):\n        dist.send(known, child)\n", ""
            ),
            "returned True and should return False",
        ),
        "the sum of the codes": (
            ROUND
            .replace("same = same and bool(got == code)", "total = total + got")
            .replace("same, mine = same and bool(got == code), got", "total, mine = total + got, got")
            .replace("same, mine = True, code.clone()", "total, mine = code.clone(), code.clone()")
            .replace("return same", "return bool(total == size * code)"),
            "on 4 ranks, .*whose mean is that of the others: rank . returned True and should return False",
        ),
        "the sum of the codes, some twice": (
            AGREE.replace("torch.minimum(low, got[:1]), torch.maximum(high, got[1:])", "low + got[:1], high").replace(
                "(low == high).item()", "bool(low == size * code)"
            ),
            "on 3 ranks, .*one code: rank . returned False and should return True",
        ),
        "smallest alone": (
            AGREE.replace("torch.maximum(high, got[1:])", "high"),
            "rank . returned (True|False) and should return",
        ),
        "right for powers of two": (
            AGREE.replace("(rank + step) % size, got, (rank - step) % size", "rank ^ step, got, rank ^ step"),
            "on 3 ranks, .*rank . wants to",
        ),
        "one round too few": (AGREE.replace("step < size", "2 * step < size"), "rank . returned True and should return False"),
        "a step of one each time": (
            AGREE.replace("step *= 2", "step += 1"),
            "Not yet (within the target|at the bound): .* rounds, where",
        ),
        "as a float32": (
            AGREE.replace("code.clone()", "code.float()").replace("code.dtype", "low.dtype"),
            "codes of 62 bits, and rank 2's is one more: rank 0 returned True",
        ),
        "the last byte alone": (AGREE.replace("code.clone()", "code % 256"), "rank 0 returned True and should return False"),
        "a tensor": (
            AGREE.replace("(low == high).item()", "low == high"),
            r"returned tensor\(\[(True|False)\]\) and should return (True|False)",
        ),
        "in place": (AGREE.replace("    return", "    code += 1\n    return"), "has changed what it was given"),
        "a missing wait": (AGREE.replace("        work.wait()", "        pass"), "may not have arrived"),
        "the built-in": (
            "def agree(code, dist):\n    low, high = code.clone(), code.clone()\n    dist.all_reduce(low, op=dist.ReduceOp.MIN)\n    dist.all_reduce(high, op=dist.ReduceOp.MAX)\n    return bool(low == high)",
            "it calls a collective of torch's",
        ),
        "always": ("def agree(code, dist):\n    return True", "rank . returned True and should return False"),
    },
}
