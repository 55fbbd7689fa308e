"""A notebook's marks: for each exercise of its lab, one verdict out of the sandbox."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat

from ringtree.errors import UsageError
from ringtree.labs.lab import names
from ringtree.labs.marking.cells import A_CELL, CELLS
from ringtree.labs.marking.sandbox import Sandbox
from ringtree.labs.marking.verdict import hidden_cases, read, with_hidden

AN_EXERCISE, A_NOTEBOOK = 30.0, 300.0  # seconds
PATIENCE = 3  # times its seconds may a check take: the machine may be busy with other work
NO_VERDICT = (
    "{} has no verdict: the process that ran this notebook and its check ended early, or exceeded its time, memory or number "
    "of processes. Run the check in the notebook to see where."
)


@dataclass(frozen=True)
class Mark:
    """Of one exercise: one point for a right answer, and one for each level above. says: why not more, in a sentence."""

    name: str
    points: int
    most: int
    says: str


def mark(path, hidden=None, lab=None, seconds=A_NOTEBOOK, enclose=()):
    """Return the marks of a notebook, exercise by exercise, in the order of its lab.

    path: of the learner's notebook. hidden: a folder with more cases, a file `<lab>.py` for a lab, as for `with_hidden`.
    lab: its name; left out, the notebook's. seconds: in all; an exercise that is not reached by then has no points, and says
    so. enclose: the command that starts the sandbox, as for `Sandbox`.
    Raises UsageError if there is no such lab, or if the file is not a notebook.
    """
    lab = lab or Path(path).stem
    if lab not in names():
        raise UsageError(f"there is no lab called {lab!r}: name one of these with --lab, {', '.join(names())}")
    if sys.platform != "linux":
        raise UsageError(
            f"this is {sys.platform}: make marks on Linux, where the processes of a submission can be limited and ended"
        )
    cells, until, more = cells_of(path), time.monotonic() + seconds, hidden_cases(lab, hidden)
    with Sandbox(enclose) as sandbox:
        return [mark_exercise(sandbox, lab, name, cells, until, more) for name in with_hidden(lab, more)]


def cells_of(path):
    """Return {number: text} of a notebook's code cells, from 1. Raises UsageError if the file is not a notebook."""
    try:
        cells = nbformat.read(path, as_version=4).cells
        return dict(enumerate((cell.source for cell in cells if cell.cell_type == "code"), 1))
    except Exception as error:
        raise UsageError(
            f"{path} cannot be read as a notebook ({type(error).__name__}: {error}): give an .ipynb file"
        ) from None


def mark_exercise(sandbox, lab, name, cells, until, hidden=""):
    """Return the `Mark` of one exercise. until: of time.monotonic. hidden: as for `with_hidden`."""
    most = 1 + len(with_hidden(lab, hidden)[name].levels)
    seconds = min(AN_EXERCISE, until - time.monotonic())
    if seconds <= 0:
        return Mark(name, 0, most, f"{name} was not reached: the time for this notebook was up.")
    request = {"lab": lab, "name": name, "cells": cells, "hidden": hidden, "seconds": seconds, "a_cell": A_CELL}
    line = sandbox.ask(request, time.monotonic() + CELLS * A_CELL + PATIENCE * seconds)
    points, says = read(line, most) or (0, NO_VERDICT.format(name))
    return Mark(name, points, most, says)
