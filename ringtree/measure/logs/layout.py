"""Which column each word of a row of nccl-tests stands in, with a head above the rows or without."""

from __future__ import annotations

import re

from ringtree import operations
from ringtree.measure.logs.rounded import bounds, is_value, number

OPERATIONS = (*(name for name, row in operations.OPERATIONS.items() if not row.bitwise), "mulsum", "none")
HEAD = re.compile(r"\b(?:size|bytes)\s+(?:count|N)\s+type\b.*\b(?:cpu)?time\b.*")
TODAY = {
    "op": "redop",
    "error": "delta",
    "res": "delta",
    "#wrong": "wrong",
    "algbw": "algbw",
}  # of 2017, and of 2.12 and before

_SHORT = ("time", "algbw", "busbw")
_HALF = (*_SHORT, "wrong")
_PER_CALL = (*_HALF, "i_min", "i_max", "i_p99", "i_cv%")
# By how many numbers follow type and operation: what nccl-tests has printed, some of it on demand, and what people cut it to.
_WITHOUT_HEAD = {
    len(columns): columns
    for half in (_SHORT, _HALF, _PER_CALL)
    for columns in (half, ("root", *half), (*half, *half), ("root", *half, *half))
} | {4: _HALF, 8: (*_HALF, *_HALF), 9: ("root", *_HALF, *_HALF)}
LONGEST = max(_WITHOUT_HEAD)


def columns_of_head(text):
    """The columns after the type that a head names, by the names of today; None for a line that is no head."""
    match = HEAD.search(text)
    if match is None:
        return None
    words = match[0].replace("# wrong", "#wrong").split()[3:]
    return tuple(TODAY.get(word, word) for word in words if word not in ("timestamp", "#"))


def columns_of_words(words):
    """The columns of a row without head, from the number and kind of the words after its type; None where none fit."""
    operation = ("redop",) if words and words[0] in OPERATIONS else ()
    numbers = words[len(operation) :]
    columns = _WITHOUT_HEAD.get(len(numbers)) if all(map(is_value, numbers)) else None
    if columns is None:
        return None
    if len(numbers) == 4 and re.fullmatch(r"-1|\d{1,5}", numbers[0]) and not re.fullmatch(r"N/A|\d+(e[-+]\d+)?\**", numbers[3]):
        columns = ("root", *_SHORT)
    deltas = re.compile(r"\d+e-\d+|0e\+00")
    named = zip(columns, numbers)
    return operation + tuple("delta" if name == "wrong" and deltas.fullmatch(word) else name for name, word in named)


def halves(columns, words):
    """(what stands before the times, [what stands in each half]), as dicts of words; a half that lacks words is left out."""
    starts = [at for at, name in enumerate(columns) if name in ("time", "cputime")]
    ends = [*starts[1:], len(columns)]
    found = [dict(zip(columns[start:end], words[start:end])) for start, end in zip(starts, ends) if len(words) >= end]
    return dict(zip(columns[: starts[0]] if starts else columns, words)), found


def bandwidth_bounds(size, half, unit):
    """Return the bounds of size / time and of busbw, in bytes a second, that fit all that one half of a row prints.

    unit: seconds that a time of 1 stands for. Returns (bounds of algbw, bounds of busbw, whether the algbw that is printed
    is size / time); None where a number is missing.
    """
    words = half.get("time", half.get("cputime")), half.get("algbw"), half.get("busbw")
    if any(number(word) is None for word in words):
        return None
    (soonest, latest), (least, most), busbw = map(bounds, words)
    low = size / (latest * unit)
    high = size / (soonest * unit) if soonest > 0 else float("inf")
    least, most = least * 1e9, most * 1e9
    agrees = low * (1 - 1e-9) <= most and least <= high * (1 + 1e-9)
    both = (max(low, least), min(high, most)) if agrees else (low, high)
    return both, tuple(1e9 * bound for bound in busbw), agrees
