"""Read what OSU's micro-benchmarks print: one test, or a suite of them one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ringtree.collectives import SEND_RECV, find
from ringtree.errors import UsageError
from ringtree.measure.logs.rounded import MOST, is_value, microseconds, number, whole
from ringtree.measure.logs.rows import Found, processes_of
from ringtree.operations import ITEMSIZE, TYPE_ROWS

TITLE = re.compile(r"^[\\#\s]*OSU (\S+) (.*?)\s*Test(?: v(\S+))?$")
LIBRARIES = re.compile(r"(?:MPI|NCCL|RCCL|XCCL)(?:-\w+)?")  # OSU also tests one-sided calls, OpenSHMEM and UPC
# What OSU calls a test, where no list of collectives does.
TITLES = {
    "all-to-all personalized exchange": "all_to_all",
    "all-to-allv personalized exchange": "all_to_all",
    "": "send_recv",
    "multi": "send_recv",
}
TYPES = {row.osu: row.name for row in TYPE_ROWS if row.osu}
COLUMNS = {
    "size": "size",
    "avg latency": "time",
    "latency": "time",
    "min latency": "min",
    "max latency": "max",
    "iterations": "calls",
    "validation": "validation",
}


@dataclass
class Test:
    """One test of a suite: where it begins, its collective or None, its columns, and its rows as words."""

    line: int
    what: str
    collective: object
    attrs: dict
    processes: int | None
    columns: list | None = None
    kind: str | None = None
    rows: list = field(default_factory=list)
    cut: list = field(default_factory=list)


def tables(lines, name, ranks=None):
    """(every latency table in the lines as `Found`, sentences on the tests that were left out)."""
    found, left_out = [], []
    for test in _tests(lines):
        if test.collective is None:
            left_out.append(f"OSU's {test.what} test, which does not time a single operation (line {test.line})")
            continue
        count = ranks or test.processes or (2 if test.collective is SEND_RECV else None)
        if count is None and _per_rank(test.collective):
            left_out.append(
                f"OSU counts the size of {test.collective.name} per rank and does not say how many ran "
                f"(line {test.line}): give them, as in read(…, ranks=8)"
            )
            continue
        found.append(_found(test, count, name))
    return found, left_out


def _tests(lines):
    """Every test in the lines, with its rows; the lines of each process are a suite of their own."""
    tests, open_tests, launched = [], {}, {}
    for line in lines:
        text = line.text.strip()
        if match := TITLE.match(text):
            tests.append(_test(line.number, match, launched.pop(line.stream, None)))
            open_tests[line.stream] = tests[-1]
        elif processes := processes_of(text, "osu_"):
            launched[line.stream] = processes
        elif test := open_tests.get(line.stream):
            if "algbw" in text:
                del open_tests[line.stream]  # a table of another tool
            else:
                _take(test, text.lstrip("\\#").strip(), line.number)
    return tests


def _test(line, title, processes):
    library, what, version = title.groups()
    words = what.removesuffix("Latency").strip().lower()
    try:
        if not (what.endswith("Latency") and LIBRARIES.fullmatch(library)):
            raise UsageError(what)
        collective = find(TITLES.get(words, words), send_recv=True)
    except UsageError:
        return Test(line, what if LIBRARIES.fullmatch(library) else f"{library} {what}", None, {}, None)
    return Test(line, what, collective, {"library": library, "version": version}, processes)


def _take(test, text, number):
    if match := re.match(r"Datatype: (\w+)", text):
        test.kind = TYPES.get(match[1])
    elif "Latency" in text and (text.startswith("Size") or test.collective and test.collective.before == "nothing"):
        heads = re.findall(r"[A-Z]\w*(?: [A-Z]\w*)*", text.replace("(us)", "  "))
        test.columns = [COLUMNS.get(head.lower(), head.lower()) for head in heads]
    elif test.columns and re.match(r"[\d.]+(\s|$)", text):
        words = text.split()
        if not all(is_value(word) or word in ("Pass", "Fail") for word in words):
            return
        (test.rows if len(words) == len(test.columns) else test.cut).append((number, words))


def _per_rank(collective):
    """Return whether OSU counts the bytes of one rank, where nccl-tests counts the full vector: all on shards, but a reduce-scatter."""
    return collective.sharded and not collective.reduces


def _found(test, ranks, name):
    rows = [row for line, words in test.rows if (row := _row(test, dict(zip(test.columns, words)), ranks, name, line))]
    found = Found(test.line, "OSU micro-benchmarks", rows, dict(test.attrs), test.collective)
    if ranks is not None:
        found.told = ranks, "the log says"
    if test.cut:
        found.attrs["truncated"] = "the log ends in the middle of a line: these are the rows before it"
    return found


def _row(test, words, ranks, name, line):
    """One row, with sizes as nccl-tests counts them."""
    size = whole(words.get("size", 0))
    if size is None or "time" not in words:
        return None
    size *= ranks if _per_rank(test.collective) else 1
    if size >= MOST:
        return None
    row = {"size": size, "type": test.kind, "calls": whole(words.get("calls")), "line": line}
    if itemsize := ITEMSIZE.get(test.kind):
        row["count"] = size // (ranks if test.collective.sharded and ranks else 1) // itemsize
    row["wrong"] = 0 if words.get("validation") == "Pass" else None
    row["time"] = microseconds(words["time"], name, line) / 1e6
    for column in ("min", "max"):
        if number(words.get(column)) is not None:
            row[column] = microseconds(words[column], name, line, column) / 1e6
    return row
