"""From what a reader found in a log to the table of `ringtree.measure`, with what is odd about it said."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ringtree.collectives import SEND_RECV, TABLE, Collective, find
from ringtree.errors import UsageError
from ringtree.measure.logs.ranks import agrees, impossible, ranks_of
from ringtree.measure.table import frame

# As people write a collective's name in a headline, a command or a file's name.
_WRITTEN = sorted((name for row in (*TABLE, SEND_RECV) for name in (row.name, *row.aliases)), key=len, reverse=True)
# Not those of one common word, save one that people hardly use for anything else.
_TELLING = [name for name in _WRITTEN if name != (row := find(name, send_recv=True).name) or "_" in row or name == "broadcast"]
NAMED = re.compile(rf"(?<![a-z])(?:{'|'.join(name.replace('_', '[-_ ]?') for name in _TELLING)})(?![a-z])", re.I)


class Unnamed(UsageError):
    """A table whose collective nothing says."""


@dataclass
class Found:
    """One table as it stands in a log.

    line: where it begins. rows: dicts with the columns of `measure`, and between which numbers algbw and busbw lie, bytes a
    second ("algbw_bounds", "busbw_bounds"). collective: None where nothing says it; hint: (collective, why) where something
    only suggests it. told: (how many ranks, what says so) or None. warnings: sentences for the reader.
    """

    line: int
    tool: str
    rows: list = field(default_factory=list)
    attrs: dict = field(default_factory=dict)
    collective: Collective | None = None
    hint: tuple | None = None
    told: tuple | None = None
    warnings: list = field(default_factory=list)


def table_of(found, name, ranks=None, collective=None, hint=None):
    """The DataFrame of what was found, with its collective and ranks, bandwidths and attrs.

    ranks, collective: what the caller says; hint: as in `Found`, from outside the log. Raises UsageError where nothing says
    which collective it is.
    """
    measured = _collective(found, name, collective, hint)
    told, source = (ranks, "the caller says") if ranks is not None else found.told or (None, "")
    if found.attrs.get("truncated"):
        found.warnings.insert(0, found.attrs["truncated"])
    count, said = ranks_of(found.rows, measured, told, source)
    found.warnings += said
    if odd := impossible(found.rows, measured):
        found.warnings.append(odd)
    for row in found.rows:
        row |= {"collective": measured.name, "program": row.get("program", measured.name), "ranks": count}
        row |= _bandwidths(row, measured, count)
    attrs = {"tool": found.tool, "ranks": count} | found.attrs | {"warnings": found.warnings}
    return frame(found.rows, {key: value for key, value in attrs.items() if value not in (None, []) or key == "warnings"})


def _bandwidths(row, collective, ranks):
    """algbw from size and time, and busbw from it, for logs round them to two decimals; without ranks busbw is the log's."""
    algbw = row["size"] / row["time"] if row["time"] > 0 else math.nan
    factor = collective.bus_factor(ranks) if ranks else math.nan
    busbw = row.get("busbw", math.nan) if math.isnan(factor) else algbw * factor
    return {key: value if math.isfinite(value) else math.nan for key, value in (("algbw", algbw), ("busbw", busbw))}


def _collective(found, name, given, hint):
    """Return what was timed: as the caller says, or the log, or what suggests it, with a sentence where these differ."""
    own = found.collective
    if given is not None:
        if own is not None and own is not given:
            found.warnings.append(f"the log calls it {own.name}, and {given.name} was given, which is used")
        return given
    if own is not None:
        return own
    possible = [each for each in _with_such_columns(found.rows) if impossible(found.rows, each) is None]
    with_its_ranks = [each for each in possible if found.told and agrees(found.rows, each, found.told[0])]
    for left in (with_its_ranks, possible):
        if len(left) == 1:
            return left[0]
    for collective, why in filter(None, [found.hint, hint]):
        if impossible(found.rows, collective) is None:
            found.warnings.append(f"it is taken for {collective.name}, {why}")
            return collective
    raise Unnamed(
        f"{name}: nothing says which collective the table from line {found.line} timed: "
        "say it, as in read(…, collective='all_gather')"
    )


def _with_such_columns(rows):
    """The collectives that may have these rows, by whether there is a root, and what it does with what it gets."""
    rooted = any((row.get("root") or 0) >= 0 for row in rows if row.get("root") is not None)
    reducing = any(row.get("redop") not in (None, "none") for row in rows)
    moving = [each for each in (*TABLE, SEND_RECV) if each.before != "nothing"]
    if rooted:
        return [each for each in moving if each.root is not None and each.reduces == reducing and each is not SEND_RECV]
    return [each for each in moving if each.root is None or each is SEND_RECV]


def named_in(text):
    """The one collective that a text names, or None."""
    names = {find(re.sub(r"[-_ ]", "_", each).lower(), send_recv=True).name for each in NAMED.findall(text)}
    return find(names.pop(), send_recv=True) if len(names) == 1 else None


def processes_of(text, program):
    """Return how many processes a launcher's command starts of a program whose name contains `program`; None where it is none."""
    if program not in text:
        return None
    match = re.search(
        r"(?:\bmpi\w*|\bsrun|\bprun|\bjsrun|\baprun|\bflux run)\b.*?\s(?:-np|-n|--np|--ntasks)[ =](\d{1,6})\s", text
    )
    return int(match[1]) if match and match.end() < text.rindex(program) else None
