"""A notebook's marks: every exercise of its lab, judged apart from the learner's processes."""

import dataclasses
import importlib.util
import sys
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import nbformat

from ringtree.errors import UsageError
from ringtree.labs.exercise import Answer
from ringtree.labs.judging import judge
from ringtree.labs.lab import module_of, names
from ringtree.labs.marking.pipe import Ended
from ringtree.labs.marking.processes import BEGINNING, FEW, Nursery, Ranks
from ringtree.labs.marking.standin import ENDED, StandIn

AN_EXERCISE, A_NOTEBOOK = 30.0, 300.0  # seconds


@dataclass(frozen=True)
class Mark:
    """Of one exercise: one point for a right answer, and one for each level above. says: why not more, in a sentence."""

    name: str
    points: int
    most: int
    says: str


def mark(path, hidden=None, lab=None, seconds=A_NOTEBOOK, enclose=()):
    """The marks of a notebook, exercise by exercise, in the order of its lab.

    path: of the learner's notebook. hidden: a folder with more cases, a file `<lab>.py` for a lab: its `EXTRA` has, by
    exercise, a function that yields more of what the exercise's own `cases` or `questions` yields. lab: its name; left out,
    the notebook's. seconds: in all; an exercise that is not reached by then has no points, and says so. enclose: the command
    by which the learner's processes are started, as for `Nursery`.
    Raises UsageError where there is no such lab, or the file is no notebook.
    """
    lab = lab or Path(path).stem
    if lab not in names():
        raise UsageError(f"there is no lab called {lab!r}; these there are: {', '.join(names())}: name it with --lab")
    if sys.platform != "linux":
        raise UsageError(
            f"this is {sys.platform}: make marks on Linux, where the processes of a submission can be limited and ended"
        )
    cells, until, skip = cells_of(path), time.monotonic() + seconds, set()
    exercises, records = with_hidden(lab, hidden), records_of(lab)
    with Nursery(enclose) as nursery:
        return [mark_exercise(nursery, name, each, cells, exercises, until, records, skip) for name, each in exercises.items()]


def cells_of(path):
    """{number: text} of a notebook's code cells, from 1. Raises UsageError for what is no notebook."""
    try:
        cells = nbformat.read(path, as_version=4).cells
        return dict(enumerate((cell.source for cell in cells if cell.cell_type == "code"), 1))
    except Exception as error:
        raise UsageError(
            f"{path} cannot be read as a notebook ({type(error).__name__}: {error}): give an .ipynb file"
        ) from None


def with_hidden(lab, folder):
    """A lab's exercises, with the cases that only the teacher has."""
    exercises, path = dict(module_of(lab).EXERCISES), folder and Path(folder, f"{lab.replace('-', '_')}.py")
    if not path or not path.exists():
        return exercises
    spec = importlib.util.spec_from_file_location(f"hidden_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, more in module.EXTRA.items():
        if name not in exercises:
            raise UsageError(f"{path} has cases for {name!r}, and the lab has {', '.join(exercises)}")
        exercises[name] = _and(exercises[name], more)
    return exercises


def _and(exercise, more):
    kind = "questions" if isinstance(exercise, Answer) else "cases"
    own = getattr(exercise, kind)
    return dataclasses.replace(exercise, **{kind: lambda: [*own(), *more()]})


def records_of(lab):
    """Classes of a lab's own whose objects an answer may be made of."""
    given = getattr(module_of(lab), "GIVEN", ())
    return [each for each in given if isinstance(each, type) and dataclasses.is_dataclass(each)]


def mark_exercise(nursery, name, exercise, cells, names, until, records=(), skip=None):
    """The `Mark` of one exercise. names: of all exercises of the lab. until: of time.monotonic. skip: as for `Ranks`."""
    most = 1 + len(exercise.levels)
    seconds = min(AN_EXERCISE, until - time.monotonic())
    if seconds <= 0:
        return Mark(name, 0, most, f"{name} was not reached: the time for this notebook was up.")
    verdict, problems = verdict_of(nursery, name, exercise, cells, names, seconds, records, skip)
    if verdict is None:
        return Mark(name, 0, most, plain(problems))
    if verdict.wrong:
        return Mark(name, 0, most, plain(verdict.wrong))
    reached = [level if isinstance(level, str) else level.name for level in exercise.levels][: verdict.level]
    says = f"{name} is right{f', and {reached[-1]}' if reached else ''}. {verdict.more}"
    return Mark(name, 1 + verdict.level, most, plain(says))


def verdict_of(nursery, name, exercise, cells, names, seconds, records=(), skip=None):
    """(Verdict, "") as `ringtree.labs.judging.judge` gives it, or (None, why there is none)."""
    size = 1
    if not isinstance(exercise, Answer):
        cases = list(exercise.cases())  # drawn once: some are long
        size, exercise = max(case.size for case in cases), dataclasses.replace(exercise, cases=lambda: cases)
    with Ranks(nursery, cells, names, size, time.monotonic() + BEGINNING + seconds, set() if skip is None else skip) as ranks:
        try:
            ranks.prepare(min(size, FEW))
            first = ranks.idle(0)
        except Ended:
            return None, f"{name}: {ENDED}, before it could be called."
        if name not in first.defined:
            return None, "; ".join([f"{name} is not defined in this notebook", *first.wrong]) + "."
        try:
            stand_in = StandIn(name, exercise, ranks, cells, records)  # the harness runs where the function does
            judged = exercise if isinstance(exercise, Answer) else dataclasses.replace(exercise, harness=None)
            return judge(name, stand_in, judged, seconds), ""
        except Exception as error:  # an answer that a check was not made for
            return None, f"{name} returned what its check cannot judge ({type(error).__name__}: {error})."


def plain(text):
    """Without what a terminal or a page would take for commands."""
    kept = "".join(each if each == "\n" or not unicodedata.category(each).startswith("C") else " " for each in str(text))
    return kept.encode("utf-8", "replace").decode("utf-8").strip()
