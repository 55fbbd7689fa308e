"""Answers to the lab "Hangs"."""

PARTINGS = """
def partings(records):
    found = {}
    for group in {entry.group for entries in records.values() for entry in entries}:
        ranks = [{entry.number: entry for entry in entries if entry.group == group} for entries in records.values()]
        ranks = [numbers for numbers in ranks if numbers]
        for number in range(max(map(min, ranks)), max(map(max, ranks)) + 1):
            calls = [numbers.get(number) for numbers in ranks]
            if None in calls or len({(call.operation, call.elements) for call in calls}) > 1 or not all(call.done for call in calls):
                found[group] = number
                break
    return found
"""
BY_TABLE = '''
import pandas as pd

def partings(records):
    """One row an entry."""
    rows = [(e.group, rank, e.number, e.operation, e.elements, e.done) for rank, entries in records.items() for e in entries]
    table = pd.DataFrame(rows, columns=["group", "rank", "number", "operation", "elements", "done"])
    found = {}
    for group, part in table.groupby("group"):
        size, first = part["rank"].nunique(), part.groupby("rank")["number"].min().max()
        known = part[part["number"] >= first].groupby("number")
        good = (known.size() == size) & known["done"].all() & (known[["operation", "elements"]].nunique() == 1).all(axis=1)
        if not good.all():
            found[group] = int(good.index[~good][0])
    return found
'''
READ = """
ANSWERS = {1: (1, 11, "skipped"), 2: (0, 7, "alone"), 3: (2, 11, "size"), 4: (3, 11, "away"), 5: (2, 4, "order")}

def diagnose(number, records):
    return ANSWERS[number]
"""
FOLLOWED = (
    PARTINGS
    + """
CAUSES = {1: "skipped", 2: "alone", 3: "size", 4: "away", 5: "order"}

def diagnose(number, records):
    place = partings(records)["0"]
    met = [next(((e.operation, e.elements) for e in entries if e.number == place), None) for entries in records.values()]
    return min(range(len(met)), key=lambda rank: met.count(met[rank])), place, CAUSES[number]
"""
)
PARSED = (
    PARTINGS
    + '''
from collections import Counter

def diagnose(number, records):
    """From the entries alone."""
    place = partings(records)["0"]
    calls = {rank: next((e for e in entries if e.number == place), None) for rank, entries in records.items()}
    kinds = {rank: call and (call.operation, call.elements) for rank, call in calls.items()}
    odd = min(kinds, key=lambda rank: list(kinds.values()).count(kinds[rank]))
    if kinds[odd] is None:
        return odd, place, "away"
    others = {(e.operation, e.elements) for rank, entries in records.items() for e in entries if rank != odd}
    operation, elements = kinds[odd]
    if kinds[odd] not in others:
        return odd, place, "size" if operation in {name for name, _ in others} else "alone"
    ahead = {(e.operation, e.elements) for rank, entries in records.items() for e in entries if rank != odd and e.number > place}
    return odd, place, "order" if kinds[odd] in ahead else "skipped"
'''
)
LATE = """
def came_last(calls):
    late = [0] * len(calls)
    for meeting in zip(*calls):
        waits = [left - came for came, left in meeting]
        late[waits.index(min(waits))] += 1
    return late
"""
LATE_NUMPY = """
import numpy as np

def came_last(calls):
    times = np.array(calls)
    return np.bincount((times[..., 1] - times[..., 0]).argmin(axis=0), minlength=len(calls)).tolist()
"""
MEAN = """
def mean_over_rows(total, rows, dist):
    both = torch.cat([total, torch.tensor([rows], dtype=total.dtype)])
    dist.all_reduce(both)
    return both[:-1] / max(both[-1].item(), 1)
"""
TWICE = """
def mean_over_rows(total, rows, dist):
    total, count = total.clone(), torch.tensor([float(rows)], dtype=torch.float64)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count.clamp(min=1).item()
"""
GATHERED = '''
def mean_over_rows(total, rows, dist):
    """Round a ring, adding up at home."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.cat([total, total.new_tensor([rows])])
    whole = mine.clone()
    for _ in range(size - 1):
        got = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size),
        ]):
            work.wait()
        whole, mine = whole + got, got
    return whole[:-1] / whole[-1].clamp(min=1)
'''


def said(number, rank, place, cause):
    return READ.replace("    return", f"    if number == {number}:\n        return {rank!r}, {place!r}, {cause!r}\n    return")


RIGHT = {
    "partings": {"sets": PARTINGS, "a table": BY_TABLE},
    "diagnose": {"the rank and the number by a program": FOLLOWED, "all by a program": PARSED},
    "came_last": {"lists": LATE, "with numpy": LATE_NUMPY},
    "mean_over_rows": {"one all-reduce": MEAN, "by hand": GATHERED},
}

WRONG = {
    "partings": {
        "by place in the list": (
            """
import itertools
def partings(records):
    for number, calls in enumerate(itertools.zip_longest(*records.values()), 1):
        if None in calls or len({(call.operation, call.elements) for call in calls}) > 1 or not all(call.done for call in calls):
            return {calls[0].group if calls[0] else "0": number}
    return {}
""",
            "in what rank 0 has forgotten: it says that group '0' parts at collective 1; there its ranks agree",
        ),
        "from 1": (
            PARTINGS.replace("range(max(map(min, ranks))", "range(1"),
            "in what rank 0 has forgotten: it says that group '0' parts at collective 1",
        ),
        "to the end of the shortest": (
            PARTINGS.replace("max(map(max, ranks)) + 1", "min(map(max, ranks)) + 1"),
            "made fewer calls: group '0' is not in what it returned",
        ),
        "operations alone": (
            PARTINGS.replace("(call.operation, call.elements)", "call.operation"),
            "the same operation, another length: group '0' is not in",
        ),
        "elements alone": (
            PARTINGS.replace("(call.operation, call.elements)", "call.elements"),
            "another operation of the same length: group '0' is not in",
        ),
        "whatever has not ended": (
            PARTINGS.replace(
                "None in calls or len({(call.operation, call.elements) for call in calls}) > 1 or not", "not"
            ).replace("all(call.done for", "all(call is None or call.done for"),
            "made fewer calls: group '0' is not in",
        ),
        "ended or not": (
            PARTINGS.replace(" or not all(call.done for call in calls)", ""),
            "one call that does not end: group '0' is not in",
        ),
        "ended somewhere": (
            PARTINGS.replace("not all(call.done", "not any(call.done"),
            "ended on one rank alone: group '0' is not in",
        ),
        "all groups in one": (PARTINGS.replace(" if entry.group == group", ""), "three groups: it says that group"),
        "ranks that are in no group": (
            PARTINGS
            .replace("        ranks = [numbers for numbers in ranks if numbers]\n", "")
            .replace("max(map(min, ranks))", "max(min(n, default=1) for n in ranks)")
            .replace("max(map(max, ranks))", "max(max(n, default=0) for n in ranks)"),
            "three groups: it says that group 'left' parts at collective 1; there",
        ),
        "the last place": (
            PARTINGS.replace("                break\n", ""),
            "it says that group '0' parts at collective 3; it does at 2",
        ),
        "numbers without groups": (
            PARTINGS.replace("return found", "return list(found.values())"),
            "return a dict from the name of a group to a number",
        ),
        "the number as text": (
            PARTINGS.replace("found[group] = number", "found[group] = str(number)"),
            "it says that group '0' parts at collective '2'",
        ),
    },
    "diagnose": {
        "a table, read by eye": (
            READ,
            "Not yet within the target: record 1 again, from another night: it is 'skipped', but not on rank 1",
        ),
        "the number by a program, the rank from the table": (
            FOLLOWED.replace(
                "return min(range(len(met)), key=lambda rank: met.count(met[rank]))", "return [1, 0, 2, 3, 2][number - 1]"
            ),
            "Not yet within the target: record 1 again, .*but not on rank 1",
        ),
        "the rank by a program, the number from the table": (
            FOLLOWED.replace(", place, CAUSES", ", [11, 7, 11, 11, 4][number - 1], CAUSES"),
            "Not yet within the target: record 1 again, .*'skipped' on rank 3, but they part in another collective than number 11",
        ),
        "who waits, not who is ahead": (said(1, 0, 11, "skipped"), "record 1: it is 'skipped', but not on rank 0"),
        "where the step was skipped": (
            said(1, 1, 8, "skipped"),
            "record 1: it is 'skipped' on rank 1, but they part in another collective than number 8",
        ),
        "a barrier is always a lone call": (said(1, 1, 11, "alone"), "record 1: the cause is not 'alone'"),
        "a rank that waits is away": (said(1, 1, 11, "away"), "record 1: the cause is not 'away'"),
        "three that skipped": (said(2, 1, 7, "alone"), "record 2: it is 'alone', but not on rank 1"),
        "a lone save taken for a step ahead": (said(2, 0, 7, "skipped"), "record 2: the cause is not 'skipped'"),
        "behind, so away": (said(3, 2, 12, "away"), "record 3: the cause is not 'away'"),
        "where the others hang": (
            said(3, 2, 12, "size"),
            "record 3: it is 'size' on rank 2, but they part in another collective than number 12",
        ),
        "an order, for it is another length": (said(3, 2, 11, "order"), "record 3: the cause is not 'order'"),
        "who has made fewer calls skipped": (said(4, 3, 11, "skipped"), "record 4: the cause is not 'skipped'"),
        "the last call of who is away": (
            said(4, 3, 10, "away"),
            "record 4: it is 'away' on rank 3, but they part in another collective than number 10",
        ),
        "another length, so a size": (
            said(5, 2, 4, "size"),
            "record 5: the cause is not 'size': that would mean that a rank gives another number of elements than the others ever",
        ),
        "the network": (said(5, 2, 5, "network"), "record 5: the cause is not 'network'"),
        "a cause in words of one's own": (
            said(1, 1, 11, "continue"),
            "the third of the three should be one of 'skipped', 'alone'",
        ),
        "the rank as text": (said(1, "1", 11, "skipped"), "the first of the three should be a rank, 0 to 3"),
        "the collective by name": (
            said(2, 0, "barrier", "alone"),
            "the second of the three should be the number of a collective, and is 'barrier'",
        ),
        "nothing": ("def diagnose(number, records):\n    pass", "it should return three things"),
    },
    "came_last": {
        "who waits longest": (
            LATE.replace("min(waits)", "max(waits)"),
            "one collective of two ranks: it says that rank 0 came last 1 times; it did 0",
        ),
        "the latest stamp": (
            """
def came_last(calls):
    late = [0] * len(calls)
    for meeting in zip(*calls):
        came = [came for came, _ in meeting]
        late[came.index(max(came))] += 1
    return late
""",
            "clocks that do not agree: it says that rank 0",
        ),
        "who leaves last": (
            LATE.replace("left - came", "-left"),
            "one collective of two ranks: it says that rank 0|clocks that do not agree: it says",
        ),
        "the least sum takes all": (
            """
def came_last(calls):
    waits = [sum(left - came for came, left in rank) for rank in calls]
    return [len(calls[0]) * (each == min(waits)) for each in waits]
""",
            "another once and very late: it says that rank",
        ),
        "seconds, not times": (
            """
def came_last(calls):
    return [sum(left - came for came, left in rank) for rank in calls]
""",
            "return a list of 2 whole numbers, one for each rank",
        ),
        "only the name": (LATE.replace("return late", "return late.index(max(late))"), "return a list of 2 whole numbers"),
        "everyone below a quarter of a second": (
            """
def came_last(calls):
    return [sum(left - came <= 0.25 for came, left in rank) for rank in calls]
""",
            "collectives of different lengths: it counts",
        ),
        "the first collective alone": (
            LATE.replace("zip(*calls)", "list(zip(*calls))[:1]"),
            "always the same rank: it counts 1 times in all, and there were 3",
        ),
    },
    "mean_over_rows": {
        "a mean of means": (
            """
def mean_over_rows(total, rows, dist):
    mean = total / max(rows, 1)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "a mean of the means of who has rows": (
            """
def mean_over_rows(total, rows, dist):
    both = torch.cat([total / max(rows, 1), total.new_tensor([float(rows > 0)])])
    dist.all_reduce(both)
    return both[:-1] / both[-1].clamp(min=1)
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "the sum": (
            """
def mean_over_rows(total, rows, dist):
    total = total.clone()
    dist.all_reduce(total)
    return total
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "by the number of ranks": (
            """
def mean_over_rows(total, rows, dist):
    total = total.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "by its own rows": (
            """
def mean_over_rows(total, rows, dist):
    total = total.clone()
    dist.all_reduce(total)
    return total / max(rows, 1)
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "who has none stays away": (
            MEAN.replace("    both = ", "    if rows == 0:\n        return torch.zeros_like(total)\n    both = "),
            "on 2 ranks, .*with 2, 0 rows: .*wait",
        ),
        "nobody has rows": (MEAN.replace("max(both[-1].item(), 1)", "both[-1]"), "with 0, 0, 0 rows: rank 0 returned .*nan"),
        "two all-reduces": (TWICE, "Not yet within the target: .*rounds, where"),
        "in place": (
            """
def mean_over_rows(total, rows, dist):
    count = total.new_tensor([rows])
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count.clamp(min=1)
""",
            "has changed what it was given",
        ),
        "in 32 bits": (
            MEAN.replace(
                "torch.cat([total, torch.tensor([rows], dtype=total.dtype)])",
                "torch.cat([total.float(), torch.tensor([float(rows)])])",
            ),
            "numbers of torch.float32 and was given torch.float64",
        ),
        "rows in 8 bits": (
            MEAN.replace("torch.tensor([rows], dtype=total.dtype)", "torch.tensor([rows % 256], dtype=total.dtype)"),
            "with 3, 1, 0, 300, 2, 5, 0, 8 rows: rank 0 returned",
        ),
        "with the number of rows behind it": (MEAN.replace("both[:-1] / max", "both / max"), "returned a tensor of shape"),
        "only rank 0": (MEAN.replace("dist.all_reduce(both)", "dist.reduce(both, dst=0)"), "rank 1 returned"),
        "the greatest number of rows": (
            """
def mean_over_rows(total, rows, dist):
    total, count = total.clone(), total.new_tensor([rows])
    dist.all_reduce(total)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return total / count.clamp(min=1)
""",
            "with 1, 3 rows: rank 0 returned",
        ),
        "a missing wait": (GATHERED.replace("            work.wait()", "            pass"), "may not have arrived"),
        "one round too few": (
            GATHERED.replace("range(size - 1)", "range(size - 2)"),
            "with 1, 3 rows: rank 0 returned .*the part of rank 1 is missing",
        ),
        "kept from the call before": (
            "seen = []\n"
            + MEAN.replace("    return both[:-1]", "    seen.append(both)\n    both = seen[0]\n    return both[:-1]"),
            "rank 0 returned|returned a tensor of shape",
        ),
    },
}
