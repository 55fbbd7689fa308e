"""The learners' notebooks, labs/release: made from labs/source by nbgrader's own preprocessors, as the course configures them."""

import re
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment, NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config import PyFileConfigLoader

from ringtree.errors import UsageError
from ringtree.labs.lab import module_of, names

CONFIG = "nbgrader_config.py"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
FIRST = "00-first-evening"  # stands with the chapters: readers open it before they know of labs
CHECK = re.compile(r'lab\.check\("(\w+)"\)\s*')


def release_all(labs, write=True) -> list[Path]:
    """Make labs/release from labs/source; returns the paths that changed (or would, with write=False).

    What nbgrader has to know of a cell is noted in the source too. Raises UsageError where a solution's marks do not pair.
    """
    labs, changed = Path(labs).resolve(), []
    if not (labs / CONFIG).is_file():
        raise UsageError(f"there is no {CONFIG} in {labs}: nbgrader needs the course's configuration")
    with tempfile.TemporaryDirectory(prefix="ringtree-release-") as folder:
        sources, made = Path(folder, "source"), Path(folder, "release")
        for path in notebooks(labs / "source"):
            notebook = nbformat.read(path, as_version=4)
            describe(notebook, path.stem)
            _put(sources / path.relative_to(labs / "source"), nbformat.writes(notebook) + "\n")
        generate(sources, made, labs / CONFIG)
        first = [
            (place_of(labs, path.relative_to(made)), as_a_chapter(path.read_text(encoding="utf-8")))
            for path in notebooks(made / FIRST)
        ]
        shutil.rmtree(made / FIRST, ignore_errors=True)
        for new, kept in (sources, labs / "source"), (made, labs / "release"):
            changed += _update(new, kept, write)
    for path, text in first:
        if not _has(path, text):
            changed.append(path)
            if write:
                _put(path, text)
    return changed


def place_of(labs, name) -> Path:
    """Return where the learners' notebook of a lab stands. name: its path below labs/source."""
    folder = Path(name).parent.name
    return labs.parent / "notebooks" / f"{folder}.ipynb" if folder == FIRST else labs / "release" / name


def as_a_chapter(text) -> str:
    """Return the text of a notebook of `labs/source` with its links as they are in the folder `notebooks`."""
    return text.replace("](../../../", "](../")


def notebooks(folder) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


def describe(notebook, lab):
    """Note in each code cell what it is to nbgrader: where learners write, what is graded for how many points, what is given.

    A right answer is worth a point, and each level above it another. Raises UsageError where there is no such lab or exercise.
    """
    exercises = module_of(lab).EXERCISES if lab in names() else {}
    for cell in notebook.cells:
        _pair(cell)
        if cell.cell_type != "code":
            continue
        answer, check = BEGIN in cell.source, CHECK.fullmatch(cell.source)
        about = {"grade_id": cell.id, "schema_version": 3, "task": False}
        about |= {"solution": answer, "grade": bool(check), "locked": not answer}
        if check:
            if check[1] not in exercises:
                raise UsageError(f"{cell.id}: ringtree/labs/exercises has no lab {lab!r} with an exercise {check[1]!r}")
            about["points"] = 1 + len(exercises[check[1]].levels)
        cell.metadata["nbgrader"] = about


def _pair(cell):
    """nbgrader takes an end without a beginning as it is, and so would give away the solution above it."""
    marks = [line.strip() for line in cell.source.split("\n") if line.strip() in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise UsageError(f"{cell.id}: a solution stands between '{BEGIN}' and '{END}', and here one of them lacks the other")


def generate(sources, target, config):
    """`nbgrader generate_assignment` for every lab in the folder `sources`, into the folder `target`, without its database."""
    settings = PyFileConfigLoader(config.name, path=str(config.parent)).load_config()
    settings.SaveCells.enabled = False
    settings.GenerateAssignment.no_database = True
    course = CourseDirectory(
        config=settings,
        root=str(sources.parent),
        source_directory=sources.name,
        release_directory=target.name,
        assignment_id="*",
    )
    try:
        GenerateAssignment(coursedir=course, config=settings).start()
    except NbGraderException as error:
        raise UsageError(f"nbgrader could not make the learners' notebooks from {sources}: {error}") from None


def _update(new, kept, write):
    """Make the notebooks below `kept` those below `new`; returns those that were not."""
    wanted = {path.relative_to(new): path.read_text(encoding="utf-8") for path in notebooks(new)}
    gone = [kept / name for name in (path.relative_to(kept) for path in notebooks(kept)) if name not in wanted]
    for path in gone if write else ():
        shutil.rmtree(path.parent)
    stale = [kept / name for name, text in wanted.items() if not _has(kept / name, text)]
    for path in stale if write else ():
        _put(path, wanted[path.relative_to(kept)])
    return [*gone, *stale]


def _has(path, text):
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
