"""Read our own files, CSV and JSON, as `ringtree.measure.save` writes them."""

from __future__ import annotations

import math

from ringtree import tables
from ringtree.errors import UsageError
from ringtree.measure.logs.rounded import MOST
from ringtree.measure.table import COLUMNS, KIND, frame, plain_rows


def table_of_csv(text, name):
    """The table of a CSV file."""
    found, attrs = tables.parse(text, KIND, name, COLUMNS)
    if not set(found) >= {"size", "time"}:
        raise UsageError(f"{name} has no columns size and time: expected CSV as ringtree.measure writes it")
    for line in found.index[~found["time"].map(math.isfinite)]:
        raise UsageError(f"{name}, line {line}: the time is missing or not finite: fix or leave out that line")
    for title in found.select_dtypes("float64"):
        for line in found.index[found[title].abs() == math.inf]:
            raise UsageError(f"{name}, line {line}: {title} is infinite: fix or leave out that line")
    rows = plain_rows(found)
    for line, row in zip(found.index, rows):
        if "by_rank" in row:
            row["by_rank"] = _times(row["by_rank"], name, line)
    return _table(rows, attrs, name)


def _times(words, name, line):
    try:
        return tuple(float(each) for each in words.split())
    except ValueError:
        raise UsageError(
            f"{name}, line {line}: by_rank is {words!r}, which is not possible: fix or leave out that line"
        ) from None


def table_of_json(found, name):
    """The table of a JSON file's dict."""
    rows, attrs = found.get("rows", []), found.get("attrs", {})
    if not (isinstance(rows, list) and isinstance(attrs, dict)):
        raise UsageError(f"{name} has no list of rows and no attrs: expected JSON as ringtree.measure writes it")
    return _table([_row_of_json(row, number, name) for number, row in enumerate(rows, 1)], attrs, name)


def _row_of_json(row, number, name):
    if not (isinstance(row, dict) and {"size", "time"} <= set(row)):
        raise UsageError(f"{name}, row {number} has no size and time: fix or leave out that row")
    for key, value in row.items():
        if key in COLUMNS and not _fits(value, "times" if key == "by_rank" else COLUMNS[key]):
            raise UsageError(f"{name}, row {number}: {key} is {value!r}, which is not possible: fix or leave out that row")
    return {**row, "by_rank": tuple(row["by_rank"])} if "by_rank" in row else row


def _fits(value, kind):
    """Return whether a value of JSON can stand in a column of this kind."""
    if kind == "times":
        return isinstance(value, list) and all(_fits(each, "float64") for each in value)
    if kind in ("int64", "Int64"):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST
    if kind == "float64":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    return isinstance(value, {"object": str, "boolean": bool}[kind])


def _table(rows, attrs, name):
    if not rows:
        raise UsageError(f"{name} holds a table without rows: that measurement ended before its first size, so read another")
    said = attrs.get("warnings", [])
    if not (isinstance(said, list) and all(isinstance(each, str) for each in said)):
        raise UsageError(
            f"{name}: its warnings are {said!r}, which is not possible: expected a list of sentences, fix or leave it out"
        )
    table = frame(rows, attrs)
    cut = attrs.get("truncated")
    if cut and cut not in said:
        table.attrs["warnings"] = [*said, str(cut)]
    return table
