"""Read our own files, CSV and JSON, as `ringtree.measure.save` writes them."""

from __future__ import annotations

import math

from ringtree import tables
from ringtree.errors import UsageError
from ringtree.measure.table import COLUMNS, KIND, frame, plain_rows


def read(text, name, ranks, collective):
    """The table of a CSV file."""
    found, attrs = tables.parse(text, KIND, name, COLUMNS)
    if not set(found) >= {"size", "time"}:
        raise UsageError(f"{name} has no columns size and time: expected CSV as ringtree.measure writes it")
    for line in found.index[~found["time"].map(math.isfinite)]:
        raise UsageError(f"{name}, line {line}: the time is missing or not finite: mend or leave out that line")
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
            f"{name}, line {line}: by_rank is {words!r}, which it cannot be: mend or leave out that line"
        ) from None


def table_of_json(found, name):
    """The table of a JSON file's dict."""
    rows = [{**row, "by_rank": tuple(row["by_rank"])} if "by_rank" in row else row for row in found.get("rows", [])]
    return _table(rows, found.get("attrs", {}), name)


def _table(rows, attrs, name):
    if not rows:
        raise UsageError(f"{name} holds a table without rows: that measurement ended before its first size, so read another")
    return frame(rows, attrs)
