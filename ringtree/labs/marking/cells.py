"""The cells of a learner's notebook, run afresh in a process of their own: no ranks, no lab, no picture, no output."""

import contextlib
import linecache
import signal
import sys
import types

from IPython.core.inputtransformer2 import TransformerManager

from ringtree import labs
from ringtree.labs.lab import module_of

FOR_THE_RANKS = "px"  # a cell of this magic runs on the ranks; with --local, here
AS_THEY_STAND = "time", "timeit", "capture", "prun"  # magics whose cells run all the same
TOLD, LENGTH = 10, 200  # of what went wrong in cells: how many, and characters of each


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


def run_cells(texts, skip, seconds, begins):
    """Run cells one after the other; returns (their names, what went wrong: a sentence for each cell, cells that took too long).

    texts: {number: text}. skip: numbers of cells that are known to take too long. seconds: for each. begins(number) is told
    before a cell runs. A cell that fails is left, and the next one runs.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names.update(get_ipython=Quiet, display=Quiet())
    vars(sys.modules["ringtree"]).update(start=Quiet, draw=Quiet())
    labs.open = QuietLab
    wrong, late = [], []
    for number, text in texts.items():
        if number in skip:
            wrong.append(f"cell {number} was left out: it had not ended after {seconds:g} s")
            continue
        begins(number)
        try:
            text = plain(text)
            linecache.cache[filename_of(number)] = (len(text), None, text.splitlines(True), filename_of(number))
            with _alarm(seconds):
                exec(compile(text, filename_of(number), "exec"), names)
        except TooLong:
            late.append(number)
            wrong.append(f"cell {number} was left: it had not ended after {seconds:g} s")
        except BaseException as error:  # an exit, too, ends its cell alone
            wrong.append(f"cell {number} raised {type(error).__name__}: {error}"[:LENGTH])
    return names, wrong[:TOLD], late


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
