"""Printed numbers: what a word stands for, and between which numbers it was before it was rounded."""

from __future__ import annotations

import math
import re

from ringtree.errors import UsageError

MOST = 2**63  # what a column of whole numbers cannot hold
NUMBER = re.compile(r"[-+]?(\d+)(?:\.(\d*))?(?:[eE]([-+]?\d{1,2}))?")
VALUE = re.compile(r"(?:[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)|N/A)\**", re.IGNORECASE)


def is_value(word) -> bool:
    """Return whether a word may stand in a column of numbers."""
    return VALUE.fullmatch(word) is not None


def bounds(word) -> tuple[float, float]:
    """The smallest and the largest number that are printed as this word; not a number for what is none."""
    found = NUMBER.fullmatch(str(word))
    if not found:
        return math.nan, math.nan
    half = 0.5 * 10.0 ** (int(found[3] or 0) - len(found[2] or ""))
    return float(word) - half, float(word) + half


def number(word):
    """The finite number that a word is, or None."""
    try:
        value = float(word)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def whole(word):
    """The whole number of a word such as 3e+06; None where it is none, or too large for a table."""
    if str(word).isdecimal() and len(str(word)) < 20:
        value = int(word)
    else:
        value = number(word)
    return None if value is None or abs(value) >= MOST else int(value)


def microseconds(word, name, line, what="time"):
    """A finite number of microseconds, 0 or more; UsageError with the line's number for any other word."""
    value = number(word)
    if value is None or value < 0:
        raise UsageError(
            f"{name}, line {line}: the {what} is {str(word)!r}, which is not a finite number, 0 or more: fix or leave out that line"
        )
    return value
