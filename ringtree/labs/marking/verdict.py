"""One verdict: how it is made beside the answer, in the sandbox, and how it is read by the process that marks."""

import json
import sys
import types
import unicodedata
from pathlib import Path

from jsonschema import Draft7Validator

from ringtree.errors import UsageError
from ringtree.labs.error_text import error_text
from ringtree.labs.judging import judge
from ringtree.labs.lab import module_of
from ringtree.labs.marking.cells import run_cells
from ringtree.labs.patches import put_back

MOST = 100_000  # bytes of a verdict
SAID = 5_000  # characters of its text: as JSON they always fit into MOST


def schema(most):
    """Return the JSON schema of a verdict on an exercise of `most` points."""
    return {
        "type": "object",
        "properties": {
            "points": {"type": "integer", "minimum": 0, "maximum": most},
            "says": {"type": "string", "minLength": 1, "maxLength": SAID},
        },
        "required": ["points", "says"],
        "additionalProperties": False,
    }


# ---------------------------------------------------------------- in the sandbox


def verdict_on(lab, name, cells, hidden, seconds, a_cell):
    """Return the verdict on one exercise: run the notebook's cells, then the ordinary check of the function `name`.

    cells: {number: text} of the code cells. hidden: as for `with_hidden`. seconds: for the check. a_cell: seconds for a cell.
    """
    exercise = with_hidden(lab, hidden)[name]
    with put_back():  # a cell may have replaced a function of torch's or of this package's
        names, wrong = run_cells(cells, a_cell)
    if not callable(names.get(name)):
        return _verdict(0, "; ".join([f"{name} is not defined in this notebook", *wrong]) + ".")
    try:
        found = judge(name, names[name], exercise, seconds)
    except KeyboardInterrupt as error:  # raised by the answer: here is no keyboard
        return _verdict(0, f"{name}: {error_text(name, error)}")
    except Exception as error:  # an answer of a kind for which the check was not made, or no memory left
        return _verdict(0, f"{name} could not be checked ({error_text(name, error)}).")
    if found.fault:
        return _verdict(0, found.fault)
    reached = f", and {exercise.levels[found.level - 1].name}" if found.level else ""
    return _verdict(1 + found.level, f"{name} is right{reached}. {found.next_level}".strip())


def _verdict(points, says):
    return {"points": points, "says": says if len(says) <= SAID else f"{says[: SAID - 2]} …"}


def with_hidden(lab, hidden):
    """Return a lab's exercises, with the cases that only the teacher has.

    hidden: the text of a module, or "". Its `EXTRA` has, by exercise, a function that yields more of what the exercise's own
    `cases` or `questions` yields.
    """
    exercises = dict(module_of(lab).EXERCISES)
    if hidden:
        module = types.ModuleType(f"hidden_{lab.replace('-', '_')}")
        sys.modules[module.__name__] = module
        exec(compile(hidden, f"<hidden cases of {lab}>", "exec"), vars(module))
        for name, more in module.EXTRA.items():
            if name not in exercises:
                raise UsageError(f"the hidden cases of {lab} name {name!r}; the lab has {', '.join(exercises)}")
            exercises[name] = exercises[name].with_more(more)
    return exercises


# ---------------------------------------------------------------- outside


def hidden_cases(lab, folder):
    """Return the text of a lab's hidden cases in a folder, or "" if there are none."""
    path = folder and Path(folder, f"{lab.replace('-', '_')}.py")
    return path.read_text(encoding="utf-8") if path and path.exists() else ""


def read(line, most):
    """Return (points, text) of a verdict, or None if these bytes are not a verdict on an exercise of `most` points."""
    if line is None or len(line) > MOST:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not Draft7Validator(schema(most)).is_valid(found):
        return None
    return int(found["points"]), plain(found["says"])


def plain(text):
    """Return a text without characters that command a terminal or reorder a line. HTML is escaped where a page is made."""
    kept = "".join(each if each == "\n" or not unicodedata.category(each).startswith("C") else " " for each in str(text))
    return kept.encode("utf-8", "replace").decode("utf-8").strip()
