"""Read what nccl-tests and rccl-tests print: tables with a head or without, among whatever else a log holds.

A log is read line by line, those of each process apart. A table begins at its head, or at a row where none is open, and
ends at its foot or the next head. What a run says of itself stands above its table, and in some versions below.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ringtree.collectives import SEND_RECV, TABLE, find
from ringtree.measure.logs import layout
from ringtree.measure.logs.nccl_rows import Table, found_in
from ringtree.measure.logs.rounded import is_value, number, whole
from ringtree.measure.logs.rows import named_in, processes_of
from ringtree.measure.logs.types import NAMES

ROW = re.compile(rf"(?<![\w.,:/-])(\d+)\s+(\d+)\s+({'|'.join(NAMES)})(?=\s|$)(.*)")
ROW_OF_ANY_TYPE = re.compile(r"^\W*(\d+)\s+(\d+)\s+([a-z]\w*)(?=\s|$)(.*)")
LIBRARY = re.compile(r"\b[NR]CCL version\s*:?\s*(\d[\d.]*\d)")
COMMUNICATOR = re.compile(r"\bcomm 0x[0-9a-f]+ rank \d+ nranks (\d{1,6})\b")
DATES = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d")
DEVICE = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?(?:on|uses)\s+(?:(\S+)\s+)?device\s+\d+\s+\[[^]]*\]\s*(.*)"
)
_PROGRAMS = "|".join(name for row in (*TABLE, SEND_RECV) for name in (row.name, *row.aliases))
PROGRAM = re.compile(rf"(?<![a-z])({_PROGRAMS})_perf(?![a-z])")
MIXED = (
    "from line {} on several processes printed into each other, because nccl-tests was built without MPI and each process "
    "runs alone: build it with MPI=1, or log each process separately"
)


def tables(lines, name):
    """(every table in the lines as `Found`, sentences on those that were left out)."""
    log = _Log()
    for line in lines:
        log.take(line)
    return log.end(name)


@dataclass
class Run:
    """What one run of a program says of itself, above its table or below.

    official: the program's name as it prints it; command: as the command has it that started it; headline: a collective
    that a line above names, with that reason. devices: {rank: (group, host, device)}. told: how many ranks ran, where it
    says so; launched: how many its command starts.
    """

    tool: str = "nccl-tests"
    official: str | None = None
    command: str | None = None
    headline: tuple | None = None
    devices: dict = field(default_factory=dict)
    told: int | None = None
    launched: int | None = None
    attrs: dict = field(default_factory=dict)
    has_table: bool = False
    in_place_only: bool = False


class _Process:
    """What one process prints: its run, the table that is open, and the row that may go on."""

    def __init__(self):
        self.run, self.table, self.pending = Run(), None, None
        self.tables, self.unfinished, self.mixed = [], 0, False


class _Log:
    def __init__(self):
        self.processes, self.libraries = {}, []
        self.names, self.nranks = set(), set()  # of programs, and of NCCL's communicators

    def take(self, line):
        process = self.processes.setdefault(line.stream, _Process())
        text = line.text.strip()
        if match := LIBRARY.search(line.whole):
            self.libraries.append((line.number, match[1]))
        if match := COMMUNICATOR.search(line.whole):
            self.nranks.add(int(match[1]))
        if "bw" in text and (columns := layout.columns_of_head(text)) is not None:
            self._open(process, line.number, columns)
        elif match := ROW.search(text) or (process.table and process.table.columns and ROW_OF_ANY_TYPE.match(text)):
            self._row(process, line.number, match)
        elif process.pending and text and all(map(is_value, text.split())):
            self._go_on(process, text.split())
        elif text:
            self._say(process, line, text)

    def end(self, name):
        for process in self.processes.values():
            self._close(process, "the log ends in the middle of a table: these are the rows so far")
        only = None
        if len(self.names) == 1:
            only = find(next(iter(self.names)), send_recv=True), "the only one that the log names"
        tables = [table for process in self.processes.values() if not process.mixed for table in process.tables]
        for table in tables:
            table.run.headline = table.run.headline or only
            table.library = self._library(table)
            if len(self.nranks) == 1:
                table.run.launched = table.run.launched or next(iter(self.nranks))
        found = [found_in(table, name) for table in sorted(tables, key=lambda table: table.line)]
        found += [MIXED.format(process.tables[0].line) for process in self.processes.values() if process.mixed]
        return [each for each in found if not isinstance(each, str)], [each for each in found if isinstance(each, str)]

    # -- tables ------------------------------------------------------------------

    def _open(self, process, number, columns):
        self._close(process, "the table ends in the middle and another one follows: these are its rows so far")
        process.table = Table(number, columns, process.run, process.run.in_place_only)
        process.run.has_table = True

    def _close(self, process, because=None):
        """The open table ends: at its foot, or because of something else."""
        self._finish_row(process)
        table, process.table = process.table, None
        if table is not None:
            has_foot = table.columns and "place" not in table.columns  # ours has none, and none is expected without a head
            table.truncated = because if has_foot else None
            process.tables.append(table)
            process.unfinished += because is not None and table.columns is not None

    def _row(self, process, number, match):
        self._finish_row(process)
        words = [word for word in match[4].split() if not DATES.fullmatch(word)]
        again = process.table is not None and process.table.columns is None and match[1] == process.table.smallest
        if process.table is None or again:  # where the sizes begin again, another table without a head follows
            if process.run.has_table:
                process.run = Run()
            self._open(process, number, None)
        process.pending = (number, match.groups()[:3], words)
        if len(words) >= process.table.width:
            self._finish_row(process)

    def _go_on(self, process, words):
        """A row goes on that something was printed into, or that was broken at the margin."""
        number, known, before = process.pending
        if len(before) + len(words) <= process.table.width:
            process.pending = (number, known, before + words)
        if len(before) + len(words) >= process.table.width:
            self._finish_row(process)

    def _finish_row(self, process):
        if process.pending is not None:
            process.table.rows.append(process.pending)
            process.pending = None

    def _library(self, table):
        """The version of NCCL that is named last before the table's last row, or else first after."""
        last = table.rows[-1][0] if table.rows else table.line
        before = [version for line, version in self.libraries if line < last]
        after = [version for line, version in self.libraries if line >= last]
        return before[-1] if before else after[0] if after else None

    # -- what a run says of itself -----------------------------------------------

    def _say(self, process, line, text):
        if match := DEVICE.search(text):
            self._device(process, match)
        elif match := re.search(r"Collective test (starting|concluded): (\w+?)(?:_perf\w*)?$", text):
            run = self._begin(process, "official") if match[1] == "starting" else process.run
            run.official = run.official or match[2]
            self.names |= {each.name for each in [named_in(match[2])] if each}
        elif "minBytes" in text:
            self._begin(process, "settings").attrs["settings"] = text.strip("# ")
        elif match := re.search(r"\b([nr]ccl-tests):? [vV]ersion (\S+)(?:.*[nr]ccl-library=(\d+))?", line.whole):
            run = self._begin(process, "version")
            run.tool, run.attrs["version"] = match[1], match[2]
            run.attrs |= {"nccl": version_of(whole(match[3]))} if whole(match[3]) else {}
        elif "Blocking Enabled" in text:
            process.run.attrs["blocking"] = text.strip("# ")
        elif match := re.match(r"# ringtree\.measure, (\w+)", text):
            run = self._begin(process, "official")
            run.official, run.tool = match[1], "ringtree.measure, printed"
        elif match := re.match(r"# (\d{1,6}) ranks\b", text):
            process.run.told = int(match[1])
        elif not self._foot(process, text):
            self._aside(process, text)

    def _foot(self, process, text):
        match = re.search(r"(Avg bus bandwidth|Out of bounds values)\s*: (\S+)", text)
        if match is None:
            return False
        if match[1].startswith("Out"):
            process.run.attrs["out_of_bounds"] = whole(match[2])
            return True
        if process.unfinished and not (process.table and process.table.columns):
            process.mixed = True  # a foot without a head, after heads without a foot
        if number(match[2]) is not None:
            process.run.attrs["avg_busbw"] = number(match[2]) * 1e9
        self._close(process)
        return True

    def _begin(self, process, what):
        """The run that says this: another one where this one has had its table, or has said it already."""
        run = process.run
        if run.has_table or what in run.attrs or getattr(run, what, None):
            self._close(process, "another run begins in the middle of the table: these are its rows so far")
            process.run = Run()
        return process.run

    def _device(self, process, match):
        run = process.run
        rank = int(match[1]) if len(match[1]) < 7 else None
        if run.has_table and process.table is None or rank in run.devices:
            run = self._begin(process, "devices")
        if rank is not None:
            run.devices[rank] = (match[2] or "0", match[3], match[4].strip())

    def _aside(self, process, text):
        """Return what stands around tables: commands, headlines, and the upper line of a head."""
        if "in-place" in text and "bw" not in text:
            process.run.in_place_only = "out-of-place" not in text
            return
        command = PROGRAM.search(text)
        named = None if command or len(text) > 100 else named_in(text)
        if not (command or named):
            return
        if process.run.has_table and process.table is None:
            process.run = Run()
        if command:
            process.run.command, process.run.launched = command[1], ranks_of_command(text)
            self.names.add(find(command[1], send_recv=True).name)
        else:
            process.run.headline = named, "which a line above names"


def ranks_of_command(text):
    """Return how many ranks a command starts that names the number of its processes, or None."""
    processes = processes_of(text, "_perf")
    if processes is None:
        return None
    each = [
        re.search(rf"\s(?:-{letter}|--{word})[ =]?(\d{{1,4}})\b", text) for letter, word in (("g", "ngpus"), ("t", "nthreads"))
    ]
    return processes * math.prod(int(match[1]) for match in each if match)


def version_of(code):
    """2.28.9 of 22809; before 2.9 there was a digit less."""
    major, minor = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return ".".join(map(str, (major, *divmod(minor, 100))))
