"""For nbgrader's autograde: a submission is executed for what its learner is shown, and marked in the sandbox.

`labs/nbgrader_config.py` puts three preprocessors among nbgrader's own: `Restore` before all others, `ExecuteForFeedback` where
notebooks are executed, `WriteMarks` behind it. Nothing that the grading kernel prints or raises is a mark.
"""

import contextlib
import copy
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import nbformat
import psutil
from jupyter_client.manager import AsyncKernelManager
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Float, Integer, List, Unicode

from ringtree.errors import UsageError
from ringtree.labs.marking.rebuilding import keep_plain, rebuilt
from ringtree.labs.release import CHECK
from ringtree.live.processes import sockets

MARKED = "RINGTREE_GRADING"  # in the environment of all that a grading kernel starts


class Restore(NbGraderPreprocessor):
    """Rebuild a submission from the release: what a cell is to nbgrader, a learner cannot change."""

    release = Unicode("release", help="The folder with what learners were given, relative to the course's.").tag(config=True)

    def preprocess(self, nb, resources):
        told = resources["nbgrader"]
        given = Path(self.release, told["assignment"], f"{told['notebook']}.ipynb")
        if not given.is_file():
            raise UsageError(f"there is no {given}: run `nbgrader generate_assignment {told['assignment']}` first")
        return rebuilt(nb, nbformat.read(given, as_version=4)), resources


class ExecuteForFeedback(Execute):
    """Execute the notebook; however that ends, its marks are made in the sandbox. Nothing that it started is left.

    What it printed and drew is kept as text and pictures, and nothing else that its kernel sent.
    """

    enclose = List(Unicode(), help="The words of a command by which the kernel is started, as for WriteMarks.").tag(config=True)
    most_output = Integer(200_000, help="Of all cells, in characters; what comes after it is left out.").tag(config=True)

    def preprocess(self, nb, resources, **more):
        mark = uuid.uuid4().hex
        before, os.environ[MARKED] = os.environ.get(MARKED), mark
        self._left = self.most_output
        about = copy.deepcopy([nb.metadata, *(cell.metadata for cell in nb.cells)])
        try:
            with tempfile.TemporaryDirectory(
                prefix="kernel-", dir=sockets.parent(), ignore_cleanup_errors=True
            ) as self._folder:
                return super().preprocess(nb, resources, **more)
        except Exception as error:  # a kernel that died, or that could not be interrupted
            self.log.warning("The submission was not executed to its end: %s", error)
            return nb, resources
        finally:
            del os.environ[MARKED]
            if before is not None:
                os.environ[MARKED] = before
            _end(mark)
            nb.metadata, *of_cells = about
            for cell, cell.metadata in zip(nb.cells, of_cells):
                if cell.cell_type == "code":
                    keep_plain(cell)

    def create_kernel_manager(self):
        if self.enclose:
            self.kernel_manager_class = EnclosedKernelManager
        manager = super().create_kernel_manager()
        if self.enclose:
            manager.enclose(self.enclose, self._folder)
        return manager

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("status", "execute_input"):
            return super().process_message(msg, cell, cell_index)
        if self._left > 0:
            self._left -= len(json.dumps(msg["content"]))
            if self._left > 0:
                return super().process_message(msg, cell, cell_index)
            cell.outputs.append(new_output("stream", name="stdout", text="\n… all further output is left out\n"))
        return None


class EnclosedKernelManager(AsyncKernelManager):
    """Its kernel is started by a command that shares one folder with it, and nothing else: the channels are sockets there."""

    def enclose(self, command, folder):
        self._command = [*command, "--share", folder]
        self.transport, self.cache_ports, self.ip = "ipc", False, os.path.join(folder, "channel")
        self.connection_file = os.path.join(folder, "kernel.json")

    def format_kernel_cmd(self, extra_arguments=None):
        return [*self._command, *super().format_kernel_cmd(extra_arguments)]


def _end(mark):
    """End every process that was started with this mark."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKED) == mark:
                process.kill()


class WriteMarks(NbGraderPreprocessor):
    """Put in the place of each graded cell's outputs what `python -m ringtree.labs mark` says, as nbgrader reads points."""

    hidden = Unicode("hidden", help="The folder with the cases that only the teacher has, relative to the course's.").tag(
        config=True
    )
    seconds = Float(300.0, help="For all exercises of a notebook.").tag(config=True)
    enclose = List(Unicode(), help="The words of a command that starts the sandbox.").tag(config=True)

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
            command += ["--hidden", str(Path(self.hidden).resolve()), "--enclose", shlex.join(self.enclose)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        try:
            return {each["name"]: each for each in json.loads(done.stdout)}
        except ValueError:
            raise UsageError(f"{lab} could not be marked: {done.stderr.strip()[-1000:] or done.returncode}") from None


class FeedbackPage(HTMLExporter):
    """What a learner reads: their own cells and what was said of them. It asks no other server for anything.

    The lab's text, hints and pictures are left out: the learner has them, and formulas would stand here as they were typed.
    """

    def from_notebook_node(self, nb, resources=None, **more):
        told = nbformat.from_dict({**nb, "cells": [*_of_the_learner(nb.cells)]})
        page, resources = super().from_notebook_node(told, resources, **more)
        for found, put in CHANGES:
            page = re.sub(found, put, page)
        return page, resources


STYLE = """<meta name="viewport" content="width=device-width, initial-scale=1"/>
<style>
pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; }
.prompt, .anchor-link { display: none; }
.cell { margin: 0 0 1em; }
td, th { padding: 0.1em 0.8em 0.1em 0; }
@media (max-width: 600px) { .container, .panel-body, #notebook { padding-left: 4px; padding-right: 4px; } }
</style>
</head>"""
CHANGES = (  # of nbgrader's page
    (r'<script src="https?:[^"]*">\s*</script>', ""),
    ("</head>", STYLE),
    (r'(<a href="#(\w+)-check">)Test cell', r"\1<code>\2</code>"),
    (r"Grade cell: <code>(\w+)-check</code>", r"Check of <code>\1</code>"),
    ("Student's answer", "Your answer"),
)


def _of_the_learner(cells):
    """Yield what the learner has written and what each check says, below their headings. A check's points stand in its head."""
    above = []
    for cell in cells:
        about = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ .*", cell.source, re.MULTILINE)
            above += [nbformat.from_dict({**cell, "source": "\n\n".join(headings)})] * bool(headings)
        elif cell.cell_type == "code" and (about.get("grade") or not about.get("locked")):
            said = [each for each in cell.outputs if not about.get("grade") or each.output_type == "stream"]
            yield from above
            yield nbformat.from_dict({**cell, "outputs": said})
            above = []


def _outputs(mark):
    """Return what the learner reads, and the points: to nbgrader a single number is what a cell has earned."""
    points, says = (mark["points"], mark["says"]) if mark else (0, "Nothing was marked here.")
    number = new_output("execute_result", data={"text/plain": str(points)}, execution_count=1)
    return [new_output("stream", name="stdout", text=f"{says}\n"), number]
