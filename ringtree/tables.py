"""Tables as text: a first line with their kind, comment lines with where they come from, then CSV with every digit.

    # ringtree.measure
    # ranks: 4
    # devices: ["CPU", "CPU"]
    size,time
    8,1.25e-05

`text_of` writes one and `parse` reads it back. Anybody may add remarks, in lines that begin with #.
"""

from __future__ import annotations

import csv
import io
import json

from ringtree.errors import UsageError


def _whole(word):
    value = int(word)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{word} does not fit into 64 bits")
    return value


# What turns a cell's words into a value, and what such a value is called, by the dtype of the column.
_READ = {
    "object": (str, "a text"),
    "float64": (float, "a number"),
    "int64": (_whole, "a whole number"),
    "Int64": (_whole, "a whole number"),
    "boolean": ({"True": True, "False": False}.__getitem__, "True or False"),
}


def text_of(frame, attrs, kind) -> str:
    """A DataFrame as text of that kind, below its attrs, a dict of what JSON can hold.

    An empty text comes back missing, for CSV knows no difference, and every line end in a text as a newline.
    """
    head = "".join(f"{line}\n" for line in (f"# {kind}", *(f"# {key}: {json.dumps(value)}" for key, value in attrs.items())))
    like_a_remark = any(str(each).startswith("#") for each in (frame.columns[0], *frame.iloc[:, 0]))
    quoting = csv.QUOTE_NONNUMERIC if like_a_remark else csv.QUOTE_MINIMAL
    plain = frame.replace(r"\r\n?", "\n", regex=True)
    return head + plain.to_csv(index=False, lineterminator="\n", quoting=quoting)


def parse(text, kind, name, types=None):
    """(frame, attrs) of a text of that kind; name is what an error calls it, such as `'times.csv'` or `the text`.

    types: {column: "object", "float64", "int64", "Int64" or "boolean"}; a column that it does not name holds texts. What is
    missing is None among texts, NaN among numbers, NA else. The frame's index has each row's line, for errors of your own.

    A text that ends in the middle of a line gives the rows before it, and attrs["truncated"] says so. Raises UsageError for a
    text of another kind or without columns, for a line with too few or too many cells, and for a cell that is not of its type.
    """
    import pandas

    attrs, records = _split(text, kind, name)
    width = 1 + max(record.count(",") for record in records.values())
    # Python's engine fills short lines up with NaN, where the other takes them for empty cells; no other cell is NaN here.
    try:
        cells = pandas.read_csv(
            io.StringIO("\n".join(records.values())),
            header=None,
            names=range(width),
            engine="python",
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
        ).set_axis(list(records))
    except (pandas.errors.ParserError, ValueError) as error:
        raise UsageError(f"{name} is not a CSV file that can be read ({error}): fix it, or write it again") from None
    counts = cells.notna().sum(axis=1)
    expected = counts.iloc[0]
    for line in counts.index[counts != expected]:
        raise UsageError(
            f"{name}, line {line}: it has {counts[line]} cells, and there are {expected} columns: fix or leave out that line"
        )
    rows = cells.iloc[1:]
    columns = {title: rows[at] for at, title in enumerate(cells.iloc[0, :expected])}
    types = {title: (types or {}).get(title, "object") for title in columns}
    return pandas.DataFrame({title: _typed(words, title, types[title], name) for title, words in columns.items()}), attrs


def _split(text, kind, name):
    """(attrs, {number of its first line: line of CSV}): a line goes on where a cell in quotes does."""
    first, *lines = text.replace("\r\n", "\n").split("\n")
    if first.rstrip() != f"# {kind}":
        raise UsageError(f"{name} does not begin with the line '# {kind}': give a file that was written as such")
    attrs, records, number, in_quotes = {}, {}, 0, False
    for at, line in enumerate(lines, 2):
        if in_quotes:
            records[number] += f"\n{line}"
        elif line.startswith("#"):
            attrs |= _attr(line)
            continue
        elif line:
            number = at
            records[number] = line
        in_quotes ^= line.count('"') % 2 == 1
    if records and (in_quotes or (lines[-1] and not lines[-1].startswith("#"))):
        del records[number]
        attrs["truncated"] = "the file ends in the middle of a line: these are the rows before it"
    if not records:
        raise UsageError(f"{name} has no columns: expected a line with their names below those that begin with #")
    return attrs, records


def _attr(line):
    key, _, value = line.removeprefix("#").strip().partition(": ")
    try:
        return {key: json.loads(value)}
    except (ValueError, RecursionError):
        return {}  # a remark that somebody added


def _typed(words, column, dtype, name):
    """A Series of the values that a column's words stand for."""
    import pandas

    read, what = _READ[dtype]
    values = []
    for line, word in words.items():
        try:
            values.append(None if word == "" and dtype != "int64" else read(word))
        except (ValueError, KeyError):
            said = f"{word!r}, which is not possible" if word else "missing"
            raise UsageError(f"{name}, line {line}: {column} is {said}: expected {what}, fix or leave out that line") from None
    return pandas.Series(values, index=words.index, dtype=dtype)
