"""Tables of times: as pandas DataFrames, as text like nccl-tests', as CSV and JSON, and side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ringtree import tables
from ringtree.errors import UsageError
from ringtree.given import a, takes

# Every column of a table, measured or read, in order, and what it holds: seconds, bytes, bytes a second.
COLUMNS = {
    "collective": "object",
    "program": "object",
    "ranks": "Int64",
    "size": "int64",
    "count": "Int64",
    "type": "object",
    "redop": "object",
    "root": "Int64",
    "in_place": "boolean",
    "time": "float64",
    "algbw": "float64",
    "busbw": "float64",
    "wrong": "Int64",
    "min": "float64",
    "q1": "float64",
    "q3": "float64",
    "max": "float64",
    "low": "float64",
    "high": "float64",
    "first": "float64",
    "batches": "Int64",
    "calls": "Int64",
    "stable": "boolean",
    "by_rank": "object",
}
KIND = "ringtree.measure"  # of a file


def frame(rows, attrs=None):
    """A DataFrame of rows (dicts) with all of COLUMNS: what a row lacks is missing. attrs: where it comes from.

    Raises UsageError for a row whose time is not a finite number of seconds, 0 or more, or whose size is negative.
    """
    import pandas

    rows = list(rows)
    for row in rows:
        if not (math.isfinite(row["time"]) and row["time"] >= 0):
            raise UsageError(f"the time for {row['size']} bytes is {row['time']!r} s: a time must be finite, and not below 0")
        if row["size"] < 0:
            raise UsageError(f"a size is {row['size']} bytes: a size must be 0 or more")
    table = pandas.DataFrame({
        name: pandas.Series([_cell(row.get(name), kind) for row in rows], dtype=kind) for name, kind in COLUMNS.items()
    })
    table.attrs = dict(attrs or {})
    return table


def _cell(value, kind):
    return math.nan if value is None and kind == "float64" else value


# -- as text ---------------------------------------------------------------------


def table_text(table) -> str:
    """A table, measured here or read by `ringtree.measure.logs.read`, as nccl-tests prints its own.

    Times are in µs, bandwidths in GB/s (10⁹ bytes a second). `place` says whether a row is in or out of
    place. Where the rows were measured here, the 95 % interval of the median, the first call and the number
    of batches × calls follow, and `~` where the median did not get stable in its budget.
    """
    _need(table, "size", "time")
    return "\n".join([*head_lines(table), *(line(row) for row in plain_rows(table))])


def plain_rows(table):
    """A table's rows as dicts of plain values, from which what is missing is left out."""
    import pandas

    return [
        {name: value for name, value in row.items() if isinstance(value, (tuple, list)) or not pandas.isna(value)}
        for row in table.to_dict("records")
    ]


HEAD = (
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 8),
    ("redop", "", 6),
    ("root", "", 5),
    ("place", "", 6),
    ("time", "(us)", 8),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 7),
)
MORE = (("low", "(us)", 8), ("high", "(us)", 8), ("first", "(us)", 8), ("batches", "x calls", 9))


def _head(extra):
    columns = HEAD + (MORE if extra else ())
    lines = (" ".join(f"{each[at]:>{each[2]}}" for each in columns) for at in (0, 1))
    return ["#" + each[1:].rstrip() for each in lines]


def line(row) -> str:
    """One row (a dict with COLUMNS) as a line of the table."""
    place = {True: "in", False: "out"}.get(row.get("in_place"), "")
    algbw, busbw = (row.get(name, math.nan) / 1e9 for name in ("algbw", "busbw"))
    wrong = row.get("wrong")
    words = [row["size"], *(row.get(name, "") for name in ("count", "type", "redop", "root")), place]
    words += [_figure(row["time"] * 1e6, 8), _figure(algbw, 7), _figure(busbw, 7), "N/A" if wrong is None else wrong]
    columns, note = HEAD, ""
    if "batches" in row:
        words += [_figure(row.get(name, math.nan) * 1e6, 8) for name in ("low", "high", "first")]
        words.append(f"{row['batches']} x{row['calls']:>3}")
        columns, note = HEAD + MORE, "" if row["stable"] else " ~"
    return " ".join(f"{word:>{each[2]}}" for word, each in zip(words, columns)) + note


def _figure(value, width):
    """A number in so many characters, with two decimals while there is room."""
    if math.isnan(value):
        return f"{'N/A':>{width}}"
    for decimals in (2, 1, 0):
        if len(text := f"{value:{width}.{decimals}f}") <= width:
            return text
    return f"{value:{width}.1e}"


def head_lines(table) -> list[str]:
    """Return what stands above the rows, for a table that is printed while it is measured: one with its first row will do."""
    return [*_provenance_lines(table), *_head(bool(table["batches"].notna().any()))]


def _provenance_lines(table):
    """Comment lines that say where the figures come from, as far as is known."""
    attrs, lines = table.attrs, []
    named = {name: list(dict.fromkeys(table[name].dropna())) for name in ("collective", "program") if name in table}
    what = named.get("collective", [])
    by = [each for each in named.get("program", []) if each not in what]
    title = ", ".join([*what, *(["by " + ", ".join(by)] if by else [])])
    versions = [f"{name} {attrs[key]}" for key, name in (("torch", "torch"), ("nccl", "NCCL")) if attrs.get(key)]
    tool = " ".join(str(attrs[key]) for key in ("tool", "version") if attrs.get(key))
    lines.append(", ".join(each for each in (tool, title, *versions, str(attrs.get("date") or "")) if each))
    lines.append(_places(attrs))
    if attrs.get("tool") == "ringtree.measure":
        clock = attrs.get("clock", "clock")
        lines.append(f"times by the {clock}, of the slowest rank; time is their median, low and high its 95 % interval")
        lines.append("~ after a row: the budget was spent before its median was stable")
    if attrs.get("backend") == "gloo" or attrs.get("link"):
        lines.append("these are times of processes on CPUs: they say nothing about a GPU or its network")
    lines += [str(attrs[key]) for key in ("link", "remark") if attrs.get(key)] + list(attrs.get("warnings", []))
    return [f"# {text}" for text in lines if text]


def _places(attrs):
    if not attrs.get("ranks"):
        return ""
    devices = attrs.get("devices") or []
    kinds = ", ".join(f"{devices.count(each)} x {each}" for each in dict.fromkeys(devices))
    if set(devices) == {"CPU"}:
        kinds = f"CPU, {attrs['cores']} cores a host" if attrs.get("cores") else "CPU"
    hosts = attrs.get("hosts", attrs.get("nodes"))
    parts = [
        f"{attrs['ranks']} ranks" + (f" on {hosts} host{'' if hosts == 1 else 's'}" if hosts else ""),
        f"backend {attrs['backend']}" if attrs.get("backend") else "",
        kinds,
    ]
    return ", ".join(part for part in parts if part)


# -- as files --------------------------------------------------------------------


def csv_text(table) -> str:
    """A table as CSV: comment lines with its attrs, one a line as JSON, then the columns, every digit kept."""
    plain = table.copy()
    plain["by_rank"] = [" ".join(map(repr, times)) if isinstance(times, (tuple, list)) else None for times in table["by_rank"]]
    return tables.text_of(plain, table.attrs, KIND)


def json_text(table) -> str:
    """A table as JSON: {"ringtree.measure": 1, "attrs": …, "rows": […]}, every digit kept."""
    whole = {KIND: 1, "attrs": table.attrs, "rows": plain_rows(table)}
    return json.dumps(whole, indent=1, default=lambda value: value.item()) + "\n"


@takes(path=a(str, Path, words="a path that ends in .csv or .json"))
def save(table, path, overwrite=False) -> Path:
    """Write a table to a file, as CSV or JSON by the end of its name; `ringtree.measure.logs.read` reads it back whole.

    Raises UsageError for a name that ends in neither, and for a file that exists, unless overwrite.
    """
    _need(table, *COLUMNS)
    path = path_to_write(path, overwrite)
    path.write_text(json_text(table) if path.suffix == ".json" else csv_text(table), encoding="utf-8")
    return path


def path_to_write(path, overwrite=False) -> Path:
    """The path; UsageError unless a table can be saved there."""
    path = Path(path)
    if path.suffix not in (".csv", ".json"):
        raise UsageError(f"{str(path)!r} is neither .csv nor .json: give a name that ends in one of them")
    if path.exists() and not overwrite:
        raise UsageError(f"{str(path)!r} exists already: give another name, or allow it to be overwritten")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}: make it first, or give another name")
    return path


# -- side by side ----------------------------------------------------------------


def compare(tables, value="time"):
    """Several tables side by side: a DataFrame with a row a size and a column a table, and how often the first's.

    tables: {name: table}, measured or read, of at least two. value: the column to compare, "time"
    unless told otherwise. Sizes that a table lacks are missing there. Ratios are in columns called
    "name / first name".

    Raises UsageError where a table has several rows of one size: pick those to compare first, for
    instance `table[~table["in_place"]]`.
    """
    import pandas

    if not isinstance(tables, dict) or len(tables) < 2:
        raise UsageError("compare needs two tables or more, by name: compare({'here': table, 'there': other})")
    columns = {}
    for name, table in tables.items():
        _need(table, "size", value)
        twice = table["size"][table["size"].duplicated()]
        if len(twice):
            raise UsageError(
                f"{name} has several rows of {twice.iloc[0]} bytes: pick those to compare, for instance with "
                "table[~table['in_place']] or table[table['type'] == 'float']"
            )
        columns[name] = table.set_index("size")[value]
    beside = pandas.concat(columns, axis=1).sort_index()
    first = next(iter(tables))
    for name in list(tables)[1:]:
        beside[f"{name} / {first}"] = beside[name] / beside[first]
    return beside.reset_index()


def _need(table, *names):
    for name in names:
        if name not in getattr(table, "columns", ()):
            raise UsageError(
                f"this is not a table of times, because it has no column {name!r}: "
                "give what measure or ringtree.measure.logs.read returned"
            )
