"""Read the output of nccl-tests: what it prints, and the JSON that it writes with -J."""

from __future__ import annotations

import contextlib
import re

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.measure.logs.rows import TAGS, seconds, table_of, whole

# NCCL's own lines come in between, and in the middle of a line, which goes on after them.
NCCL_SAYS = re.compile(r"(?:(?<=-1)|(?<=\s)|^)[A-Za-z0-9][\w.-]*:\d+:\d+ \[\d+\] NCCL .*(?:\n|\Z)", re.MULTILINE)
OLD_TYPES = {"char": "int8", "int": "int32"}


def read(text, name, ranks, collective):
    """Every table in the text: head, rows and foot, with other lines anywhere between."""
    log = _Log(name, ranks, collective)
    number = 1
    for line in NCCL_SAYS.sub("\0", TAGS.sub("", text)).split("\n"):
        log.take(line.replace("\0", "").rstrip(), number)
        number += 1 + line.count("\0")
    if log.open:
        log.truncated = "the log ends in the middle of a table: these are the rows so far"
    if log.broken:
        lines = f"line{'' if len(log.broken) == 1 else 's'} {', '.join(map(str, log.broken))}"
        log.truncated = "; ".join(each for each in (log.truncated, f"{lines} could not be read and left out") if each)
    devices = [log.devices[rank] for rank in sorted(log.devices)]
    attrs = {"tool": "nccl-tests", "ranks": ranks or len(devices) or None, "devices": devices, "truncated": log.truncated}
    return table_of(log.rows, attrs | log.attrs, name, "an nccl-tests")


class _Log:
    """What is known so far of a log, while it is read line by line."""

    def __init__(self, name, ranks, collective):
        self.name, self.ranks, self.collective = name, ranks, collective
        self.columns, self.devices = [], {}
        self.rows, self.attrs, self.broken = [], {}, []
        self.open, self.truncated, self.program = False, None, None

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
            self.program_is(match[1])

    def _comment(self, line):
        if match := re.match(r"\s*#\s+Rank\s+(\d+)\s.*?\bdevice\s+\d+\s+\[[^]]*\]\s*(.*)", line):
            if int(match[1]) in self.devices and not self.open and self.rows:
                self.devices = {}  # another program's ranks
            self.devices[int(match[1])] = match[2].strip()
        elif match := re.search(r"Collective test \w+: ([a-z_]+)_perf", line):
            self.program_is(match[1])
        elif match := re.search(r"Avg bus bandwidth\s*: (\S+)", line):
            self.attrs["avg_busbw"] = float(match[1]) * 1e9
            self.open = False
        elif match := re.search(r"nccl-tests version (\S+)(?:.*nccl-library=(\d+))?", line):
            self.attrs["version"] = match[1]
            if match[2]:
                self.attrs["nccl"] = version_of(int(match[2]))
        elif match := re.search(r"Out of bounds values : (\d+)", line):
            self.attrs["out_of_bounds"] = int(match[1])
        elif "minBytes" in line:
            self.attrs["settings"] = line.strip("# ")

    def program_is(self, name):
        with contextlib.suppress(UsageError):  # a program that times no collective
            self.program = find(name, send_recv=True)

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
                self.half(known, half, place == 1, number)
                found += 1
        if found < len(starts):
            self.broken.append(number)

    def half(self, known, half, in_place, number):
        time = seconds(half.get("time", half.get("cputime")), self.name, number)
        if "cputime" in half:
            self.attrs["clock"] = "cputime: the CPU's time to launch, not the collective's"
        measured = self.collective or self.program
        collective = measured.name if measured else None
        ranks = self.ranks or len(self.devices) or None
        row = {
            "collective": collective,
            "program": collective,
            "ranks": ranks,
            "size": int(known["size"]),
            "count": int(known["count"]),
            "type": OLD_TYPES.get(known["type"], known["type"]),
            "redop": known.get("redop"),
            "root": whole(known.get("root")),
            "in_place": in_place,
            "time": time,
            "busbw": float(half["busbw"]) * 1e9 if "busbw" in half else None,
            "wrong": whole(half.get("wrong")),
        }
        for name, column in (("i_min", "min"), ("i_max", "max")):
            if name in half:
                row[column] = seconds(half[name], self.name, number, name)
        self.rows.append(row)


def table_of_json(found, name, ranks, collective):
    """The table of what nccl-tests writes with -J, a dict."""
    devices = [each.get("device_info", "") for each in found.get("config", {}).get("devices", [])]
    arguments = [str(each) for each in found.get("args", [])]
    log = _Log(name, ranks, collective)
    log.devices = dict(enumerate(devices))
    if program := re.search(r"([a-z_]+)_perf", " ".join(arguments[:1])):
        log.program_is(program[1])
    for number, result in enumerate(found["results"], 1):
        known = {key: str(result[key]).strip() for key in ("size", "count", "type", "redop", "root")}
        for in_place, half in ((False, result.get("out_of_place")), (True, result.get("in_place"))):
            if half:
                words = {"time": half.get("time", half.get("cpu_time")), "busbw": half.get("bus_bw"), "wrong": half.get("nwrong")}
                log.half(known, words, in_place, number)
    attrs = {
        "tool": "nccl-tests", "ranks": ranks or len(devices) or None, "devices": devices, "date": found.get("start_time"),
        "nccl": version_of(int(found["nccl_version"])), "settings": " ".join(arguments),
        "avg_busbw": 1e9 * found["average_bus_bandwidth"]["bandwidth"] if "average_bus_bandwidth" in found else None,
    }  # fmt: skip
    return table_of(log.rows, attrs, name, "an nccl-tests")


def version_of(code):
    """2.28.9 of 22809; before 2.9 there was a digit less."""
    major, minor = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return ".".join(map(str, (major, *divmod(minor, 100))))
