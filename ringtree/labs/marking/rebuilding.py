"""A teacher who opens a submission opens nothing of its learner's but code, and text and pictures that this code made."""

import copy
import re
from collections import defaultdict

from nbformat.v4 import new_code_cell, new_output

PNG = re.compile(r"iVBORw0KGgo[A-Za-z0-9+/\n]*={0,2}\n?")  # base64 of a file that begins as PNG files do


def rebuilt(submitted, release):
    """Return the release of a lab with the code of a submission.

    Its code cells stand in the learner's order, so that helper functions work. Text, outputs, attachments and metadata are
    the release's. A code cell that the release does not have gets a new name; a cell that the learner deleted is missing.
    """
    release = copy.deepcopy(release)
    given, above, text = {}, defaultdict(list), []
    for cell in release.cells:
        if cell.cell_type == "code":
            given[_name(cell)] = cell
            above[_name(cell)], text = text, []
        else:
            text.append(cell)
    release.cells, more = [], 0
    for cell in submitted.cells:
        if cell.cell_type != "code":
            continue
        name = _name(cell)
        if name in given:
            known = given.pop(name)
            known.update(source=str(cell.source), outputs=[], execution_count=None)
            release.cells += [*above[name], known]
        else:
            more += 1
            release.cells.append(new_code_cell(str(cell.source), id=f"own-{more}"))
    release.cells += text
    return release


def _name(cell):
    about = cell.metadata.get("nbgrader")
    name = about.get("grade_id") if isinstance(about, dict) else None
    return str(name or cell.get("id"))


def keep_plain(cell):
    """Keep of a code cell's outputs their text and their PNG pictures: the kernel was the learner's, and may have sent anything."""
    cell.outputs = [plain for each in cell.outputs if (plain := _plain(each))]
    cell.execution_count = _number(cell.execution_count)


def _number(count):
    return count if type(count) is int else None  # the feedback page shows it unescaped


def _plain(output):
    if output.output_type == "stream":
        name = "stderr" if output.name == "stderr" else "stdout"
        return new_output("stream", name=name, text=str(output.text))
    if output.output_type == "error":
        lines = [str(line) for line in output.traceback]
        return new_output("error", ename=str(output.ename), evalue=str(output.evalue), traceback=lines)
    data = {name: text for name, text in output.data.items() if isinstance(text, str)}
    kept = {"text/plain": data["text/plain"]} if "text/plain" in data else {}
    if PNG.fullmatch(data.get("image/png", "")):
        kept["image/png"] = data["image/png"]
    if output.output_type == "execute_result":
        return new_output("execute_result", data=kept, execution_count=_number(output.execution_count))
    return kept and new_output("display_data", data=kept)
