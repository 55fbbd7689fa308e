"""Read what others measured: output of nccl-tests, rccl-tests and OSU's micro-benchmarks, and our own files.

    from ringtree.measure import logs
    theirs = logs.read("all_reduce_perf.log")
    compare({"here": table, "there": theirs})
    every = logs.read_all("everything_we_ran.log")     # a list, where a log holds several tables

A table has the columns of `ringtree.measure.measure`, in seconds, bytes and bytes a second; what a log does not say is
missing, and what it says of itself is in `.attrs`.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.measure.logs import nccl_tests, osu, ours, records
from ringtree.measure.logs.lines import lines_of
from ringtree.measure.logs.rows import Unnamed, named_in, table_of
from ringtree.measure.table import KIND
from ringtree.units import count_text

__all__ = ["read", "read_all"]

ACCEPTED = "output of nccl-tests, rccl-tests or OSU's micro-benchmarks, or CSV or JSON of ringtree.measure"


def read(source, *, ranks=None, collective=None):
    """The table of a log that has one, as `read_all` gives it; UsageError, which lists them, where it has several."""
    tables, name = _tables(source, ranks, collective)
    if len(tables) > 1:
        listed = "; ".join(f"[{at}] {_in_words(table)}" for at, table in enumerate(tables[:12]))
        more = f"; and {len(tables) - 12} more" if len(tables) > 12 else ""
        raise UsageError(
            f"{name} holds {len(tables)} tables: {listed}{more}: take one of them from read_all(…), which gives a list"
        )
    _warn(tables, name)
    return tables[0]


def read_all(source, *, ranks=None, collective=None):
    """Every table in a log, in its order: a list of DataFrames with the columns of `measure`.

    source: a path, or the text itself, as it comes: with launchers' prefixes, times, colours or quotes before its lines,
    NCCL's own lines in between, cut off, without heads. One run of nccl-tests is one table, with all its types and operations.
    ranks, collective: what the log does not say. A collective that is given goes before the log's own word for it; and
    where a log's bandwidths contradict a number of ranks, given or listed in the log, those are believed. OSU never says how
    many ranks ran, and counts the size of gathers, scatters and all-to-alls per rank.

    Bandwidths are size / time and `bus_factor` times that, where the ranks are known, for logs round them to
    two decimals. nccl-tests' time is its mean over calls and ranks, OSU's its mean over both too. nccl-tests makes its calls
    back to back unless `.attrs` has "blocking": where one rank is the root it runs ahead, and the time of a short call
    says nothing about its latency.
    `.attrs`: tool, version, ranks, nodes, devices, nccl, settings, truncated, as far as the log says them, and warnings: a list
    of sentences on what is missing, was left out or contradicts itself. Each is a Python warning too.

    Raises UsageError, with one sentence, for a source that is none of these, has no row, does not say which collective it
    is of, or has a time that is not a finite number.
    """
    tables, name = _tables(source, ranks, collective)
    _warn(tables, name)
    return tables


def _tables(source, ranks, collective):
    """(the tables, what to call the source in a sentence)."""
    try:
        collective = None if collective is None else find(collective, send_recv=True)
    except UsageError as error:
        raise UsageError(f"collective={error}") from None
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        raise UsageError(f"ranks={ranks!r}: give how many ranks ran, a whole number, 1 or more")
    text, name = _text(source)
    if text.split("\n", 1)[0].rstrip() == f"# {KIND}":
        return [ours.table_of_csv(text, name)], name
    if text.lstrip().startswith("{") and isinstance(found := _read_json(text), dict) and KIND in found:
        return [ours.table_of_json(found, name)], name
    found, left_out = _found(text, name, ranks)
    tables = _finished(found, left_out, name, ranks, collective, _named_by_path(source, name))
    if not tables:
        like = "begins like JSON and is not" if text.lstrip().startswith("{") else "cannot be read"
        raise UsageError(f"{name} {like}: expected {ACCEPTED}")
    return tables, name


def _found(text, name, ranks):
    """(what the readers find in the text, sentences on what they leave out)."""
    if text.lstrip()[:1] in ("{", "["):
        found = _read_json(text)
        if found is not None:
            return _in_json(found, name), []
    if records.CSV_HEAD.match(text.lstrip()):
        return records.tables_of_records(records.records_of_csv(text), name), []
    lines = lines_of(text)
    (nccl, left_out), (from_osu, without) = nccl_tests.tables(lines, name), osu.tables(lines, name, ranks)
    return [*nccl, *from_osu], [*left_out, *without]


def _finished(found, left_out, name, ranks, collective, hint):
    """The tables, in their order; where several are there, a collective that is given is for those that do not name theirs."""
    left_out = [*left_out, *(each for each in found if isinstance(each, str))]
    found = sorted((each for each in found if not isinstance(each, str)), key=lambda each: each.line)
    with_rows = [each for each in found if each.rows]
    if not with_rows:
        if left_out:
            raise UsageError(f"{name} has no table that can be read: {'; '.join(left_out)}: expected {ACCEPTED}")
        if found:
            raise UsageError(
                f"{name} has the head of an {found[0].tool} table and no row: "
                "that run ended before its first size, so read another"
            )
        return []
    alone, tables = len(with_rows) == 1, []
    for each in with_rows:
        try:
            tables.append(table_of(each, name, ranks, collective if alone or each.collective is None else None, hint))
        except Unnamed as error:
            if alone:
                raise
            unnamed = error
            left_out.append(str(error).removeprefix(f"{name}: "))
    if not tables:
        raise unnamed
    if left_out:
        tables[0].attrs["warnings"].append(f"left out: {'; '.join(left_out)}")
    return tables


def _named_by_path(source, name):
    """(the collective that a file's name, or the nearest folder's, names, and that reason), or None."""
    parts = () if name == "the text" else reversed(Path(source).parts)
    named = next(filter(None, map(named_in, parts)), None)
    return named and (named, "which its path names")


def _warn(tables, name):
    for at, table in enumerate(tables):
        which = name if len(tables) == 1 else f"{name}, [{at}] {_in_words(table)}"
        for sentence in table.attrs.get("warnings", []):
            warnings.warn(f"{which}: {sentence}", stacklevel=3)


def _in_words(table):
    """all_reduce on 4 ranks, 12 rows."""
    first, ranks = table.iloc[0], table.attrs.get("ranks")
    return f"{first['collective']}{f' on {ranks} ranks' if ranks else ''}, {count_text(len(table), 'row')}"


def _text(source):
    """The text, and what to call it in a sentence."""
    if isinstance(source, str) and ("\n" in source or "\r" in source):
        return _one_line_end(source), "the text"
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"a log is {source!r}: give the path of one, or its text")
    path = Path(source)
    try:
        found = path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        shown = str(source) if len(str(source)) < 200 else f"{str(source)[:200]}…"
        raise UsageError(f"{shown!r} cannot be read ({why}): give the path of a log, or its text") from error
    utf16 = found[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell writes
    return _one_line_end(found.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")), f"{path.name!r}"


def _one_line_end(text):
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _read_json(text):
    """The value of a text in JSON; None for a text that only begins like it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _in_json(found, name):
    if isinstance(found, dict) and "results" in found:
        return records.tables_of_json(found, name)
    if isinstance(found, list) and any(isinstance(each, dict) and "time" in each for each in found):
        return records.tables_of_records(found, name)
    raise UsageError(f"{name} is JSON of something else: expected {ACCEPTED}")
