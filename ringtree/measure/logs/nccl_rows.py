"""From the words in the rows of one nccl-tests table to what they say: sizes, times, and how many ranks ran."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.measure.logs import layout
from ringtree.measure.logs.rounded import microseconds, number, whole
from ringtree.measure.logs.rows import Found
from ringtree.measure.logs.types import type_of

UNITS = {1e6: "µs", 1e3: "ms", 1.0: "s"}  # nccl-tests of 2017 printed milliseconds


@dataclass
class Table:
    """One table while it is read: where it begins, the columns of its head or None, its run, and its rows as words.

    rows: [(line, (size, count, type), words after these)]. library: the version of NCCL that the log names nearest.
    """

    line: int
    columns: tuple | None
    run: object
    in_place_only: bool = False
    rows: list = field(default_factory=list)
    truncated: str | None = None
    library: str | None = None

    @property
    def width(self):
        """Return how many words a row has after its type."""
        return len(self.columns) if self.columns else layout.LONGEST + 1

    @property
    def smallest(self):
        """The first row's size, as it stands there."""
        return self.rows[0][1][0] if self.rows else None


def found_in(table, name):
    """The table as `Found`, or a sentence that says why it is left out."""
    rows, broken, cut = [], [], []
    for line, known, words in table.rows:
        halves = _halves(table, known, words, line, name)
        rows += halves
        (broken if not halves else cut if len(halves) < _places(table) else []).append(line)
    return found_of(table, rows, broken, cut)


def found_of(table, rows, broken, cut):
    """The same from its rows, with the lines that were not read, and those of which the first half was."""
    program = table.run.official or table.run.command
    found = Found(table.line, table.run.tool, rows, _attrs(table), told=_told(table.run))
    if program is not None:
        try:
            found.collective = find(program, send_recv=True)
        except UsageError:
            return f"{program}_perf (line {table.line}) times no collective that is known here"
    found.hint = table.run.headline
    if rows:
        _settle_times(found)
        _say_what_is_missing(found, table, broken, cut)
    return found


def _places(table):
    return max(1, sum(name in ("time", "cputime") for name in table.columns or ()))


def _halves(table, known, words, line, name):
    """One row in the log is two of ours: out of place, and in place."""
    columns = table.columns
    if columns is None or len(words) > len(columns) and layout.columns_of_words(words):
        columns = layout.columns_of_words(words)
    size, count = whole(known[0]), whole(known[1])
    if columns is None or size is None or count is None:
        return []
    fixed, halves = layout.halves(columns, words)
    rows = []
    for place, half in enumerate(halves):
        time = half.get("time", half.get("cputime"))
        if number(time) is None and time.lower().strip("+-") not in ("nan", "inf"):
            continue
        in_place = fixed["place"] == "in" if "place" in fixed else table.in_place_only or place == 1
        rows.append(row_of(half, time, in_place, line, name) | {"size": size, "count": count, "type": type_of(known[2])})
        rows[-1] |= {"redop": fixed.get("redop"), "root": whole(fixed.get("root"))}
        if "cputime" in half:
            table.run.attrs["clock"] = "cputime: the CPU's time to launch, not the collective's"
    return rows


def row_of(half, time, in_place, line, name):
    """Return what one half of a row says, its times still as printed; half: {"time", "algbw", "busbw", "wrong", …: a word}."""
    busbw, wrong = number(half.get("busbw")), whole(str(half.get("wrong")).rstrip("*"))
    row = {"line": line, "in_place": in_place, "printed": microseconds(time, name, line), "half": half, "wrong": wrong}
    row |= {"busbw": busbw * 1e9} if busbw is not None else {}
    for title, column in (("i_min", "min"), ("i_max", "max"), ("low", "low"), ("high", "high"), ("first", "first")):
        if title in half:
            row[column] = microseconds(half[title], name, line, title) / 1e6
    return row


def _settle_times(found):
    """Times in seconds, in the unit that goes with the bandwidths; rows that contradict themselves are left out."""
    unit = _unit(found.rows)
    if unit != 1e6:
        found.warnings.append(f"its times are in {UNITS[unit]}, as its bandwidths show")
    apart, checked = [], 0
    for row in found.rows:
        row["time"] = row.pop("printed") / unit
        bounds = layout.bandwidth_bounds(row["size"], row.pop("half"), 1 / unit)
        if bounds is not None:
            row["algbw_bounds"], row["busbw_bounds"], agrees = bounds
            checked += 1
            apart += [] if agrees else [id(row)]
    if 2 * len(apart) > checked:
        found.warnings.append("its algbw is not size / time, and is computed again")
    elif apart:
        lines = sorted({row["line"] for row in found.rows if id(row) in apart})
        found.rows = [row for row in found.rows if id(row) not in apart]
        found.warnings.append(f"{_lines(lines)} left out, where the time and the bandwidth contradict each other")


def _unit(rows):
    """Return how many of the log's times make a second, by the median of algbw / (size / time)."""
    ratios = []
    for row in rows:
        algbw = number(row["half"].get("algbw"))
        if algbw and algbw > 0.1 and row["printed"] > 0 and row["size"] > 0:
            ratios.append(math.log10(algbw) + 9 - math.log10(row["size"]) + math.log10(row["printed"]))
    if not ratios:
        return 1e6
    middle = sorted(ratios)[len(ratios) // 2]
    return min(UNITS, key=lambda unit: abs(middle - math.log10(unit)))


def _say_what_is_missing(found, table, broken, cut):
    found.attrs["truncated"] = table.truncated
    if cut and len(cut) == len(table.rows):
        found.warnings.append("no row has its second half: these are the times out of place")
    elif cut:
        found.warnings.append(f"{_lines(cut)} cut off: the rows before are taken")
    if broken:
        found.warnings.append(f"{_lines(broken)} could not be read and were left out")


def _lines(numbers):
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"line{'' if len(numbers) == 1 else 's'} {shown}"


def _attrs(table):
    run = table.run
    devices = [run.devices[rank] for rank in sorted(run.devices)]
    attrs = run.attrs | ({"nccl": table.library} if table.library else {}) | {"devices": [device for _, _, device in devices]}
    if devices and len(devices) == max(run.devices) + 1:
        attrs["nodes"] = len({host for _, host, _ in devices})
    return attrs


def _told(run):
    """Return how many ranks a run says that it has: of its first group, where it is split into several."""
    if run.told is not None:
        return run.told, "the log says"
    if run.devices:
        groups = Counter(group for group, _, _ in run.devices.values())
        return groups[run.devices[min(run.devices)][0]], "the log lists"
    return (run.launched, "the log says") if run.launched else None
