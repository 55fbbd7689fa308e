"""Every answer to every exercise, and what the check makes of it: judged once, kept until something that it rests on changes.

    python trials/verdicts.py        judge what is not kept, two labs at a time, into _build/verdicts

The tests assert what the verdicts have to be; the book's page "Graders, graded" lists them (`book/ext/graders.py`).
"""

import functools
import hashlib
import importlib
import itertools
import json
import linecache
import re
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nbformat
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "trials")) if path not in sys.path]

from ringtree import labs
from ringtree.labs.judging import judge
from ringtree.labs.lab import module_of
from ringtree.labs.release import place_of

KEPT = ROOT / "_build" / "verdicts"
LABS = ROOT / "labs"
NAMES = labs.names()
EXERCISES = [(lab, name) for lab in NAMES for name in module_of(lab).EXERCISES]


def top(lab, name):
    """The number of levels of an exercise: what a right answer reaches."""
    return len(module_of(lab).EXERCISES[name].levels)


ANSWERS = {lab: importlib.import_module(f"answers.{lab.replace('-', '_')}") for lab in NAMES}
AT_ONCE = 2
# Answers of another kind altogether: each question has to say what it expected.
RUBBISH = (
    None,
    True,
    3,
    -1.5,
    float("nan"),
    1j,
    "",
    "text",
    [],
    [1, 2, 3],
    (None, None),
    {},
    {"a": 1},
    {1},
    torch.ones(3),
    [[torch.ones(2)]],
    object,
)

_numbers = itertools.count()


class Notebook(dict):
    """Names of a notebook whose cells are run here: texts can be found again, as in a kernel."""

    def __init__(self):
        super().__init__(torch=torch, __name__="__main__")

    def run(self, text):
        text = "\n".join(line for line in textwrap.dedent(text).split("\n") if not line.startswith("%%")).strip("\n") + "\n"
        filename = f"cell-{next(_numbers)}.py"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        exec(compile(text, filename, "exec"), self)
        return self


def source_of(lab):
    (path,) = LABS.glob(f"source/*/{lab}.ipynb")
    return path


def release_of(lab):
    return place_of(LABS, source_of(lab).relative_to(LABS / "source"))


def learners_cells(lab, of=source_of):
    """The cells of a lab in which learners write, with our solutions or of its release, run one after the other."""
    notebook = Notebook()
    for cell in nbformat.read(of(lab), as_version=4).cells:
        if cell.id == "start":
            notebook["lab"] = SimpleNamespace(given=getattr(module_of(lab), "GIVEN", None))
            notebook.run("\n".join(line for line in cell.source.split("\n") if not re.match(r"(ranks|lab) = ", line)))
        if cell.metadata.get("nbgrader", {}).get("solution"):
            notebook.run(cell.source)
    return notebook


def answers_to(lab, name):
    """(what it is, its text or "our solution" or "the stub") of every answer to an exercise."""
    yield "our solution", "our solution"
    yield "the stub", "the stub"
    for what, text in ANSWERS[lab].RIGHT.get(name, {}).items():
        yield f"right: {what}", text
    for what, (text, _) in ANSWERS[lab].WRONG.get(name, {}).items():
        yield f"wrong: {what}", text


def judged(lab, name, text):
    """What the check makes of an answer, now: `labs.judging`'s verdict."""
    if text in ("our solution", "the stub"):
        namespace = learners_cells(lab, release_of if text == "the stub" else source_of)
    else:
        namespace = Notebook().run(text)
    return judge(name, namespace[name], module_of(lab).EXERCISES[name], seconds=0.3 if "while True" in text else 20)


@functools.cache
def verdict(lab, name, text):
    """The verdict on an answer of `answers_to`, with `fault`, `next_level` and `level`, from what is kept where that is good."""
    return of_lab(lab)[name][text]


@functools.cache
def of_lab(lab):
    """{exercise: {text: verdict}} of a lab, judged where what is kept rests on other files."""
    path, rests_on = KEPT / f"{lab}.json", fingerprint(lab)
    kept = json.loads(path.read_text()) if path.is_file() else {}
    if kept.get("rests on") != rests_on:
        found = {}
        for name in module_of(lab).EXERCISES:
            each = {text: judged(lab, name, text) for _, text in answers_to(lab, name)}
            found[name] = {text: [one.fault, one.next_level, one.level] for text, one in each.items()}
        kept = {"rests on": rests_on, "found": found}
        KEPT.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{next(_numbers)}")
        new.write_text(json.dumps(kept))
        new.replace(path)
    return {
        name: {
            text: SimpleNamespace(fault=fault, next_level=next_level, level=level)
            for text, (fault, next_level, level) in each.items()
        }
        for name, each in kept["found"].items()
    }


@functools.cache
def _package():
    files = (path for path in sorted((ROOT / "ringtree").rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return b"".join(path.read_bytes() for path in files)


def fingerprint(lab):
    """A hash of all that the verdicts of a lab rest on: the package, its answers and notebooks, torch and Python."""
    found = hashlib.sha256(f"{torch.__version__} {sys.version}".encode() + _package())
    for path in (Path(__file__), Path(ANSWERS[lab].__file__), source_of(lab), release_of(lab)):
        found.update(path.read_bytes())
    return found.hexdigest()


def main():
    torch.set_num_threads(1)
    with ProcessPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_keep, NAMES))


def _keep(lab):
    torch.set_num_threads(1)
    of_lab(lab)


if __name__ == "__main__":
    main()
