"""A lab's page: the learners' notebook, and below each place where a learner writes our solution, folded.

The page is made from labs/source while Sphinx reads the notebook in labs/release, so what readers download has no solution.
Setting RINGTREE_SOLUTIONS=0 leaves the solutions out of the pages too.
"""

import os
from pathlib import Path

import executed
import nbformat

from ringtree.labs.release import as_a_chapter

ROOT = Path(__file__).resolve().parent.parent.parent
MARKS = "### BEGIN SOLUTION", "### END SOLUTION"
FOLD = "::::{{admonition}} Solution\n:class: dropdown solution\n\n```python\n{code}\n```\n\n{words}\n::::"


def are_shown():
    return os.environ.get("RINGTREE_SOLUTIONS") != "0"


def source_of(path):
    """The notebook with our solutions that a learners' notebook is made from: of a lab, or of the first evening."""
    sources = ROOT / "labs" / "source"
    if path.parent.name == "notebooks":
        return sources / path.stem / f"{path.stem.partition('-')[2]}.ipynb"
    return sources / path.relative_to(ROOT / "labs" / "release")


def text_of(path):
    """The text of the learners' notebook at `path`, as its page shows it."""
    learners = nbformat.read(path, as_version=4)
    source = source_of(path)
    if are_shown() and source.is_file():
        learners.cells = with_folds(learners, nbformat.read(source, as_version=4))
    return nbformat.writes(learners)


def text_of_the_first(path):
    """The text of the first evening, which stands with the chapters: as a lab's, with the outputs of its source's kept run."""
    learners = nbformat.read(path, as_version=4)
    source = source_of(path)
    if source.is_file():
        solved = nbformat.reads(as_a_chapter(executed.text_of(source)), as_version=4)
        ran = {cell.id: cell.outputs for cell in solved.cells if cell.cell_type == "code"}
        for cell in learners.cells:
            if cell.cell_type == "code" and not cell.metadata["nbgrader"]["solution"]:
                cell.outputs = ran[cell.id]
        if are_shown():
            learners.cells = with_folds(learners, solved)
    return nbformat.writes(learners)


def with_folds(learners, source):
    folds = folded(source)
    return [each for cell in learners.cells for each in (cell, folds.get(cell.id)) if each]


def folded(source):
    """{id of the cell that a learner fills: a cell with our solution, and with what we say about it}."""
    found = {}
    for cell in source.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            code = "\n".join(line for line in cell.source.split("\n") if line.strip() not in MARKS)
            found[answer := cell.id] = [code]
        elif "solution" in cell.metadata.get("tags", ()):
            found[answer].append(cell.source)
    return {
        name: nbformat.v4.new_markdown_cell(FOLD.format(code=code, words="\n\n".join(words)), id=f"{name}-solution")
        for name, (code, *words) in found.items()
    }
