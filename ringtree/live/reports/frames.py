"""Which frames of a rank are the reader's own, and errors told by those frames alone."""

import importlib.util
import linecache
import os
import traceback as tb
from pathlib import Path

from ipykernel.compiler import get_tmp_directory

from ringtree.live.reports import works

PACKAGE = str(Path(__file__).parents[2]) + os.sep
STANDARD = os.path.dirname(os.__file__) + os.sep
ALGORITHMS = os.path.join(PACKAGE, "algorithms")
# `pip install --target` puts packages into folders of any name.
INSTALLED = "IPython ipykernel ipyparallel jupyter_client matplotlib numpy pandas torch tornado traitlets zmq".split()
LIBRARIES = tuple(
    os.path.join(folder, "")
    for name in INSTALLED
    if (found := importlib.util.find_spec(name))
    for folder in found.submodule_search_locations
)
SHOWN_ROOMS = (
    ALGORITHMS,
    *(os.path.join(PACKAGE, room) for room in ("command", "measure", "parallel")),
)  # programs that a reader runs


def is_readers(filename):
    """Cells, scripts, and this package's algorithms, techniques of training and measuring: not Python's, a library's or our own insides."""
    if filename.startswith((get_tmp_directory(), *SHOWN_ROOMS)):
        return True
    return (
        filename.endswith(".py")
        and not filename.startswith((PACKAGE, STANDARD, *LIBRARIES))
        and "site-packages" not in filename
    )


def line(filename, number):
    """(line number, source)."""
    return number, linecache.getline(filename, number).strip()


def short_traceback(etype, value, traceback, tb_offset=None, context=5):
    """The reader's own lines, then the error: no page of library frames. For IPython's `structured_traceback`."""
    lines, inside = [], None
    for frame, number in tb.walk_tb(traceback):
        filename, name = frame.f_code.co_filename, frame.f_code.co_name
        if is_readers(filename):
            number, source = line(filename, number)
            where = f"line {number}" if name == "<module>" else f"{name}, line {number}"
            lines.append(f"{'  ' * len(lines)}{where}: {source}")
            inside = None
        elif lines and name != "wrapper" and filename != works.__file__:
            inside = inside or name
    if inside:
        lines.append(f"{'  ' * len(lines)}inside {inside}")
    return [*lines, *(each.rstrip("\n") for each in tb.format_exception_only(etype, value))]
