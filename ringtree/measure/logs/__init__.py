"""Read what others measured: output of nccl-tests and of OSU's micro-benchmarks, and our own files.

    from ringtree.measure import logs
    theirs = logs.read("all_reduce_perf.log")
    compare({"here": table, "there": theirs})

`read` gives the columns of `ringtree.measure.measure`, in seconds, bytes and bytes a second; what a log
does not say is missing, and what it says of itself is in `.attrs`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from pathlib import Path

from ringtree.errors import UsageError
from ringtree.measure.collectives import COLLECTIVES, ITEMSIZE, SHARDED, bus_factor
from ringtree.measure.table import COLUMNS, FIRST_LINE, frame

ACCEPTED = "output of nccl-tests, output of OSU's micro-benchmarks, or CSV or JSON of ringtree.measure"
TAGS = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: )", re.MULTILINE)  # mpirun --tag-output, srun -l
# NCCL's own lines come in between, and in the middle of a line, which goes on after them.
NCCL_SAYS = re.compile(r"(?:(?<=-1)|(?<=\s)|^)[A-Za-z0-9][\w.-]*:\d+:\d+ \[\d+\] NCCL .*(?:\n|\Z)", re.MULTILINE)


def read(source, *, ranks=None, collective=None):
    """The table in a log, as a DataFrame with the columns of `measure`.

    source: a path, or the text itself. It may hold several tables (types, operations, programs):
    all their rows are read. ranks, collective: what the log does not say; OSU's never says how
    many ranks ran, and counts the size of gathers, scatters and all-to-alls per rank.

    Bandwidths are size / time and `bus_factor` times that, where the ranks are known, for logs round them to
    two decimals. nccl-tests' time is its mean over calls and ranks, OSU's its mean over both too.
    `.attrs`: tool, version, ranks, devices, nccl, settings, … as far as the log says them. A log that ends
    in the middle gives the rows so far, `.attrs["truncated"]` and a warning.

    Raises UsageError, with one sentence, for a source that is none of these, has no row, or has a
    time that is no finite number.
    """
    if collective is not None and collective not in (*COLLECTIVES, "send_recv"):
        raise UsageError(f"collective={collective!r} is none: give one of {', '.join(COLLECTIVES)}, send_recv")
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        raise UsageError(f"ranks={ranks!r}: give how many ranks ran, a whole number, 1 or more")
    text, name = _text(source)
    kind = _kind(text)
    if kind is None:
        raise UsageError(f"{name} is nothing that can be read: expected {ACCEPTED}")
    table = kind(text, name, ranks, collective)
    if table.attrs.get("truncated"):
        warnings.warn(f"{name}: {table.attrs['truncated']}", stacklevel=2)
    return table


def _text(source):
    """The text, with one sort of line end, and what to call it in an error."""
    if isinstance(source, Path) or "\n" not in str(source):
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"{str(source)!r} cannot be read ({error.strerror}): give the path of a log, or its text") from error
        return text.replace("\r\n", "\n"), f"{path.name!r}"
    return str(source).replace("\r\n", "\n"), "the text"


def _kind(text):
    if text.startswith(FIRST_LINE):
        return _read_our_csv
    if text.lstrip().startswith("{"):
        return _read_json
    if re.search(r"\bOSU [\w-]+ .*Test", text):
        return _read_osu
    if re.search(r"#\s+size\s+count\s+type\b.*\b(cpu)?time\b", text):
        return _read_nccl_tests
    return None


def _finished(rows, attrs, name, what):
    """The frame of all rows, with bandwidths; UsageError where there are none."""
    if not rows:
        raise UsageError(f"{name} has the head of {what} table and no row: that run ended before its first size, so read another")
    for row in rows:
        time, size = row["time"], row["size"]
        row["algbw"] = size / time if time > 0 else math.nan
        if row.get("collective") and row.get("ranks"):
            row["busbw"] = row["algbw"] * bus_factor(row["collective"], row["ranks"])
    return frame(rows, {key: value for key, value in attrs.items() if value not in (None, [])})


def _number(text, name, number, what="time"):
    """A finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"{name}, line {number}: the {what} is {text!r}, which is no finite number, 0 or more: mend or leave out that line"
        )
    return value


# -- nccl-tests --------------------------------------------------------------------

OLD_TYPES = {"char": "int8", "int": "int32"}


def _read_nccl_tests(text, name, ranks, collective):
    """Every table in the text: head, rows and foot, with other lines anywhere between."""
    state = _NcclTests(name, ranks, collective)
    number = 1
    for line in NCCL_SAYS.sub("\0", TAGS.sub("", text)).split("\n"):
        state.take(line.replace("\0", "").rstrip(), number)
        number += 1 + line.count("\0")
    if state.open:
        state.truncated = "the log ends in the middle of a table: these are the rows so far"
    if state.broken:
        lines = f"line{'' if len(state.broken) == 1 else 's'} {', '.join(map(str, state.broken))}"
        state.truncated = "; ".join(each for each in (state.truncated, f"{lines} could not be read and left out") if each)
    devices = [state.devices[rank] for rank in sorted(state.devices)]
    attrs = {"tool": "nccl-tests", "ranks": ranks or len(devices) or None, "devices": devices, "truncated": state.truncated}
    return _finished(state.rows, attrs | state.attrs, name, "an nccl-tests")


class _NcclTests:
    """What is known so far of a log, while it is read line by line."""

    def __init__(self, name, ranks, collective):
        self.name, self.ranks, self.collective = name, ranks, collective
        self.columns, self.devices = [], {}
        self.rows, self.attrs, self.broken = [], {}, []
        self.open, self.truncated = False, None

    def take(self, line, number):
        if re.match(r"\s*#\s+size\s+count\s", line):
            if self.open:
                self.truncated = "a table ends in the middle and another one follows: these are the rows of both"
            self.columns = line.replace("#wrong", "wrong").replace("#", " ").split()
            self.open = True
        elif line.lstrip().startswith("#"):
            self._comment(line)
        elif match := re.search(r"NCCL version (\S+)", line):
            self.attrs["nccl"] = match[1].partition("+")[0]
        elif re.match(r"\s*\d+\s+\d+\s+[a-z]\w*\s", line + " ") and self.columns:
            self._row(line.split(), number)
        elif match := re.search(r"\b([a-z_]+)_perf\b", line):
            self._program(match[1])

    def _comment(self, line):
        if match := re.match(r"\s*#\s+Rank\s+(\d+)\s.*?\bdevice\s+\d+\s+\[[^]]*\]\s*(.*)", line):
            if int(match[1]) in self.devices and not self.open and self.rows:
                self.devices = {}  # another program's ranks
            self.devices[int(match[1])] = match[2].strip()
        elif match := re.search(r"Collective test \w+: ([a-z_]+)_perf", line):
            self._program(match[1])
        elif match := re.search(r"Avg bus bandwidth\s*: (\S+)", line):
            self.attrs["avg_busbw"] = float(match[1]) * 1e9
            self.open = False
        elif match := re.search(r"nccl-tests version (\S+)(?:.*nccl-library=(\d+))?", line):
            self.attrs["version"] = match[1]
            if match[2]:
                self.attrs["nccl"] = _nccl_version(int(match[2]))
        elif match := re.search(r"Out of bounds values : (\d+)", line):
            self.attrs["out_of_bounds"] = int(match[1])
        elif "minBytes" in line:
            self.attrs["settings"] = line.strip("# ")

    def _program(self, name):
        found = {"alltoall": "all_to_all", "sendrecv": "send_recv"}.get(name, name)
        if found in (*COLLECTIVES, "send_recv"):
            self.program = found

    program = None

    def _row(self, words, number):
        """One row in the log is two of ours: out of place, and in place."""
        fixed = [each for each in self.columns if each in ("size", "count", "type", "redop", "root")]
        halves = self.columns[len(fixed) :]
        starts = [i for i, each in enumerate(halves) if each in ("time", "cputime")]
        known = dict(zip(fixed, words))
        values = words[len(fixed) :]
        found = 0
        for place, start in enumerate(starts):
            names = halves[start : starts[place + 1] if place + 1 < len(starts) else len(halves)]
            names = [each for each in names if each != "timestamp"]
            half = dict(zip(names, values[start : start + len(names)]))
            if len(half) == len(names):
                self._half(known, half, place == 1, number)
                found += 1
        if found < len(starts):
            self.broken.append(number)

    def _half(self, known, half, in_place, number):
        time = _number(half.get("time", half.get("cputime")), self.name, number)
        if "cputime" in half:
            self.attrs["clock"] = "cputime: the CPU's time to launch, not the collective's"
        collective = self.collective or self.program
        ranks = self.ranks or len(self.devices) or None
        row = {
            "collective": collective,
            "program": collective,
            "ranks": ranks,
            "size": int(known["size"]),
            "count": int(known["count"]),
            "type": OLD_TYPES.get(known["type"], known["type"]),
            "redop": known.get("redop"),
            "root": _whole(known.get("root")),
            "in_place": in_place,
            "time": time / 1e6,
            "busbw": float(half["busbw"]) * 1e9 if "busbw" in half else None,
            "wrong": _whole(half.get("wrong")),
        }
        for name, column in (("i_min", "min"), ("i_max", "max")):
            if name in half:
                row[column] = _number(half[name], self.name, number, name) / 1e6
        self.rows.append(row)


def _whole(text):
    try:
        return int(float(text))
    except (TypeError, ValueError, OverflowError):
        return None


def _nccl_version(code):
    """2.28.9 of 22809; before 2.9 there was a digit less."""
    major, minor = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return ".".join(map(str, (major, *divmod(minor, 100))))


def _read_json(text, name, ranks, collective):
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{name} begins like JSON and is none (line {error.lineno}: {error.msg}): expected {ACCEPTED}"
        ) from error
    if "ringtree.measure" in found:
        rows = [{**row, "by_rank": tuple(row["by_rank"])} if "by_rank" in row else row for row in found.get("rows", [])]
        return _ours(rows, found.get("attrs", {}), name)
    if "results" in found and "nccl_version" in found:
        return _read_nccl_tests_json(found, name, ranks, collective)
    raise UsageError(f"{name} is JSON of something else: expected {ACCEPTED}")


def _read_nccl_tests_json(found, name, ranks, collective):
    """What nccl-tests writes with -J."""
    devices = [each.get("device_info", "") for each in found.get("config", {}).get("devices", [])]
    program = re.search(r"([a-z_]+)_perf", " ".join(map(str, found.get("args", [])[:1])))
    state = _NcclTests(name, ranks, collective)
    state.devices = dict(enumerate(devices))
    if program:
        state._program(program[1])
    for number, result in enumerate(found["results"], 1):
        for place, half in enumerate((result.get("out_of_place"), result.get("in_place"))):
            if half:
                words = {"time": half.get("time", half.get("cpu_time")), "busbw": half.get("bus_bw"), "wrong": half.get("nwrong")}
                state._half(
                    {key: str(result[key]).strip() for key in ("size", "count", "type", "redop", "root")},
                    words,
                    place == 1,
                    number,
                )
    attrs = {
        "tool": "nccl-tests", "ranks": ranks or len(devices) or None, "devices": devices, "date": found.get("start_time"),
        "nccl": _nccl_version(int(found["nccl_version"])), "settings": " ".join(map(str, found.get("args", []))),
        "avg_busbw": 1e9 * found["average_bus_bandwidth"]["bandwidth"] if "average_bus_bandwidth" in found else None,
    }  # fmt: skip
    return _finished(state.rows, attrs, name, "an nccl-tests")


# -- OSU's micro-benchmarks ----------------------------------------------------------

OSU_NAMES = {
    "allreduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce", "allgather": "all_gather",
    "allgatherv": "all_gather", "reduce_scatter": "reduce_scatter", "gather": "gather", "gatherv": "gather",
    "scatter": "scatter", "scatterv": "scatter", "all-to-all personalized exchange": "all_to_all",
    "all-to-allv personalized exchange": "all_to_all", "barrier": "barrier", "": "send_recv", "multi": "send_recv",
}  # fmt: skip
OSU_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float", "MPI_DOUBLE": "double"}
OSU_COLUMNS = {
    "size": "size", "avg latency": "time", "latency": "time", "min latency": "min", "max latency": "max",
    "iterations": "calls", "validation": "validation",
}  # fmt: skip
OSU_PER_RANK = tuple(each for each in SHARDED if each != "reduce_scatter")


def _read_osu(text, name, ranks, collective):
    """Every latency table in the text."""
    rows, attrs, columns, test, kind = [], {"tool": "OSU micro-benchmarks", "ranks": ranks}, None, None, None
    for number, line in enumerate(TAGS.sub("", text).split("\n"), 1):
        bare = line.strip().lstrip("#").strip()
        if match := re.match(r"OSU ([\w-]+) (.*?)\s*Test(?: v(\S+))?$", bare):
            test, columns, kind = _osu_test(match[2], name, collective), None, None
            attrs |= {"library": match[1], "version": match[3]}
        elif match := re.match(r"Datatype: (\w+)", bare):
            kind = OSU_TYPES.get(match[1])
        elif test and "Latency" in bare and (bare.startswith("Size") or test == "barrier"):
            heads = [each.replace("(us)", "").strip().lower() for each in re.split(r"\s{2,}", bare)]
            columns = [OSU_COLUMNS.get(each, each) for each in heads]
        elif columns and re.match(r"[\d.]+(\s|$)", bare):
            rows.append(_osu_row(dict(zip(columns, bare.split())), columns, test, kind, ranks, name, number))
    complete = [row for row in rows if row is not None]
    if len(complete) < len(rows):
        attrs["truncated"] = "the log ends in the middle of a line: these are the rows before it"
    return _finished(complete, attrs, name, "an OSU")


def _osu_test(what, name, collective):
    words = what.removesuffix("Latency").strip().lower()
    if not what.endswith("Latency") or words not in OSU_NAMES:
        raise UsageError(
            f"{name} is of OSU's {what} test, which is no time of one operation: expected a latency test, such as osu_allreduce"
        )
    return collective or OSU_NAMES[words]


def _osu_row(found, columns, test, kind, ranks, name, number):
    """One row, with sizes as nccl-tests counts them; None for a line that was cut off."""
    if len(found) < len(columns):
        return None
    size = int(found.get("size", 0))
    if test in OSU_PER_RANK:
        if ranks is None:
            raise UsageError(
                f"{name}: OSU counts the size of {test} per rank and does not say how many ran: give them, as in read(…, ranks=8)"
            )
        size *= ranks
    itemsize = ITEMSIZE.get(kind)
    row = {
        "collective": test,
        "program": test,
        "ranks": ranks or (2 if test == "send_recv" else None),
        "size": size,
        "count": size // (ranks if test in SHARDED and ranks else 1) // itemsize if itemsize else None,
        "type": kind,
        "time": _number(found["time"], name, number) / 1e6,
        "calls": _whole(found.get("calls")),
        "wrong": 0 if found.get("validation") == "Pass" else None,
    }
    for column in ("min", "max"):
        if column in found:
            row[column] = _number(found[column], name, number, column) / 1e6
    return row


# -- our own files -------------------------------------------------------------------


def _read_our_csv(text, name, ranks, collective):
    lines = text.split("\n")
    comments = [line[2:] for line in lines[1:] if line.startswith("# ")]
    attrs = {}
    for comment in comments:
        key, _, value = comment.partition(": ")
        try:
            attrs[key] = json.loads(value)
        except json.JSONDecodeError:
            continue  # a remark that somebody added
    body = csv.DictReader(io.StringIO("\n".join(line for line in lines if line and not line.startswith("#"))))
    if not set(body.fieldnames or ()) >= {"size", "time"}:
        raise UsageError(f"{name} has no columns size and time: expected CSV as ringtree.measure writes it")
    rows = []
    for number, row in enumerate(body, len(comments) + 3):
        if None in row.values():
            attrs["truncated"] = "the file ends in the middle of a line: these are the rows before it"
            break
        rows.append(_our_row(row, name, number))
    return _ours(rows, attrs, name)


def _our_row(row, name, number):
    """A row of words as a row of values, each as its column holds them."""
    values = {}
    for column, word in row.items():
        if word == "" or column not in COLUMNS:
            continue
        kind = COLUMNS[column]
        try:
            if column == "by_rank":
                values[column] = tuple(float(each) for each in word.split())
            elif kind == "boolean":
                values[column] = {"True": True, "False": False}[word]
            elif kind == "object":
                values[column] = word
            else:
                values[column] = float(word) if kind == "float64" else int(word)
        except (ValueError, KeyError):
            raise UsageError(
                f"{name}, line {number}: {column} is {word!r}, which it cannot be: mend or leave out that line"
            ) from None
    if "size" not in values or not math.isfinite(values.get("time", math.nan)):
        raise UsageError(f"{name}, line {number}: the size or the time is missing or not finite: mend or leave out that line")
    return values


def _ours(rows, attrs, name):
    if not rows:
        raise UsageError(f"{name} holds a table without rows: that measurement ended before its first size, so read another")
    return frame(rows, attrs)
