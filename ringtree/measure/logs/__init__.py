"""Read what others measured: output of nccl-tests and of OSU's micro-benchmarks, and our own files.

    from ringtree.measure import logs
    theirs = logs.read("all_reduce_perf.log")
    compare({"here": table, "there": theirs})

`read` gives the columns of `ringtree.measure.measure`, in seconds, bytes and bytes a second; what a log
does not say is missing, and what it says of itself is in `.attrs`.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.measure.logs import nccl_tests, osu, ours
from ringtree.measure.table import KIND

ACCEPTED = "output of nccl-tests, output of OSU's micro-benchmarks, or CSV or JSON of ringtree.measure"


def read(source, *, ranks=None, collective=None):
    """The table in a log, as a DataFrame with the columns of `measure`.

    source: a path, or the text itself. It may hold several tables (types, operations, programs):
    all their rows are read. ranks, collective: what the log does not say; OSU's never says how
    many ranks ran, and counts the size of gathers, scatters and all-to-alls per rank.

    Bandwidths are size / time and `bus_factor` times that, where the ranks are known, for logs round them to
    two decimals. nccl-tests' time is its mean over calls and ranks, OSU's its mean over both too.
    `.attrs`: tool, version, ranks, devices, nccl, settings, … as far as the log says them. A log that ends
    in the middle gives the rows so far, `.attrs["truncated"]` and a warning.

    Raises UsageError, with one sentence, for a source that is none of these, has no row, or has a
    time that is no finite number.
    """
    try:
        collective = None if collective is None else find(collective, send_recv=True)
    except UsageError as error:
        raise UsageError(f"collective={error}") from None
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        raise UsageError(f"ranks={ranks!r}: give how many ranks ran, a whole number, 1 or more")
    text, name = _text(source)
    table = _reader(text, name)(text, name, ranks, collective)
    if table.attrs.get("truncated"):
        warnings.warn(f"{name}: {table.attrs['truncated']}", stacklevel=2)
    return table


def _text(source):
    """The text, with one sort of line end, and what to call it in an error."""
    if isinstance(source, Path) or "\n" not in str(source):
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"{str(source)!r} cannot be read ({error.strerror}): give the path of a log, or its text") from error
        return text.replace("\r\n", "\n"), f"{path.name!r}"
    return str(source).replace("\r\n", "\n"), "the text"


def _reader(text, name):
    """The function (text, name, ranks, collective) to table that reads such a text."""
    if text.startswith(f"# {KIND}"):
        return ours.read
    if text.lstrip().startswith("{"):
        return _read_json
    if re.search(r"\bOSU [\w-]+ .*Test", text):
        return osu.read
    if re.search(r"#\s+size\s+count\s+type\b.*\b(cpu)?time\b", text):
        return nccl_tests.read
    raise UsageError(f"{name} is nothing that can be read: expected {ACCEPTED}")


def _read_json(text, name, ranks, collective):
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{name} begins like JSON and is none (line {error.lineno}: {error.msg}): expected {ACCEPTED}"
        ) from error
    if KIND in found:
        return ours.table_of_json(found, name)
    if "results" in found and "nccl_version" in found:
        return nccl_tests.table_of_json(found, name, ranks, collective)
    raise UsageError(f"{name} is JSON of something else: expected {ACCEPTED}")
