"""The cells of a learner's notebook, run afresh in the sandbox: no ranks, no lab, no picture, no output."""

import contextlib
import linecache
import signal
import sys
import time
import types

from IPython.core.inputtransformer2 import TransformerManager

from ringtree import labs
from ringtree.labs.lab import module_of

FOR_THE_RANKS = "px"  # a cell of this magic runs on the ranks; with --local, here
AS_THEY_STAND = "time", "timeit", "capture", "prun"  # magics whose cells run all the same
TOLD, LENGTH = 10, 200  # of what went wrong in cells: how many, and characters of each
A_CELL, CELLS = 10.0, 3  # seconds for one cell; all cells of a notebook together have three times as many


class TooLong(BaseException):
    """Raised in a cell that takes too long."""


class Quiet:
    """Stands for ranks, for a lab, for pictures, for a shell: takes every call and does nothing."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_, **__):
        return self

    def __getitem__(self, _):
        return self

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __format__(self, _):
        return ""


class QuietLab(Quiet):
    """A lab that checks nothing, and gives what a lab gives."""

    def __init__(self, name, *_, **__):
        self.name, self.given = name, getattr(module_of(name), "GIVEN", None)


def filename_of(number):
    return f"<cell {number}>"


def run_cells(texts, seconds=A_CELL):
    """Run cells one after the other; return (their names, what went wrong: a few words for each cell that failed).

    texts: {number: text}. seconds: for a cell; all have `CELLS` times as many. A cell that fails or takes too long is left, and
    the next one runs.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names.update(get_ipython=Quiet, display=Quiet())
    vars(sys.modules["ringtree"]).update(start=Quiet, draw=Quiet())
    labs.open = QuietLab
    wrong, until = [], time.monotonic() + CELLS * seconds
    for number, text in texts.items():
        left = min(seconds, until - time.monotonic())
        if left <= 0:
            wrong.append(f"cell {number} was not reached: the time for all cells was up")
            continue
        try:
            text = plain(text)
            linecache.cache[filename_of(number)] = (len(text), None, text.splitlines(True), filename_of(number))
            with _alarm(left):
                exec(compile(text, filename_of(number), "exec"), names)
        except TooLong:
            wrong.append(f"cell {number} was stopped: it had not ended after {left:.0f} s")
        except BaseException as error:  # an exit, too, ends its cell alone
            wrong.append(f"cell {number} raised {type(error).__name__}: {error}"[:LENGTH])
    return names, wrong[:TOLD]


def plain(text):
    """A cell as Python, its magics too; empty where it is not for this process. Its lines keep their numbers."""
    first, _, rest = text.partition("\n")
    if first.startswith("%%"):
        magic, *options = first[2:].split() or [""]
        here = magic in AS_THEY_STAND or magic == FOR_THE_RANKS and "--local" in options
        text = f"\n{rest}" if here else ""
    above = len(text) - len(text.lstrip("\n"))  # empty lines, which IPython would take away
    return "\n" * above + TransformerManager().transform_cell(text[above:])


@contextlib.contextmanager
def _alarm(seconds):
    def ring(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
