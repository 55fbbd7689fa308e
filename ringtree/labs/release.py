"""Make a lab's learner version from its source, as nbgrader would: solutions out, stubs in, no outputs."""

import copy
import re
from pathlib import Path

import nbformat

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "# YOUR CODE HERE", "raise NotImplementedError"


def make_release(source):
    """The learner's notebook of a source notebook. Raises ValueError where a solution's markers do not pair."""
    release = copy.deepcopy(source)
    release.cells = [cell for cell in release.cells if "solution" not in cell.metadata.get("tags", [])]
    for cell in release.cells:
        cell.source = without_solutions(cell.source, cell.id)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    release.metadata = {"kernelspec": source.metadata["kernelspec"]}
    return nbformat.from_dict(release)


def without_solutions(text, where="the text"):
    """`text` with each marked solution replaced by a stub of the same indentation."""
    lines, inside = [], False
    for line in text.split("\n"):
        if line.strip() == BEGIN:
            if inside:
                raise ValueError(f"{where}: a second '{BEGIN}' before '{END}'")
            inside = True
            indent = re.match(r"\s*", line).group()
            lines += [indent + part for part in STUB]
        elif line.strip() == END:
            if not inside:
                raise ValueError(f"{where}: '{END}' without '{BEGIN}'")
            inside = False
        elif not inside:
            lines.append(line)
    if inside:
        raise ValueError(f"{where}: '{BEGIN}' without '{END}'")
    return "\n".join(lines)


def release_all(labs, write=True):
    """Make labs/release from labs/source; returns the paths that changed (or would, with write=False)."""
    changed = []
    for path in sorted(Path(labs, "source").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        target = Path(labs, "release", path.relative_to(Path(labs, "source")))
        text = nbformat.writes(make_release(nbformat.read(path, as_version=4))) + "\n"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            changed.append(target)
            if write:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
    return changed
