"""For nbgrader's autograde: a submission is executed for what its learner is shown, and marked apart from that.

`labs/nbgrader_config.py` puts three preprocessors among nbgrader's own: `Restore` before the cells are compared with the
source's, `ExecuteForFeedback` where notebooks are executed, `WriteMarks` behind it. Nothing that the grading kernel prints
or raises is a mark.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import uuid
from pathlib import Path

import nbformat
import psutil
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Float, Unicode

from ringtree.errors import UsageError
from ringtree.labs.release import CHECK

MARKED = "RINGTREE_GRADING"  # in the environment of all that a grading kernel starts


class Restore(NbGraderPreprocessor):
    """What a cell is to nbgrader stands in the gradebook, and a learner cannot change it; it is put back here."""

    def preprocess(self, nb, resources):
        told = resources["nbgrader"]
        place = told["notebook"], told["assignment"]
        with Gradebook(told["db_url"]) as gradebook:
            notebook = gradebook.find_notebook(*place)
            sources = {cell.name: cell for cell in notebook.source_cells}  # each for one cell, the first of its name
            graded = {cell.name: cell.max_score for cell in notebook.grade_cells}
            solutions = {cell.name for cell in notebook.solution_cells}
            for cell in nb.cells:
                name = cell.metadata.pop("nbgrader", {}).get("grade_id")
                if name in sources:
                    cell.metadata["nbgrader"] = _about(sources.pop(name), graded.get(name), name in solutions)
        return nb, resources


def _about(source, points, solution):
    about = {"schema_version": 3, "grade_id": source.name, "locked": source.locked, "solution": solution, "task": False}
    about |= {"checksum": source.checksum, "cell_type": source.cell_type, "grade": points is not None}
    return about if points is None else about | {"points": points}


class ExecuteForFeedback(Execute):
    """Execute the notebook; however that ends, its marks are made elsewhere. Nothing that it started is left."""

    def preprocess(self, nb, resources, **more):
        mark = uuid.uuid4().hex
        before, os.environ[MARKED] = os.environ.get(MARKED), mark
        try:
            return super().preprocess(nb, resources, **more)
        except Exception as error:  # a kernel that died, or that could not be interrupted
            self.log.warning("The submission was not executed to its end: %s", error)
            return nb, resources
        finally:
            del os.environ[MARKED]
            if before is not None:
                os.environ[MARKED] = before
            _end(mark)


def _end(mark):
    """End every process that was started with this mark."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKED) == mark:
                process.kill()


class WriteMarks(NbGraderPreprocessor):
    """Put in the place of each graded cell's outputs what `python -m ringtree.labs mark` says, as nbgrader reads points."""

    hidden = Unicode("hidden", help="The folder, seen from the course's, with the cases that only the teacher has.").tag(
        config=True
    )
    seconds = Float(300.0, help="For all exercises of a notebook.").tag(config=True)

    def preprocess(self, nb, resources):
        told = resources["nbgrader"]
        marks = self._marks(nb, told["notebook"])
        with Gradebook(told["db_url"]) as gradebook:
            for cell in nb.cells:
                about = cell.metadata.get("nbgrader", {})
                if about.get("grade"):
                    source = gradebook.find_source_cell(about["grade_id"], told["notebook"], told["assignment"]).source
                    check = CHECK.fullmatch(source)
                    cell.outputs = _outputs(check and marks.pop(check[1], None))
        return nb, resources

    def _marks(self, nb, lab):
        """By exercise. Raises UsageError where the judge itself failed: then there are no marks at all."""
        with tempfile.TemporaryDirectory(prefix="ringtree-marks-") as folder:
            path = Path(folder, f"{lab}.ipynb")
            path.write_text(nbformat.writes(nb), encoding="utf-8")
            command = [sys.executable, "-m", "ringtree.labs", "mark", "--json", "--seconds", str(self.seconds), str(path)]
            command += ["--hidden", str(Path(self.hidden).resolve())]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        try:
            return {each["name"]: each for each in json.loads(done.stdout)}
        except ValueError:
            raise UsageError(f"{lab} could not be marked: {done.stderr.strip()[-1000:] or done.returncode}") from None


class FeedbackPage(HTMLExporter):
    """What a learner reads, without the script that nbgrader's page asks another server for."""

    def from_notebook_node(self, nb, resources=None, **more):
        page, resources = super().from_notebook_node(nb, resources, **more)
        return re.sub(r'<script src="https?:[^"]*">\s*</script>', "", page), resources


def _outputs(mark):
    """What the learner reads, and the points: to nbgrader a single number is what a cell has earned."""
    points, says = (mark["points"], mark["says"]) if mark else (0, "Nothing was marked here.")
    number = new_output("execute_result", data={"text/plain": str(points)}, execution_count=1)
    lines = [textwrap.fill(line, 96, subsequent_indent="  ") for line in says.split("\n")]  # nbgrader's page wraps none
    return [new_output("stream", name="stdout", text="\n".join([*lines, ""])), number]
