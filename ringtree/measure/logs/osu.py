"""Read the output of OSU's micro-benchmarks."""

from __future__ import annotations

import re

from ringtree.collectives import SEND_RECV, find
from ringtree.errors import UsageError
from ringtree.measure.call import ITEMSIZE
from ringtree.measure.logs.rows import TAGS, seconds, table_of, whole

# What OSU calls a test, where no list of collectives does.
TITLES = {
    "all-to-all personalized exchange": "all_to_all", "all-to-allv personalized exchange": "all_to_all",
    "": "send_recv", "multi": "send_recv",
}  # fmt: skip
TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float", "MPI_DOUBLE": "double"}
COLUMNS = {
    "size": "size", "avg latency": "time", "latency": "time", "min latency": "min", "max latency": "max",
    "iterations": "calls", "validation": "validation",
}  # fmt: skip


def read(text, name, ranks, collective):
    """Every latency table in the text."""
    rows, attrs, columns, test, kind = [], {"tool": "OSU micro-benchmarks", "ranks": ranks}, None, None, None
    for number, line in enumerate(TAGS.sub("", text).split("\n"), 1):
        bare = line.strip().lstrip("#").strip()
        if match := re.match(r"OSU ([\w-]+) (.*?)\s*Test(?: v(\S+))?$", bare):
            test, columns, kind = _collective(match[2], name, collective), None, None
            attrs |= {"library": match[1], "version": match[3]}
        elif match := re.match(r"Datatype: (\w+)", bare):
            kind = TYPES.get(match[1])
        elif test and "Latency" in bare and (bare.startswith("Size") or test.before == "nothing"):
            heads = [each.replace("(us)", "").strip().lower() for each in re.split(r"\s{2,}", bare)]
            columns = [COLUMNS.get(each, each) for each in heads]
        elif columns and re.match(r"[\d.]+(\s|$)", bare):
            found = dict(zip(columns, bare.split()))
            if len(found) < len(columns):
                attrs["truncated"] = "the log ends in the middle of a line: these are the rows before it"
            else:
                rows.append(_row(found, test, kind, ranks, name, number))
    return table_of(rows, attrs, name, "an OSU")


def _collective(what, name, given):
    """The collective that a test with this title times, or the one that is given."""
    words = what.removesuffix("Latency").strip().lower()
    try:
        if not what.endswith("Latency"):
            raise UsageError(what)
        measured = find(TITLES.get(words, words), send_recv=True)
    except UsageError:
        raise UsageError(
            f"{name} is of OSU's {what} test, which is no time of one operation: expected a latency test, such as osu_allreduce"
        ) from None
    return given or measured


def _row(found, test, kind, ranks, name, number):
    """One row, with sizes as nccl-tests counts them: OSU counts those of a rank, but for a reduce-scatter."""
    size = int(found.get("size", 0))
    if test.sharded and not test.reduces:
        if ranks is None:
            raise UsageError(
                f"{name}: OSU counts the size of {test.name} per rank and does not say how many ran: "
                "give them, as in read(…, ranks=8)"
            )
        size *= ranks
    itemsize = ITEMSIZE.get(kind)
    row = {
        "collective": test.name,
        "program": test.name,
        "ranks": ranks or (2 if test is SEND_RECV else None),
        "size": size,
        "count": size // (ranks if test.sharded and ranks else 1) // itemsize if itemsize else None,
        "type": kind,
        "time": seconds(found["time"], name, number),
        "calls": whole(found.get("calls")),
        "wrong": 0 if found.get("validation") == "Pass" else None,
    }
    for column in ("min", "max"):
        if column in found:
            row[column] = seconds(found[column], name, number, column)
    return row


