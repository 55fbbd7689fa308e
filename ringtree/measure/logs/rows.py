"""What every reader of logs needs: numbers out of words, and the table of all rows."""

from __future__ import annotations

import math
import re

from ringtree.collectives import bus_factor
from ringtree.errors import UsageError
from ringtree.measure.table import frame

TAGS = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: )", re.MULTILINE)  # mpirun --tag-output, srun -l


def table_of(rows, attrs, name, what):
    """The frame of all rows, with bandwidths; UsageError where there are none."""
    if not rows:
        raise UsageError(f"{name} has the head of {what} table and no row: that run ended before its first size, so read another")
    for row in rows:
        time, size = row["time"], row["size"]
        row["algbw"] = size / time if time > 0 else math.nan
        if row.get("collective") and row.get("ranks"):
            row["busbw"] = row["algbw"] * bus_factor(row["collective"], row["ranks"])
    return frame(rows, {key: value for key, value in attrs.items() if value not in (None, [])})


def seconds(text, name, number, what="time"):
    """The seconds of a finite number of microseconds, 0 or more; UsageError with the line's number for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"{name}, line {number}: the {what} is {text!r}, which is no finite number, 0 or more: mend or leave out that line"
        )
    return value / 1e6


def whole(text):
    """The whole number of a text such as 3e+06; None where it is none."""
    try:
        return int(float(text))
    except (TypeError, ValueError, OverflowError):
        return None
